"""Geometries as serving engines make them of models: large blocks and heads, one page size.

What a release resolves by default is drawn most often; a target's `fits` keeps what it would lay
out as drawn.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvexact.fuzz.choose import Chooser, chance, pick, weighted
from kvexact.fuzz.dimensions import Draft, GroupDraft, LayerSetDraft, build
from kvexact.fuzz.sizes import page_content
from kvexact.refmodel.spec import ORDERS, Geometry

_FORMATS = (
    *("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"),
    *("int8_per_token_head", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"),
)
_PACKED_FORMATS = (
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)
_LATENT_FORMATS = ("bf16", "bf16", "fp16", "fp32", "fp8_e4m3")
_PACKED_LATENTS = ("fp8_ds_mla", "fp8_ds_mla", "fp8_ds_mla", "nvfp4_ds_mla")
_STATES = ("state_bf16_fp32", "state_bf16", "state_fp32")
_HEAD_SIZES = (32, 32, 32, 64, 96)
_TOKENS = (16, 16, 16, 32, 48)
#: Layers of groups of one shape: alike most often; one fewer or more, as models leave them over.
_LAYERS_OF_GROUPS = ((2, 2), (1, 1), (2, 2, 2), (1, 1, 1), (3, 4), (4, 3), (2, 2, 1), (2, 2, 1))
#: What pages of compressed vectors are a multiple of, and a page of 64 of them; once states were
#: given pages as large.
_SPARSE_ALIGNMENT, _SPARSE_PAGE = 576, 65 * 576
#: Alignments of host rows: of none, and of a memory page.
_ROWS = (1, 4096)


def served(chooser: Chooser) -> Geometry:
    """One group of one shape, in any order, now and then with blocks of several kernel blocks."""
    parts = pick(chooser, (2, 3)) if chance(chooser, 15) else 1
    group = GroupDraft(pick(chooser, _TOKENS), parts, layer_sets=(_layers(chooser),))
    if parts > 1:
        group = replace(group, kernel_block_size=16)
    return build(_pool(chooser, (group,)))


def served_groups(chooser: Chooser) -> Geometry:
    """Groups of equal pages; of small pages in large blocks or padded ones; unequal pages."""
    kind = weighted(chooser, (3, 5, 2))
    first = _layers(chooser)
    if kind == 0:
        sets = [replace(first, layers=count) for count in pick(chooser, _LAYERS_OF_GROUPS)]
        return build(_pool(chooser, _one_each(16, sets)))
    other = _resized(chooser, first)
    if kind == 1:
        return build(_agreed(_pool(chooser, _one_each(16, (first, other)))))
    group = GroupDraft(16, layer_sets=(first, replace(other, layers=pick(chooser, (1, 2)))))
    return build(_pool(chooser, (group,)))


def served_hybrid(chooser: Chooser) -> Geometry:
    """Attention and states: pages of states padded to those of attention, or of latent vectors."""
    is_latent = chance(chooser, 25)
    first = _latents(chooser) if is_latent else _layers(chooser)
    other = first if is_latent else _resized(chooser, first)
    state = LayerSetDraft(
        first.layers,
        head_size_k=pick(chooser, (8, 16, 48)),
        head_size_v=pick(chooser, (16, 32, 100)),
        page_format=pick(chooser, _STATES),
    )
    kinds = ((first, state), (first, state), (first, state, state), (first, other, state))
    sets = pick(chooser, kinds)
    if chance(chooser, 50):
        sets = sets[::-1]
    draft = _agreed(_pool(chooser, _one_each(pick(chooser, (16, 32)), sets)))
    return build(replace(draft, kv_split=False) if is_latent else draft)


def served_latent(chooser: Chooser) -> Geometry:
    """One vector a token: plain, or packed with its scales, then also beside keys of an indexer."""
    layers, tokens = _latents(chooser), pick(chooser, (16, 32, 64))
    if chance(chooser, 50):
        page_format = pick(chooser, _PACKED_LATENTS)
        layers, tokens = replace(layers, head_size_k=576, page_format=page_format), 64
    index_keys = replace(layers, head_size_k=128, page_format="indexer_fp8")
    has_keys = layers.page_format == "fp8_ds_mla" and chance(chooser, 60)
    parts = 2 if chance(chooser, 20) else 1
    group = GroupDraft(tokens, parts, layer_sets=(layers, index_keys)[: 1 + has_keys])
    count = 1 if layers.page_format in _PACKED_LATENTS else pick(chooser, (1, 1, 2))
    groups = (group,) * count
    return build(replace(_pool(chooser, groups), kv_split=False))


def served_sparse(chooser: Chooser) -> Geometry:
    """Vectors that stand for several tokens, beside keys of an indexer where these are few.

    Groups of their own keep vectors within a window, and states that are not compressed yet.
    """
    ratio = pick(chooser, (4, 4, 128))
    rows = LayerSetDraft(pick(chooser, (1, 1, 2)), 1, 512, 0, "deepseek_v4")
    index_keys = replace(rows, head_size_k=128, page_format="indexer_fp8")
    state = replace(rows, head_size_k=2048 if ratio == 4 else 1024, page_format="fp32")
    index_state = replace(state, head_size_k=512)
    count = 2 if ratio == 4 else 1
    states = GroupDraft(4 if ratio == 4 else 8, layer_sets=(state, index_state)[:count])
    groups = (
        _aligned(GroupDraft(256, layer_sets=(rows, index_keys)[:count], tokens_per_state=ratio)),
        _aligned(GroupDraft(64, layer_sets=(rows,))),
        _aligned(states, pick(chooser, (_SPARSE_ALIGNMENT, _SPARSE_PAGE))),
    )
    draft = replace(_pool(chooser, groups), kv_split=False)
    return build(replace(draft, order=pick(chooser, ("BLHNC", "BLNHC"))))


def served_packed(chooser: Chooser) -> Geometry:
    """Keys, values and what scales them in one row."""
    size = pick(chooser, (32, 64, 64, 128))
    page_format = pick(chooser, _PACKED_FORMATS)
    layers = replace(_layers(chooser), head_size_k=size, head_size_v=size, page_format=page_format)
    group = GroupDraft(pick(chooser, (16, 32)), layer_sets=(layers,))
    draft = _pool(chooser, (group,))
    return build(replace(draft, order=pick(chooser, ("LBNHC", "LBHNC")), kv_split=False))


def served_chunked(chooser: Chooser) -> Geometry:
    """Any of these with host chunks of several blocks."""
    draw = pick(chooser, (served, served_groups, served_hybrid, served_latent, served_sparse))
    geometry = draw(chooser)
    parts = pick(chooser, (2, 3, 4))
    host = geometry.host
    capacity = host.capacity_bytes * parts
    return replace(geometry, host=replace(host, chunk_blocks=parts, capacity_bytes=capacity))


def served_requests(chooser: Chooser) -> Geometry:
    """Groups of token pages with blocks for several requests, and few host slots."""
    draw = pick(chooser, (served, served_groups))
    geometry = draw(chooser)
    groups, host = len(geometry.groups), geometry.host
    blocks = groups * pick(chooser, (4, 5, 6, 8)) + pick(chooser, (0, 1))
    host = replace(host, capacity_bytes=groups * host.capacity_bytes)
    return replace(geometry, blocks=blocks, host=host)


def _layers(chooser: Chooser) -> LayerSetDraft:
    size = pick(chooser, _HEAD_SIZES)
    layers, heads = pick(chooser, (1, 2, 2, 3)), pick(chooser, (1, 2, 2, 3))
    return LayerSetDraft(layers, heads, size, size, pick(chooser, _FORMATS))


def _latents(chooser: Chooser) -> LayerSetDraft:
    size = pick(chooser, (576, 576, 320, 512))
    return LayerSetDraft(pick(chooser, (1, 1, 2)), 1, size, 0, pick(chooser, _LATENT_FORMATS))


def _resized(chooser: Chooser, layers: LayerSetDraft) -> LayerSetDraft:
    """The same with other heads or another head size."""
    if chance(chooser, 50):
        heads = [heads for heads in (1, 2, 3, 4) if heads != layers.kv_heads]
        return replace(layers, kv_heads=pick(chooser, heads))
    size = pick(chooser, [size for size in _HEAD_SIZES if size != layers.head_size_k])
    return replace(layers, head_size_k=size, head_size_v=size)


def _aligned(group: GroupDraft, first: int = _SPARSE_ALIGNMENT) -> GroupDraft:
    """The same with pages padded, those of the first layer set to a multiple of ``first``."""
    built = build(Draft((group,))).groups[0]
    padded, multiple = [], first
    for layers, shape in zip(group.layer_sets, built.layer_sets, strict=True):
        padded.append(replace(layers, padding_bytes=-page_content(built, shape) % multiple))
        multiple = _SPARSE_ALIGNMENT
    return replace(group, layer_sets=tuple(padded))


def _one_each(tokens: int, sets: Sequence[LayerSetDraft]) -> tuple[GroupDraft, ...]:
    return tuple(GroupDraft(tokens, layer_sets=(layers,)) for layers in sets)


def _agreed(draft: Draft) -> Draft:
    """Groups made to have pages of one size, as engines do: larger blocks, or else padding."""
    pages = [page_content(group, group.layer_sets[0]) for group in build(draft).groups]
    largest = max(pages)
    groups = []
    for group, page in zip(draft.groups, pages, strict=True):
        layers = group.layer_sets[0]
        if page == largest:
            groups.append(group)
        elif largest % page == 0 and layers.page_format not in _STATES:
            tokens = group.kernel_block_size * (largest // page)
            groups.append(replace(group, kernel_block_size=tokens))
        else:
            padded = replace(layers, padding_bytes=largest - page)
            groups.append(replace(group, layer_sets=(padded,)))
    return replace(draft, groups=tuple(groups))


def _pool(chooser: Chooser, groups: tuple[GroupDraft, ...]) -> Draft:
    return Draft(
        groups,
        pick(chooser, (3, 4, 5, 7)),
        pick(chooser, ORDERS),
        kv_split=chance(chooser, 35),
        tail_alignment=pick(chooser, (1, 1, 1, 4096)),
        host_rows=pick(chooser, (2, 3, 4, 5)),
        host_spare_bytes=pick(chooser, (0, 0, 1)),
        row_alignment=pick(chooser, _ROWS),
    )
