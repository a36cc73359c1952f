"""Strips of an SVG: runs of bytes to scale, with names, ticks, gaps and marks of wrong bytes."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from kvexact.fuzz.pictures.scale import Scale
from kvexact.fuzz.pictures.svg import Canvas, text_width
from kvexact.fuzz.pictures.wrong import Positions

#: Where strips start, how wide they are, and the space of a gap, px.
LEFT, STRIP, GAP = 176, 900, 58
WIDTH, MARGIN = 1100, 24
LANE = 20

PATTERN_FILLS = {
    "padding": "url(#padding)",
    "unused": "url(#unused)",
    "base": "url(#frame)",
    "tail": "url(#frame)",
}
WRONG_FILL = "#e5182b"


def draw_run(
    canvas: Canvas, scale: Scale, start: int, end: int, fill: str, title: str,
    name: str = "", kind: str = "in", height: float = LANE,
) -> None:  # fmt: skip
    """Draw [start, end) of a strip at the canvas' y, named where its name fits."""
    for x0, x1 in scale.clip(start, end):
        canvas.rect(LEFT + x0, canvas.y, x1 - x0, height, fill, title)
        if name and text_width(name, 10) + 4 <= x1 - x0:
            middle, base = LEFT + (x0 + x1) / 2, canvas.y + height / 2 + 3.5
            canvas.text(middle, base, name, kind, "middle")


def draw_gaps(
    canvas: Canvas, scale: Scale, counts: Iterable[int], wrong: Positions, height: float = LANE
) -> None:
    """Say in each gap of a strip how many items it leaves out; in red where some are wrong."""
    edges = [(before[1], after[0]) for before, after in pairwise(scale.spans)]
    for x, count, gap in zip(scale.gaps(), counts, edges, strict=True):
        low, high = np.searchsorted(wrong, gap)
        text = f"\u22ef {count:,}" if count < 10**6 else f"\u22ef {count:.1e}"
        base = canvas.y + height / 2 + 3.5
        kind = "tick wrong" if low < high else "tick"
        canvas.text(LEFT + x + scale.gap / 2, base, text, kind, "middle")


def draw_tick(canvas: Canvas, x: float, byte: int, row: int = 0, anchor: str = "start") -> None:
    """A tick at ``x`` of a strip that ends at the canvas' y, its label beside it in a row below."""
    canvas.line(LEFT + x, canvas.y, 4 + 10 * row)
    beside = LEFT + x + (2 if anchor == "start" else -2)
    canvas.text(beside, canvas.y + 9 + 10 * row, f"{byte:,}", "tick", anchor)


def draw_ticks(canvas: Canvas, scale: Scale, at: Iterable[int]) -> None:
    """Tick labels under a strip, in bytes, its end included; a label without room is left out."""
    end = scale.spans[-1][1]
    limit = scale.width - text_width(f"{end:,}", 9) - 8
    free = 0.0
    for byte in at:
        for x, _ in scale.clip(byte, byte + 1):
            width = text_width(f"{byte:,}", 9) + 8
            if free <= x and x + width <= limit:
                draw_tick(canvas, x, byte)
                free = x + width
    draw_tick(canvas, scale.width, end, 0, "end")
    canvas.y += 12


def draw_marks(
    canvas: Canvas, scale: Scale, positions: Positions, height: float = LANE, *, arrow: bool = True
) -> None:
    """Underline wrong bytes of a strip in red, at least 2 px wide, with an arrow above.

    What the bytes are stays visible in the upper part of the strip.
    """
    pointed = -10.0
    for x0, x1 in _pixels(scale, positions):
        x, width = LEFT + x0, max(x1 - x0, 2.0)
        canvas.rect(x, canvas.y + height - 6, width, 8, WRONG_FILL, "wrong bytes")
        canvas.rect(x, canvas.y - 2, width, 2, WRONG_FILL)
        middle = x + width / 2
        if arrow and middle >= pointed + 10:
            canvas.path(f"M{middle - 4:.1f} {canvas.y - 9:.1f}h8l-4 6z", WRONG_FILL)
            pointed = middle


def _pixels(scale: Scale, positions: Positions) -> Iterable[tuple[float, float]]:
    """Stretches of the strip, joined by the pixel, that hold one of ``positions``."""
    left = 0.0
    for first, stop in scale.spans:
        low, high = np.searchsorted(positions, (first, stop))
        starts = (positions[low:high] - first) * scale.per_byte
        cuts = np.flatnonzero(np.diff(starts) > max(scale.per_byte * 1.5, 1.0)) + 1
        for part in np.split(starts, cuts):
            if part.size:
                yield left + float(part[0]), left + float(part[-1]) + scale.per_byte
        left += (stop - first) * scale.per_byte + scale.gap
