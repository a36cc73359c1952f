"""The small interface between the engine and a device: memory, copies, launches.

No byte of the pool or the host tier is touched except through it. Work is enqueued in one of three
streams, each in order; events say what of it has ended. `finish` waits for all of it and reports
what went wrong.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from kvexact.impl.engine import build
from kvexact.impl.target import Allocate, Bytes

Words = npt.NDArray[np.int64]

#: Areas of memory; kernels.cu has the same numbers.
POOL, HOST, SCRATCH = 0, 1, 2

#: Streams: writes, zeroing, copies and reads; pool to host tier; host tier to pool.
COMPUTE, STORE, LOAD = STREAMS = (0, 1, 2)

#: Arguments of each kernel's entry point, the context or stream included.
KERNELS = {
    "write": 9,
    "read": 8,
    "copy": 9,
    "zero": 6,
    "transfer": 5,
    "encode": 11,
    "decode": 10,
}

WORD_BYTES = 8

#: Rows start at a multiple of this in scratch memory, so that wide accesses have a chance.
ROW_ALIGNMENT = 16

#: What unused scratch memory holds: no result may lean on zeros that nobody wrote.
POISON = 0xA5

#: Scratch memory that a device starts with.
SCRATCH_BYTES = 16 * 1024


class Scratch:
    """A staging buffer: ids, descriptors and rows go through it to the device, and rows come back.

    Attributes:
        bytes, words: the host's side, as bytes and as 64-bit integers.
        memory: the same bytes, where short runs are copied with less ado.
        host: address of the host's side.
        device: address of the device's side; where they differ, push and pull copy between them.
    """

    __slots__ = ("bytes", "device", "host", "memory", "words")

    def __init__(self, data: Bytes, host: int, device: int) -> None:
        self.bytes = data
        self.memory = memoryview(data)  # type: ignore[arg-type]
        self.words: Words = data.view(np.int64)
        self.host = host
        self.device = device


class Batch(NamedTuple):
    """Copies ``first`` to ``end`` of ``total`` that the words of the staging buffer describe.

    First come all addresses in the pool, then those in the host tier, then lengths.

    Attributes:
        any_order: whether sources may be read out of stream order, until the batch has ended.
    """

    first: int
    end: int
    total: int
    to_pool: bool
    any_order: bool


class Device(ABC):
    """The streams and the memory of one engine.

    Args:
        macros: for the compiler of the kernels; this is how faults in kernels are planted.
        source: the kernels' source.
    """

    name: ClassVar[str]

    def __init__(self, macros: tuple[str, ...] = (), source: Path = build.SOURCE) -> None:
        self.macros = macros
        self.source = source
        #: Launches and copies since the last `release`, by name.
        self.counts: defaultdict[str, int] = defaultdict(int)
        self._buffers: list[Scratch] = []
        #: The staging buffer that work uses now.
        self.scratch = self.scratch_of(0)

    def scratch_of(self, nbytes: int, number: int = 0) -> Scratch:
        """Use a staging buffer from now on, and make it ``nbytes`` long at least.

        Its last use must have ended; what that put there may be gone.
        """
        buffers = self._buffers
        while number >= len(buffers):
            buffers.append(self._make_scratch(len(buffers), SCRATCH_BYTES))
        scratch = buffers[number]
        if nbytes > len(scratch.bytes):
            scratch = buffers[number] = self._make_scratch(number, 1 << (nbytes - 1).bit_length())
        self.scratch = scratch
        return scratch

    @abstractmethod
    def _make_scratch(self, number: int, nbytes: int) -> Scratch:
        """A new poisoned staging buffer instead of the old one of this number."""

    @abstractmethod
    def allocate(self, area: int, nbytes: int, registered_bytes: int) -> int:
        """Memory for POOL or HOST, aligned to 256; work may touch the first ``registered_bytes``.

        Returns:
            Its address as kernels and copies see it.
        """

    def share(self, area: int, allocate: Allocate) -> None:  # noqa: B027 - devices may ignore it
        """Memory for an area comes from there, where the host has it; see `Target`."""

    @abstractmethod
    def view(self, area: int) -> Bytes:
        """All bytes of an area as they are; a copy only where the host cannot see them."""

    @abstractmethod
    def load(self, area: int, data: Bytes) -> None:
        """Overwrite an area, of which no work is pending."""

    @abstractmethod
    def table(self, words: Sequence[int]) -> int:
        """The address of a constant table where kernels read it; it lives until `release`."""

    # Work. All of it may raise what `launch` raises, also for work that was enqueued before.

    @abstractmethod
    def push(self, stream: int, nbytes: int) -> None:
        """Bring the first ``nbytes`` of the staging buffer to the device's side."""

    @abstractmethod
    def pull(self, stream: int, start: int, nbytes: int) -> None:
        """Bring bytes of the staging buffer back to the host's side."""

    @abstractmethod
    def launch(self, stream: int, kernel: str, *arguments: int) -> None:
        """Enqueue a kernel.

        Raises:
            OutOfBounds: an access outside registered memory, where it is found before it is made.
            DeviceLost: an access that the hardware refuses, an error that sticks.
        """

    @abstractmethod
    def copy_batch(self, stream: int, batch: Batch) -> None:
        """Enqueue copies between the tiers.

        Raises:
            OutOfBounds: a range is not inside its area.
        """

    # Order.

    def begin(self, op: int) -> None:  # noqa: B027 - where nobody asks
        """Name what follows by the id of its op."""

    @abstractmethod
    def record(self, stream: int) -> Any:
        """An event behind all work that was enqueued in a stream so far."""

    @abstractmethod
    def wait(self, stream: int, event: Any) -> None:
        """Let later work of a stream wait for an event."""

    @abstractmethod
    def query(self, event: Any) -> bool:
        """Whether all work before an event has ended."""

    @abstractmethod
    def synchronize(self, event: Any) -> None:
        """Return when all work before an event has ended."""

    def pass_time(self) -> None:  # noqa: B027 - time passes by itself
        """The host does something else meanwhile."""

    def gates(self) -> dict[str, int]:
        """Tasks of kernels since the last `release` by the path they took; none where not known."""
        return {}

    @abstractmethod
    def finish(self) -> None:
        """Wait for all work.

        Raises:
            OutOfBounds: bytes around an area were written.
            DeviceLost: the device reports an error that sticks.
        """

    @abstractmethod
    def release(self) -> None:
        """Give areas and tables back, whatever is pending."""
