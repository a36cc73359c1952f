"""Sizes of geometries that may yet be refused, to draw, to reduce and to bound them."""

from collections.abc import Callable
from dataclasses import replace

from kvexact.refmodel.address import content_bytes, page_bytes
from kvexact.refmodel.spec import Geometry, Group, LayerSet, Refused


def block_bytes(geometry: Geometry) -> int:
    """Bytes of one block, padding included, of the largest group."""
    return max(sum_bytes(group, page_bytes) for group in geometry.groups)


def storage_bytes(geometry: Geometry) -> int:
    """About how much memory pool and host tier take; also where the geometry is refused."""
    pool = geometry.base_offset_bytes + geometry.blocks * block_bytes(geometry)
    return max(pool, geometry.physical_bytes or 0) + geometry.host.capacity_bytes


def sum_bytes(group: Group, size_of: Callable[[Group, LayerSet], int]) -> int:
    """Bytes of a block of a group; a page whose cells do not fill bytes counts as one."""
    total = 0
    for layers in group.layer_sets:
        try:
            total += layers.layers * size_of(group, layers)
        except Refused:
            total += layers.layers
    return total


def page_content(group: Group, layers: LayerSet) -> int:
    """Bytes of one page without padding."""
    return sum_bytes(replace(group, layer_sets=(replace(layers, layers=1),)), content_bytes)
