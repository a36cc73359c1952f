"""Per-layer views of the pool, as the tables that kernels walk.

A kernel sees a list of strips: one contiguous piece of one layer, with its own offset and strides.
Fields of a cell are strips of a token; runs of a page are strips of a whole block.
"""

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np

from kvexact.impl.engine.device import WORD_BYTES, Device
from kvexact.impl.engine.plans import FieldView, GroupPlan, Plan, SetPlan, Shape


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

    def table(self, consumer: str, index: int) -> Table:
        """Strips of group ``index`` for a consumer.

        Of whole blocks those are "copy" and "zero"; of slots "write", "read", "partial_copy", and
        "write_values", which leaves `pad` alone.
        """
        table = self._tables.get((consumer, index))
        if table is None:
            group = self.plan.groups[index]
            match consumer:
                case "copy":
                    strips = self.copy_runs(group)
                case "zero":
                    strips = self.zero_runs(group)
                case _:
                    strips = self.field_strips(group, consumer)
            words = np.fromiter(chain.from_iterable(strips), np.int64)
            table = Table(self.device.table(words), len(strips))
            self._tables[consumer, index] = table
        return table

    def layers(self, consumer: str, index: int) -> list[Table]:
        """The same strips layer by layer, of one layer set after the other."""
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

    def field_strips(self, group: GroupPlan, consumer: str) -> list[Strip]:
        """One strip for each layer, head, field and piece; a row has layer set after layer set."""
        strips = []
        before = 0
        for one in group.sets:
            shape = one.shape
            row = shape.layers * shape.heads * shape.cell_bytes
            fields = []
            for planned in self.fields(one, consumer):
                view = self.view(group, one, planned, consumer)
                scatter = view.scatter
                block, token, size = view.block, view.token, scatter.piece
                tile, tile_stride = scatter.tile, scatter.tile_stride
                pieces = self.pieces(view)
                fields.append(
                    [
                        Strip(at + x, block, token, size, before, row, to + y, tile, tile_stride)
                        for at, to in self.places(shape, view)
                        for x, y in pieces
                    ]
                )
            strips += _by_layer(fields, shape.layers)
            before += row
        return strips

    def places(self, shape: Shape, view: FieldView) -> list[tuple[int, int]]:
        """Where a field lies in slot 0 of each layer and head, and where in a row."""
        heads, cell, to = shape.heads, shape.cell_bytes, view.field.cell_offset
        return [
            (
                view.offset + layer * view.layer + head * view.head,
                (layer * heads + head) * cell + to,
            )
            for layer in range(shape.layers)
            for head in range(heads)
        ]

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


def _by_layer(fields: list[list[Strip]], layers: int) -> list[Strip]:
    """Strips of fields, each layer after layer, so that all fields of a layer stand together."""
    return [
        strip
        for layer in range(layers)
        for strips in fields
        for strip in strips[len(strips) * layer // layers : len(strips) * (layer + 1) // layers]
    ]
