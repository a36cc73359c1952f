"""What lies inside a page: rows of equal cells, in address order, down to the field of a byte.

A page is made of *strips*: fields that lie side by side and share their strides. A strip is
repeated over kernel blocks, heads and slots; along the innermost of these axes it makes a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.address import Place, Placement
from kvexact.refmodel.spec import Geometry

#: Names of axes. Elements of a scattered field are spread over the pieces of several slots.
_AXIS_WORDS = {"P": "kernel block", "H": "head", "N": "token"}
_PIECE = "piece"
_AXIS_LETTERS = {
    "kernel block": "kb",
    "half": "",
    "region": "",
    "head": "h",
    "token": "t",
    _PIECE: "p",
}


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
        cell_bytes: bytes of one of them: of all fields of its strip.
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


class Strip(NamedTuple):
    """Fields side by side, and the axes that repeat them.

    Attributes:
        start: bytes from the page's first byte.
        outer: axes that number its rows, outermost first; "S" stands for the strip itself.
        inner: the axis along which the cells of a row lie.
        word: the region or half that it is, where a page has several.
    """

    places: tuple[Place, ...]
    start: int
    outer: str
    inner: str
    word: tuple[str, str]

    @property
    def scattered(self) -> bool:
        return self.places[0].field.scatter is not None

    @property
    def fields(self) -> tuple[CellField, ...]:
        first = self.places[0].offset
        return tuple(
            CellField(p.field.name, p.offset - first, p.field.width_bytes) for p in self.places
        )

    @property
    def cell_bytes(self) -> int:
        return sum(place.field.width_bytes for place in self.places)

    def axis_word(self, axis: str) -> str:
        return _PIECE if axis == "N" and self.scattered else _AXIS_WORDS[axis]


@dataclass(frozen=True, slots=True)
class PageMap:
    """One page of a layer set: row after row in address order. Rows are made on demand.

    Attributes:
        starts: first byte of every row, counted from the page's first byte.
        strip_of: which strip each row is of.
        nth: which row of its strip each one is.
    """

    placement: Placement
    strips: tuple[Strip, ...]
    starts: npt.NDArray[np.intp]
    strip_of: npt.NDArray[np.intp]
    nth: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def several(self) -> bool:
        """Whether rows are of several strips."""
        return len(self.strips) > 1

    def row(self, index: int) -> PageRow:
        """Row number ``index``."""
        strip, rest = self.strips[self.strip_of[index]], int(self.nth[index])
        at = {}
        for axis in reversed(strip.outer.replace("S", "")):
            rest, at[axis] = divmod(rest, self.placement.extents[axis])
        where: list[tuple[str, int | str]] = []
        for axis in strip.outer:
            if axis == "S":
                where += [strip.word] if self.several else []
            elif self.placement.extents[axis] > 1:
                where.append((strip.axis_word(axis), at[axis]))
        cells = self.placement.extents[strip.inner]
        word = strip.axis_word(strip.inner)
        start = int(self.starts[index])
        return PageRow(start, tuple(where), word, cells, strip.cell_bytes, strip.fields)

    def rows(self) -> Iterator[PageRow]:
        return (self.row(index) for index in range(len(self)))

    def kinds(self) -> list[PageRow]:
        """The first row of each strip."""
        _, first = np.unique(self.strip_of, return_index=True)
        return [self.row(int(index)) for index in first]

    def spot(self, byte: int) -> Spot:
        """What content byte ``byte``, counted from the page's first byte, is."""
        number = int(np.searchsorted(self.starts, byte, side="right")) - 1
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
        byte = spot.byte
        strip = self.strips[self.strip_of[spot.row]]
        if strip.scattered:
            indices["token"], byte = self._gathered(strip, int(indices.get(_PIECE, 0)), byte)
        places = [
            f"{word} {indices.get(word, 0)}"
            for word in ("kernel block", "half", "head", "token")
            if word in indices or word in ("head", "token")
        ]
        return " ".join([*places, f"field {spot.field.name} byte {byte}"])

    def _gathered(self, strip: Strip, piece: int, byte: int) -> tuple[int, int]:
        """The slot whose byte lies in a piece of a scattered field, and which byte it is."""
        (place,) = strip.places
        offsets = place.bytes_of_slots(self.placement.extents["N"])
        slot, found = np.nonzero(offsets == piece * place.strides["N"] + byte)
        return int(slot[0]), int(found[0])

    def _spot(self, number: int, byte: int) -> Spot:
        cell, inside = divmod(byte, self.row(number).cell_bytes)
        field = next(f for f in reversed(self.row(number).fields) if f.offset <= inside)
        return Spot(number, cell, field, inside - field.offset)


def page_map(geometry: Geometry, placement: Placement) -> PageMap:
    """Describe a page of a layer set.

    Cells of a row lie along the innermost axis that is longer than 1 and along which they are side
    by side, so that a row is one contiguous run.
    """
    strips = tuple(_strips(geometry, placement))
    starts, numbers, nths = [], [], []
    for number, strip in enumerate(strips):
        start = np.full(1, strip.start, np.intp)
        for axis in strip.outer.replace("S", ""):
            steps = np.arange(placement.extents[axis], dtype=np.intp)
            start = np.add.outer(start, steps * strip.places[0].strides[axis]).reshape(-1)
        starts.append(start)
        numbers.append(np.full(start.size, number, np.intp))
        nths.append(np.arange(start.size, dtype=np.intp))
    order = np.argsort(np.concatenate(starts), kind="stable")
    in_order = [np.concatenate(item)[order] for item in (starts, numbers, nths)]
    return PageMap(placement, strips, in_order[0], in_order[1], in_order[2])


def _strips(geometry: Geometry, placement: Placement) -> Iterator[Strip]:
    for places in _side_by_side(placement.places):
        strides = places[0].strides
        axes = sorted("PHN", key=strides.__getitem__)
        size = sum(place.field.width_bytes for place in places)
        long = [axis for axis in axes if placement.extents[axis] > 1]
        inner = long[0] if long and strides[long[0]] == size else "N"
        outer = sorted(set("PHN") - {inner}, key=lambda axis: (-strides[axis], axis))
        names = "+".join(place.field.name for place in places)
        halves = geometry.kv_split and names[0] in "kv"
        word = ("half", names[0]) if halves else ("region", names)
        start = places[0].offset - placement.start
        yield Strip(places, start, _with_strip(placement, strides, size, inner, outer), inner, word)


def _with_strip(
    placement: Placement, strides: dict[str, int], size: int, inner: str, outer: Sequence[str]
) -> str:
    """Outer axes, with "S" inside of those along which a strip alternates with others."""
    filled = size * placement.extents[inner]
    inside = []
    for axis in reversed(outer):
        if placement.extents[axis] > 1 and strides[axis] != filled:
            break
        filled *= placement.extents[axis]
        inside.append(axis)
    outside = "".join(outer[: len(outer) - len(inside)])
    return outside + "S" + "".join(reversed(inside))


def _side_by_side(places: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
    """Fields in the order of their addresses, together where a strip holds them."""
    strip: list[Place] = []
    for place in sorted(places, key=lambda place: place.offset):
        if strip and not _joins(strip[-1], place):
            yield tuple(strip)
            strip = []
        strip.append(place)
    yield tuple(strip)


def _joins(one: Place, other: Place) -> bool:
    """Whether a field continues the cell of the one before it."""
    return (
        one.field.scatter is None
        and other.field.scatter is None
        and one.strides == other.strides
        and one.offset + one.field.width_bytes == other.offset
    )
