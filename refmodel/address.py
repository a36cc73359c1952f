"""The map from (layer, block, head, slot, field) to bytes of a pool.

All layouts are one walk: the axes of the physical order, from the innermost to the outermost, each
with the running size as its stride. Two axes join those of the order's name: P, the kernel blocks
of a manager block, directly inside B; and S, the regions of a page, directly inside the page grid
(the inner one of L and P). Each region walks the axes inside S on its own, from its cell outwards,
or, where it is arrays per head, from a field's array outwards. Nothing here is a formula of one
layout.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.formats import Field, Region, cell_fields, kernel_slots, regions, slots
from kvexact.refmodel.spec import Geometry, Group, LayerSet

Addresses = npt.NDArray[np.intp]
Strides = dict[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one field of one layer set lies: affine in layer, block, part, head and slot.

    A scattered field permutes what lies in the arrays of a head, slot x bytes; the array is affine.

    Attributes:
        offset: bytes from the storage's start to the field's first byte in layer 0, block 0.
        strides: bytes between neighbours along each axis of "LBPHN".
    """

    field: Field
    offset: int
    strides: Strides

    def slot_stride(self, slots: int) -> int:
        """Bytes from the first byte of slot 0 to that of slot 1, of so many in a kernel block."""
        if self.field.scatter is None:
            return self.strides["N"]
        size = self.field.width_bytes // self.field.unit_bytes
        slot, element = divmod(self.field.scatter(0, 1, slots, size), size)
        return int(slot * self.strides["N"] + element * self.field.unit_bytes)

    def bytes_of_slots(self, slots: int) -> Addresses:
        """Offsets [slot, byte] of a kernel block's slots from the field's first byte."""
        byte = np.arange(self.field.width_bytes, dtype=np.intp)
        slot = np.arange(slots, dtype=np.intp)[:, None]
        if self.field.scatter is not None:
            unit = self.field.unit_bytes
            size = self.field.width_bytes // unit
            slot, element = np.divmod(self.field.scatter(byte // unit, slot, slots, size), size)
            byte = element * unit + byte % unit
        return slot * self.strides["N"] + byte


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one layer set lies in the pool.

    Attributes:
        extents: length of each axis of "LBPHN"; N counts the slots of a kernel block.
        content_bytes: one layer's bytes in one block, without padding.
        page_bytes: the same with padding.
        start: bytes from the storage's start to the page of layer 0 in block 0.
        grid: strides of the axes of the page grid, and of those outside it.
        tail_bytes: bytes of all regions at one point of the grid.
        places: one per field, in logical cell order.
    """

    extents: dict[str, int]
    content_bytes: int
    page_bytes: int
    start: int
    grid: Strides
    tail_bytes: int
    places: tuple[Place, ...]

    @property
    def cell_bytes(self) -> int:
        return sum(place.field.width_bytes for place in self.places)

    def cells_of_block_0(self, word: int = 1) -> Addresses:
        """Addresses [slot, layer, head, cell word] of block 0, in logical cell order.

        Args:
            word: bytes of a word, of which every field consists; addresses count such words.
        """
        size = self.extents
        columns = []
        for place in self.places:
            steps = (np.arange(size[axis], dtype=np.intp) * place.strides[axis] for axis in "PLH")
            part, layer, head = np.ix_(*steps)
            of_slots = place.offset + place.bytes_of_slots(size["N"])[:, ::word]
            columns.append((part + layer + head)[:, None, :, :, None] + of_slots[:, None, None, :])
        cells: Addresses = np.concatenate(columns, axis=-1)
        return cells.reshape(size["P"] * size["N"], size["L"], size["H"], -1) // word


def content_bytes(group: Group, layers: LayerSet) -> int:
    """Bytes of one layer in one block, without padding."""
    cell = sum(field.width_bytes for field in cell_fields(layers))
    return layers.kv_heads * slots(group, layers) * cell


def page_bytes(group: Group, layers: LayerSet) -> int:
    """Bytes of one layer in one block, with padding."""
    return layers.page_bytes or content_bytes(group, layers)


def axes_of(order: str) -> str:
    """The axes of a physical order, outermost first, with P inside B and without C."""
    return order.removesuffix("C").replace("B", "BP")


def place(
    geometry: Geometry, group: Group, layers: LayerSet, start: int, bytes_per_block: int
) -> Placement:
    """Walk the axes of one layer set.

    Args:
        start: bytes from the storage's start to the layer set's first byte.
        bytes_per_block: the block stride of orders that start with B.
    """
    axes = axes_of(geometry.order)
    extents = {
        "L": layers.layers,
        "B": geometry.blocks,
        "P": group.block_size // group.kernel_block_size,
        "H": layers.kv_heads,
        "N": kernel_slots(group, layers),
    }
    content, page = content_bytes(group, layers), page_bytes(group, layers)
    inner_end = 1 + max(axes.index("L"), axes.index("P"))
    page_end = "B" if axes.index("B") > axes.index("L") else "L"

    in_regions: list[Place] = []
    tail = 0
    for region in regions(layers, split=geometry.kv_split):
        of_region, size = _walk_region(region, axes[inner_end:], extents, start + tail)
        in_regions += of_region
        tail += size

    grid: Strides = {}
    running = tail
    for axis in reversed(axes[:inner_end]):
        if axis == page_end and page > content:
            running = page
        if axis == "B" and axes[0] == "B":
            running = bytes_per_block
        grid[axis] = running
        running *= extents[axis]

    places = tuple(Place(item.field, item.offset, grid | item.strides) for item in in_regions)
    return Placement(extents, content, page, start, grid, tail, places)


def _walk_region(
    region: Region, axes: str, extents: dict[str, int], start: int
) -> tuple[list[Place], int]:
    """Fields of a region that starts here, with strides inside the grid only; and its bytes."""
    alone = "N" if region.per_head else ""
    together = "".join(axis for axis in axes if axis not in alone)
    places = []
    cell = 0
    for field in region.fields:
        strides, size = _walk(alone, extents, field.width_bytes)
        places.append(Place(field, start + cell, strides))
        cell += size
    strides, size = _walk(together, extents, cell)
    return [Place(item.field, item.offset, item.strides | strides) for item in places], size


def _walk(axes: str, extents: dict[str, int], size: int) -> tuple[Strides, int]:
    """Strides of these axes around ``size`` bytes, and the bytes of all."""
    strides: Strides = {}
    for axis in reversed(axes):
        strides[axis] = size
        size *= extents[axis]
    return strides, size
