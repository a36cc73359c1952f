"""Per-layer views of the pool, as the tables that kernels walk.

A kernel sees a list of strips: one contiguous piece of one layer, with its own offset and strides.
Fields of a cell are strips of a token; runs of a page are strips of a whole block.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from kvexact.impl.engine.device import WORD_BYTES, Device
from kvexact.impl.engine.plans import FieldView, GroupPlan, Plan, SetPlan


class Strip(NamedTuple):
    """One contiguous piece in every block and slot, as in kernels.cu; all in bytes but ``tile``."""

    offset: int
    block_stride: int
    token_stride: int
    bytes: int
    rows_before: int = 0
    row_stride: int = 0
    row_offset: int = 0
    tile: int = 1
    tile_stride: int = 0


class Table(NamedTuple):
    """Strips where kernels read them."""

    address: int
    strips: int


class Views:
    """The views that each consumer of a pool uses, made when they are first needed."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self.plan = plan
        self.device = device
        self._tables: dict[tuple[str, int], Table] = {}
        self._layers: dict[tuple[str, int], list[Table]] = {}
        self._of_slots: list[tuple[tuple[GroupPlan, list[list[FieldView]]], Table]] = []

    def table(self, consumer: str, index: int) -> Table:
        """Strips of group ``index`` for a consumer.

        Of whole blocks those are "copy" and "zero"; of slots "write", "read", "partial_copy", and
        "write_values", which leaves `pad` alone.
        """
        table = self._tables.get((consumer, index))
        if table is None:
            table = self._tables[consumer, index] = self._made(consumer, self.plan.groups[index])
        return table

    def _made(self, consumer: str, group: GroupPlan) -> Table:
        match consumer:
            case "copy":
                return self._stored(self.copy_runs(group))
            case "zero":
                return self._stored(self.zero_runs(group))
        views = self.group_views(group, consumer)
        for known, table in self._of_slots:  # most consumers use the same views
            if known == (group, views):
                return table
        table = self._stored(self.field_strips(group, views))
        self._of_slots.append(((group, views), table))
        return table

    def _stored(self, strips: Sequence[tuple[int, ...]]) -> Table:
        return Table(self.device.table([*chain.from_iterable(strips)]), len(strips))

    def layers(self, consumer: str, index: int) -> list[Table]:
        """The same strips layer by layer, of one layer set after the other."""
        parts = self._layers.get((consumer, index))
        if parts is None:
            parts = self._layers[consumer, index] = self._parts(consumer, index)
        return parts

    def _parts(self, consumer: str, index: int) -> list[Table]:
        whole = self.table(consumer, index)
        parts = []
        address = whole.address
        for one in self.plan.groups[index].sets:
            strips = self.strips_of_layer(one, consumer)
            for _ in range(one.shape.layers):
                parts.append(Table(address, strips))
                address += WORD_BYTES * len(Strip._fields) * strips
        return parts

    def strips_of_layer(self, one: SetPlan, consumer: str) -> int:
        """How many strips a layer of a set has for a consumer."""
        if consumer in ("copy", "zero"):
            return one.runs
        pieces = [len(self.pieces(view)) for view in self.fields(one, consumer)]
        return sum(pieces) * one.shape.heads

    def fields(self, one: SetPlan, consumer: str) -> list[FieldView]:
        """The fields of a set's slots that a consumer touches."""
        values = consumer == "write_values"
        return [view for view in one.views if not (values and view.field.name == "pad")]

    def group_views(self, group: GroupPlan, consumer: str) -> list[list[FieldView]]:
        """Of each layer set the views of what a consumer touches of its slots."""
        return [
            [self.view(group, one, view, consumer) for view in self.fields(one, consumer)]
            for one in group.sets
        ]

    def field_strips(
        self, group: GroupPlan, views: Sequence[Sequence[FieldView]]
    ) -> list[tuple[int, ...]]:
        """One strip for each layer, field, head and piece; a row has layer set after layer set."""
        strips: list[tuple[int, ...]] = []
        before = 0
        for one, of_set in zip(group.sets, views, strict=True):
            heads, cell = range(one.shape.heads), one.shape.cell_bytes
            row = one.shape.layers * one.shape.heads * cell
            fields = [
                (view, [(h * view.head + x, h * cell + y) for h in heads for x, y in pieces])
                for view in of_set
                for pieces in (self.pieces(view),)
            ]
            for layer in range(one.shape.layers):
                for (field, offset, stride, block, _, token, scatter), places in fields:
                    at = offset + layer * stride
                    to = layer * one.shape.heads * cell + field.cell_offset
                    size, tile, tile_stride = scatter.piece, scatter.tile, scatter.tile_stride
                    # As a `Strip` has them, which takes longer to make.
                    strips += [
                        (at + x, block, token, size, before, row, to + y, tile, tile_stride)
                        for x, y in places
                    ]
            before += row
        return strips

    def pieces(self, view: FieldView) -> list[tuple[int, int]]:
        """Of each piece of a field where it lies in slot 0, and where in the cell's field."""
        size, row, row_stride, piece_stride, _, _ = view.scatter
        if size == view.field.bytes:
            return [(0, 0)]
        return [
            (n // row * row_stride + n % row * piece_stride, n * size)
            for n in range(view.field.bytes // size)
        ]

    def view(
        self,
        group: GroupPlan,  # noqa: ARG002
        one: SetPlan,  # noqa: ARG002
        view: FieldView,
        consumer: str,  # noqa: ARG002
    ) -> FieldView:
        """The view of a field that a consumer uses."""
        return view

    def copy_runs(self, group: GroupPlan) -> list[Strip]:
        """What of a block a copy of whole blocks carries."""
        return self._runs(group, lambda one: one.run_bytes)

    def zero_runs(self, group: GroupPlan) -> list[Strip]:
        """What of a block is cleared."""
        return self._runs(group, self.zero_bytes)

    def zero_bytes(self, one: SetPlan) -> int:
        """How much of each run is cleared."""
        return one.run_bytes

    def _runs(self, group: GroupPlan, run_bytes: Callable[[SetPlan], int]) -> list[Strip]:
        strips = []
        for one in group.sets:
            size = run_bytes(one)
            for layer in range(one.shape.layers):
                for run in range(one.runs):
                    place = one.offset + layer * one.layer_stride + run * one.run_stride
                    strips.append(Strip(place, one.block_stride, 0, size))
        return strips
