"""Where the bytes of a geometry lie: closed formulas for each physical order.

Everything is in bytes. A decision that an engine can get wrong is one small method, so that a
planted fault overrides exactly one. A plan is total: a geometry that is refused later has one too.
"""

from typing import NamedTuple

from kvexact.refmodel.spec import Geometry, Group, LayerSet

_BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "int8_per_token_head": 8,
    "fp8_per_token_head": 8,
    "int4_per_token_head": 4,
}
_SCALED = frozenset([name for name in _BITS if name.endswith("_per_token_head")])
SCALE_BYTES = 4


class Field(NamedTuple):
    """A named part of a cell, and where it starts in the cell."""

    name: str
    bytes: int
    unit: int
    cell_offset: int

    @property
    def is_scale(self) -> bool:
        """True for k_scale and v_scale."""
        return self.name.endswith("_scale")


class Shape(NamedTuple):
    """The sizes of one layer set, from the cell outwards. ``key_bytes`` is a cell's key half."""

    layers: int
    heads: int
    fields: tuple[Field, ...]
    cell_bytes: int
    key_bytes: int
    head_bytes: int
    content_bytes: int
    page_bytes: int

    @property
    def plane_bytes(self) -> int:
        """What one head takes of a block in orders whose heads lie outside the page grid."""
        return self.page_bytes if self.heads == 1 else self.head_bytes


class Strides(NamedTuple):
    """Of layer, manager block, head and token; ``value_half`` is where a page's values start."""

    layer: int
    block: int
    head: int
    token: int
    value_half: int


class FieldView(NamedTuple):
    """Where a field lies in the storage; ``block`` is the stride of a kernel block.

    Strides of axes of extent 1 are as the formula gives them.
    """

    field: Field
    offset: int
    layer: int
    block: int
    head: int
    token: int


class SetPlan(NamedTuple):
    """One layer set in the storage. A page of it is ``runs`` contiguous runs of content."""

    shape: Shape
    offset: int
    layer_stride: int
    block_stride: int
    runs: int
    run_stride: int
    views: tuple[FieldView, ...]

    @property
    def run_bytes(self) -> int:
        """Content bytes of one run."""
        return self.shape.content_bytes // self.runs


class GroupPlan(NamedTuple):
    """One group; ``parts`` is the number of kernel blocks in a manager block.

    ``slots`` and ``kernel_slots`` are those of a manager block and of a kernel block.
    """

    slots: int
    kernel_slots: int
    parts: int
    sets: tuple[SetPlan, ...]


class Plan(NamedTuple):
    """All sizes and places of a geometry."""

    geometry: Geometry
    groups: tuple[GroupPlan, ...]
    bytes_per_block: int
    logical_bytes: int
    physical_bytes: int
    row_bytes: int
    scheduler_slots: int


def raised(size: int, multiple: int) -> int:
    """``size`` raised to a multiple of ``multiple``."""
    return -(-size // multiple) * multiple


class Planner:
    """Derives a `Plan`."""

    def plan(self, geometry: Geometry) -> Plan:
        """All sizes and places, whether or not the geometry may be."""
        shapes = [
            [self.shape(group, layer_set) for layer_set in group.layer_sets]
            for group in geometry.groups
        ]
        per_block = self.bytes_per_block(shapes)
        groups = tuple(
            [
                self._group(geometry, group, mine, per_block)
                for group, mine in zip(geometry.groups, shapes, strict=True)
            ]
        )
        logical = geometry.blocks * per_block
        physical = geometry.physical_bytes
        if physical is None:
            physical = raised(geometry.base_offset_bytes + logical, geometry.tail_alignment)
        host = geometry.host
        row = raised(self.block_content(shapes) * host.chunk_blocks, host.row_alignment)
        slots = host.capacity_bytes // row
        return Plan(geometry, groups, per_block, logical, physical, row, slots)

    def shape(self, group: Group, layer_set: LayerSet) -> Shape:
        """The sizes of one layer set."""
        fields, key = self.fields(layer_set)
        cell = sum([field.bytes for field in fields])
        head = group.block_size * cell
        content = layer_set.kv_heads * head
        page = layer_set.page_bytes or content
        return Shape(layer_set.layers, layer_set.kv_heads, fields, cell, key, head, content, page)

    def fields(self, layer_set: LayerSet) -> tuple[tuple[Field, ...], int]:
        """The fields of a cell that have bytes, in order, and the bytes of its key half."""
        bits = _BITS[layer_set.page_format]
        unit = bits // 8 or 1
        scale = self.scale_bytes(layer_set.page_format)
        key = layer_set.head_size_k * bits // 8
        value = layer_set.head_size_v * bits // 8
        half = key + scale
        fields = (
            Field("k", key, unit, 0),
            Field("k_scale", scale, SCALE_BYTES, key),
            Field("v", value, unit, half),
            Field("v_scale", scale, SCALE_BYTES, half + value),
        )
        if key and scale and value:
            return fields, half
        return tuple([field for field in fields if field.bytes]), half

    def scale_bytes(self, page_format: str) -> int:
        """Bytes of the scale that follows each of key and value; 0 for none."""
        return SCALE_BYTES if page_format in _SCALED else 0

    def set_bytes(self, shape: Shape) -> int:
        """Bytes that a layer set takes of one block."""
        return shape.layers * shape.page_bytes

    def bytes_per_block(self, shapes: list[list[Shape]]) -> int:
        """Bytes of one block of the pool: the groups overlay, so the largest one decides."""
        return max([sum([self.set_bytes(shape) for shape in group]) for group in shapes])

    def block_content(self, shapes: list[list[Shape]]) -> int:
        """Content of one block that a host row must have room for: the largest group's."""
        return max([sum([s.layers * s.content_bytes for s in group]) for group in shapes])

    def _group(
        self, geometry: Geometry, group: Group, shapes: list[Shape], per_block: int
    ) -> GroupPlan:
        kernel = group.kernel_block_size
        # One that does not divide the block is refused later; until then any ratio will do.
        parts = group.block_size // kernel or 1
        start = geometry.base_offset_bytes
        width = geometry.blocks if geometry.order[0] == "L" else 1
        sets = []
        for shape in shapes:
            strides = self.strides(geometry, shape, kernel, per_block)
            views = self.views(geometry, shape, start, strides, strides.block // parts)
            runs, run_stride = self.runs(geometry, shape)
            sets.append(
                SetPlan(shape, start, strides.layer, strides.block, runs, run_stride, views)
            )
            start += self.set_bytes(shape) * width
        return GroupPlan(group.block_size, kernel, parts, tuple(sets))

    def strides(self, geometry: Geometry, shape: Shape, tokens: int, per_block: int) -> Strides:
        """Strides of a layer set; ``tokens`` in a kernel block.

        With ``kv_split`` the halves lie inside the inner one of layer and block: around heads and
        tokens, or around the tokens of one head where the heads lie outside.
        """
        split = geometry.kv_split
        cell = shape.cell_bytes
        keys = shape.key_bytes if split else 0
        blocks, page, plane = geometry.blocks, shape.page_bytes, shape.plane_bytes
        match geometry.order:
            case "LBHNC":
                layer, block, head, token = blocks * page, page, tokens * cell, cell
            case "BLHNC":
                layer, block, head, token = page, per_block, tokens * cell, cell
            case "LBNHC":
                layer, block, head, token = blocks * page, page, cell, shape.heads * cell
            case "BLNHC":
                layer, block, head, token = page, per_block, cell, shape.heads * cell
            case "LHBNC":
                head = blocks * shape.head_bytes
                return Strides(blocks * page, plane, head, cell, tokens * keys)
            case _:  # BHLNC; where a block has several kernel blocks, only one layer is accepted
                head = shape.layers * tokens * cell
                return Strides(plane, per_block, head, cell, tokens * keys)
        return Strides(layer, block, head, token, shape.heads * tokens * keys)

    def runs(self, geometry: Geometry, shape: Shape) -> tuple[int, int]:
        """Into how many contiguous runs a page falls, and their stride."""
        apart = {"LHBNC": geometry.blocks, "BHLNC": shape.layers}.get(geometry.order, 1)
        if shape.heads == 1 or apart == 1:
            return 1, shape.content_bytes
        return shape.heads, apart * shape.head_bytes

    def views(
        self, geometry: Geometry, shape: Shape, start: int, strides: Strides, kernel_block: int
    ) -> tuple[FieldView, ...]:
        """Where the fields of a layer set lie that starts at ``start``."""
        layer, _, head, token, value_half = strides
        views = []
        for field in shape.fields:
            offset = start + field.cell_offset
            head_stride, token_stride = head, token
            if geometry.kv_split:
                value = field.name[0] == "v"
                half = shape.cell_bytes - shape.key_bytes if value else shape.key_bytes
                head_stride, token_stride = self.half_strides(geometry, shape, strides, half)
                if value:
                    offset += value_half - shape.key_bytes
            views.append(FieldView(field, offset, layer, kernel_block, head_stride, token_stride))
        return tuple(views)

    def half_strides(
        self, geometry: Geometry, shape: Shape, strides: Strides, half_bytes: int
    ) -> tuple[int, int]:
        """Strides of a head and a token in a half whose cells have ``half_bytes``."""
        token = strides.token // shape.cell_bytes * half_bytes
        if geometry.order in ("LHBNC", "BHLNC"):
            return strides.head, token
        return strides.head // shape.cell_bytes * half_bytes, token
