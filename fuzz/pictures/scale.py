"""Bytes to a line of limited width: which items to leave out, and where the others are drawn."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[int, int]


def kept(count: int, limit: int, focus: Iterable[int] = ()) -> list[range]:
    """About ``limit`` of ``count`` items in stretches: both ends, and those in ``focus``.

    The first items of ``focus`` come with a neighbour on each side. A gap leaves out two items at
    least.
    """
    if count <= limit:
        return [range(count)]
    wanted = sorted(set(focus))[: max(limit // 6, 1)]
    ends = limit - 3 * len(wanted)
    chosen = {*range(max(ends * 2 // 3, 1)), *range(count - max(ends // 3, 1), count)}
    for item in wanted:
        chosen |= {max(item - 1, 0), item, min(item + 1, count - 1)}
    ranges: list[range] = []
    for item in sorted(chosen):
        if ranges and item <= ranges[-1].stop + 1:
            ranges[-1] = range(ranges[-1].start, item + 1)
        else:
            ranges.append(range(item, item + 1))
    return ranges


def left_out(ranges: Sequence[range]) -> list[int]:
    """How many items each gap between stretches leaves out."""
    return [after.start - before.stop for before, after in pairwise(ranges)]


def spans_of(ranges: Sequence[range], starts: Sequence[int], end: int) -> list[Span]:
    """Bytes of stretches of items that start at ``starts``; the last item reaches to ``end``."""
    stops = [starts[r.stop] if r.stop < len(starts) else end for r in ranges]
    return [(starts[r.start], stop) for r, stop in zip(ranges, stops, strict=True)]


@dataclass(frozen=True, slots=True)
class Scale:
    """A line that shows some spans of bytes side by side, to one scale.

    Attributes:
        spans: [first, end) of the bytes shown, in order.
        per_byte: width of a byte.
        gap: width between two spans.
    """

    spans: tuple[Span, ...]
    per_byte: float
    gap: float

    @classmethod
    def fit(cls, spans: Sequence[Span], width: float, gap: float) -> "Scale":
        """The scale at which ``spans`` fill ``width``."""
        shown = sum(end - first for first, end in spans)
        return cls(tuple(spans), (width - gap * (len(spans) - 1)) / shown, gap)

    @property
    def width(self) -> float:
        """From the first byte shown to the end of the last."""
        shown = sum(end - first for first, end in self.spans)
        return shown * self.per_byte + self.gap * (len(self.spans) - 1)

    def clip(self, start: int, end: int) -> Iterator[tuple[float, float]]:
        """Where [start, end) is drawn: a stretch of the line for every span that it meets."""
        left = 0.0
        for first, stop in self.spans:
            low, high = max(start, first), min(end, stop)
            if low < high:
                yield left + (low - first) * self.per_byte, left + (high - first) * self.per_byte
            left += (stop - first) * self.per_byte + self.gap

    def gaps(self) -> Iterator[float]:
        """Where each gap starts."""
        left = 0.0
        for first, stop in self.spans[:-1]:
            left += (stop - first) * self.per_byte
            yield left
            left += self.gap
