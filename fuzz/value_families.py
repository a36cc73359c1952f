"""Geometries of real values: pages that encode, latent rows with index keys, states."""

from dataclasses import replace
from functools import partial

from kvexact.fuzz.budget import fit
from kvexact.fuzz.choose import Chooser, chance, pick, weighted
from kvexact.fuzz.demands import LATENTS, RAW_ONLY, STATES, fitted, fitted_group, is_state
from kvexact.fuzz.dimensions import SCALES, VALUES, Draft, GroupDraft, LayerSetDraft, build
from kvexact.fuzz.drawing import (
    LAYERS,
    draw_pool,
    draw_set,
    more_tiles,
    padded_alike,
    padded_to,
)
from kvexact.fuzz.sizes import page_content
from kvexact.refmodel.spec import ORDERS, Geometry

#: Formats of tokens that encode.
ENCODING = tuple(
    name for name in VALUES["page_format"] if name not in (*LATENTS, *STATES, *RAW_ONLY)
)
_ROWS = tuple(name for name in LATENTS if not name.startswith("indexer"))
_INDEX_KEYS = ("indexer_fp8", "indexer_fp8_ue8m0")
#: Formats in which a latent row is stored as one key, at its real size and small.
_CASTS = ("bf16", "fp16", "fp8_e4m3", "fp8_per_token_head", "int8_per_token_head")
_CAST_SIZES = (576, 64, 16)
_SIZES = (4, 5, 6, 8, 16, 24, 32, 40, 48, 64, 128)
#: Sizes of the format whose rows have a pad byte where they are odd: most are.
_ODD_SIZES = (5, 6, 7, 10, 32)
_STATE_SIZES = (6, 12, 24, 32, 50, 96)


def values(chooser: Chooser) -> Geometry:
    """One or two layer sets of formats that encode, in any order."""
    sets = tuple(_value_set(chooser) for _ in range(1 + weighted(chooser, (3, 1))))
    group = fitted_group(GroupDraft(pick(chooser, (1, 2, 3, 4, 6, 8)), layer_sets=sets))
    group = more_tiles(chooser, group)
    return fit(chooser, draw_pool(chooser, group), finish=partial(padded_to, multiple=4))


def _value_set(chooser: Chooser) -> LayerSetDraft:
    drawn = draw_set(chooser, pick(chooser, ENCODING))
    odd = drawn.page_format == "turboquant_k8v4"
    size = pick(chooser, _ODD_SIZES if odd else _SIZES)
    shape = replace(drawn, head_size_k=size, layers=pick(chooser, (1, 1, 2)))
    if not chance(chooser, 30):
        shape = replace(shape, head_size_v=size)
    return _scaled(chooser, fitted(shape))


def _scaled(chooser: Chooser, layers: LayerSetDraft) -> LayerSetDraft:
    if chance(chooser, 40):
        return layers
    return replace(layers, k_scale=pick(chooser, SCALES), v_scale=pick(chooser, SCALES))


def latent(chooser: Chooser) -> Geometry:
    """One-head rows, some of several tokens; index keys in a side buffer; padded pages."""
    tokens = pick(chooser, (1, 1, 1, 4, 128))
    if chance(chooser, 70):
        rows = draw_set(chooser, pick(chooser, _ROWS))
    else:
        size = pick(chooser, _CAST_SIZES)
        rows = LayerSetDraft(pick(chooser, LAYERS), 1, size, 0, pick(chooser, _CASTS))
        rows = _scaled(chooser, rows)
    sets = [rows]
    if chance(chooser, 60):
        keys = draw_set(chooser, pick(chooser, _INDEX_KEYS))
        sets.append(replace(keys, layers=pick(chooser, (rows.layers, 1)), side=chance(chooser, 75)))
    group = GroupDraft(
        tokens * pick(chooser, (1, 2, 3, 4, 8)), layer_sets=tuple(sets), tokens_per_state=tokens
    )
    if chance(chooser, 15):
        cut = tokens > 1 and chance(chooser, 25)  # a slot, by the end of a kernel block
        size = group.kernel_block_size + cut
        group = replace(group, kernel_block_size=size, kernel_parts=pick(chooser, (2, 3)))
    elif tokens > 1 and chance(chooser, 30):
        group = replace(group, kernel_block_size=group.kernel_block_size + 1)
    draft = replace(
        draw_pool(chooser, group, split_percent=10),
        chunk_blocks=pick(chooser, (1, 1, 2)),
        host_rows=pick(chooser, (2, 3, 5)),
        base_offset_bytes=pick(chooser, (0, 0, 576)),
    )
    if chance(chooser, 60) and group.kernel_parts == 1:
        return fit(chooser, draft, finish=partial(padded_to, multiple=pick(chooser, (576, 512))))
    return fit(chooser, draft)


def hybrid(chooser: Chooser) -> Geometry:
    """Groups of states over groups of tokens, whose pages are made equal."""
    states = tuple(
        _scaled(chooser, _state_set(chooser)) for _ in range(1 + weighted(chooser, (3, 1)))
    )
    state = GroupDraft(pick(chooser, (1, 4, 16, 100)), layer_sets=states)
    tokens = _tokens_beside(chooser, state)
    groups = [tokens, state]
    if chance(chooser, 25):
        groups.append(replace(tokens, layer_sets=(tokens.layer_sets[0],)))
    if chance(chooser, 50):
        groups.reverse()
    orders = ORDERS if tokens.kernel_parts == 1 else ("LBHNC", "LBNHC")
    draft = replace(
        draw_pool(chooser, *groups, orders=orders, split_percent=20),
        chunk_blocks=pick(chooser, (1, 1, 2)),
        host_rows=pick(chooser, (2, 3, 5)),
    )
    return fit(chooser, draft, finish=_unify)


def _state_set(chooser: Chooser) -> LayerSetDraft:
    return fitted(
        LayerSetDraft(
            pick(chooser, LAYERS),
            1,
            pick(chooser, _STATE_SIZES),
            pick(chooser, (0, *_STATE_SIZES)),
            pick(chooser, STATES),
        )
    )


def _tokens_beside(chooser: Chooser, state: GroupDraft) -> GroupDraft:
    """A group of tokens: of any block size, or of one scaled up until its page holds the state."""
    layers = _value_set(chooser)
    group = fitted_group(GroupDraft(pick(chooser, (1, 2, 4)), layer_sets=(layers,)))
    size = group.kernel_block_size
    if chance(chooser, 60):
        group = _scaled_up(group, state)
        if chance(chooser, 25):
            parts = group.kernel_block_size // size
            group = replace(group, kernel_block_size=size, kernel_parts=parts)
    if chance(chooser, 40):
        keys = replace(draw_set(chooser, pick(chooser, _INDEX_KEYS)), side=True)
        group = replace(group, layer_sets=(layers, keys))
    return group


def _scaled_up(group: GroupDraft, state: GroupDraft) -> GroupDraft:
    """The least multiple of the block size whose page is no smaller than the largest state's."""
    tokens, states = build(Draft(groups=(group, state))).groups
    page = page_content(tokens, tokens.layer_sets[0])
    wanted = max(page_content(states, layers) for layers in states.layer_sets)
    return replace(group, kernel_block_size=group.kernel_block_size * -(-wanted // page))


def _unify(draft: Draft) -> Draft:
    """Pages padded up to the largest; where a page has no one end, as they are."""
    spread = draft.order in ("LHBNC", "BHLNC") and any(
        layers.kv_heads > 1 for group in draft.groups for layers in group.layer_sets
    )
    assert any(is_state(layers) for group in draft.groups for layers in group.layer_sets)
    return draft if spread else padded_alike(draft)
