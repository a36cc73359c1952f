"""Which layers a release's backends publish, so that no others are asked about."""

from dataclasses import replace
from typing import Any

from kvexact.impl.adapters.vllm.driver.packed import (
    COMPRESSED,
    INDEX_KEYS,
    LATENTS,
    TURBOQUANT,
    packed_fields,
)
from kvexact.refmodel.spec import Geometry, Group, LayerSet

#: Formats whose name in vLLM is that of the model's type.
MODEL_TYPES = ("bf16", "fp16", "fp32")
STATES = ("state_bf16_fp32", "state_bf16", "state_fp32")
#: What the backend that publishes specs here takes: blocks of so many tokens, heads of this size.
_BLOCK_MULTIPLE, _HEAD_LEAST = 16, 32
_ROWS, _INDEX_KEYS = (COMPRESSED, 512), (INDEX_KEYS, 128)
#: Groups of DeepSeek V4: compressed, within a window, not compressed yet; the index where it is of
#: few tokens.
_SPARSE = (
    ((_ROWS, _INDEX_KEYS), (_ROWS,), (("fp32", 2048), ("fp32", 512))),
    ((_ROWS,), (_ROWS,), (("fp32", 1024),)),
)


def publishes(geometry: Geometry, traits: dict[str, Any]) -> bool:
    """Whether a backend publishes such layers, in a pool of such a form; of the host tier nothing.

    Args:
        traits: what the release has.
    """
    sets = [shape for group in geometry.groups for shape in group.layer_sets]
    is_sparse = _layers_of(geometry) in _SPARSE
    return (
        geometry.order in traits["orders"]
        and geometry.kv_split == (traits["kv_split"] and not any(map(_is_row, sets)))
        and geometry.base_offset_bytes == 0
        and geometry.tail_alignment == traits["tail_alignment"]
        and (geometry.logical_bytes, geometry.physical_bytes) == (None, None)
        and (is_sparse or all(group.tokens_per_state == 1 for group in geometry.groups))
        and (is_sparse or not any(shape.page_format == COMPRESSED for shape in sets))
        and all(_takes(shape, traits) for shape in sets)
        and not any(shape.page_format in LATENTS for shape in _of_later_groups(geometry))
        and all(_differ(group.layer_sets) for group in geometry.groups)
        and (is_sparse or all(map(_has_blocks, geometry.groups)))
        and not _permutes_scales(geometry, sets)
        and (
            geometry.order == traits["packed_order"]
            or not any(shape.page_format in TURBOQUANT for shape in sets)
        )
    )


def _layers_of(geometry: Geometry) -> Any:
    """Formats and sizes of layers by group and layer set."""
    return tuple(
        tuple((shape.page_format, shape.head_size_k) for shape in group.layer_sets)
        for group in geometry.groups
    )


def _of_later_groups(geometry: Geometry) -> list[LayerSet]:
    """Layers that have a window: the one model of latent rows with one packs none of those."""
    return [shape for group in geometry.groups[1:] for shape in group.layer_sets]


def _has_blocks(group: Group) -> bool:
    """Whether a backend takes blocks of so many tokens, where pages are of tokens."""
    sizes = group.block_size, group.kernel_block_size
    is_state = group.layer_sets[0].page_format in STATES
    return is_state or all(size % _BLOCK_MULTIPLE == 0 for size in sizes)


def _takes(shape: LayerSet, traits: dict[str, Any]) -> bool:
    """Whether a backend publishes such layers."""
    if shape.side:
        return False
    if shape.page_format in STATES:
        return shape.kv_heads == 1
    if shape.head_size_k < _HEAD_LEAST:
        return False
    if _is_latent(shape):
        known = {*MODEL_TYPES, "fp8_e4m3", *traits["rows"]} - TURBOQUANT.keys()
        return shape.kv_heads == 1 and shape.page_format in known
    sizes = {shape.head_size_k, shape.head_size_v}
    if len(sizes) > 1:
        return False
    if shape.page_format == "int4_per_token_head" and shape.head_size_k & (shape.head_size_k - 1):
        return False
    return shape.page_format in (*MODEL_TYPES, *traits["formats"], *traits["rows"])


def _is_latent(shape: LayerSet) -> bool:
    """Whether it keeps one vector a token."""
    return shape.head_size_v == 0 and shape.page_format not in STATES


def _is_row(shape: LayerSet) -> bool:
    """Whether its pages have no half of keys before one of values."""
    return _is_latent(shape) or shape.page_format in TURBOQUANT


def _differ(sets: tuple[LayerSet, ...]) -> bool:
    """Whether no two layer sets are of one shape: a release would put their layers together."""
    return len({replace(shape, layers=1) for shape in sets}) == len(sets)


def _permutes_scales(geometry: Geometry, sets: list[LayerSet]) -> bool:
    """Whether scales lie in the cell of another token and head of the block.

    With pages of two halves, scales are viewed as if tokens came before heads, whatever the
    order. Reader and writer agree, and no byte is lost: a place of its own, for which a
    geometry has no word.
    """
    return (
        geometry.kv_split
        and geometry.order in ("LBHNC", "BHLNC")
        and any(s.page_format.endswith("_per_token_head") and s.kv_heads > 1 for s in sets)
    )


def cell_bytes(shape: LayerSet) -> int:
    """Bytes of a cell, to know how long a row is."""
    name, sizes = shape.page_format, (shape.head_size_k, shape.head_size_v)
    packed = packed_fields(name, *sizes)
    if packed is not None:
        return sum(packed.values())
    if name in STATES:
        conv, ssm = {"state_bf16_fp32": (2, 4), "state_bf16": (2, 2), "state_fp32": (4, 4)}[name]
        return sizes[0] * conv + sizes[1] * ssm
    bits = {"fp32": 32, "fp16": 16, "bf16": 16, "int4_per_token_head": 4}.get(name, 8)
    return sum(size * bits // 8 for size in sizes) + 8 * name.endswith("_per_token_head")
