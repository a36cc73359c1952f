"""Strips in a terminal: runs of bytes to scale in whole columns, with names, gaps and ticks."""

from collections.abc import Iterable
from typing import NamedTuple

from rich.text import Text

from kvexact.fuzz.pictures.scale import Scale

#: Columns of the label before a strip, and of a gap inside it.
LABEL, GAP = 14, 8

#: What starts a run that differs from the one before by its place alone.
EDGE = "\u258f"


class Mark(NamedTuple):
    """Bytes [start, end) of a strip.

    Attributes:
        name: shown where it fits; else its first character is.
        fill: the character for the rest.
        style: of rich.
    """

    start: int
    end: int
    name: str
    fill: str
    style: str


def line(label: str, strip: Text) -> Text:
    """A strip behind its label."""
    label = f"{label:{LABEL - 1}.{LABEL - 1}} "
    return Text(label, no_wrap=True).append_text(strip)


def strip(scale: Scale, marks: Iterable[Mark], gaps: Iterable[int] = ()) -> Text:
    """Marks to scale, in whole columns; one too narrow takes a column from the mark before it."""
    columns: list[tuple[str, str]] = [(" ", "")] * round(scale.width)
    taken = 0
    for mark in marks:
        for x0, x1 in scale.clip(mark.start, mark.end):
            first, last = max(round(x0), 0), round(x1)
            if first == last and first > taken + 1:
                first -= 1
            name = mark.name if len(mark.name) <= last - first else mark.name[:1]
            body = f"{name:{mark.fill}<{last - first}}"[: last - first]
            columns[first:last] = [(letter, mark.style) for letter in body]
            taken = first
    for x, count in zip(scale.gaps(), gaps, strict=False):
        text = f"\u22ef{count}\u22ef"
        for i, letter in enumerate(f"{text:^{GAP}.{GAP}}"):
            columns[round(x) + i] = (letter, "dim")
    drawn = Text()
    for letter, style in columns:
        drawn.append(letter, style)
    return drawn


def ticks(scale: Scale, at: Iterable[int], add: int = 0) -> Text:
    """Labels of bytes under a strip, those that find room; the strip's end at the right."""
    end = f"{scale.spans[-1][1] + add:,}"
    text = " " * (round(scale.width) - len(end)) + end
    free = 0
    for byte in at:
        for x, _ in scale.clip(byte, byte + 1):
            label = f"{byte + add:,}"
            first = round(x)
            if free <= first and first + len(label) < round(scale.width) - len(end):
                text = text[:first] + label + text[first + len(label) :]
                free = first + len(label) + 1
    return Text(text, "dim")
