"""What a report shows as tables, worked out from counts: rows of text, each with what it means."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from kvexact.fuzz import coverage
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.features import known_features
from kvexact.fuzz.results import Part
from kvexact.impl.target import Target
from kvexact.refmodel.ops import OP_REASONS, OPS
from kvexact.refmodel.spec import GEOMETRY_REASONS

#: An op kind and another one, or a reason.
Pair = tuple[str, str]

#: Shades of a matrix, from the palest.
SHADES = 5


class Cell(NamedTuple):
    """A number in a matrix.

    Attributes:
        text: short, e.g. "1.2k"; empty where it was never met.
        shade: 1 … `SHADES`; 0: never met.
        title: the whole of it.
        able: False: it cannot be met.
    """

    text: str
    shade: int
    title: str
    able: bool


class Matrix(NamedTuple):
    """Numbers by two names."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def cells(self) -> list[Cell]:
        """Those that can be met."""
        return [cell for _, row in self.rows for cell in row if cell.able]

    @property
    def met(self) -> int:
        return sum(cell.shade > 0 for cell in self.cells)

    @property
    def never(self) -> list[str]:
        """Titles of cells that were never met."""
        return [cell.title for cell in self.cells if not cell.shade]


class Chip(NamedTuple):
    """A thing that may be met, and how often it was."""

    name: str
    times: int


def matrix(
    counts: Counter[Pair],
    rows: Sequence[str],
    columns: Sequence[str],
    able: Container[Pair],
    words: str = "{0}, {1}",
) -> Matrix:
    """Numbers of (row, column); the shade grows with the logarithm.

    Args:
        able: what can be met.
        words: how a cell is named.
    """
    most = max(counts.values(), default=0)

    def cell(pair: Pair) -> Cell:
        times, name = counts[pair], words.format(*pair)
        if not times:
            return Cell("", 0, name, pair in able)
        shade = 1 + (times.bit_length() * SHADES - 1) // (most.bit_length() + 1)
        return Cell(short(times), min(shade, SHADES), f"{name}: {times:,}", able=True)

    return Matrix(
        tuple(columns),
        tuple((row, tuple(cell((row, column)) for column in columns)) for row in rows),
    )


def short(number: int) -> str:
    """A number in at most four characters: 999, 1.2k, 12k, 3.4M."""
    value, units = float(number), iter("kMGTPE")
    unit = ""
    while value >= 999.5:
        value, unit = value / 1000, next(units)
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


def op_pairs(counts: Counts) -> Matrix:
    """How often each kind of op acted after each other kind, of kinds that acted at all."""
    acted = [kind for kind in OPS if any(kind in pair for pair in counts.pairs)]
    return matrix(counts.pairs, acted, acted, coverage.pairs(Target), "{0} then {1}")


def op_refusals(counts: Counts) -> Matrix:
    """Refused ops by kind and reason, of kinds that were refused at all."""
    kinds = [kind for kind in OPS if any(of == kind for of, _ in counts.reasons)]
    return matrix(
        counts.reasons, kinds, OP_REASONS, coverage.refusals(Target), "{0} refused for {1}"
    )


def geometry_refusals(counts: Counts) -> list[Chip]:
    """Refused geometries by reason; then those that a target declined."""
    refused = [Chip(reason, counts.geometries[f"refused:{reason}"]) for reason in GEOMETRY_REASONS]
    declined = sorted(name for name in counts.geometries if name.startswith("declined:"))
    return refused + [Chip(name.replace(":", " "), counts.geometries[name]) for name in declined]


def feature_groups(counts: Counts) -> Iterator[tuple[str, list[Chip]]]:
    """Features of geometries, those that are named alike together."""
    rest = []
    groups: dict[str, list[Chip]] = {"order": [], "format": []}
    for name in known_features(counts.acted_kinds):
        first, _, short_name = name.partition(" ")
        if first in groups:
            groups[first].append(Chip(short_name, counts.features[name]))
        else:
            rest.append(Chip(name, counts.features[name]))
    yield "Orders", groups["order"]
    yield "Formats", groups["format"]
    yield "Shapes", rest


def op_rows(counts: Counts) -> list[tuple[str, ...]]:
    """A heading, a row for each kind of op, and one for all of them."""
    outcomes = ["acted", "refused", "no-op", *(["unsent"] if counts.outcome("unsent") else [])]
    rows: list[tuple[str, ...]] = [("op", *outcomes, "bytes that had to change")]
    for kind in OPS:
        numbers = [counts.ops[kind, outcome] for outcome in outcomes]
        if any(numbers):
            rows.append((kind, *map(number, numbers), number(counts.changed_bytes[kind])))
    totals = [counts.outcome(outcome) for outcome in outcomes]
    rows.append(("all", *map(number, totals), number(counts.changed_bytes.total())))
    return rows


def family_rows(parts: Iterable[Part]) -> list[tuple[str, ...]]:
    """A heading, and a row for each family of each target."""
    parts = list(parts)
    several = len({part.target for part in parts}) > 1
    heading = ("family", "accepted", "refused", "declined", "ops acted", "bytes compared")
    rows: list[tuple[str, ...]] = [heading]
    for part in parts:
        counts, verdicts = part.counts, part.counts.geometries
        refused = sum(n for name, n in verdicts.items() if name.startswith("refused"))
        declined = sum(n for name, n in verdicts.items() if name.startswith("declined"))
        name = f"{part.target}, {part.family}" if several else part.family
        numbers = (verdicts["accepted"], refused, declined, counts.acted, counts.compared_bytes)
        rows.append((name, *map(number, numbers)))
    return rows


def number(value: int) -> str:
    """A number with its thousands apart."""
    return f"{value:,}"


def launch_rows(counts: Counts) -> list[tuple[str, ...]]:
    """A heading, and a row for each kind of launch and copy."""
    rows: list[tuple[str, ...]] = [("launch or copy", "times")]
    return rows + [(name, number(times)) for name, times in sorted(counts.launches.items())]
