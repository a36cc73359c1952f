"""Where the bytes of a geometry lie: closed formulas for each physical order.

Everything is in bytes. A decision that an engine can get wrong is one small method, so that a
planted fault overrides exactly one. A plan is total: a geometry that is refused later has one too.
"""

from kvexact.impl.engine.formats import PageRegion, page_regions, scatter, split_regions
from kvexact.impl.engine.plans import Area, FieldView, GroupPlan, Plan, SetPlan, Shape, Strides
from kvexact.refmodel.spec import Geometry, Group, LayerSet


def is_state(layer_set: LayerSet) -> bool:
    """Whether a page holds one state instead of tokens."""
    return layer_set.page_format.startswith("state_")


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
        base, blocks = geometry.base_offset_bytes, geometry.blocks
        main = self.bytes_per_block(shapes, side=False)
        side = self.bytes_per_block(shapes, side=True)
        areas = Area(base, main), Area(base + blocks * main, side)
        groups = tuple(
            [
                self._group(geometry, group, mine, areas)
                for group, mine in zip(geometry.groups, shapes, strict=True)
            ]
        )
        logical = blocks * (main + side)
        physical = geometry.physical_bytes
        if physical is None:
            physical = raised(base + logical, geometry.tail_alignment)
        host = geometry.host
        row = raised(self.block_content(shapes) * host.chunk_blocks, host.row_alignment)
        slots = host.capacity_bytes // row if row else 0
        return Plan(geometry, groups, main + side, logical, physical, row, slots)

    def shape(self, group: Group, layer_set: LayerSet) -> Shape:
        """The sizes of one layer set."""
        regions = page_regions(layer_set)
        fields = tuple([field for region in regions for field in region.fields])
        slots, kernel_slots = self.slots(group, layer_set)
        heads = layer_set.kv_heads
        cell = sum([region.bytes for region in regions])
        head = slots * cell
        content = heads * head
        page = layer_set.page_bytes or content
        sizes = cell, head, content, page
        return Shape(
            layer_set, layer_set.layers, heads, slots, kernel_slots, regions, fields, *sizes
        )

    def slots(self, group: Group, layer_set: LayerSet) -> tuple[int, int]:
        """Slots of a manager block and of a kernel block."""
        if is_state(layer_set):
            return 1, 1
        shared = group.tokens_per_state
        return group.block_size // shared, group.kernel_block_size // shared

    def set_bytes(self, shape: Shape) -> int:
        """Bytes that a layer set takes of one block."""
        return shape.layers * shape.page_bytes

    def bytes_per_block(self, shapes: list[list[Shape]], *, side: bool) -> int:
        """Bytes of one block or of its side buffers: groups overlay, so the largest decides."""
        return max(
            [
                sum([self.set_bytes(shape) for shape in group if shape.layer_set.side == side])
                for group in shapes
            ]
        )

    def block_content(self, shapes: list[list[Shape]]) -> int:
        """Content of one block that a host row must have room for: the largest group's."""
        return max([sum([s.layers * s.content_bytes for s in group]) for group in shapes])

    def _group(
        self, geometry: Geometry, group: Group, shapes: list[Shape], areas: tuple[Area, Area]
    ) -> GroupPlan:
        # One that does not divide the block is refused later; until then any ratio will do.
        parts = group.block_size // group.kernel_block_size or 1
        starts = [area.start for area in areas]
        width = geometry.blocks if geometry.order[0] == "L" else 1
        sets = []
        for shape in shapes:
            side = shape.layer_set.side
            start = starts[side]
            strides = self.strides(geometry, shape, areas[side].bytes_per_block)
            views = self.views(geometry, shape, start, strides, strides.block // parts)
            runs, run_stride = self.runs(geometry, shape)
            sets.append(
                SetPlan(shape, start, strides.layer, strides.block, runs, run_stride, views)
            )
            starts[side] += self.set_bytes(shape) * width
        # All sets of a group agree on these, or it is refused.
        return GroupPlan(shapes[0].slots, shapes[0].kernel_slots, parts, tuple(sets))

    def strides(self, geometry: Geometry, shape: Shape, per_block: int) -> Strides:
        """Strides of a layer set in an area of ``per_block`` bytes per block."""
        blocks, page, plane = geometry.blocks, shape.page_bytes, shape.plane_bytes
        match geometry.order:
            case "LBHNC" | "LBNHC":
                return Strides(blocks * page, page, 0)
            case "BLHNC" | "BLNHC":
                return Strides(page, per_block, 0)
            case "LHBNC":
                return Strides(blocks * page, plane, blocks * shape.head_bytes)
            case _:  # BHLNC; where a block has several kernel blocks, only one layer is accepted
                head = shape.layers * shape.kernel_slots * shape.cell_bytes
                return Strides(plane, per_block, head)

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
        regions = split_regions(shape.regions) if geometry.kv_split else shape.regions
        views = []
        for region in regions:
            at, head, token = self.inside(geometry.order, shape, region, strides.plane)
            for field in region.fields:
                before, stride = field.cell_offset - region.cell_offset, token
                if region.per_head:
                    before, stride = before * shape.kernel_slots, field.bytes
                name = shape.layer_set.page_format
                stride, pieces = scatter(name, field, shape.kernel_slots, stride)
                offset = start + at + before
                views.append(
                    FieldView(field, offset, strides.layer, kernel_block, head, stride, pieces)
                )
        return tuple(views)

    def inside(
        self, order: str, shape: Shape, region: PageRegion, plane: int
    ) -> tuple[int, int, int]:
        """Of a region in a kernel block its offset, and the strides of a head and a slot.

        Where heads lie outside the grid of pages, ``plane`` apart, a page is that of one head.
        """
        heads, slots, width = shape.heads, shape.kernel_slots, region.bytes
        if order in ("LHBNC", "BHLNC"):
            return slots * region.cell_offset, plane, width
        at = heads * slots * region.cell_offset
        if order in ("LBNHC", "BLNHC") and not region.per_head:
            return at, width, heads * width
        return at, slots * width, width
