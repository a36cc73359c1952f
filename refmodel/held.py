"""Addresses of what ops name: found once by the plain walk, then at hand.

An op names blocks and places in the host tier, over and over. To look up takes less than to work
out again; what is held stays within a bound, however large the pool.
"""

from collections.abc import Callable
from typing import TypeVar

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.layout import GroupLayout
from kvexact.refmodel.ops import Block, block_id

Name = TypeVar("Name")

#: Addresses held by one table; one entry is held in any case.
_MOST = 1 << 18


class Held(dict[Name, Addresses]):
    """Addresses by the name of what lies there; all are let go where there is no room for more.

    None is to be changed.
    """

    def __init__(self, find: Callable[[Name], Addresses], each: int) -> None:
        """Hold what ``find`` finds, ``each`` addresses a name."""
        super().__init__()
        self._find = find
        self._names = max(1, _MOST // each)

    def __missing__(self, name: Name) -> Addresses:
        if len(self) == self._names:
            self.clear()
        found = self[name] = self._find(name)
        return found


class Places:
    """Where one group's content lies.

    Attributes:
        cells: addresses [slot, row word] by block.
        images: addresses [image word] of all content of a block, by block.
        parts: addresses [image word] in the host tier by host slot and part of its chunk.
    """

    def __init__(self, layout: GroupLayout, row_bytes: int) -> None:
        def cells(block: Block) -> Addresses:
            return layout.of_cells(block_id(block))

        def image(block: Block) -> Addresses:
            return layout.of_block(block_id(block))

        def part(place: tuple[int, int]) -> Addresses:
            return layout.of_part(*place, row_bytes)

        self.cells: Held[Block] = Held(cells, layout.cells.size)
        self.images: Held[Block] = Held(image, layout.image.size)
        self.parts: Held[tuple[int, int]] = Held(part, layout.image.size)
