"""The small interface between the engine and a device: memory, copies, launches.

No byte of the pool or the host tier is touched except through it. Work is enqueued in order on one
stream; `finish` waits for it and reports what went wrong.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvexact.impl.engine import build
from kvexact.impl.target import Allocate, Bytes

Words = npt.NDArray[np.int64]

#: Areas of memory; kernels.cu has the same numbers.
POOL, HOST, SCRATCH = 0, 1, 2

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
    """Memory through which ids, descriptors and rows go to the device, and rows come back.

    Attributes:
        bytes, words: the host's side, as bytes and as 64-bit integers.
        host: address of the host's side.
        device: address of the device's side; where they differ, push and pull copy between them.
    """

    __slots__ = ("bytes", "device", "host", "words")

    def __init__(self, data: Bytes, host: int, device: int) -> None:
        self.bytes = data
        self.words: Words = data.view(np.int64)
        self.host = host
        self.device = device


class Device(ABC):
    """One stream and the memory of one engine.

    Args:
        macros: for the compiler of the kernels; this is how faults in kernels are planted.
        source: the kernels' source.
    """

    name: ClassVar[str]

    def __init__(self, macros: tuple[str, ...] = (), source: Path = build.SOURCE) -> None:
        self.macros = macros
        self.source = source
        #: Launches and copies since the last `release`, by name.
        self.counts: dict[str, int] = {}
        self.scratch = self._make_scratch(SCRATCH_BYTES)

    def scratch_of(self, nbytes: int) -> Scratch:
        """Scratch memory of at least ``nbytes``; what an earlier op put there may be gone."""
        if nbytes > len(self.scratch.bytes):
            self.finish()
            self.scratch = self._make_scratch(1 << (nbytes - 1).bit_length())
        return self.scratch

    def count(self, what: str) -> None:
        """Count a launch or copy."""
        self.counts[what] = self.counts.get(what, 0) + 1

    @abstractmethod
    def _make_scratch(self, nbytes: int) -> Scratch:
        """New poisoned scratch memory instead of the old."""

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
        """All bytes of an area after `finish`; a copy only where the host cannot see them."""

    @abstractmethod
    def load(self, area: int, data: Bytes) -> None:
        """Overwrite an area."""

    @abstractmethod
    def table(self, words: Words) -> int:
        """The address of a constant table where kernels read it; it lives until `release`."""

    @abstractmethod
    def push(self, nbytes: int) -> None:
        """Bring the first ``nbytes`` of scratch memory to the device's side."""

    @abstractmethod
    def pull(self, start: int, nbytes: int) -> None:
        """Bring bytes of scratch memory back to the host's side, all work done."""

    @abstractmethod
    def launch(self, kernel: str, *arguments: int) -> None:
        """Enqueue a kernel.

        Raises:
            OutOfBounds: an access outside registered memory, where it is found before it is made.
            DeviceLost: an access that the hardware refuses, an error that sticks.
        """

    @abstractmethod
    def copy_batch(self, count: int, *, to_pool: bool) -> None:
        """Enqueue ``count`` copies between the tiers.

        Scratch words hold the addresses in the pool, then those in the host tier, then the lengths.

        Raises:
            OutOfBounds: a range is not inside its area.
        """

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
        """Give areas and tables back."""
