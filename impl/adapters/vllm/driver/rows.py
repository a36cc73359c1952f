"""Layers that keep one row a head and token: what they publish, through their own methods.

That is a latent vector, or keys and values that are packed together.
"""

from functools import cache
from inspect import isfunction
from types import MethodType
from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.packed import (
    COMPRESSED,
    INDEX_KEYS,
    LATENTS,
    TURBOQUANT,
)
from kvexact.impl.adapters.vllm.driver.shapes import Shape
from kvexact.impl.adapters.vllm.driver.symbols import need

_BACKENDS = "vllm.v1.attention.backends"


class ModelLayer:
    """A layer of a model, as far as its spec asks: with its class' methods; all else is None."""

    non_causal_multi_token_decode = False

    def __init__(self, of: Any, **given: Any) -> None:
        vars(self).update(given, of=of)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.of, name, None)
        return MethodType(method, self) if isfunction(method) else None


def backend(page_format: str) -> Any:
    """The attention backend that takes such layers."""
    if page_format == INDEX_KEYS:
        return need(f"{_BACKENDS}.mla.indexer:DeepseekV32IndexerBackend")
    if page_format in TURBOQUANT:
        return _turboquant()
    if page_format in LATENTS:
        return _sparse()
    return need(f"{_BACKENDS}.mla.triton_mla:TritonMLABackend")


def formats() -> list[str]:
    """Page formats of such layers that a release has, beside plain ones."""
    known = [*_sparse().supported_kv_cache_dtypes, *_turboquant().supported_kv_cache_dtypes]
    return [*(name for name in (*LATENTS, *TURBOQUANT) if name in known), INDEX_KEYS, COMPRESSED]


def packed_order() -> str:
    """The only order in which a release lays out rows of packed keys and values."""
    shape_of = getattr(_turboquant(), "get_kv_cache_shape", None)
    if shape_of is None:
        (layout,) = _turboquant().supported_kv_cache_layouts()
        return str(layout.name)
    tokens = 16
    second = shape_of(5, tokens, 3, 64, cache_dtype_str="turboquant_k8v4")[1]
    return "LBNHC" if second == tokens else "LBHNC"


def spec(shape: Shape, config: Any, block_size: int, kind: int, own: Any) -> Any:
    """What such a layer publishes, as its backend completes it.

    Args:
        kind: 0 full, else with a window, in releases whose latent layers may have one.
    """
    cache = config.cache_config
    kept, cache.block_size = cache.block_size, block_size
    try:
        if shape.page_format == INDEX_KEYS:
            made = _index_keys(shape, config)
        elif shape.is_packed:
            made = _packed(shape, config, own)
        else:
            made = _latents(shape, config, release.WINDOW if kind else None, own)
    finally:
        cache.block_size = kept
    return release.completed(made, own)


def _latents(shape: Shape, config: Any, window: int | None, own: Any) -> Any:
    made = need("vllm.model_executor.layers.attention.mla_attention:MLAAttention")
    given = {"kv_cache_dtype": shape.cache_dtype, "head_size": shape.head_size_k}
    layer = ModelLayer(made, attn_backend=own, sliding_window=window, **given)
    return made.get_kv_cache_spec(layer, config)


def _packed(shape: Shape, config: Any, own: Any) -> Any:
    made = need("vllm.model_executor.layers.attention.attention:Attention")
    layer = ModelLayer(
        made,
        attn_backend=own,
        attn_type=need("vllm.v1.attention.backend:AttentionType").DECODER,
        kv_cache_dtype=shape.cache_dtype,
        kv_cache_torch_dtype=release.storage_dtype(shape),
        num_kv_heads=shape.kv_heads,
        head_size=shape.head_size_k,
        head_size_v=shape.head_size_v,
    )
    return made.get_kv_cache_spec(layer, config)


def _index_keys(shape: Shape, config: Any) -> Any:
    """Keys of a sparse model's indexer; their scales count as part of the head."""
    made = need("vllm.model_executor.models.deepseek_v2:DeepseekV32IndexerCache")
    head = sum(shape.fields().values())
    layer = ModelLayer(made, head_dim=head, dtype=torch.uint8, cache_config=config.cache_config)
    return made.get_kv_cache_spec(layer, config)


@cache
def _sparse() -> Any:
    return need(f"{_BACKENDS}.mla.flashmla_sparse:FlashMLASparseBackend")


@cache
def _turboquant() -> Any:
    return need(f"{_BACKENDS}.turboquant_attn:TurboQuantAttentionBackend")
