"""The CPU device: kernels.cu built by the host compiler, every access checked before it is made.

Work is done when it is enqueued. What a GPU does in parallel runs in waves of ``lanes`` tasks,
forwards or in reverse; a result that depends on either is wrong on a GPU.
"""

import ctypes
import mmap
import weakref
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from kvexact.impl.engine import build
from kvexact.impl.engine.device import (
    HOST,
    KERNELS,
    POISON,
    POOL,
    SCRATCH,
    SCRATCH_BYTES,
    WORD_BYTES,
    Batch,
    Device,
    Scratch,
)
from kvexact.impl.target import Allocate, Bytes, DeviceLost, OutOfBounds

_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MOST_LANES = 32
#: Arguments of an entry point, the context included.
_ARGUMENTS = {**KERNELS, "copy_batch": 7}

# Words of kernels.cu's Context.
_LANES, _REVERSE, _AREAS, _BAD_ADDRESS, _BAD_BYTES, _MET = 0, 1, 2, 8, 9, 10
#: What a task of a kernel may be, in the order in which the context counts them.
GATES = tuple(
    f"{kernel} {fits.format(width)}"
    for kernel in ("write", "read", "copy", "zero", "transfer")
    for width in (16, 8, 4, 1)
    for fits in ("by {}", "by {} with a rest", "by {}, all of it rest")
)
_OUT_OF_BOUNDS = 1


@lru_cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    number = ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


@lru_cache
def _library(macros: tuple[str, ...], source: Path) -> ctypes.PyDLL:
    # Launches are short, so to let other threads run meanwhile would be most of their time; and of
    # all types of 64 bits, an address is what an integer is made to the fastest.
    library = ctypes.PyDLL(str(build.host_library(macros, source)))
    for name, count in _ARGUMENTS.items():
        getattr(library, f"kv_{name}").argtypes = [ctypes.c_void_p] * count
    return library


def guarded(nbytes: int, descriptor: int = -1) -> tuple[Bytes, int]:
    """Zeroed memory between two pages without access, and its address.

    It is unmapped when the last view of it is gone, so that a view never outlives its bytes.

    Args:
        descriptor: a file of no fewer bytes, of which the memory is the first; -1: none.
    """
    libc = _libc()
    inside = -(-nbytes // _PAGE) * _PAGE
    size = inside + 2 * _PAGE
    start = libc.mmap(None, size, _NO_ACCESS, _OWN, -1, 0)
    if start in (None, _FAILED):
        raise MemoryError(f"mmap of {size} bytes: errno {ctypes.get_errno()}")
    address = cast("int", start) + _PAGE
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, libc.munmap, start, size).atexit = False
    if nbytes:
        flags = _OWN if descriptor < 0 else mmap.MAP_SHARED
        opened = libc.mmap(address, inside, _READ_WRITE, flags | _MAP_FIXED, descriptor, 0)
        if opened != address:
            raise MemoryError(f"mmap of {nbytes} bytes: errno {ctypes.get_errno()}")
    data: Bytes = np.frombuffer(memoryview(memory), np.uint8)
    if descriptor >= 0:
        data.fill(0)
    return data, address


class CpuDevice(Device):
    """See the module. ``lanes`` is 1 to 32 tasks in lockstep."""

    name: ClassVar[str] = "cpu"

    def __init__(
        self,
        macros: tuple[str, ...] = (),
        source: Path = build.SOURCE,
        *,
        lanes: int = _MOST_LANES,
        reverse: bool = False,
    ) -> None:
        if not 1 <= lanes <= _MOST_LANES:
            raise ValueError(f"{lanes} lanes; use 1 to {_MOST_LANES}")
        library = _library(macros, source)
        self._entries = {name: getattr(library, f"kv_{name}") for name in _ARGUMENTS}
        self._context = np.zeros(_MET + len(GATES), np.int64)
        self._context[[_LANES, _REVERSE]] = lanes, reverse
        #: The same words; to store one takes numpy eight times as long.
        self._words = self._context.data
        self._context_address = int(self._context.ctypes.data)
        self._areas: dict[int, Bytes] = {}
        self._allocate: dict[int, Allocate] = {}
        self._tables: list[array[int]] = []
        super().__init__(macros, source)

    def _register(self, area: int, address: int, nbytes: int) -> None:
        words = self._words
        words[_AREAS + 2 * area], words[_AREAS + 2 * area + 1] = address, address + nbytes

    def _make_scratch(self, number: int, nbytes: int) -> Scratch:
        made = self._new_buffer(nbytes)
        self._enlist(number, made)
        return made

    def _new_buffer(self, nbytes: int) -> Scratch:
        """A staging buffer, both sides of which are one."""
        data, address = guarded(nbytes)
        return Scratch(data, address, address)

    def _enlist(self, number: int, buffer: Scratch) -> None:  # noqa: ARG002 - there is one
        """Poison a staging buffer and let work touch it."""
        buffer.bytes.fill(POISON)
        self._register(SCRATCH, buffer.device, len(buffer.bytes))

    def allocate(self, area: int, nbytes: int, registered_bytes: int) -> int:
        """See `Device`."""
        self._areas[area], address = self._allocate.get(area, guarded)(nbytes)
        self._register(area, address, registered_bytes)
        return address

    def share(self, area: int, allocate: Allocate) -> None:
        """See `Device`."""
        self._allocate[area] = allocate

    def view(self, area: int) -> Bytes:
        """See `Device`; the very bytes."""
        return self._areas[area]

    def load(self, area: int, data: Bytes) -> None:
        """See `Device`."""
        self._areas[area][:] = data

    def table(self, words: Sequence[int]) -> int:
        """See `Device`."""
        kept = array("q", words)
        self._tables.append(kept)
        return kept.buffer_info()[0]

    def push(self, stream: int, nbytes: int) -> None:
        """Both sides are one."""

    def pull(self, stream: int, start: int, nbytes: int) -> None:
        """Both sides are one."""

    def launch(self, stream: int, kernel: str, *arguments: int) -> None:  # noqa: ARG002
        """See `Device`."""
        self.counts[kernel] += 1
        self._call(kernel, arguments)

    def _call(self, kernel: str, arguments: tuple[int, ...]) -> None:
        error = self._entries[kernel](self._context_address, *arguments)
        if error:
            self._report(kernel, error)

    def copy_batch(self, stream: int, batch: Batch) -> None:
        """See `Device`."""
        first, end, total, to_pool, _ = batch
        pool = self.scratch.host + WORD_BYTES * first
        host = pool + WORD_BYTES * total
        lengths = host + WORD_BYTES * total
        if to_pool:
            self.launch(stream, "copy_batch", HOST, POOL, pool, host, lengths, end - first)
        else:
            self.launch(stream, "copy_batch", POOL, HOST, host, pool, lengths, end - first)

    def record(self, stream: int) -> Any:
        """All work has ended."""

    def wait(self, stream: int, event: Any) -> None:
        """All work has ended."""

    def query(self, event: Any) -> bool:  # noqa: ARG002
        """All work has ended."""
        return True

    def synchronize(self, event: Any) -> None:
        """All work has ended."""

    def _report(self, kernel: str, error: int) -> None:
        address, nbytes = (int(word) for word in self._context[[_BAD_ADDRESS, _BAD_BYTES]])
        bounds = self._context[_AREAS:_BAD_ADDRESS].tolist()
        starts = {name: bounds[2 * area] for area, name in ((POOL, "pool"), (HOST, "host tier"))}
        near = min(starts, key=lambda name: abs(address - starts[name]))
        where = f"{kernel}: {nbytes} bytes at {near} {address - starts[near]:+}"
        if error == _OUT_OF_BOUNDS:
            raise OutOfBounds(f"{where} are outside registered memory")
        raise DeviceLost(f"{where} are misaligned for an access of this width")

    def gates(self) -> dict[str, int]:
        """See `Device`."""
        met = self._context[_MET:].tolist()
        return {name: count for name, count in zip(GATES, met, strict=True) if count}

    def finish(self) -> None:
        """Work is done when it is enqueued."""

    def release(self) -> None:
        """See `Device`; staging gets its first size and bytes: every trace runs alike."""
        for number, buffer in enumerate(self._buffers):
            if len(buffer.bytes) > SCRATCH_BYTES:
                self._buffers[number] = self._new_buffer(SCRATCH_BYTES)
            self._enlist(number, self._buffers[number])
        self.scratch = self._buffers[0]
        self._areas.clear()
        self._tables.clear()
        self._context[_AREAS : _AREAS + 4] = 0
        self._context[_MET:] = 0
        self.counts.clear()
