"""The CUDA device. PyTorch owns device memory, pinned host memory, streams and events.

A GPU does not check a kernel's accesses before they are made. So each area lies between poisoned
guard bands, which are compared when all work is done; copies between tiers are checked beforehand.

Its bookkeeping is tested against a stand-in for the driver; docs/gpu.md says what a GPU run covers.
"""

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvexact.impl.engine import build
from kvexact.impl.engine.device import (
    HOST,
    KERNELS,
    POISON,
    POOL,
    STREAMS,
    Batch,
    Device,
    Scratch,
    Words,
)
from kvexact.impl.target import Bytes, DeviceLost, OutOfBounds, Unavailable

#: Bytes of a guard band; a multiple of 256, which is how areas are aligned.
_GUARD_BYTES = 4096

#: The driver's CUmemcpySrcAccessOrder.
_STREAM_ORDER, _ANY_ORDER = 1, 3


class _CopyAttributes(ctypes.Structure):
    """The driver's CUmemcpyAttributes; location hints are zero, which is none."""

    _fields_: ClassVar = [
        ("source_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    ]


def _torch() -> Any:
    return importlib.import_module("torch")


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def check_available() -> None:
    """Raise `Unavailable` without a GPU that PyTorch can use, or without nvcc."""
    try:
        torch = _torch()
    except ImportError as error:
        raise Unavailable(f"no PyTorch ({error}): pip install torch") from error
    if not torch.cuda.is_available():
        raise Unavailable("PyTorch sees no CUDA device: this target needs an NVIDIA GPU")
    build.nvcc()


class _Area:
    """Bytes between two guard bands, on the GPU or pinned on the host."""

    def __init__(self, torch: Any, nbytes: int, registered_bytes: int, *, on_host: bool) -> None:
        place = {"pin_memory": True} if on_host else {"device": "cuda"}
        size = nbytes + 2 * _GUARD_BYTES
        self._all = torch.full((size,), POISON, dtype=torch.uint8, **place)
        self.data = self._all[_GUARD_BYTES : _GUARD_BYTES + nbytes]
        self._bands = (self._all[:_GUARD_BYTES], self._all[size - _GUARD_BYTES :])
        self.data.zero_()
        self.address = int(self._all.data_ptr()) + _GUARD_BYTES
        self.registered_bytes = registered_bytes

    def is_overrun(self) -> bool:
        """Whether a guard band has changed."""
        return any(bool((band != POISON).any()) for band in self._bands)

    def covers(self, addresses: Words, lengths: Words) -> bool:
        """Whether all ranges lie in the registered bytes."""
        starts = addresses - self.address
        return bool((starts >= 0).all() and (starts + lengths <= self.registered_bytes).all())


class _Buffer(Scratch):
    """A staging buffer: ``front`` is pinned, ``back`` on the GPU."""

    __slots__ = ("back", "front")

    def __init__(self, torch: Any, nbytes: int) -> None:
        self.front = torch.full((nbytes,), POISON, dtype=torch.uint8, pin_memory=True)
        self.back = torch.full((nbytes,), POISON, dtype=torch.uint8, device="cuda")
        super().__init__(self.front.numpy(), self.front.data_ptr(), self.back.data_ptr())


class CudaDevice(Device):
    """See the module."""

    name: ClassVar[str] = "cuda"

    def __init__(self, macros: tuple[str, ...] = (), source: Path = build.SOURCE) -> None:
        self._torch = _torch()
        self._torch.cuda.init()
        self._streams = [self._torch.cuda.Stream() for _ in STREAMS]
        library = ctypes.CDLL(str(build.cuda_library(macros, source)))
        self._entries = {name: getattr(library, f"kv_{name}") for name in KERNELS}
        for name, count in KERNELS.items():
            self._entries[name].argtypes = [ctypes.c_int64] * count
        self._driver = _driver()
        self._areas: dict[int, _Area] = {}
        self._tables: list[Any] = []
        super().__init__(macros, source)

    @contextmanager
    def _probing(self, what: str) -> Iterator[None]:
        """What PyTorch reports inside means a lost device if a synchronise reports it again."""
        try:
            yield
        except RuntimeError as error:
            self._probe(what, str(error))
            raise

    def _probe(self, what: str, text: str) -> None:
        try:
            self._torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceLost(f"{what}: {text}; {error}") from error

    def _make_scratch(self, number: int, nbytes: int) -> Scratch:  # noqa: ARG002 - all are alike
        with self._probing("scratch"):
            made = _Buffer(self._torch, nbytes)
            self._torch.cuda.synchronize()
        return made

    def allocate(self, area: int, nbytes: int, registered_bytes: int) -> int:
        """See `Device`. The host tier is pinned and mapped, so kernels may read it."""
        with self._probing("allocate"):
            made = _Area(self._torch, nbytes, registered_bytes, on_host=area == HOST)
            self._torch.cuda.synchronize()
        self._areas[area] = made
        return made.address

    def view(self, area: int) -> Bytes:
        """See `Device`; a copy of the pool, the very bytes of the host tier."""
        with self._probing("view"):
            view: Bytes = self._areas[area].data.cpu().numpy()
        return view

    def load(self, area: int, data: Bytes) -> None:
        """See `Device`."""
        with self._probing("load"):
            self._areas[area].data.copy_(self._torch.from_numpy(np.array(data, np.uint8)))
            self._torch.cuda.synchronize()

    def table(self, words: Sequence[int]) -> int:
        """See `Device`."""
        with self._probing("table"):
            kept = self._torch.from_numpy(np.array(words, np.int64)).cuda()
            self._torch.cuda.synchronize()
        self._tables.append(kept)
        return int(kept.data_ptr())

    def _sides(self) -> tuple[Any, Any]:
        """The host's and the device's side of the staging buffer."""
        assert isinstance(self.scratch, _Buffer)
        return self.scratch.front, self.scratch.back

    def push(self, stream: int, nbytes: int) -> None:
        """See `Device`."""
        front, back = self._sides()
        with self._probing("push"), self._torch.cuda.stream(self._streams[stream]):
            back[:nbytes].copy_(front[:nbytes], non_blocking=True)

    def pull(self, stream: int, start: int, nbytes: int) -> None:
        """See `Device`."""
        front, back = self._sides()
        end = start + nbytes
        with self._probing("pull"), self._torch.cuda.stream(self._streams[stream]):
            front[start:end].copy_(back[start:end], non_blocking=True)

    def launch(self, stream: int, kernel: str, *arguments: int) -> None:
        """See `Device`; what a kernel does wrong shows in `finish`."""
        self.counts[kernel] += 1
        code = self._entries[kernel](self._streams[stream].cuda_stream, *arguments)
        if code:
            self._failed(kernel, code)

    def copy_batch(self, stream: int, batch: Batch) -> None:
        """See `Device`."""
        first, end, total = batch.first, batch.end, batch.total
        pool, host, lengths = self.scratch.words[: 3 * total].reshape(3, total)[:, first:end]
        for area, addresses in ((POOL, pool), (HOST, host)):
            if not self._areas[area].covers(addresses, lengths):
                raise OutOfBounds("copy_batch: a range is outside registered memory")
        self.counts["copy_batch"] += 1
        targets, sources = (pool, host) if batch.to_pool else (host, pool)
        order = _ANY_ORDER if batch.any_order else _STREAM_ORDER
        code = self._batched(stream, targets, sources, lengths, order)
        if code:
            self._failed("copy_batch", code)

    def _batched(
        self, stream: int, targets: Words, sources: Words, lengths: Words, order: int
    ) -> int:
        """One call of the driver if it has one, else a copy after the other; an error or 0."""
        pointer = ctypes.c_void_p
        words = (targets, sources, lengths)
        handle = pointer(self._streams[stream].cuda_stream)
        attributes = _CopyAttributes(order)
        first = ctypes.c_size_t(0)
        arrays = (*[pointer(array.ctypes.data) for array in words], ctypes.c_size_t(len(targets)))
        shared = (*arrays, ctypes.byref(attributes), ctypes.byref(first), ctypes.c_size_t(1))
        # CUDA 13 took the index of the failed copy away from the signature of CUDA 12.8.
        if hasattr(self._driver, "cuMemcpyBatchAsync_v2"):
            return int(self._driver.cuMemcpyBatchAsync_v2(*shared, handle))
        if hasattr(self._driver, "cuMemcpyBatchAsync"):
            failed = ctypes.c_size_t(0)
            return int(self._driver.cuMemcpyBatchAsync(*shared, ctypes.byref(failed), handle))
        for target, source, length in zip(*[array.tolist() for array in words], strict=True):
            code = self._driver.cuMemcpyAsync(
                pointer(target), pointer(source), ctypes.c_size_t(length), handle
            )
            if code:
                return int(code)
        return 0

    def _failed(self, what: str, code: int) -> None:
        """A call was refused; a synchronise tells whether the error sticks."""
        self._probe(what, f"CUDA error {code}")
        raise RuntimeError(f"{what}: CUDA error {code}")

    # Order.

    def record(self, stream: int) -> Any:
        """See `Device`."""
        event = self._torch.cuda.Event()
        with self._probing("record"):
            event.record(self._streams[stream])
        return event

    def wait(self, stream: int, event: Any) -> None:
        """See `Device`."""
        with self._probing("wait"):
            self._streams[stream].wait_event(event)

    def query(self, event: Any) -> bool:
        """See `Device`."""
        with self._probing("query"):
            return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """See `Device`."""
        with self._probing("synchronize"):
            event.synchronize()

    def finish(self) -> None:
        """See `Device`."""
        with self._probing("finish"):
            for stream in self._streams:
                stream.synchronize()
            overrun = [area for area, made in self._areas.items() if made.is_overrun()]
        for area in overrun:
            name = "pool" if area == POOL else "host tier"
            raise OutOfBounds(f"bytes around the {name} were written")

    def release(self) -> None:
        """See `Device`; what is pending ends first, for it cannot be called back."""
        try:
            self._torch.cuda.synchronize()
        finally:
            self._areas.clear()
            self._tables.clear()
            self.counts.clear()
