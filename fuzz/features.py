"""Features of a geometry that a report counts, so that what was never met is seen."""

from collections.abc import Callable

from kvexact.refmodel.spec import CELL_FORMATS, ORDERS, Geometry, LayerSet

_HAS: dict[str, Callable[[Geometry, list[LayerSet]], bool]] = {
    "key half and value half": lambda geometry, _: geometry.kv_split,
    "overlaid groups": lambda geometry, _: len(geometry.groups) > 1,
    "several layer sets": lambda geometry, _: any(len(g.layer_sets) > 1 for g in geometry.groups),
    "page padding": lambda _, sets: any(layers.page_bytes is not None for layers in sets),
    "base offset": lambda geometry, _: geometry.base_offset_bytes > 0,
    "tail": lambda geometry, _: geometry.tail_alignment > 1 or bool(geometry.physical_bytes),
    "kernel split": lambda geometry, _: any(
        group.kernel_block_size < group.block_size for group in geometry.groups
    ),
    "host chunks": lambda geometry, _: geometry.host.chunk_blocks > 1,
    "aligned host rows": lambda geometry, _: geometry.host.row_alignment > 1,
    "key size unlike value size": lambda _, sets: any(
        layers.head_size_k != layers.head_size_v for layers in sets
    ),
    "no value": lambda _, sets: any(layers.head_size_v == 0 for layers in sets),
    "two heads": lambda _, sets: any(layers.kv_heads == 2 for layers in sets),
    "heads equal block size": lambda geometry, _: any(
        layers.kv_heads == group.block_size
        for group in geometry.groups
        for layers in group.layer_sets
    ),
}

#: Every name that `geometry_features` knows.
FEATURES = (
    *(f"order {order}" for order in ORDERS),
    *(f"format {cell_format}" for cell_format in CELL_FORMATS),
    *_HAS,
)


def geometry_features(geometry: Geometry) -> set[str]:
    """Names of what this geometry has, e.g. "order BLHNC" or "page padding"."""
    sets = [layers for group in geometry.groups for layers in group.layer_sets]
    features = {f"order {geometry.order}"} | {f"format {layers.cell_format}" for layers in sets}
    return features | {name for name, has in _HAS.items() if has(geometry, sets)}
