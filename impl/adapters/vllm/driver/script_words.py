"""How a program is written down: imports, specs and values in a release's own words."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver.pool import Unfit
from kvexact.impl.adapters.vllm.driver.symbols import find

#: Whatever a program may import, each from the first place that has it.
_NAMES = (
    "vllm.config:VllmConfig",
    "vllm.config:KVTransferConfig",
    "vllm.config:set_current_vllm_config",
    "vllm.v1.attention.backends.utils:set_kv_cache_layout",
    "vllm.v1.attention.backends.triton_attn:TritonAttentionBackend",
    "vllm.v1.attention.backends.triton_attn:TritonAttentionImpl",
    "vllm.models.deepseek_v4.compressor:CompressorBackend",
    "vllm.models.deepseek_v4.sparse_mla:DeepseekV4FlashMLABackend",
    "vllm.v1.attention.backends.mla.flashmla_sparse:FlashMLASparseBackend",
    "vllm.v1.attention.backends.mla.indexer:DeepseekV4IndexerBackend",
    "vllm.v1.attention.backends.mla.sparse_swa:DeepseekSparseSWABackend",
    "vllm.v1.attention.backends.mla.triton_mla:TritonMLABackend",
    "vllm.v1.attention.backends.turboquant_attn:TurboQuantAttentionBackend",
    "vllm.v1.core.kv_cache_planning:get_kv_cache_groups",
    "vllm.v1.core.kv_cache_planning:get_kv_cache_config_from_groups",
    "vllm.v1.core.kv_cache_utils:get_kv_cache_groups",
    "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups",
    "vllm.v1.core.kv_cache_utils:KVCacheBlockCopy",
    "vllm.v1.kv_cache_interface:FullAttentionSpec",
    "vllm.v1.kv_cache_interface:SlidingWindowSpec",
    "vllm.v1.kv_cache_interface:SlidingWindowMLASpec",
    "vllm.v1.kv_cache_interface:ChunkedLocalAttentionSpec",
    "vllm.v1.kv_cache_interface:MambaSpec",
    "vllm.v1.kv_cache_interface:MLAAttentionSpec",
    "vllm.v1.kv_cache_interface:TQFullAttentionSpec",
    "vllm.v1.kv_cache_interface:KVQuantMode",
    "vllm.v1.kv_cache_layout:KVCacheLayout",
    "vllm.v1.worker.utils:AttentionGroup",
    "vllm.v1.worker.utils:KVBlockZeroer",
    "vllm.v1.worker.utils:allocate_kv_cache",
    "vllm.v1.worker.utils:copy_kv_cache_blocks_inplace",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
    "vllm.v1.kv_offload.base:GPULoadStoreSpec",
    "vllm.v1.kv_offload.cpu.common:CPULoadStoreSpec",
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorRole",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector",
    "vllm.v1.simple_kv_offload.metadata:SimpleCPUOffloadMetadata",
    "vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker",
)
_WIDTH = 100
#: What fewer specs have alike is written with each of them.
_ALIKE_LEAST = 3


def imports(text: str) -> Iterator[str]:
    """A line for each name of vLLM in a program."""
    done = set()
    for place in _NAMES:
        module, _, name = place.partition(":")
        if name not in done and re.search(rf"\b{name}\b", text) and find(place) is not None:
            done.add(name)
            yield f"from {module} import {name}"


def layers(specs: Sequence[tuple[Any, int]]) -> Iterator[str]:
    """The specs of all layers, by name; what several specs have alike is written once.

    Args:
        specs: each with the number of layers in a row that publish it.
    """
    given = [_arguments(spec) for spec, _ in specs]
    alike = set.intersection(*(set(one.items()) for one in given)) if len(given) > 1 else set()
    if len(alike) < _ALIKE_LEAST:
        alike = set()
    else:
        words = [f"{name}={text}" for name, text in given[0].items() if (name, text) in alike]
        yield folded(f"alike = dict({', '.join(words)})")
    start = 0
    for (spec, count), one in zip(specs, given, strict=True):
        own = [f"{name}={text}" for name, text in one.items() if (name, text) not in alike]
        made = f"{type(spec).__name__}({', '.join(['**alike'] * bool(alike) + own)})"
        end = start + count
        where = f"range({start}, {end})" if start else f"range({end})"
        operator = "|=" if start else "="
        yield folded(f'specs {operator} {{f"layers.{{n}}": {made} for n in {where}}}')
        start = end


def _arguments(spec: Any) -> dict[str, str]:
    """Arguments that make a spec, written down; without those that make no difference."""
    given = {one.name: getattr(spec, one.name) for one in fields(spec) if one.init}
    for one in fields(spec):
        has_default = one.default is not MISSING or one.default_factory is not MISSING
        if one.init and has_default:
            fewer = {name: value for name, value in given.items() if name != one.name}
            if type(spec)(**fewer) == spec:
                given = fewer
    return {name: written(value) for name, value in given.items()}


def written(value: Any) -> str:
    """A value as it would be written.

    Raises:
        Unfit: it cannot be.
    """
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{written(item)}, " for item in value) + ")"
    if isinstance(value, torch.dtype | int | str | float | None):
        return repr(value)
    raise Unfit(f"{type(value).__name__} cannot be written down")


def folded(line: str) -> str:
    """A statement, on as many lines as it takes."""
    return "\n".join(textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False))
