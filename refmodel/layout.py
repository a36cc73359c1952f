"""A group's bytes as index arrays: slot rows in the pool, page images, places in a host row."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.address import Addresses, Placement
from kvexact.refmodel.plan import Plan

Mask = npt.NDArray[np.bool_]

_LONGEST_WORD = 8


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Where one group's content lies. Addresses are of block 0; block b adds b x stride.

    All are in words, which are bytes at first; cells and images may have words of other sizes.

    Attributes:
        slots: slots in a block.
        cell_word: bytes of a word of `cells`, `cell_strides` and `data`.
        cells: addresses [slot, row word]; a row is per layer set [layer, head, cell byte].
        cell_strides: block stride of each row word, or one for all.
        shapes: per layer set (layers, heads, cell bytes).
        data: which row words hold data; the others are pad, which encoded writes leave alone.
        image_word: bytes of a word of `image`, `image_strides` and `host`.
        image: addresses of a block's content: layer by layer, pages in the order of addresses.
        image_strides: block stride of each word of the image, or one for all.
        host: offsets [part, image word] inside a host row.
    """

    slots: int
    cell_word: int
    cells: Addresses
    cell_strides: Addresses
    shapes: tuple[tuple[int, int, int], ...]
    data: Mask
    image_word: int
    image: Addresses
    image_strides: Addresses
    host: Addresses

    @property
    def row_bytes(self) -> int:
        return int(self.cells.shape[1]) * self.cell_word

    def of_slots(self, blocks: Addresses, tokens: Addresses) -> Addresses:
        """Addresses [slot, row word] of slots ``tokens`` of ``blocks``."""
        return self.cells.take(tokens, axis=0) + blocks[:, None] * self.cell_strides

    def of_cells(self, block: int) -> Addresses:
        """Addresses [slot, row word] of all slots of a block."""
        return self.cells + block * self.cell_strides

    def of_block(self, block: int) -> Addresses:
        """Addresses [image word] of all content of a block."""
        return self.image + block * self.image_strides

    def of_part(self, slot: int, part: int, row_bytes: int) -> Addresses:
        """Addresses [image word] of a part of the chunk in a row of the host tier."""
        places: Addresses = self.host[part] + slot * (row_bytes // self.image_word)
        return places

    def in_words(self, row_bytes: int) -> "GroupLayout":
        """The same layout with images in words as long as all of them consist of.

        Args:
            row_bytes: of a host row, which consists of such words, too.
        """
        image, host = self.image, self.host
        strides = np.broadcast_to(self.image_strides, image.shape)
        follows = (np.diff(image) == 1) & (np.diff(strides) == 0) & (np.diff(host) == 1).all(axis=0)
        run = np.flatnonzero(np.append(True, ~follows))
        runs = [run, image[run], strides[run], *host[:, run]]
        row_words = row_bytes // self.image_word
        size = int(np.gcd.reduce([row_words, image.size, *np.gcd.reduce(runs, axis=1)]))
        return replace(
            self,
            image_word=self.image_word * size,
            image=image[::size] // size,
            image_strides=self.image_strides[::size] // size,
            host=host[:, ::size] // size,
        )


def word_bytes(planned: Plan, group: int) -> int:
    """The longest words, of 8 bytes at most, that every field of a group consists of."""
    numbers = [planned.row_bytes]
    for placement in planned.placements[group]:
        for item in placement.places:
            piece = item.field.unit_bytes if item.field.scatter else item.field.width_bytes
            numbers += [item.offset, item.field.width_bytes, piece, *item.strides.values()]
    return int(np.gcd.reduce([_LONGEST_WORD, *numbers]))


def group_layout(planned: Plan, group: int, word: int = 1) -> GroupLayout:
    """Lay one group out as index arrays of one block's size, however large the pool.

    Args:
        word: bytes of a word; every field must consist of such.
    """
    chunk_blocks = planned.geometry.host.chunk_blocks
    parts = np.arange(chunk_blocks, dtype=np.intp)[:, None, None]
    cells, images, hosts, shapes, data = [], [], [], [], []
    cell_strides, image_strides = [], []
    row_start = 0
    for placement in planned.placements[group]:
        of_set = placement.cells_of_block_0(word)
        slots, layers, heads, _ = of_set.shape
        block_stride = placement.grid["B"] // word
        shapes.append((layers, heads, placement.cell_bytes))
        cells.append(of_set.reshape(slots, -1))
        data.append(np.tile(_data_of_cell(placement)[::word], layers * heads))
        cell_strides.append(np.full(cells[-1].shape[1], block_stride, np.intp))

        pages = np.sort(of_set.transpose(1, 0, 2, 3).reshape(layers, -1), axis=1)
        images.append(pages.reshape(-1))
        image_strides.append(np.full(pages.size, block_stride, np.intp))

        content = placement.content_bytes // word
        layer = np.arange(layers, dtype=np.intp)[:, None]
        in_page = np.arange(content, dtype=np.intp)
        places = row_start + (layer * chunk_blocks + parts) * content + in_page
        hosts.append(places.reshape(chunk_blocks, -1))
        row_start += layers * chunk_blocks * content
    return GroupLayout(
        slots,
        word,
        np.concatenate(cells, axis=1),
        _one_if_equal(np.concatenate(cell_strides)),
        tuple(shapes),
        np.concatenate(data),
        word,
        np.concatenate(images),
        _one_if_equal(np.concatenate(image_strides)),
        np.concatenate(hosts, axis=1),
    )


def _data_of_cell(placement: Placement) -> Mask:
    fields = [place.field for place in placement.places]
    return np.repeat([field.name != "pad" for field in fields], [f.width_bytes for f in fields])


def _one_if_equal(strides: Addresses) -> Addresses:
    return strides[:1] if (strides == strides[0]).all() else strides
