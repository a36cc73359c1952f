"""Real keys and values on their way to and from cells, through scratch memory.

Scratch memory holds the slots of an op, then values layer set by layer set, then cells. Cells are
those that "write" and "read" walk; `encode` and `decode` of codecs.cuh lead from values to them and
back, one launch a layer set.
"""

from collections.abc import Sequence
from struct import pack, unpack
from typing import NamedTuple

import numpy as np

from kvexact.impl.engine.device import COMPUTE, ROW_ALIGNMENT, WORD_BYTES, Device
from kvexact.impl.engine.order import InOrder
from kvexact.impl.engine.planner import raised
from kvexact.impl.engine.plans import GroupPlan, Plan, Shape
from kvexact.impl.target import Rows
from kvexact.refmodel.ops import VALUE_TYPES
from kvexact.refmodel.spec import PAGE_FORMATS, LayerSet

_FP32_BYTES = 4
#: Bytes of an element of each of `VALUE_TYPES`.
_TYPE_BYTES = {"fp32": _FP32_BYTES, "fp16": 2, "bf16": 2}


class Staging(NamedTuple):
    """Where the values of each layer set, and all cells, start in scratch memory, and its end."""

    values: tuple[int, ...]
    cells: int
    end: int


class Codecs:
    """Encodes and decodes the cells of whole groups."""

    def __init__(self, plan: Plan, device: Device, order: InOrder) -> None:
        self.plan = plan
        self.device = device
        self.order = order

    def encode(self, index: int, slots: Sequence[int], value_type: str, rows: Rows) -> int:
        """Bring slots and values to the device and encode them.

        Args:
            index: the group.
            slots: one for each row, as kernels count them; they go to the start of scratch memory.
            rows: per layer set the elements, [rows, layers, heads, bytes].

        Returns:
            Where in scratch memory the cells start.
        """
        group = self.plan.groups[index]
        places = self._stage(group, slots, _TYPE_BYTES[value_type])
        scratch = self.device.scratch
        for start, data in zip(places.values, rows, strict=True):
            scratch.bytes[start : start + data.size] = data.reshape(-1)
        self.device.push(COMPUTE, places.cells)
        cells = scratch.device + places.cells
        for one, start in zip(group.sets, places.values, strict=True):
            shape = one.shape
            number, *sizes = self._arguments(shape, len(slots))
            kind = VALUE_TYPES.index(value_type)
            self.device.launch(
                COMPUTE, "encode", number, kind, *sizes, scratch.device + start, cells
            )
            cells += len(slots) * _row_cells(shape) * shape.cell_bytes
        return places.cells

    def stage(self, index: int, slots: Sequence[int]) -> Staging:
        """Bring slots to the device, and make room for cells and for fp32 values."""
        places = self._stage(self.plan.groups[index], slots, _FP32_BYTES)
        self.device.push(COMPUTE, WORD_BYTES * len(slots))
        return places

    def decode(self, index: int, count: int, places: Staging) -> None:
        """Decode ``count`` rows of cells, and bring the values to the host's side."""
        group = self.plan.groups[index]
        scratch = self.device.scratch
        cells = scratch.device + places.cells
        for one, start in zip(group.sets, places.values, strict=True):
            shape = one.shape
            sizes = self._arguments(shape, count)
            self.device.launch(COMPUTE, "decode", *sizes, cells, scratch.device + start)
            cells += count * _row_cells(shape) * shape.cell_bytes
        self.device.pull(COMPUTE, places.values[0], places.cells - places.values[0])

    def decoded(self, index: int, count: int, places: Staging) -> Rows:
        """What `decode` brought: per layer set fp32 [rows, layers, heads, bytes]."""
        group = self.plan.groups[index]
        scratch = self.device.scratch
        rows = []
        for one, start in zip(group.sets, places.values, strict=True):
            size = (count, one.shape.layers, one.shape.heads, _FP32_BYTES * _elements(one.shape))
            found = scratch.bytes[start : start + int(np.prod(size))]
            rows.append(found.reshape(size).copy())
        return tuple(rows)

    def _stage(self, group: GroupPlan, slots: Sequence[int], element_bytes: int) -> Staging:
        count = len(slots)
        end = WORD_BYTES * count
        starts = []
        for one in group.sets:
            end = raised(end, ROW_ALIGNMENT)
            starts.append(end)
            end += count * _row_cells(one.shape) * _elements(one.shape) * element_bytes
        cells = end = raised(end, ROW_ALIGNMENT)
        for one in group.sets:
            end += count * _row_cells(one.shape) * one.shape.cell_bytes
        scratch = self.order.stage(end)
        scratch.words[:count] = slots
        return Staging(tuple(starts), cells, end)

    def _arguments(self, shape: Shape, count: int) -> tuple[int, ...]:
        """What encode and decode have in common: format, sizes, scales, cells."""
        one = shape.layer_set
        number = PAGE_FORMATS.index(one.page_format)
        k_scale, v_scale = self.scales(one)
        sizes = one.head_size_k, one.head_size_v, _bits(k_scale), _bits(v_scale)
        return number, *sizes, shape.cell_bytes, count * _row_cells(shape)

    def scales(self, one: LayerSet) -> tuple[float, float]:
        """The scales of a tensor's keys and values."""
        return one.k_scale, one.v_scale


def _row_cells(shape: Shape) -> int:
    return shape.layers * shape.heads


def _elements(shape: Shape) -> int:
    return shape.layer_set.head_size_k + shape.layer_set.head_size_v


def _bits(value: float) -> int:
    """The bits of a number that fp32 holds."""
    return int(unpack("<I", pack("<f", value))[0])
