"""Zeroing and copying of blocks by a release's own code; its kernel is run from its table."""

import inspect
from types import SimpleNamespace
from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver.pool import Pool
from kvexact.impl.adapters.vllm.driver.symbols import need


class Zeroer:
    """Zeroes blocks of attention layers from the table of addresses that a release makes."""

    def __init__(self, pool: Pool) -> None:
        made = need("vllm.v1.worker.utils:KVBlockZeroer")
        groups = [group for of_group in pool.groups for group in of_group]
        sizes = [group["kernel_block_size"] for group in pool.geometry["groups"]]
        layers = {name: SimpleNamespace(kv_cache=view) for name, view in pool.views.items()}
        given: dict[str, Any] = {
            "device": torch.device("cpu"),
            "pin_memory": False,
            "attn_groups_iter": groups,
            "kernel_block_sizes": sizes,
            "cache_dtype": pool.config.cache_config.cache_dtype,
            "static_forward_context": layers,
            "num_blocks": pool.kv_config.num_blocks,
            "runner_only_attn_layers": set(),
        }
        known = inspect.signature(made.__init__).parameters
        self._zeroer = made(**{name: value for name, value in given.items() if name in known})

    def zero(self, blocks: list[int]) -> None:
        """Zero them, as far as the table says, by the release's own method."""
        self._zeroer.zero_block_ids(blocks)


def copy_blocks(pool: Pool, pairs: list[list[int]]) -> None:
    """Copy block by block: one call a pair, as a call makes no promise about chains."""
    copy = need("vllm.v1.worker.utils:copy_kv_cache_blocks_inplace")
    made = need("vllm.v1.core.kv_cache_utils:KVCacheBlockCopy")
    for source, target in pairs:
        copy(list(pool.views.values()), pool.kv_config.num_blocks, [made(source, target)])
