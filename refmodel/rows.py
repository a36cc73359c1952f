"""What ops store and return, slot by slot: raw bytes, real values, cells that encode them."""

from functools import cached_property

import numpy as np

from kvexact.refmodel.codecs import decode, encode
from kvexact.refmodel.content import Bytes, prefix_rows, slot_rows, slot_values
from kvexact.refmodel.layout import GroupLayout, group_layout, word_bytes
from kvexact.refmodel.ops import Read, ReadValues, WriteTokens, WriteValues, block_id
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import WritePositions
from kvexact.refmodel.spec import LayerSet

Shape = tuple[int, int, int]

_FP32_BYTES = 4
#: Tags of undefined bytes start here, behind those of writes.
_UNDEFINED = 1 << 62


class Rows:
    """Rows of the ops of one geometry. A row is all that one slot holds, layer set by layer set.

    Attributes:
        plan: the geometry and its sizes.
    """

    def __init__(self, planned: Plan) -> None:
        self.plan = planned
        groups = range(len(planned.geometry.groups))
        self._layouts = [
            group_layout(planned, group, word_bytes(planned, group)).in_words(planned.row_bytes)
            for group in groups
        ]
        self._row_bytes = [layout.row_bytes for layout in self._layouts]
        self._last_payload: tuple[WriteTokens | None, Bytes] = None, np.empty(0, np.uint8)
        self._last_values: tuple[WriteValues | None, tuple[Bytes, ...]] = None, ()

    def layout(self, group: int) -> GroupLayout:
        """Where a group's content lies, byte by byte."""
        return self._in_bytes[group]

    @cached_property
    def _in_bytes(self) -> list[GroupLayout]:
        """Layouts byte by byte; no op needs them."""
        return [group_layout(self.plan, group) for group in range(len(self._layouts))]

    def row_bytes(self, group: int) -> int:
        """Bytes that a slot of a group stores."""
        return self._row_bytes[group]

    def slots(self, group: int) -> int:
        """Slots of a block of a group."""
        return self._layouts[group].slots

    def payload(self, op: WriteTokens) -> Bytes:
        """Rows [slot, row byte] that a write stores, pad rows included; not to be changed."""
        last, rows = self._last_payload
        if last is not op:
            numbers = self._slot_numbers(op)
            rows = slot_rows(op.tag, op.group, numbers, self.row_bytes(op.group))
            self._last_payload = op, rows
        return rows

    def values(self, op: WriteValues) -> tuple[Bytes, ...]:
        """What a write of values is given; not to be changed.

        Returns:
            Per layer set [slot, layer, head, bytes]: a head's key, then its value, in the op's
            value type; pad rows included.
        """
        last, found = self._last_values
        if last is not op:
            numbers = self._slot_numbers(op)
            parts = []
            for number, s in enumerate(self._layer_sets(op.group)):
                shape = (s.layers, s.kv_heads, s.head_size_k, s.head_size_v)
                where = (op.tag, op.group, number, numbers)
                parts.append(slot_values(*where, shape, op.value_type, op.style))
            found = tuple(parts)
            self._last_values = op, found
        return found

    def positions(self, op: WritePositions) -> Bytes:
        """Rows [position, row byte] of positions of a request."""
        return prefix_rows(op.group, np.array(op.hashes, np.uint64), self.row_bytes(op.group))

    def undefined(self, tag: int, group: int, numbers: list[int]) -> Bytes:
        """What a `Mutate` makes of slots, by their numbers in the group's pool."""
        return slot_rows(_UNDEFINED + tag, group, numbers, self.row_bytes(group))

    def encoded(self, op: WriteValues) -> Bytes:
        """Rows [slot, row byte] that a write of values makes; their pad bytes are not stored."""
        sets = zip(self._layer_sets(op.group), self.values(op), strict=True)
        cells = [encode(layers, op.value_type, values) for layers, values in sets]
        return _join(cells)

    def decoded(self, op: ReadValues, rows: Bytes) -> Bytes:
        """The fp32 values [slot, byte] of rows that a read gathered; pad rows are zeros."""
        sets = zip(self._layer_sets(op.group), _split(rows, self._cell_shapes(op)), strict=True)
        values = _join([decode(layers, cells) for layers, cells in sets])
        values[[slot is None for slot in op.slots]] = 0
        return values

    def split_rows(self, op: WriteTokens | WritePositions | Read, rows: Bytes) -> tuple[Bytes, ...]:
        """A copy of rows per layer set, [slot, layer, head, cell byte]."""
        return _split(rows, self._cell_shapes(op))

    def split_values(self, op: ReadValues, rows: Bytes) -> tuple[Bytes, ...]:
        """A copy of rows of fp32 values per layer set, [slot, layer, head, bytes]."""
        shapes = [
            (s.layers, s.kv_heads, (s.head_size_k + s.head_size_v) * _FP32_BYTES)
            for s in self._layer_sets(op.group)
        ]
        return _split(rows, tuple(shapes))

    def _layer_sets(self, group: int) -> tuple[LayerSet, ...]:
        return self.plan.geometry.groups[group].layer_sets

    def _cell_shapes(
        self, op: WriteTokens | WritePositions | Read | ReadValues
    ) -> tuple[Shape, ...]:
        return self._layouts[op.group].shapes

    def _slot_numbers(self, op: WriteTokens | WriteValues) -> list[int]:
        """Numbers of an op's slots in the group's pool; -1 for a pad row."""
        size = self.slots(op.group)
        return [-1 if slot is None else block_id(slot[0]) * size + slot[1] for slot in op.slots]


def _join(parts: list[Bytes]) -> Bytes:
    """Rows from their parts, each [row, layer, head, bytes]."""
    flat = [
        part.reshape(len(part), part.shape[1] * part.shape[2] * part.shape[3]) for part in parts
    ]
    return np.concatenate(flat, axis=1)


def _split(rows: Bytes, shapes: tuple[Shape, ...]) -> tuple[Bytes, ...]:
    """A copy of the parts of rows, each of one of these shapes."""
    split, start = [], 0
    for shape in shapes:
        end = start + shape[0] * shape[1] * shape[2]
        split.append(rows[:, start:end].copy().reshape(-1, *shape))
        start = end
    return tuple(split)
