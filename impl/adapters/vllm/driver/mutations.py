"""Mends of a release that a run may undo, to show that it would find the fault."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvexact.impl.adapters.vllm.driver.symbols import need


@dataclass(frozen=True)
class Mutation:
    """A mend, undone.

    Attributes:
        text: what it undoes, and why nobody meets it in that release.
        apply: undo it in this process.
        traits: what geometries it takes instead.
    """

    text: str
    apply: Callable[[], None]
    traits: dict[str, Any]


def _rounded_storage() -> None:
    """Allocate as on ROCm, and let the worker take the storage's size for the configured one."""
    utils = need("vllm.v1.worker.utils")
    platform = utils.current_platform
    allocate = utils.allocate_kv_cache

    def rounded(config: Any, *args: Any, **options: Any) -> Any:
        own = type(platform)
        kept = own.is_rocm
        own.is_rocm = lambda _self: True
        try:
            return allocate(config, *args, **options)
        finally:
            own.is_rocm = kept

    utils.allocate_kv_cache = rounded
    if hasattr(utils, "warmup_rocm_skinny_gemm_workspaces"):
        utils.warmup_rocm_skinny_gemm_workspaces = lambda _device: None
    made = need("vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker")
    register = made.register_kv_caches

    def physical(self: Any, kv_caches: dict[str, Any]) -> None:
        size = next(iter(kv_caches.values())).untyped_storage().nbytes()
        config = self.kv_cache_config
        tensors = [replace(tensor, size=size) for tensor in config.kv_cache_tensors]
        self.kv_cache_config = replace(config, kv_cache_tensors=tensors)
        register(self, kv_caches)

    made.register_kv_caches = physical


MUTATIONS = {
    "undo-54021": Mutation(
        "regions from the physical size of a pool that is rounded up to 4 KiB (pull request 54021);"
        " no published release had it",
        _rounded_storage,
        {"tail_alignment": 4096},
    ),
}
