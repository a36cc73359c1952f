"""Features of a geometry that a report counts, so that what was never met is seen."""

from collections.abc import Callable, Collection

from kvexact.fuzz.demands import DEMANDS, STATES
from kvexact.refmodel.answer import HOLE, Answer
from kvexact.refmodel.ops import SERVING_OPS, TIMED_OPS, VALUE_TYPES, Allocate, Op, WriteValues
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.serving_ops import Compute, Lookup, Readmit
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS, Group, LayerSet


def _any_group(has: Callable[[Group], bool]) -> Callable[[Plan], bool]:
    return lambda plan: any(has(group) for group in plan.geometry.groups)


def _any_set(has: Callable[[Group, LayerSet], bool]) -> Callable[[Plan], bool]:
    return _any_group(lambda group: any(has(group, layers) for layers in group.layer_sets))


_SCATTERED = ("nvfp4_swizzled", "_cpu_vec", "_cpu_amx", "_rocm", "_aiter")


def _is_state(group: Group) -> bool:
    return group.layer_sets[0].page_format in STATES


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
    "side buffer": _any_set(lambda _, s: s.side),
    "state page": _any_set(lambda _, s: s.page_format in STATES),
    "state over tokens": lambda plan: (
        any(map(_is_state, plan.geometry.groups)) and not all(map(_is_state, plan.geometry.groups))
    ),
    "shared slot": _any_group(lambda group: group.tokens_per_state > 1),
    "regions": _any_set(lambda _, s: DEMANDS[s.page_format].whole_page),
    "scattered field": _any_set(lambda _, s: s.page_format.endswith(_SCATTERED)),
    "pad byte": lambda plan: any(
        place.field.name == "pad"
        for of_group in plan.placements
        for placement in of_group
        for place in placement.places
    ),
    "scales outside the cache": _any_set(lambda _, s: (s.k_scale, s.v_scale) != (1.0, 1.0)),
}
_OF_OPS = ("zero on allocate", *(f"values {name}" for name in VALUE_TYPES), "special values")

#: What only asynchronous targets meet: a fence, and an op on unsettled bytes, while some byte was
#: not there yet; answers of polls about transfers since the last fence. A family that misses one
#: of them proves nothing about order.
AT_FENCE, REUSE = "fence with bytes to come", "unsettled bytes used again"
TIMED_FEATURES = (AT_FENCE, REUSE, "poll says no", "poll says yes")

#: Every name that `features_of` and `features_of_op` know.
FEATURES = (
    *(f"order {order}" for order in ORDERS),
    *(f"format {page_format}" for page_format in PAGE_FORMATS),
    *_HAS,
    *_OF_OPS,
)

#: Every name that `features_of_answer` knows. A run without hits proves nothing about keys.
HITS = ("hit in the pool", "hit in the host tier", "hit of a lookup")
SERVING_FEATURES = (
    *(*HITS, "hit at a window"),
    *("readmitted", "rejected draft", "window drop", "no room", "host slot evicted"),
)


def known_features(kinds: Collection[str]) -> tuple[str, ...]:
    """Names of what a run could have met in which ops of these kinds acted."""
    in_time = () if TIMED_OPS.keys().isdisjoint(kinds) else TIMED_FEATURES
    served = () if SERVING_OPS.keys().isdisjoint(kinds) else SERVING_FEATURES
    return (*FEATURES, *in_time, *served)


def features_of(plan: Plan) -> set[str]:
    """Names of what this geometry has, e.g. "order BLHNC" or "page padding"."""
    geometry = plan.geometry
    sets = [layers for group in geometry.groups for layers in group.layer_sets]
    features = {f"order {geometry.order}"} | {f"format {layers.page_format}" for layers in sets}
    return features | {name for name, has in _HAS.items() if has(plan)}


def features_of_op(op: Op) -> tuple[str, ...]:
    """Names of what an op that acted has, e.g. "values bf16"."""
    if type(op) is Allocate and op.zero:
        return ("zero on allocate",)
    if type(op) is WriteValues:
        special = ("special values",) if op.style == "special" else ()
        return (f"values {op.value_type}", *special)
    return ()


def features_of_answer(op: Op, answer: Answer) -> set[str]:
    """Names of what an answer has, e.g. "hit in the host tier"."""
    loads = sum(len(job.moves) for job in answer.loads)
    entries = [block for table in answer.tables for block in table]
    rejects = isinstance(op, Compute) and answer.accepted and op.accepted < len(op.drafts)
    has = {
        "hit in the pool": len(entries) - entries.count(HOLE) > loads,
        "hit in the host tier": loads > 0,
        "hit of a lookup": isinstance(op, Lookup) and answer.hit > 0,
        "hit at a window": HOLE in entries,
        "readmitted": isinstance(op, Readmit),
        "rejected draft": rejects,
        "window drop": any(answer.dropped),
        "no room": not answer.accepted,
        "host slot evicted": bool(answer.evicted),
    }
    return {name for name, met in has.items() if met}
