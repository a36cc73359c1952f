"""Features of a geometry that a report counts, so that what was never met is seen."""

from collections.abc import Callable

from kvexact.refmodel.plan import Plan
from kvexact.refmodel.spec import PAGE_FORMATS, ORDERS, Group, LayerSet


def _any_group(has: Callable[[Group], bool]) -> Callable[[Plan], bool]:
    return lambda plan: any(has(group) for group in plan.geometry.groups)


def _any_set(has: Callable[[Group, LayerSet], bool]) -> Callable[[Plan], bool]:
    return _any_group(lambda group: any(has(group, layers) for layers in group.layer_sets))


_HAS: dict[str, Callable[[Plan], bool]] = {
    "key half and value half": lambda plan: plan.geometry.kv_split,
    "overlaid groups": lambda plan: len(plan.geometry.groups) > 1,
    "several layer sets": _any_group(lambda group: len(group.layer_sets) > 1),
    "page padding": lambda plan: any(
        placement.page_bytes > placement.content_bytes
        for of_group in plan.placements
        for placement in of_group
    ),
    "base offset": lambda plan: plan.geometry.base_offset_bytes > 0,
    "tail": lambda plan: plan.physical_bytes > plan.geometry.base_offset_bytes + plan.logical_bytes,
    "kernel split": _any_group(lambda group: group.kernel_block_size < group.block_size),
    "host chunks": lambda plan: plan.geometry.host.chunk_blocks > 1,
    "aligned host rows": lambda plan: plan.geometry.host.row_alignment > 1,
    "key size unlike value size": _any_set(lambda _, s: s.head_size_k != s.head_size_v),
    "no value": _any_set(lambda _, s: s.head_size_v == 0),
    "two heads": _any_set(lambda _, s: s.kv_heads == 2),
    "heads equal block size": _any_set(lambda group, s: s.kv_heads == group.block_size),
}

#: Every name that `features_of` knows.
FEATURES = (
    *(f"order {order}" for order in ORDERS),
    *(f"format {page_format}" for page_format in PAGE_FORMATS),
    *_HAS,
)


def features_of(plan: Plan) -> set[str]:
    """Names of what this geometry has, e.g. "order BLHNC" or "page padding"."""
    geometry = plan.geometry
    sets = [layers for group in geometry.groups for layers in group.layer_sets]
    features = {f"order {geometry.order}"} | {f"format {layers.page_format}" for layers in sets}
    return features | {name for name, has in _HAS.items() if has(plan)}
