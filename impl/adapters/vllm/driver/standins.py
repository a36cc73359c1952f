"""Stand-ins for what only a GPU has: events, streams, copies, a kernel, pinning; for nothing else.

What they do ends in a `Device`. The one here does all work at once; `device.py` has one on which
work is pending.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any, ClassVar
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
#: Whose copy threads take work from a queue.
_WITH_THREADS = ("copy_backend", "disk_backend")
#: When a batched copy may read its sources, in the driver's numbers: in stream order, at any time.
_STREAM_ORDER, _ANY_ORDER = 1, 3
#: Bytes of what a zeroing kernel counts in.
_WORD = 4
#: Target, source and number of bytes of each.
Copies = list[tuple[int, int, int]]


class Device:
    """A device that has done all work when a call returns.

    Attributes:
        streams: all that there are, at the number that calls know them by; the first is the one of
            the model.
        queue_type: what copy threads take work from; None: Python's own.
    """

    queue_type: Any = None

    def __init__(self) -> None:
        Event.device = Stream.device = self
        self._in_thread = threading.local()
        self.streams: list[Stream] = []
        Stream()

    @property
    def current(self) -> "Stream":
        """The current stream of this thread."""
        found: Stream | None = getattr(self._in_thread, "stream", None)
        return found or self.streams[0]

    @contextmanager
    def on(self, stream: "Stream") -> Iterator[None]:
        """Make a stream the current one."""
        before = getattr(self._in_thread, "stream", None)
        self._in_thread.stream = stream
        try:
            yield
        finally:
            self._in_thread.stream = before

    def new_stream(self) -> Any:
        """What it keeps of a stream."""

    def new_event(self) -> Any:
        """What it keeps of an event."""

    def copy(self, copies: Copies, stream: "Stream", order: int) -> None:
        """Copy bytes; in which order sources are read says the driver's number."""
        del stream, order
        for one in copies:
            ctypes.memmove(*one)

    def copy_in_thread(self, copies: Copies, stream: "Stream", order: int) -> None:
        """The same on a thread of the release's own."""
        self.copy(copies, stream, order)

    def zero(self, target: int, size: int) -> None:
        """Zero bytes, now."""
        ctypes.memset(target, 0, size)

    def record(self, event: "Event", stream: "Stream") -> None:
        """Capture what is in a stream."""

    def wait(self, stream: "Stream", event: "Event") -> None:
        """Let later work of a stream wait for an event."""

    def query(self, event: "Event") -> bool:
        """Whether what an event captured has ended."""
        del event
        return True

    def synchronize(self, event: "Event") -> None:
        """Wait for what an event captured."""


class Event:
    """In place of `torch.Event`."""

    device: ClassVar[Device]

    def __init__(self, *_args: Any, **_options: Any) -> None:
        self.made = self.device.new_event()

    def record(self, stream: "Stream | None" = None) -> None:
        self.device.record(self, stream or self.device.current)

    def query(self) -> bool:
        return self.device.query(self)

    def synchronize(self) -> None:
        self.device.synchronize(self)

    def wait(self, stream: "Stream | None" = None) -> None:
        self.device.wait(stream or self.device.current, self)

    def elapsed_time(self, _other: Any) -> float:
        return 0.0


class Stream:
    """In place of streams of torch and of the platform."""

    device: ClassVar[Device]

    def __init__(self, *_args: Any, **_options: Any) -> None:
        self.made = self.device.new_stream()
        self.cuda_stream = len(self.device.streams)
        self.device.streams.append(self)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()


def install(device: Device) -> None:
    """Replace them for good; before anything that keeps a reference is made."""
    torch_any: Any = torch
    torch_any.Event = Event
    torch_any.accelerator.current_device_index = lambda: 0
    for place in (torch_any.cuda, type(need("vllm.platforms:current_platform"))):
        place.Stream = Stream
        place.current_stream = staticmethod(lambda *_device: device.current)
        place.stream = staticmethod(device.on)
    need("vllm._custom_ops").swap_blocks_batch = swap_blocks_batch(device)
    calls = find("vllm.v1.simple_kv_offload.cuda_mem_ops")
    if hasattr(calls, "_batch_memcpy"):
        calls._batch_memcpy = (batch_memcpy(device), 1)
    elif calls is not None:
        calls._batch_memcpy_fn = batch_memcpy(device)
    _take_turns(device)
    spec = find("vllm.v1.kv_offload.cpu.spec")
    if hasattr(spec, "_all_workers_barrier"):
        spec._all_workers_barrier = lambda: None
    disk = find("vllm.v1.simple_kv_offload.disk_backend")
    if hasattr(disk, "pin_tensor"):
        disk.pin_tensor = lambda _tensor: None
    need("vllm.v1.worker.utils:KVBlockZeroer").zero_block_ids = zero_block_ids(device)
    for made, names in _REGISTRATIONS.items():
        _as_on_a_gpu(need(made), names)


def swap_blocks_batch(device: Device) -> Any:
    """In place of the compiled op: tensors of addresses and sizes, on the current stream."""

    def swap(
        source: Any, target: Any, sizes: Any, *, is_src_access_order_any: bool = False
    ) -> None:
        copies = list(zip(target.tolist(), source.tolist(), sizes.tolist(), strict=True))
        order = _ANY_ORDER if is_src_access_order_any else _STREAM_ORDER
        device.copy(copies, device.current, order)

    return swap


def batch_memcpy(device: Device) -> Any:
    """In place of `cuMemcpyBatchAsync`, which copy threads call: addresses of arrays."""

    def copy(*arguments: Any) -> int:
        *places, count, attributes, _, has_attributes, _, stream = arguments
        rows = [
            np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(at)).tolist()
            for at in places
        ]
        order = ctypes.c_uint.from_address(attributes).value if has_attributes else _STREAM_ORDER
        device.copy_in_thread(list(zip(*rows, strict=True)), device.streams[stream], order)
        return 0

    return copy


def zero_block_ids(device: Device) -> Any:
    """In place of a kernel: what it does with its table of addresses, strides and sizes."""

    def zero(zeroer: Any, blocks: list[int]) -> None:
        if not blocks or zeroer._meta is None:
            return
        addresses, *more = (part.tolist() for part in zeroer._meta if torch.is_tensor(part))
        more = more or [[zeroer._meta[1]] * len(addresses)]  # once one size was that of all
        for at, stride, size in zip(addresses, more[0], more[-1], strict=True):
            for block in blocks:
                device.zero(at + block * stride * _WORD, size * _WORD)

    return zero


def _take_turns(device: Device) -> None:
    """Let copy threads read from queues of the device's, where it has any."""
    for name in _WITH_THREADS if device.queue_type else ():
        module = find(f"vllm.v1.simple_kv_offload.{name}")
        if module is not None:
            need(f"{module.__name__}:queue.SimpleQueue")
            module.queue = SimpleNamespace(SimpleQueue=device.queue_type)


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
