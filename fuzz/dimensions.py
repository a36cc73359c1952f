"""A geometry as independent dimensions, each with a list of values, the simplest first.

A `Draft` says padding, spare host rows and tails as amounts, where a `Geometry` says totals; so one
dimension can be drawn or lowered while the others keep their meaning.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from kvexact.fuzz.sizes import chunk_bytes, logical_bytes, page_content
from kvexact.refmodel.plan import round_up
from kvexact.refmodel.spec import ORDERS, Geometry, Group, Host, LayerSet

#: Scales outside the cache: none, powers of two that change nothing but the exponent, and others.
SCALES = (1.0, 0.5, 2.0, 0.0625, 1.7000000476837158, 0.010416666977107525, 448.0)

#: Values of each dimension from real systems and real reports, the simplest first.
VALUES: dict[str, tuple[Any, ...]] = {
    "layers": (1, 2, 3, 5, 7, 24, 61),
    "kv_heads": (1, 2, 3, 4, 5, 7, 8, 16),
    "head_size_k": (
        *(4, 8, 1, 2, 3, 5, 6, 7, 16, 24, 32, 40, 46, 48, 64, 80, 96, 112, 120, 128),
        *(132, 160, 192, 224, 256, 320, 512, 528, 576, 584, 656),
    ),
    "head_size_v": (
        *(4, 8, 0, 1, 2, 3, 5, 6, 7, 16, 24, 32, 40, 46, 48, 64, 80, 96, 112, 120, 128),
        *(160, 192, 224, 256, 512),
    ),
    "page_format": (
        *("fp8_e4m3", "bf16", "fp16", "fp32"),
        *("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"),
        *("fp8_e5m2", "fp8_e4m3fnuz", "fp8_e4m3_truncated", "fp8_e5m2_truncated"),
        *("fp8_fnuz_per_token_head", "turboquant_k8v4", "turboquant_4bit_nc"),
        *("turboquant_k3v4_nc", "turboquant_3bit_nc", "turboquant_k8v4_planes"),
        *("turboquant_4bit_nc_planes", "turboquant_k3v4_nc_planes", "turboquant_3bit_nc_planes"),
        *("ultraquant_4bit", "nvfp4", "nvfp4_per_head", "nvfp4_swizzled"),
        *("fp8_e4m3_cpu_vec", "fp8_e5m2_cpu_vec", "bf16_cpu_vec", "fp32_cpu_vec"),
        *("fp8_e4m3_rocm", "fp8_e4m3fnuz_rocm", "bf16_rocm"),
        *("fp8_e4m3_aiter", "fp8_e4m3fnuz_aiter", "bf16_aiter"),
        *("fp8_e4m3_cpu_amx", "fp8_e5m2_cpu_amx", "bf16_cpu_amx"),
        *("state_fp32", "state_bf16", "state_bf16_fp32", "indexer_fp8", "indexer_fp8_ue8m0"),
        *("deepseek_v41_nvfp4", "deepseek_v41_mxfp8", "deepseek_v4", "nvfp4_ds_mla", "fp8_ds_mla"),
    ),
    "side": (False, True),
    "k_scale": SCALES,
    "v_scale": SCALES,
    "tokens_per_state": (1, 2, 4, 128, 3, 8),
    "window_tokens": (None, 1, 2, 3, 4, 5, 6, 7, 9, 11, 13),
    "padding_bytes": (0, 1, 2, 3, 4, 8, 12, 16, 32, 64, 128, 256, 1000, 2816, 4096, -1, -4),
    "kernel_block_size": (
        *(1, 2, 4, 8, 3, 5, 7, 12, 16, 32, 48, 64, 90, 128, 256, 264, 528, 576, 768),
        *(800, 1056, 1152, 1600, 1792, 3584),
    ),
    "kernel_parts": (1, 2, 3, 4, 12, 33, 90),
    "ragged_tokens": (0, 1, 8),
    "blocks": (1, 2, 3, 4, 5, 7, 9, 13, 16, 17, 18, 24, 31, 33, 40, 64),
    "order": ORDERS,
    "kv_split": (False, True),
    "base_offset_bytes": (0, 4, 256, 1, 2, 576, 4096, 8640),
    "tail_alignment": (1, 256, 4096, 2, 3, 64, 512, 2097152),
    "logical_excess_bytes": (None, 0, 4096, -1),
    "physical_excess_bytes": (None, 0, 1, 32, 2816, 4095, 4096, -1),
    "host_rows": (1, 2, 3, 4, 5, 8, 0),
    "host_spare_bytes": (0, 1, 4095),
    "chunk_blocks": (1, 2, 3, 4, 8, 33),
    "row_alignment": (1, 4096, 512, 64, 3),
}


@dataclass(frozen=True, slots=True)
class LayerSetDraft:
    """Dimensions of a layer set; ``padding_bytes`` is what page bytes exceed the content by."""

    layers: int = 1
    kv_heads: int = 1
    head_size_k: int = 4
    head_size_v: int = 4
    page_format: str = "fp8_e4m3"
    padding_bytes: int = 0
    side: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class GroupDraft:
    """Dimensions of a group: its block has kernel block size x parts + ragged tokens."""

    kernel_block_size: int = 1
    kernel_parts: int = 1
    ragged_tokens: int = 0
    layer_sets: tuple[LayerSetDraft, ...] = (LayerSetDraft(),)
    tokens_per_state: int = 1
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """Dimensions of a geometry. Excess is what a declared size has over the derived one."""

    groups: tuple[GroupDraft, ...] = (GroupDraft(),)
    blocks: int = 1
    order: str = "LBHNC"
    kv_split: bool = False
    base_offset_bytes: int = 0
    tail_alignment: int = 1
    logical_excess_bytes: int | None = None
    physical_excess_bytes: int | None = None
    host_rows: int = 1
    host_spare_bytes: int = 0
    chunk_blocks: int = 1
    row_alignment: int = 1


#: Dimensions of a layer set that say the same in a geometry as in a draft.
_SHARED = tuple(
    item.name for item in fields(LayerSetDraft) if item.name in LayerSet.__dataclass_fields__
)


def build(draft: Draft) -> Geometry:
    """The geometry of a draft."""
    groups = tuple(_build_group(group) for group in draft.groups)
    logical = logical_bytes(groups, draft.blocks)
    row = chunk_bytes(groups, draft.chunk_blocks)
    capacity = draft.host_rows * round_up(row, draft.row_alignment) + draft.host_spare_bytes
    needed = draft.base_offset_bytes + logical
    return Geometry(
        groups,
        draft.blocks,
        Host(capacity, draft.chunk_blocks, draft.row_alignment),
        draft.order,
        draft.kv_split,
        draft.base_offset_bytes,
        draft.tail_alignment,
        _excess(logical, draft.logical_excess_bytes),
        _excess(needed, draft.physical_excess_bytes),
    )


def draft_of(geometry: Geometry) -> Draft:
    """The draft from which `build` makes this geometry."""
    logical = logical_bytes(geometry.groups, geometry.blocks)
    host = geometry.host
    row = chunk_bytes(geometry.groups, host.chunk_blocks)
    rows, spare = divmod(host.capacity_bytes, round_up(row, host.row_alignment))
    needed = geometry.base_offset_bytes + logical
    return Draft(
        tuple(_draft_group(group) for group in geometry.groups),
        geometry.blocks,
        geometry.order,
        geometry.kv_split,
        geometry.base_offset_bytes,
        geometry.tail_alignment,
        None if geometry.logical_bytes is None else geometry.logical_bytes - logical,
        None if geometry.physical_bytes is None else geometry.physical_bytes - needed,
        rows,
        spare,
        host.chunk_blocks,
        host.row_alignment,
    )


def simpler(draft: Draft) -> Iterator[Draft]:
    """Drafts with an earlier value of one dimension, or one layer set fewer; simplest first."""
    yield from _lower(draft)
    for g, group in enumerate(draft.groups):
        for lower in _lower(group):
            yield replace(draft, groups=_put(draft.groups, g, lower))
        for s, layers in enumerate(group.layer_sets):
            others = group.layer_sets[:s] + group.layer_sets[s + 1 :]
            if others:
                fewer = replace(group, layer_sets=others)
                yield replace(draft, groups=_put(draft.groups, g, fewer))
            for lower_set in _lower(layers):
                sets = _put(group.layer_sets, s, lower_set)
                yield replace(draft, groups=_put(draft.groups, g, replace(group, layer_sets=sets)))


def earlier(name: str, value: object) -> tuple[Any, ...]:
    """Values of a dimension that are simpler than ``value``; all, where it is not in the list."""
    values = VALUES[name]
    return values[: values.index(value)] if value in values else values


def _lower(part: Any) -> Iterator[Any]:
    for item in fields(part):
        if item.name in VALUES:
            for value in earlier(item.name, getattr(part, item.name)):
                yield replace(part, **{item.name: value})


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _excess(size: int, excess: int | None) -> int | None:
    return None if excess is None else max(size + excess, 0)


def _build_group(draft: GroupDraft) -> Group:
    block_size = draft.kernel_block_size * draft.kernel_parts + draft.ragged_tokens
    plain = Group(
        block_size,
        draft.kernel_block_size,
        tuple(map(_build_set, draft.layer_sets)),
        draft.tokens_per_state,
        draft.window_tokens,
    )
    padded = []
    for item, layers in zip(draft.layer_sets, plain.layer_sets, strict=True):
        page = max(page_content(plain, layers) + item.padding_bytes, 1)
        padded.append(replace(layers, page_bytes=page if item.padding_bytes else None))
    return replace(plain, layer_sets=tuple(padded))


def _build_set(draft: LayerSetDraft) -> LayerSet:
    named = {name: getattr(draft, name) for name in _SHARED}
    return LayerSet(**named)


def _draft_group(group: Group) -> GroupDraft:
    parts, ragged = divmod(group.block_size, group.kernel_block_size)
    sets = []
    for layers in group.layer_sets:
        content = page_content(group, layers)
        padding = 0 if layers.page_bytes is None else layers.page_bytes - content
        named = {name: getattr(layers, name) for name in _SHARED}
        sets.append(LayerSetDraft(**named, padding_bytes=padding))
    return GroupDraft(
        group.kernel_block_size,
        parts,
        ragged,
        tuple(sets),
        group.tokens_per_state,
        group.window_tokens,
    )
