"""A group's bytes as index arrays: slot rows in the pool, page images, places in a host row."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.address import Addresses, Placement
from kvexact.refmodel.plan import Plan

Mask = npt.NDArray[np.bool_]

_LONGEST_WORD = 8


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Where one group's content lies. Addresses are of block 0; block b adds b x stride.

    Attributes:
        slots: slots in a block.
        cells: addresses [slot, row byte]; a row is per layer set [layer, head, cell byte].
        cell_strides: block stride of each row byte, or one for all.
        shapes: per layer set (layers, heads, cell bytes).
        data: which row bytes hold data; the others are pad, which encoded writes leave alone.
        image: addresses of a block's content: layer by layer, pages in the order of addresses.
        image_strides: block stride of each byte of the image, or one for all.
        host: offsets [part, image byte] inside a host row.
    """

    slots: int
    cells: Addresses
    cell_strides: Addresses
    shapes: tuple[tuple[int, int, int], ...]
    data: Mask
    image: Addresses
    image_strides: Addresses
    host: Addresses

    @property
    def row_bytes(self) -> int:
        return int(self.cells.shape[1])

    def of_slots(self, blocks: Addresses, tokens: Addresses) -> Addresses:
        """Addresses [slot, row byte] of slots ``tokens`` of ``blocks``."""
        return self.cells[tokens] + blocks[:, None] * self.cell_strides

    def of_tokens(self, block: int, count: int) -> Addresses:
        """Addresses [slot, row byte] of the first slots of a block."""
        return self.cells[:count] + block * self.cell_strides

    def of_blocks(self, blocks: Addresses) -> Addresses:
        """Addresses [block, image byte] of all content of blocks."""
        return self.image + blocks[:, None] * self.image_strides

    def in_words(self, size: int) -> "GroupLayout":
        """The same layout with words of ``size`` bytes for bytes; they must divide every field."""
        return GroupLayout(
            self.slots,
            self.cells[:, ::size] // size,
            self.cell_strides[::size] // size,
            self.shapes,
            self.data[::size],
            self.image[::size] // size,
            self.image_strides[::size] // size,
            self.host[:, ::size] // size,
        )


def word_bytes(planned: Plan, group: int) -> int:
    """The longest words, of 8 bytes at most, that every field of a group consists of."""
    numbers = [planned.row_bytes]
    for placement in planned.placements[group]:
        for item in placement.places:
            piece = item.field.unit_bytes if item.field.scatter else item.field.width_bytes
            numbers += [item.offset, item.field.width_bytes, piece, *item.strides.values()]
    return int(np.gcd.reduce([_LONGEST_WORD, *numbers]))


def group_layout(planned: Plan, group: int) -> GroupLayout:
    """Lay one group out as index arrays of one block's size, however large the pool."""
    chunk_blocks = planned.geometry.host.chunk_blocks
    parts = np.arange(chunk_blocks, dtype=np.intp)[:, None, None]
    cells, images, hosts, shapes, data = [], [], [], [], []
    cell_strides, image_strides = [], []
    row_start = 0
    for placement in planned.placements[group]:
        of_set = placement.cells_of_block_0()
        slots, layers, heads, cell = of_set.shape
        block_stride = placement.grid["B"]
        shapes.append((layers, heads, cell))
        cells.append(of_set.reshape(slots, -1))
        data.append(np.tile(_data_of_cell(placement), layers * heads))
        cell_strides.append(np.full(cells[-1].shape[1], block_stride, np.intp))

        pages = np.sort(of_set.transpose(1, 0, 2, 3).reshape(layers, -1), axis=1)
        images.append(pages.reshape(-1))
        image_strides.append(np.full(pages.size, block_stride, np.intp))

        content = placement.content_bytes
        layer = np.arange(layers, dtype=np.intp)[:, None]
        byte = np.arange(content, dtype=np.intp)
        places = row_start + (layer * chunk_blocks + parts) * content + byte
        hosts.append(places.reshape(chunk_blocks, -1))
        row_start += layers * chunk_blocks * content
    return GroupLayout(
        slots,
        np.concatenate(cells, axis=1),
        _one_if_equal(np.concatenate(cell_strides)),
        tuple(shapes),
        np.concatenate(data),
        np.concatenate(images),
        _one_if_equal(np.concatenate(image_strides)),
        np.concatenate(hosts, axis=1),
    )


def _data_of_cell(placement: Placement) -> Mask:
    fields = [place.field for place in placement.places]
    return np.repeat([field.name != "pad" for field in fields], [f.width_bytes for f in fields])


def _one_if_equal(strides: Addresses) -> Addresses:
    return strides[:1] if (strides == strides[0]).all() else strides
