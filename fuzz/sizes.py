"""Sizes of geometries that may yet be refused, to draw, to reduce and to bound them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvexact.refmodel.address import content_bytes, page_bytes
from kvexact.refmodel.plan import round_up
from kvexact.refmodel.spec import Geometry, Group, LayerSet, Refused

SizeOf = Callable[[Group, LayerSet], int]


def block_bytes(groups: Sequence[Group]) -> int:
    """Bytes of one block, padding included, of the largest group; side buffers on top."""
    return sum(
        max(sum_bytes(group, page_bytes, side=side) for group in groups) for side in (False, True)
    )


def logical_bytes(groups: Sequence[Group], blocks: int) -> int:
    """Bytes of all blocks, side buffers included."""
    return blocks * block_bytes(groups)


def chunk_bytes(groups: Sequence[Group], chunk_blocks: int) -> int:
    """Content of a host chunk of the largest group; at least a byte."""
    return chunk_blocks * max(1, *(sum_bytes(group, content_bytes) for group in groups))


def storage_bytes(geometry: Geometry) -> int:
    """About how much memory pool and host tier take; also where the geometry is refused."""
    pool = geometry.base_offset_bytes + logical_bytes(geometry.groups, geometry.blocks)
    aligned = round_up(pool, geometry.tail_alignment)
    return max(pool, geometry.physical_bytes or aligned) + geometry.host.capacity_bytes


def sum_bytes(group: Group, size_of: SizeOf, *, side: bool | None = None) -> int:
    """Bytes of a group's layer sets in one block; a page that cannot be counts as one byte.

    Args:
        side: of side buffers alone, or of what is none; None: of both.
    """
    total = 0
    for layers in group.layer_sets:
        if side in (None, layers.side):
            try:
                total += layers.layers * size_of(group, layers)
            except Refused:
                total += layers.layers
    return total


def page_content(group: Group, layers: LayerSet) -> int:
    """Bytes of one page without padding."""
    return sum_bytes(replace(group, layer_sets=(replace(layers, layers=1),)), content_bytes)
