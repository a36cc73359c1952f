"""Where bytes lie, found by walking memory: a second derivation of docs/design.md, for tests only.

No stride is computed here. A cursor steps over memory in physical order, byte after byte, and notes
what it passes. From these notes the tests work out addresses, regions, overlaps and refusals anew.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from kvexact.refmodel.spec import Geometry, Group, LayerSet

ELEMENT_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8_e4m3": 8}
PADDING = "padding"
Steps = range | str


class Note(NamedTuple):
    """The cursor passed ``width`` bytes of one field of one cell, or the padding of one page."""

    group: int
    layer_set: int
    layer: int
    block: int
    head: int
    token: int
    field: str
    start: int
    width: int

    @property
    def span(self) -> range:
        return range(self.start, self.start + self.width)


class Part(NamedTuple):
    """A field of a cell: its half, bytes and unit."""

    name: str
    half: str
    width: int
    unit: int


def parts_of(shape: LayerSet) -> list[Part]:
    """The fields of a cell, in logical order."""
    parts = []
    for half, elements in (("k", shape.head_size_k), ("v", shape.head_size_v)):
        if shape.page_format.endswith("per_token_head"):
            bits = 4 if shape.page_format.startswith("int4") else 8
            parts.append(Part(half, half, elements * bits // 8, 1))
            parts.append(Part(f"{half}_scale", half, 4, 4))
        else:
            size = ELEMENT_BITS[shape.page_format] // 8
            parts.append(Part(half, half, elements * size, size))
    return [part for part in parts if part.width]


def content_of(group: Group, shape: LayerSet) -> int:
    """Content bytes of one layer in one block, counted cell by cell."""
    cells = [part.width for part in parts_of(shape)] * (shape.kv_heads * group.block_size)
    return sum(cells)


def page_of(group: Group, shape: LayerSet) -> int:
    """Bytes of one layer in one block."""
    return content_of(group, shape) if shape.page_bytes is None else shape.page_bytes


def group_bytes(group: Group) -> int:
    """Bytes of one block of a group."""
    return sum(page_of(group, shape) for shape in group.layer_sets for _ in range(shape.layers))


def block_bytes(geometry: Geometry) -> int:
    """Bytes of the pool for every block."""
    return max(group_bytes(group) for group in geometry.groups)


@cache
def walk(geometry: Geometry) -> tuple[Note, ...]:
    """What lies where, in the order in which the cursor passes it, group by group."""
    return tuple(_walk(geometry))


def _walk(geometry: Geometry) -> Iterator[Note]:
    for g, group in enumerate(geometry.groups):
        if geometry.order[0] == "L":
            walker = Walker(geometry, g, geometry.base_offset_bytes)
            for s in range(len(group.layer_sets)):
                yield from walker.layer_set(s, range(geometry.blocks))
        else:
            for block in range(geometry.blocks):
                start = geometry.base_offset_bytes + block * block_bytes(geometry)
                walker = Walker(geometry, g, start)
                for s in range(len(group.layer_sets)):
                    yield from walker.layer_set(s, range(block, block + 1))


class Walker:
    """A cursor in the bytes of one group."""

    def __init__(self, geometry: Geometry, group: int, cursor: int) -> None:
        self.geometry = geometry
        self.g = group
        self.group = geometry.groups[group]
        self.cursor = cursor

    def layer_set(self, s: int, blocks: range) -> Iterator[Note]:
        """Pass one layer set in these blocks."""
        shape = self.group.layer_sets[s]
        kernel = self.group.kernel_block_size
        axes: dict[str, Steps] = {
            "L": range(shape.layers),
            "B": blocks,
            "P": range(self.group.block_size // kernel),
            "H": range(shape.kv_heads),
            "N": range(kernel),
            "S": "kv",
        }
        order = list(self.geometry.order[:4])
        self.page_axis = max("LB", key=order.index)
        order.insert(order.index("B") + 1, "P")
        if self.geometry.kv_split:
            inner = max("LP", key=order.index)
            order.insert(order.index(inner) + 1, "S")
        self.s, self.shape, self.kernel = s, shape, kernel
        self.padding = max(page_of(self.group, shape) - content_of(self.group, shape), 0)
        self.parts = parts_of(shape)
        yield from self._descend([(axis, axes[axis]) for axis in order], {"S": "kv"})

    def _descend(self, axes: list[tuple[str, Steps]], at: dict[str, Any]) -> Iterator[Note]:
        if not axes:
            yield from self._cell(at)
            return
        (axis, steps), *inner = axes
        for step in steps:
            at[axis] = step
            yield from self._descend(inner, at)
            if axis == self.page_axis and self.padding:
                yield self._note(at, 0, 0, PADDING, self.padding)

    def _cell(self, at: dict[str, Any]) -> Iterator[Note]:
        token = at["P"] * self.kernel + at["N"]
        for part in self.parts:
            if part.half in at["S"]:
                yield self._note(at, at["H"], token, part.name, part.width)

    def _note(self, at: dict[str, Any], head: int, token: int, field: str, width: int) -> Note:
        note = Note(self.g, self.s, at["L"], at["B"], head, token, field, self.cursor, width)
        self.cursor += width
        return note


def runs(addresses: list[int]) -> list[tuple[int, int]]:
    """Maximal runs (start, length) of sorted addresses."""
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(addresses)) if b != a + 1)]
    ends = [*cuts[1:], len(addresses)]
    return [(addresses[i], j - i) for i, j in zip(cuts, ends, strict=True)]


@cache
def pages(geometry: Geometry) -> dict[tuple[int, int, int, int], list[int]]:
    """Sorted content addresses by (group, layer set, layer, block)."""
    found: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for note in walk(geometry):
        if note.field != PADDING:
            found[note[:4]] += note.span
    return {key: sorted(addresses) for key, addresses in found.items()}


def overlapping(geometry: Geometry) -> bool:
    """Whether block b of one group shares a byte of a page with another block of any group."""
    unsplit = [replace(group, kernel_block_size=group.block_size) for group in geometry.groups]
    block_at: dict[int, int] = {}
    for note in walk(replace(geometry, groups=tuple(unsplit))):
        for address in note.span:
            if block_at.setdefault(address, note.block) != note.block:
                return True
    return False


def splittable(geometry: Geometry, g: int) -> bool:
    """Whether the kernel blocks of a group lie side by side, block after block, without a gap.

    Where heads are outermost, those of one head do.
    """
    several = replace(geometry, blocks=max(geometry.blocks, 2))
    lanes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for note in walk(several):
        if note.group == g and note.field != PADDING:
            head = note.head if geometry.order == "LHBNC" else 0
            lanes[note.layer_set, note.layer, head] += note.span
    return all(len(runs(sorted(lane))) == 1 for lane in lanes.values())


def misaligned(geometry: Geometry) -> bool:
    """Whether some field of some cell starts off its unit."""
    for note in walk(geometry):
        if note.field != PADDING:
            shape = geometry.groups[note.group].layer_sets[note.layer_set]
            units = {part.name: part.unit for part in parts_of(shape)}
            if note.start % units[note.field]:
                return True
    return False


def reason(geometry: Geometry) -> str | None:
    """Why a geometry must be refused, from what its bytes would do."""
    members = [(group, shape) for group in geometry.groups for shape in group.layer_sets]
    inner = max("LB", key=geometry.order.index)
    heads_outside = geometry.order.index("H") < geometry.order.index(inner)
    logical = geometry.blocks * block_bytes(geometry)
    host = geometry.host
    chunk = max(
        sum(content_of(group, shape) * shape.layers for shape in group.layer_sets)
        for group in geometry.groups
    )
    row = chunk * host.chunk_blocks
    while row % host.row_alignment:
        row += 1
    odd = [
        shape.page_format.startswith("int4") and (shape.head_size_k % 2 or shape.head_size_v % 2)
        for _, shape in members
    ]
    if any(odd):
        return "cell"
    if any(page_of(*member) < content_of(*member) for member in members):
        return "page"
    if heads_outside and any(
        page_of(*member) > content_of(*member) and member[1].kv_heads > 1 for member in members
    ):
        return "padding"
    if geometry.blocks > 1 and overlapping(geometry):
        return "overlay"
    for g, group in enumerate(geometry.groups):
        if group.block_size % group.kernel_block_size:
            return "kernel_split"
        if group.kernel_block_size < group.block_size and not splittable(geometry, g):
            return "kernel_split"
    if misaligned(geometry):
        return "alignment"
    if geometry.logical_bytes is not None and geometry.logical_bytes != logical:
        return "pool_size"
    physical = geometry.physical_bytes
    if physical is not None and physical < geometry.base_offset_bytes + logical:
        return "pool_size"
    if host.capacity_bytes < row:
        return "host"
    return None
