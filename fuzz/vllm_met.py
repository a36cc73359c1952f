"""What a release was seen with: layouts, formats, specs and so on; and what was never met.

A family that was never met is a gap to close; what the adapter never publishes is named as well.
"""

from collections.abc import Iterator

from kvexact.fuzz.counts import Counts
from kvexact.impl.adapters.vllm.published import MODEL_TYPES, STATES
from kvexact.impl.adapters.vllm.targets import ZEROED_BY_TABLE, ZEROED_BY_VIEWS, VllmTarget

#: Features of geometries that every target may meet.
_SHAPES = (
    *("several layer sets", "overlaid groups", "state over tokens", "page padding"),
    *("kernel split", "two heads"),
)
#: What a user may write as the cache's type that names another type or the model's.
_OTHER_WORDS = ("auto", "float16", "bfloat16", "fp8")


def met_lines(made: type[VllmTarget], counts: Counts) -> Iterator[str]:
    """A line of what was met, and one of what was not.

    Args:
        counts: of all families.
    """
    wanted = list(_wanted(made))
    have = _have(counts)
    yield f"met: {', '.join(name for name in wanted if name in have)}"
    never = [name for name in wanted if name not in have]
    if never:
        yield f"never met: {', '.join(never)}"


def _wanted(made: type[VllmTarget]) -> Iterator[str]:
    traits = made.ask_traits()
    yield from traits["orders"]
    types = [name for name in traits["cache_types"] if name not in _OTHER_WORDS]
    yield from dict.fromkeys((*MODEL_TYPES, *traits["formats"], *traits["rows"], *STATES, *types))
    yield from traits["specs"]
    yield from _SHAPES
    if "served_chunked" in (made.families or ()):
        yield "host chunks"
    if traits["has_disk"] and made.session == "simple":
        yield "host tier in a file"
    if traits["tail_alignment"] > 1:
        yield "tail"
    yield from ("unequal groups", "scales on first use")
    yield from (ZEROED_BY_TABLE, ZEROED_BY_VIEWS)
    yield from sorted(made.op_kinds)


def _have(counts: Counts) -> set[str]:
    features = {name.removeprefix("order ").removeprefix("format ") for name in counts.features}
    launches = {name.removeprefix("spec ") for name in counts.launches}
    return features | launches | counts.acted_kinds
