"""What lies inside a page: rows of equal cells, in address order, down to the field of a byte."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kvexact.refmodel.address import Placement, axes_of
from kvexact.refmodel.spec import Geometry

_AXIS_WORDS = {"P": "kernel block", "S": "half", "H": "head", "N": "token"}
_AXIS_LETTERS = {"kernel block": "kb", "half": "", "head": "h", "token": "t"}


class CellField(NamedTuple):
    """A field inside one cell; ``offset`` counts bytes from the start of the cell (of its half)."""

    name: str
    offset: int
    width_bytes: int


class PageRow(NamedTuple):
    """Neighbouring cells of a page along its innermost axis.

    Attributes:
        start: bytes from the page's first byte.
        where: (axis word, index) of each axis that the row fixes, outermost first.
        axis: the word of the axis along which its cells lie.
        cells: number of cells.
        cell_bytes: bytes of one of them: of a whole cell, or of its half where pages are split.
    """

    start: int
    where: tuple[tuple[str, int | str], ...]
    axis: str
    cells: int
    cell_bytes: int
    fields: tuple[CellField, ...]

    @property
    def length(self) -> int:
        return self.cells * self.cell_bytes

    @property
    def label(self) -> str:
        """Which row of the page it is: "head 0", or, where several axes number rows, "kb1 k h0"."""
        if len(self.where) > 1:
            return " ".join(f"{_AXIS_LETTERS[word]}{index}" for word, index in self.where)
        return " ".join(f"{word} {index}" for word, index in self.where)


class Spot(NamedTuple):
    """What one byte of a page is; ``byte`` counts inside the field of one cell."""

    row: int
    cell: int
    field: CellField
    byte: int


@dataclass(frozen=True, slots=True)
class PageMap:
    """One page of a layer set: row after row in address order. Rows are made on demand.

    Attributes:
        outer: axes that number the rows, outermost first, with their extents.
        inner: the axis along which the cells of a row lie.
    """

    placement: Placement
    outer: tuple[tuple[str, int], ...]
    inner: str
    split: bool

    def __len__(self) -> int:
        count = 1
        for _, extent in self.outer:
            count *= extent
        return count

    def row(self, index: int) -> PageRow:
        """Row number ``index``."""
        at: dict[str, int] = {}
        for axis, extent in reversed(self.outer):
            index, at[axis] = divmod(index, extent)
        half = "kv"[at["S"]] if self.split else ""
        places = [p for p in self.placement.places if p.field.half in (half or "kv")]
        origin = self.placement.places[0].offset
        first = places[0]
        start = first.offset - origin + sum(first.strides[a] * i for a, i in at.items() if a != "S")
        fields = tuple(
            CellField(p.field.name, p.offset - first.offset, p.field.width_bytes) for p in places
        )
        where = tuple(
            (_AXIS_WORDS[axis], half if axis == "S" else at[axis])
            for axis, extent in self.outer
            if extent > 1
        )
        width = sum(field.width_bytes for field in fields)
        cells = self.placement.extents[self.inner]
        return PageRow(start, where, _AXIS_WORDS[self.inner], cells, width, fields)

    def rows(self) -> Iterator[PageRow]:
        return (self.row(index) for index in range(len(self)))

    def spot(self, byte: int) -> Spot:
        """What content byte ``byte``, counted from the page's first byte, is."""
        number = bisect_right(range(len(self)), byte, key=lambda index: self.row(index).start) - 1
        return self._spot(number, byte - self.row(number).start)

    def spot_of_content(self, byte: int) -> Spot:
        """The same, counted over the page's content alone, as in a host row."""
        for number, row in enumerate(self.rows()):
            if byte < row.length:
                return self._spot(number, byte)
            byte -= row.length
        raise IndexError(byte)

    def words(self, spot: Spot) -> str:
        """Where a spot is: "head 0 token 3 field v byte 5"."""
        row = self.row(spot.row)
        indices = dict((*row.where, (row.axis, spot.cell)))
        places = [
            f"{word} {indices.get(word, 0)}"
            for word in _AXIS_WORDS.values()
            if word in indices or word in ("head", "token")
        ]
        return " ".join([*places, f"field {spot.field.name} byte {spot.byte}"])

    def _spot(self, number: int, byte: int) -> Spot:
        cell, inside = divmod(byte, self.row(number).cell_bytes)
        field = next(f for f in reversed(self.row(number).fields) if f.offset <= inside)
        return Spot(number, cell, field, inside - field.offset)


def page_map(geometry: Geometry, placement: Placement) -> PageMap:
    """Describe a page of a layer set.

    Cells of a row lie along the innermost axis that is longer than 1 and inside of layers, blocks
    and halves, so that a row is one contiguous run.
    """
    axes = axes_of(geometry.order)
    grid = 1 + max(axes.index("L"), axes.index("P"))
    inside = [axis for axis in axes[grid:] if placement.extents[axis] > 1]
    inner = inside[-1] if inside else "N"
    halves = {place.field.half for place in placement.places}
    split = geometry.kv_split and len(halves) == 2
    outer = []
    for axis in axes[:grid] + "S" + axes[grid:]:
        if axis == "S":
            outer.append((axis, 2 if split else 1))
        elif axis not in "LB" + inner:
            outer.append((axis, placement.extents[axis]))
    return PageMap(placement, tuple(outer), inner, split)
