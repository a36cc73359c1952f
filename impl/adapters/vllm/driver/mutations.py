"""Mends of a release that a run may undo, to show that it would find the fault; or may add.

Each function is written into reproducers as it stands, so it needs nothing but `need` and `find`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from kvexact.impl.adapters.vllm.driver.symbols import find, need


@dataclass(frozen=True)
class Mutation:
    """A mend, undone or added.

    Attributes:
        text: what it changes.
        apply: change it in this process, with these options.
        traits: what geometries it takes instead.
    """

    text: str
    apply: Callable[..., None]
    options: dict[str, bool] = field(default_factory=dict)
    traits: dict[str, Any] = field(default_factory=dict)


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


def _simple_copies(*, wait: bool) -> None:
    """Let loads wait for the model's stream, as stores do; or let neither of them wait."""
    for place in ("copy_backend:DmaCopyBackend", "disk_backend:DiskBackend"):
        made = find(f"vllm.v1.simple_kv_offload.{place}")
        if made is not None:
            launch = made.launch_copy

            def changed(self: Any, *args: Any, launch: Any = launch, **options: Any) -> None:
                if wait:
                    event = need("torch:Event")()
                    event.record(need("torch:cuda.current_stream")())
                    options = {"wait_event": event} | options
                else:
                    options["wait_event"] = None
                launch(self, *args, **options)

            made.launch_copy = changed


def _simple_stores_in_any_order() -> None:
    """Let stores read their sources at any time, also before what their stream waits for."""
    for name in ("copy_backend", "disk_backend"):
        module = find(f"vllm.v1.simple_kv_offload.{name}")
        if module is not None:
            module.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = module.CU_MEMCPY_SRC_ACCESS_ORDER_ANY


def _transfers_do_not_wait(*, stores: bool) -> None:
    """Start transfers of one side whatever the model's stream still does."""
    made = need("vllm.v1.kv_offload.cpu.gpu_worker:SingleDirectionOffloadingHandler")
    stream = need("vllm.platforms:current_platform").Stream
    begin = made.transfer_async

    def at_once(self: Any, *args: Any) -> Any:
        if self.gpu_to_cpu != stores:
            return begin(self, *args)
        with patch.object(stream, "wait_stream", lambda *_: None):
            return begin(self, *args)

    made.transfer_async = at_once


def _said_too_early() -> None:
    """Say that a transfer has ended as soon as it was begun."""
    event = need("torch:Event")
    for place in (
        "vllm.v1.kv_offload.cpu.gpu_worker:SingleDirectionOffloadingHandler",
        "vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker",
    ):
        made = need(place)
        ask = made.get_finished

        def early(self: Any, *args: Any, ask: Any = ask) -> Any:
            with patch.object(event, "query", lambda _self: True):
                return ask(self, *args)

        made.get_finished = early


def _loads_wait() -> None:
    """Let loads wait for the model's stream, as stores do."""
    made = need("vllm.v1.kv_offload.cpu.gpu_worker:SingleDirectionOffloadingHandler")
    platform = need("vllm.platforms:current_platform")
    begin = made.transfer_async

    def in_order(self: Any, *args: Any) -> Any:
        stream = self._stream_pool.pop() if self._stream_pool else platform.Stream()
        stream.wait_stream(platform.current_stream())
        self._stream_pool.append(stream)  # the next one that is taken
        return begin(self, *args)

    made.transfer_async = in_order


MUTATIONS = {
    "undo-54021": Mutation(
        "regions from the physical size of a pool that is rounded up to 4 KiB (pull request 54021);"
        " no published release had it",
        _rounded_storage,
        traits={"tail_alignment": 4096},
    ),
    "undo-46278": Mutation(
        "stores of the simple offload wait for the model (pull request 46278)",
        _simple_copies,
        {"wait": False},
    ),
    "any-order": Mutation(
        "stores of the simple offload read their sources in stream order",
        _simple_stores_in_any_order,
    ),
    "undo-31341": Mutation(
        "stores of the offloading connector wait for the model (pull request 31341)",
        _transfers_do_not_wait,
        {"stores": True},
    ),
    "undo-50696": Mutation(
        "loads of the offloading connector wait for the model (pull request 50696, 0.28.0)",
        _transfers_do_not_wait,
        {"stores": False},
    ),
    "said-early": Mutation(
        "a transfer is said to have ended when its last event has passed",
        _said_too_early,
    ),
    "mend-47282": Mutation(
        "loads of the simple offload wait for the model, too (issue 47282)",
        _simple_copies,
        {"wait": True},
    ),
    "mend-50696": Mutation(
        "loads of the offloading connector wait for the model, as from 0.28.0 on",
        _loads_wait,
    ),
}
