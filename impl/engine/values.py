"""Real keys and values on their way to and from cells, through scratch memory.

Scratch memory holds the slots of an op, then values layer set by layer set, then cells. Cells are
those that "write" and "read" walk; `encode` and `decode` of codecs.cuh lead from values to them and
back, one launch a layer set.
"""

from collections.abc import Sequence
from math import prod
from struct import pack, unpack
from typing import NamedTuple

from kvexact.impl.engine.device import COMPUTE, ROW_ALIGNMENT, WORD_BYTES, Device
from kvexact.impl.engine.order import InOrder
from kvexact.impl.engine.planner import raised
from kvexact.impl.engine.plans import Plan, Shape
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


class Coded(NamedTuple):
    """What encoding and decoding the cells of a layer set takes.

    Attributes:
        page_format: its number.
        sizes: elements of a key and of a value, and the bits of their scales.
        row_cells: cells of a row.
        elements: values of a cell.
        cell_bytes: bytes of a cell.
    """

    page_format: int
    sizes: tuple[int, int, int, int]
    row_cells: int
    elements: int
    cell_bytes: int


class Codecs:
    """Encodes and decodes the cells of whole groups."""

    def __init__(self, plan: Plan, device: Device, order: InOrder) -> None:
        self.plan = plan
        self.device = device
        self.order = order
        self._coded: dict[int, list[Coded]] = {}

    def encode(self, index: int, slots: Sequence[int], value_type: str, rows: Rows) -> int:
        """Bring slots and values to the device and encode them.

        Args:
            index: the group.
            slots: one for each row, as kernels count them; they go to the start of scratch memory.
            rows: per layer set the elements, [rows, layers, heads, bytes].

        Returns:
            Where in scratch memory the cells start.
        """
        places = self._stage(index, slots, _TYPE_BYTES[value_type])
        device, scratch, kind = self.device, self.device.scratch, VALUE_TYPES.index(value_type)
        for start, data in zip(places.values, rows, strict=True):
            scratch.memory[start : start + data.size] = data.tobytes()
        device.push(COMPUTE, places.cells)
        cells = scratch.device + places.cells
        for one, start in zip(self.coded(index), places.values, strict=True):
            count = len(slots) * one.row_cells
            what = one.page_format, kind, *one.sizes, one.cell_bytes, count
            device.launch(COMPUTE, "encode", *what, scratch.device + start, cells)
            cells += count * one.cell_bytes
        return places.cells

    def stage(self, index: int, slots: Sequence[int]) -> Staging:
        """Bring slots to the device, and make room for cells and for fp32 values."""
        places = self._stage(index, slots, _FP32_BYTES)
        self.device.push(COMPUTE, WORD_BYTES * len(slots))
        return places

    def decode(self, index: int, count: int, places: Staging) -> None:
        """Decode ``count`` rows of cells, and bring the values to the host's side."""
        device, scratch = self.device, self.device.scratch
        cells = scratch.device + places.cells
        for one, start in zip(self.coded(index), places.values, strict=True):
            cell_count = count * one.row_cells
            what = one.page_format, *one.sizes, one.cell_bytes, cell_count
            device.launch(COMPUTE, "decode", *what, cells, scratch.device + start)
            cells += cell_count * one.cell_bytes
        device.pull(COMPUTE, places.values[0], places.cells - places.values[0])

    def decoded(self, index: int, count: int, places: Staging) -> Rows:
        """What `decode` brought: per layer set fp32 [rows, layers, heads, bytes]."""
        scratch = self.device.scratch
        rows = []
        for planned, start in zip(self.plan.groups[index].sets, places.values, strict=True):
            shape = planned.shape
            size = (count, shape.layers, shape.heads, _FP32_BYTES * _elements(shape.layer_set))
            found = scratch.bytes[start : start + prod(size)]
            rows.append(found.reshape(size).copy())
        return tuple(rows)

    def _stage(self, index: int, slots: Sequence[int], element_bytes: int) -> Staging:
        count = len(slots)
        end = WORD_BYTES * count
        starts = []
        for one in self.coded(index):
            end = raised(end, ROW_ALIGNMENT)
            starts.append(end)
            end += count * one.row_cells * one.elements * element_bytes
        cells = end = raised(end, ROW_ALIGNMENT)
        for one in self.coded(index):
            end += count * one.row_cells * one.cell_bytes
        scratch = self.order.stage(end)
        scratch.words[:count] = slots
        return Staging(tuple(starts), cells, end)

    def coded(self, index: int) -> list[Coded]:
        """The layer sets of a group, described when it is first needed."""
        if index not in self._coded:
            self._coded[index] = [self._describe(one.shape) for one in self.plan.groups[index].sets]
        return self._coded[index]

    def _describe(self, shape: Shape) -> Coded:
        one = shape.layer_set
        k_scale, v_scale = self.scales(one)
        return Coded(
            PAGE_FORMATS.index(one.page_format),
            (one.head_size_k, one.head_size_v, _bits(k_scale), _bits(v_scale)),
            shape.layers * shape.heads,
            _elements(one),
            shape.cell_bytes,
        )

    def scales(self, one: LayerSet) -> tuple[float, float]:
        """The scales of a tensor's keys and values."""
        return one.k_scale, one.v_scale


def _elements(one: LayerSet) -> int:
    return one.head_size_k + one.head_size_v


def _bits(value: float) -> int:
    """The bits of a number that fp32 holds."""
    return int(unpack("<I", pack("<f", value))[0])
