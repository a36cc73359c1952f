"""Fits a drawn geometry into a byte budget, after one of its dimensions may have been raised."""

from collections.abc import Callable
from dataclasses import replace

from kvexact.fuzz.choose import Chooser, chance, pick
from kvexact.fuzz.demands import fitted, fitted_group, slot_tokens
from kvexact.fuzz.dimensions import VALUES, Draft, GroupDraft, build
from kvexact.fuzz.sizes import block_bytes
from kvexact.refmodel.spec import Geometry

#: Of all blocks and host rows together,
BUDGET_BYTES = 256 * 1024
#: and in a few geometries of a hundred.
LARGE_BUDGET_BYTES = 4 * 1024 * 1024
_LARGE_PERCENT = 2


def _as_it_is(draft: Draft) -> Draft:
    return draft


def fit(
    chooser: Chooser,
    draft: Draft,
    budget_bytes: int = BUDGET_BYTES,
    finish: Callable[[Draft], Draft] = _as_it_is,
) -> Geometry:
    """At times raise one dimension to any value of its list; then fit the byte budget.

    Sizes stay what their formats take.

    Args:
        finish: what depends on sizes, such as padding up to a common page.
    """
    if chance(chooser, 20):
        draft = _raise_one(chooser, draft)
    if chance(chooser, _LARGE_PERCENT):
        budget_bytes = LARGE_BUDGET_BYTES
    while True:
        geometry = build(finish(draft))
        smaller = _shrink(draft)
        if _storage_bytes(draft, geometry) <= budget_bytes or smaller == draft:
            return geometry
        draft = smaller


def _raise_one(chooser: Chooser, draft: Draft) -> Draft:
    name = pick(chooser, ("layers", "kv_heads", "head_size", "kernel_block_size", "blocks"))
    if name == "blocks":
        return replace(draft, blocks=pick(chooser, VALUES["blocks"]))
    group = draft.groups[0]
    layers = group.layer_sets[0]
    if name == "kernel_block_size":
        if group.kernel_parts > 1:
            return draft
        size = pick(chooser, VALUES["kernel_block_size"])
        group = replace(group, kernel_block_size=size)
    elif name == "head_size":
        size = pick(chooser, VALUES["head_size_k"])
        layers = replace(layers, head_size_k=size, head_size_v=min(size, layers.head_size_v))
    else:
        layers = replace(layers, **{name: pick(chooser, VALUES[name])})
    group = fitted_group(replace(group, layer_sets=(layers, *group.layer_sets[1:])))
    return replace(draft, groups=(group, *draft.groups[1:]))


def _storage_bytes(draft: Draft, geometry: Geometry) -> int:
    return (geometry.blocks + draft.host_rows * draft.chunk_blocks) * block_bytes(geometry.groups)


def _shrink(draft: Draft) -> Draft:
    """The same draft with its largest cheap dimension halved."""
    if draft.blocks > 4:
        return replace(draft, blocks=max(4, draft.blocks // 2))
    if draft.chunk_blocks > 2:
        return replace(draft, chunk_blocks=2)
    if draft.host_rows > 2:
        return replace(draft, host_rows=2)
    return replace(draft, groups=tuple(map(_shrink_group, draft.groups)))


def _shrink_group(group: GroupDraft) -> GroupDraft:
    """Layers, heads and sizes halved; once these are least, slots; then kernel blocks."""
    sets = tuple(
        fitted(
            replace(
                layers,
                layers=max(1, layers.layers // 2),
                kv_heads=max(1, layers.kv_heads // 2),
                head_size_k=max(4, layers.head_size_k // 2),
                head_size_v=layers.head_size_v and max(4, layers.head_size_v // 2),
            )
        )
        for layers in group.layer_sets
    )
    if sets != group.layer_sets:
        return replace(group, layer_sets=sets)
    tokens = slot_tokens(group)
    slots = group.kernel_block_size // tokens
    if slots > 1:
        return replace(group, kernel_block_size=slots // 2 * tokens)
    return replace(group, kernel_parts=max(1, group.kernel_parts // 2))
