"""All families. A family is the unit of test items, budgets and vacuity counts."""

from collections import ChainMap
from collections.abc import Mapping

from kvexact.fuzz.family import CONTENDING, RAW_WEIGHTS, SERVING_WEIGHTS, VALUE_WEIGHTS, Family
from kvexact.fuzz.planning import planning
from kvexact.fuzz.raw_families import (
    batch,
    chunked,
    kernel_split,
    mixed,
    one_group,
    overlay,
    padded,
    refusals,
)
from kvexact.fuzz.served_families import (
    served,
    served_chunked,
    served_groups,
    served_hybrid,
    served_latent,
    served_packed,
    served_requests,
    served_sparse,
)
from kvexact.fuzz.serving_families import serving, serving_windows
from kvexact.fuzz.timed_families import timed, timed_groups, timed_values
from kvexact.fuzz.value_families import hybrid, latent, values

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("one_group", one_group, "one group of one shape, every order and format"),
        Family("padded", padded, "page padding, base offsets, pool tails"),
        Family("mixed", mixed, "unequal pages in one block"),
        Family("overlay", overlay, "groups over the same bytes"),
        Family("kernel_split", kernel_split, "several kernel blocks in a manager block"),
        Family("chunked", chunked, "several blocks in a host chunk"),
        Family(
            "batch",
            batch,
            "many descriptors, both sides of the fast path's gates",
            batch_percent=40,
        ),
        Family(
            "refusals",
            refusals,
            "illegal ops",
            weights={**RAW_WEIGHTS, "write_values": 8, "read_values": 5},
            illegal_percent=45,
        ),
        Family("values", values, "real keys and values in every format", weights=VALUE_WEIGHTS),
        Family(
            "latent",
            latent,
            "one-head rows, shared slots, index keys in a side buffer",
            weights=VALUE_WEIGHTS,
        ),
        Family(
            "hybrid",
            hybrid,
            "states over tokens, one page size",
            weights=VALUE_WEIGHTS,
            zero_percent=60,
        ),
        Family("planning", planning, "facts and refusals at real sizes", weights={}),
    )
}

#: Families for targets that name them: what serving engines make of models and of settings.
SERVED: dict[str, Family] = {
    family.name: family
    for family in (
        Family("served", served, "one group as serving engines lay it out"),
        Family("served_groups", served_groups, "groups that agree about pages; unequal pages"),
        Family("served_hybrid", served_hybrid, "attention and states, padded to one page size"),
        Family("served_latent", served_latent, "one vector a token, keys of an indexer beside it"),
        Family("served_sparse", served_sparse, "vectors that stand for several tokens"),
        Family("served_packed", served_packed, "keys, values and their scales in one row"),
        Family("served_chunked", served_chunked, "the same, several blocks in a host chunk"),
        Family(
            "served_requests",
            served_requests,
            "requests over these, and a host tier that is too small for them",
            weights=SERVING_WEIGHTS,
            illegal_percent=0,
        ),
    )
}
#: Families for asynchronous targets, beside those for all.
TIMED: dict[str, Family] = {
    family.name: family
    for family in (
        Family("timed", timed, "ops that meet each other's pending work", weights=CONTENDING),
        Family(
            "timed_groups",
            timed_groups,
            "the same between groups over the same bytes",
            weights=CONTENDING,
        ),
        Family(
            "timed_values",
            timed_values,
            "the same with real keys and values",
            weights={**CONTENDING, "write_tokens": 6, "write_values": 16, "read_values": 3},
        ),
    )
}
#: Families for targets that have ops on requests.
SERVING: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "serving",
            serving,
            "requests over a prefix cache and a host tier",
            weights=SERVING_WEIGHTS,
            illegal_percent=0,
        ),
        Family(
            "serving_windows",
            serving_windows,
            "the same with windows",
            weights=SERVING_WEIGHTS,
            illegal_percent=0,
        ),
    )
}
#: Any family by its name.
EVERY_FAMILY: Mapping[str, Family] = ChainMap(SERVING, TIMED, SERVED, FAMILIES)
