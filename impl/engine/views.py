"""Per-layer views of the pool, as the tables that kernels walk.

A kernel sees a list of strips: one contiguous piece of one layer, with its own offset and strides.
Fields of a cell are strips of a token; runs of a page are strips of a whole block.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kvexact.impl.engine.device import Device
from kvexact.impl.engine.planner import FieldView, GroupPlan, Plan, SetPlan

#: offset, block stride, token stride, bytes, rows_before, row_stride, row_offset: as in kernels.cu.
Strip = tuple[int, int, int, int, int, int, int]


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
        """Strips of group ``index`` for "write", "read", "partial_copy", "copy" or "zero"."""
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
            words = np.array(strips, np.int64)
            table = Table(self.device.table(words), len(strips))
            self._tables[consumer, index] = table
        return table

    def field_strips(self, group: GroupPlan, consumer: str) -> list[Strip]:
        """One strip for each layer, head and field; a row has layer set after layer set."""
        strips = []
        before = 0
        for one in group.sets:
            shape = one.shape
            row = shape.layers * shape.heads * shape.cell_bytes
            for planned in one.views:
                view = self.view(group, one, planned, consumer)
                field = view.field
                for layer in range(shape.layers):
                    for head in range(shape.heads):
                        place = view.offset + layer * view.layer + head * view.head
                        in_row = (layer * shape.heads + head) * shape.cell_bytes
                        strips.append(
                            (
                                place,
                                view.block,
                                view.token,
                                field.bytes,
                                before,
                                row,
                                in_row + field.cell_offset,
                            )
                        )
            before += row
        return strips

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
                    strips.append((place, one.block_stride, 0, size, 0, 0, 0))
        return strips
