"""Layers that keep one latent vector a token: what they publish, through their own methods."""

from functools import cache
from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.shapes import INDEX_KEYS, PACKED, Shape
from kvexact.impl.adapters.vllm.driver.symbols import need

_BACKENDS = "vllm.v1.attention.backends.mla"


class _Layer:
    """A layer of a model, as far as its spec asks: whatever it has no word for is None."""

    non_causal_multi_token_decode = False

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    def __getattr__(self, _name: str) -> None:
        return None


def backend(page_format: str) -> Any:
    """The attention backend that takes such layers."""
    if page_format == INDEX_KEYS:
        return need(f"{_BACKENDS}.indexer:DeepseekV32IndexerBackend")
    if page_format in PACKED:
        return _sparse()
    return need(f"{_BACKENDS}.triton_mla:TritonMLABackend")


def formats() -> list[str]:
    """Page formats of such layers that a release has, beside plain ones."""
    known = _sparse().supported_kv_cache_dtypes
    return [*(name for name in PACKED if name in known), INDEX_KEYS]


def spec(shape: Shape, config: Any, block_size: int, own: Any) -> Any:
    """What such a layer publishes, as its backend completes it."""
    cache = config.cache_config
    kept, cache.block_size = cache.block_size, block_size
    try:
        of_kind = _index_keys if shape.page_format == INDEX_KEYS else _rows
        made = of_kind(shape, config)
    finally:
        cache.block_size = kept
    return release.completed(made, own)


def _rows(shape: Shape, config: Any) -> Any:
    place = "model_executor.layers.attention.mla_attention:MLAAttention.get_kv_cache_spec"
    layer = _Layer(kv_cache_dtype=shape.cache_dtype, head_size=shape.head_size_k)
    return need(f"vllm.{place}")(layer, config)


def _index_keys(shape: Shape, config: Any) -> Any:
    """Keys of a sparse model's indexer; their scales count as part of the head."""
    place = "model_executor.models.deepseek_v2:DeepseekV32IndexerCache.get_kv_cache_spec"
    head = sum(shape.fields().values())
    layer = _Layer(head_dim=head, dtype=torch.uint8, cache_config=config.cache_config)
    return need(f"vllm.{place}")(layer, config)


@cache
def _sparse() -> Any:
    return need(f"{_BACKENDS}.flashmla_sparse:FlashMLASparseBackend")
