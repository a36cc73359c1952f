"""Parts of a geometry as families draw them: small, coprime and colliding sizes alike."""

from collections.abc import Sequence
from dataclasses import replace

from kvexact.fuzz.choose import Chooser, chance, pick
from kvexact.fuzz.demands import (
    DEMANDS,
    STATES,
    fitted,
    fitted_group,
    orders_of,
    slot_tokens,
    splits,
)
from kvexact.fuzz.dimensions import VALUES, Draft, GroupDraft, LayerSetDraft, build
from kvexact.fuzz.sizes import page_content
from kvexact.refmodel.plan import round_up
from kvexact.refmodel.spec import ORDERS

LAYERS = (1, 2, 3)
_HEADS = (1, 2, 3, 4)
_HEAD_SIZES = (4, 6, 8, 12, 16, 20, 32)
_KERNEL_BLOCKS = (1, 2, 3, 4, 5, 8)
_BLOCKS = (4, 5, 7, 9, 13, 17)

#: The formats that most caches have, and the others.
_COMMON = VALUES["page_format"][:7]
_OTHERS = tuple(name for name in VALUES["page_format"][7:] if name not in STATES)
_COMMON_PERCENT = 67


def draw_format(chooser: Chooser) -> str:
    """A format of tokens: one of the common ones in two cases of three."""
    name: str = pick(chooser, _COMMON if chance(chooser, _COMMON_PERCENT) else _OTHERS)
    return name


def draw_set(chooser: Chooser, page_format: str) -> LayerSetDraft:
    """Layers of a format, in sizes that it takes."""
    head_size = pick(chooser, _HEAD_SIZES)
    unequal = chance(chooser, 25)
    drawn = LayerSetDraft(
        pick(chooser, LAYERS),
        pick(chooser, _HEADS),
        head_size,
        pick(chooser, (0, *_HEAD_SIZES)) if unequal else head_size,
        page_format,
    )
    return fitted(drawn)


def draw_group(chooser: Chooser, sets: int = 1, *, states: bool = True) -> GroupDraft:
    """A group of tokens in any formats, or now and then of states."""
    of_states = states and chance(chooser, 3)
    formats = [pick(chooser, STATES) if of_states else draw_format(chooser) for _ in range(sets)]
    size = pick(chooser, _KERNEL_BLOCKS)
    layers = tuple(draw_set(chooser, page_format) for page_format in formats)
    return more_tiles(chooser, fitted_group(GroupDraft(size, layer_sets=layers)))


def more_tiles(chooser: Chooser, group: GroupDraft) -> GroupDraft:
    """The same group, at times with two or three tiles of slots where its formats have tiles."""
    if slot_tokens(group) == 1 or not chance(chooser, 40):
        return group
    return replace(group, kernel_block_size=group.kernel_block_size * pick(chooser, (2, 3)))


def draw_pool(
    chooser: Chooser, *groups: GroupDraft, orders: Sequence[str] = ORDERS, split_percent: int = 30
) -> Draft:
    """A pool of these groups, in an order that can mostly hold them."""
    able = [order for order in orders if order in orders_of(groups)]
    anyhow = not able or chance(chooser, 3)
    return Draft(
        groups,
        pick(chooser, _BLOCKS),
        pick(chooser, orders if anyhow else able),
        kv_split=chance(chooser, split_percent) and (splits(groups) or chance(chooser, 3)),
        tail_alignment=pick(chooser, (1, 1, 256, 4096)),
        host_rows=pick(chooser, (2, 3, 4, 5, 8, 12)),
        host_spare_bytes=pick(chooser, (0, 0, 1)),
    )


def equal_pages(chooser: Chooser, draft: Draft) -> Draft:
    """Groups that agree about their pages: heads and tokens may trade places, layers may differ."""
    first = draft.groups[0]
    layers = first.layer_sets[0]
    turns = draft.order != "LHBNC" and DEMANDS[layers.page_format] in _FREE
    groups = [replace(first, layer_sets=(layers,))]
    for _ in draft.groups[1:]:
        tokens, heads = first.kernel_block_size, layers.kv_heads
        if turns and chance(chooser, 60):
            tokens, heads = heads, tokens
        shape = replace(layers, kv_heads=heads, layers=pick(chooser, LAYERS))
        groups.append(replace(first, kernel_block_size=tokens, layer_sets=(shape,)))
    return replace(draft, groups=tuple(groups))


#: Demands that leave heads and slots alone.
_FREE = [d for d in DEMANDS.values() if not (d.one_head or d.whole_page or d.slots > 1)]


def padded_to(draft: Draft, multiple: int) -> Draft:
    """Pages padded up to multiples of so many bytes, where the order lets a page have an end."""
    groups = []
    built = build(draft).groups
    for drawn, group in zip(draft.groups, built, strict=True):
        sets = []
        for layers, sized in zip(drawn.layer_sets, group.layer_sets, strict=True):
            content = page_content(group, sized)
            spread = layers.kv_heads > 1 and draft.order in ("LHBNC", "BHLNC")
            padding = 0 if spread else round_up(content, multiple) - content
            sets.append(replace(layers, padding_bytes=padding))
        groups.append(replace(drawn, layer_sets=tuple(sets)))
    return replace(draft, groups=tuple(groups))


def padded_alike(draft: Draft) -> Draft:
    """Every page, but those of side buffers, padded up to the largest one."""
    built = build(draft).groups
    largest = max(
        page_content(group, layers)
        for group in built
        for layers in group.layer_sets
        if not layers.side
    )
    groups = []
    for drawn, group in zip(draft.groups, built, strict=True):
        sets = [
            layers
            if layers.side
            else replace(layers, padding_bytes=largest - page_content(group, sized))
            for layers, sized in zip(drawn.layer_sets, group.layer_sets, strict=True)
        ]
        groups.append(replace(drawn, layer_sets=tuple(sets)))
    return replace(draft, groups=tuple(groups))
