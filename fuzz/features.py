"""Features of a geometry that a report counts, so that what was never met is seen."""

from kvexact.refmodel.spec import Geometry


def geometry_features(geometry: Geometry) -> set[str]:
    """Names of what this geometry has, e.g. "order BLHNC" or "padding"."""
    groups = geometry.groups
    sets = [layers for group in groups for layers in group.layer_sets]
    features = {f"order {geometry.order}"} | {f"format {layers.cell_format}" for layers in sets}
    optional = {
        "key half and value half": geometry.kv_split,
        "overlaid groups": len(groups) > 1,
        "several layer sets": any(len(group.layer_sets) > 1 for group in groups),
        "page padding": any(layers.page_bytes is not None for layers in sets),
        "base offset": geometry.base_offset_bytes > 0,
        "tail": geometry.tail_alignment > 1 or bool(geometry.physical_bytes),
        "kernel split": any(group.kernel_block_size < group.block_size for group in groups),
        "host chunks": geometry.host.chunk_blocks > 1,
        "aligned host rows": geometry.host.row_alignment > 1,
        "key size unlike value size": any(x.head_size_k != x.head_size_v for x in sets),
        "no value": any(x.head_size_v == 0 for x in sets),
        "two heads": any(x.kv_heads == 2 for x in sets),
        "heads equal block size": any(
            layers.kv_heads == group.block_size for group in groups for layers in group.layer_sets
        ),
    }
    return features | {name for name, met in optional.items() if met}
