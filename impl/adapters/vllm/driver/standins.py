"""Stand-ins for what only a GPU has: events, streams, copies, pinning. Nothing else is replaced.

Copies are made here, one descriptor after the other, and only inside registered memory.
"""

import ctypes
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from kvexact.impl.adapters.vllm.driver.symbols import find, need

#: What asks tensors and platform whether they are CUDA's.
_REGISTRATIONS = {
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector": (
        *("__init__", "register_kv_caches", "register_cross_layers_kv_cache"),
    ),
    "vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker": ("register_kv_caches",),
}


class OutOfBounds(Exception):
    """A copy outside of registered memory, caught before it was made."""


class Memory:
    """Memory that copies may touch."""

    def __init__(self) -> None:
        self._starts: list[tuple[int, int, str]] = []
        self._caught: Exception | None = None

    def register(self, start: int, size: int, name: str) -> None:
        """Allow copies from and to these bytes."""
        self._starts.append((start, start + size, name))

    def clear(self) -> None:
        """Allow none."""
        self._starts.clear()
        self._caught = None

    def complain(self) -> None:
        """Raise what was caught on a thread of the release's own, where an exception is lost."""
        caught, self._caught = self._caught, None
        if caught is not None:
            raise caught

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy bytes, where both sides are registered."""
        self._check(source, size, "reads")
        self._check(target, size, "writes")
        ctypes.memmove(target, source, size)

    def zero(self, target: int, size: int) -> None:
        """Zero bytes that are registered."""
        self._check(target, size, "zeroes")
        ctypes.memset(target, 0, size)

    def _check(self, at: int, size: int, what: str) -> None:
        if any(start <= at and at + size <= end for start, end, _ in self._starts):
            return
        near = min(self._starts, key=lambda s: abs(s[0] - at), default=(0, 0, "nothing"))
        raise OutOfBounds(
            f"it {what} {size} bytes at {at - near[0]:+} from the start of {near[2]}, "
            f"which has {near[1] - near[0]} bytes"
        )

    def swap_blocks_batch(self, source: Any, target: Any, sizes: Any, **_order: Any) -> None:
        """In place of the compiled op: tensors of addresses and sizes."""
        for one in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
            self.copy(*one)

    def batch_memcpy(self, target: int, source: int, sizes: int, count: int, *_more: Any) -> int:
        """In place of the driver's batched copy: addresses of arrays."""
        rows = [
            np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(at)).tolist()
            for at in (source, target, sizes)
        ]
        try:
            for one in zip(*rows, strict=True):
                self.copy(*one)
        except OutOfBounds as error:
            self._caught = error
        return 0


class Event:
    """An event on a machine whose copies are done when they return."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    def record(self, *_stream: Any) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing is pending."""

    def wait(self, *_stream: Any) -> None:
        """Nothing is pending."""

    def elapsed_time(self, _other: Any) -> float:
        return 0.0


class Stream:
    """A stream on such a machine."""

    cuda_stream = 0

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1

    def wait_event(self, _event: Any) -> None:
        """Nothing is pending."""

    def wait_stream(self, _stream: Any) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""


def install(memory: Memory) -> None:
    """Replace them for good; before anything that keeps a reference is made."""
    torch_any: Any = torch
    torch_any.Event = Event
    torch_any.cuda.Stream = Stream
    torch_any.cuda.current_stream = lambda *_device: Stream()
    torch_any.accelerator.current_device_index = lambda: 0
    ops = need("vllm._custom_ops")
    ops.swap_blocks_batch = memory.swap_blocks_batch
    copies = find("vllm.v1.simple_kv_offload.cuda_mem_ops")
    if hasattr(copies, "_batch_memcpy"):
        copies._batch_memcpy = (memory.batch_memcpy, 1)
    elif copies is not None:
        copies._batch_memcpy_fn = memory.batch_memcpy
    spec = find("vllm.v1.kv_offload.cpu.spec")
    if hasattr(spec, "_all_workers_barrier"):
        spec._all_workers_barrier = lambda: None
    disk = find("vllm.v1.simple_kv_offload.disk_backend")
    if hasattr(disk, "pin_tensor"):
        disk.pin_tensor = lambda _tensor: None
    for place, names in _REGISTRATIONS.items():
        _as_on_a_gpu(need(place), names)


def _as_on_a_gpu(made: Any, names: tuple[str, ...]) -> None:
    """Make tensors and platform say that they are CUDA's while these methods run."""
    platform = type(need("vllm.platforms:current_platform"))

    def wrapped(method: Any) -> Any:
        @wraps(method)
        def run(*args: Any, **options: Any) -> Any:
            with (
                patch.object(torch.Tensor, "is_cuda", property(lambda _self: True)),
                patch.object(platform, "is_cuda_alike", lambda _self: True),
            ):
                return method(*args, **options)

        return run

    for name in names:
        if hasattr(made, name):
            setattr(made, name, wrapped(getattr(made, name)))
