"""Layers of DeepSeek V4, from their own classes, with the backends that take them.

Its groups keep compressed vectors beside keys of an indexer, vectors within a window, and states of
both that are not compressed yet.
"""

from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.packed import COMPRESSED, INDEX_KEYS
from kvexact.impl.adapters.vllm.driver.rows import ModelLayer
from kvexact.impl.adapters.vllm.driver.shapes import Shape
from kvexact.impl.adapters.vllm.driver.symbols import need

_BACKENDS = "vllm.v1.attention.backends.mla"
_MODEL = "vllm.models.deepseek_v4"
#: Tokens that a vector of a window looks back; any will do.
_WINDOW = 128
#: Tokens that become one vector, by the block size of their states.
_RATIO_OF_STATES = {4: 4, 8: 128}


def is_sparse(geometry: dict[str, Any]) -> bool:
    """Whether a geometry is of such a model."""
    sets = (one for group in geometry["groups"] for one in group["layer_sets"])
    return any(one["page_format"] == COMPRESSED for one in sets)


def backend(group: dict[str, Any], shape: Shape) -> Any:
    """The attention backend that takes such a layer."""
    if shape.page_format == INDEX_KEYS:
        return need(f"{_BACKENDS}.indexer:DeepseekV4IndexerBackend")
    if shape.page_format != COMPRESSED:
        return need(f"{_MODEL}.compressor:CompressorBackend")
    if group["tokens_per_state"] == 1:
        return need(f"{_BACKENDS}.sparse_swa:DeepseekSparseSWABackend")
    return need(f"{_MODEL}.sparse_mla:DeepseekV4FlashMLABackend")


def spec(name: str, group: dict[str, Any], shape: Shape, config: Any, own: Any) -> Any:
    """What a layer of this name publishes, as its backend completes it."""
    with need("vllm.config:set_current_vllm_config")(config):
        layer = _layer(name, group, shape, config)
    return release.completed(layer.get_kv_cache_spec(config), own)


def _layer(name: str, group: dict[str, Any], shape: Shape, config: Any) -> Any:
    ratio, cache = group["tokens_per_state"], config.cache_config
    if shape.page_format == INDEX_KEYS:
        made = need(f"{_MODEL}.attention:DeepseekV4IndexerCache")
        head = sum(shape.fields().values())
        return made(head, torch.uint8, name, cache, ratio)
    if shape.page_format != COMPRESSED:
        made = need(f"{_MODEL}.compressor:CompressorStateCache")
        ratio = _RATIO_OF_STATES.get(group["block_size"], 4)
        return made(shape.head_size_k, torch.float32, ratio, name)
    if ratio == 1:
        made = need(f"{_BACKENDS}.sparse_swa:DeepseekV4SWACache")
        return made(shape.head_size_k, _WINDOW, torch.uint8, name, cache)
    return ModelLayer(
        need(f"{_MODEL}.attention:DeepseekV4Attention"),
        compress_ratio=ratio,
        kv_cache_dtype=shape.cache_dtype,
        head_dim=shape.head_size_k,
    )
