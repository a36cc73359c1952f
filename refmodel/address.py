"""The map from (layer, block, head, token, field) to bytes of a pool.

All layouts are one walk: the axes of the physical order, from the innermost to the outermost, each
with the running size as its stride. Two axes join those of the order's name: P, the kernel blocks
of a manager block, directly inside B; and S, key half and value half of a split page, directly
inside the page grid (the inner one of L and P). Nothing here is a formula of one layout.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.formats import Field, cell_fields
from kvexact.refmodel.spec import Geometry, Group, LayerSet

Addresses = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one field of one layer set lies: affine in layer, block, part, head and token.

    Attributes:
        offset: bytes from the storage's start to the field's first byte in layer 0, block 0.
        strides: bytes between neighbours along each axis of "LBPHN".
    """

    field: Field
    offset: int
    strides: dict[str, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one layer set lies in the pool.

    Attributes:
        extents: length of each axis of "LBPHN"; N counts the slots of a kernel block.
        content_bytes: one layer's bytes in one block, without padding.
        page_bytes: the same with padding.
        places: one per field, in logical cell order.
    """

    extents: dict[str, int]
    content_bytes: int
    page_bytes: int
    places: tuple[Place, ...]

    @property
    def cell_bytes(self) -> int:
        return sum(place.field.width_bytes for place in self.places)

    def cells_of_block_0(self) -> Addresses:
        """Addresses [token, layer, head, cell byte] of block 0, in logical cell order."""
        size = self.extents
        columns = []
        for place in self.places:
            address: Addresses = np.full(1, place.offset, np.intp)
            for axis in "PNLH":
                steps = np.arange(size[axis], dtype=np.intp) * place.strides[axis]
                address = np.add.outer(address, steps)
            byte = np.arange(place.field.width_bytes, dtype=np.intp)
            columns.append(np.add.outer(address, byte))
        tokens = size["P"] * size["N"]
        cells: Addresses = np.concatenate(columns, axis=-1)
        return cells.reshape(tokens, size["L"], size["H"], self.cell_bytes)


def content_bytes(group: Group, layers: LayerSet) -> int:
    """Bytes of one layer in one block, without padding."""
    cell = sum(field.width_bytes for field in cell_fields(layers))
    return layers.kv_heads * group.block_size * cell


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
        "N": group.kernel_block_size,
    }
    content, page = content_bytes(group, layers), page_bytes(group, layers)
    grid = 1 + max(axes.index("L"), axes.index("P"))
    page_end = "B" if axes.index("B") > axes.index("L") else "L"

    fields = cell_fields(layers)
    halves = [fields]
    if geometry.kv_split:
        halves = [tuple(f for f in fields if f.half == half) for half in "kv"]
    tail_strides: list[dict[str, int]] = []
    half_starts: list[int] = []
    running = 0
    for half in halves:
        half_starts.append(running)
        size = sum(field.width_bytes for field in half)
        strides = {}
        for axis in reversed(axes[grid:]):
            strides[axis] = size
            size *= extents[axis]
        tail_strides.append(strides)
        running += size

    grid_strides: dict[str, int] = {}
    for axis in reversed(axes[:grid]):
        if axis == page_end and page > content:
            running = page
        if axis == "B" and axes[0] == "B":
            running = bytes_per_block
        grid_strides[axis] = running
        running *= extents[axis]

    places = []
    for half, half_start, strides in zip(halves, half_starts, tail_strides, strict=True):
        offset = start + half_start
        for field in half:
            places.append(Place(field, offset, grid_strides | strides))
            offset += field.width_bytes
    return Placement(extents, content, page, tuple(places))
