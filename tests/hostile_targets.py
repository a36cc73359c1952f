"""Targets that break their process or their device at a zero, for tests of isolation."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import Area, Bytes, DeviceLost, Facts, OutOfBounds, Rows
from kvexact.refmodel.ops import CopyBlocks, Evict, Op, Read, Reset, Zero
from kvexact.refmodel.spec import Geometry


class AtZero(CpuEngine):
    families = ("one_group",)

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is Zero:
            self.misbehave()
        return super().apply(op, rows)

    def misbehave(self) -> None:
        raise NotImplementedError


class Segfaults(AtZero):
    def misbehave(self) -> None:
        ctypes.string_at(0)


class Aborts(AtZero):
    def misbehave(self) -> None:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()


class Hangs(AtZero):
    def misbehave(self) -> None:
        while True:
            time.sleep(60)


class Raises(AtZero):
    def misbehave(self) -> None:
        raise ZeroDivisionError("oops")


class Mumble(Exception):
    """Longer than anybody reads, and no file can hold it."""

    def __str__(self) -> str:
        return "\udc80" * 10_000_000


class Mumbles(AtZero):
    def misbehave(self) -> None:
        raise Mumble


class SendsSignal40(AtZero):
    """A signal that has a number, and no name."""

    def misbehave(self) -> None:
        os.kill(os.getpid(), 40)


class LeavesPython(AtZero):
    def misbehave(self) -> None:
        sys.exit("enough")


class Interrupts(AtZero):
    def misbehave(self) -> None:
        raise KeyboardInterrupt


class Exits(AtZero):
    def misbehave(self) -> None:
        os._exit(3)


class ForksAndExits(AtZero):
    """What it forked lives on, and holds all that it had open."""

    def misbehave(self) -> None:
        if os.fork() == 0:
            time.sleep(600)
        os._exit(3)


class HidesAChild(AtZero):
    """What it forked lives on in a session of its own, and holds all that it had open."""

    def misbehave(self) -> None:
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                Path("hidden").write_text(str(os.getpid()))
            time.sleep(600)
        while not Path("hidden").exists() or not Path("hidden").read_text():
            time.sleep(0.01)
        os._exit(3)


class MovesAway(AtZero):
    """It is of its parent's group from then on."""

    def misbehave(self) -> None:
        os.setpgid(0, os.getpgid(os.getppid()))


class Ticks(CpuEngine):
    """Signals that it handles come all the time, most of them while it waits for a call."""

    def open(self, geometry: Geometry) -> Facts:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        return super().open(geometry)


class RingsNonsense(AtZero):
    """A stray write into all that wakes the other side: a petabyte has come, or a call."""

    def misbehave(self) -> None:
        for path in Path("/proc/self/fd").iterdir():
            if "eventfd" in str(path.resolve()):
                os.eventfd_write(int(path.name), 2**58)


class RingsItself(AtZero):
    """A call has come, says its own bell, of a kind that there is not."""

    def misbehave(self) -> None:
        os.eventfd_write(int(sys.argv[5]), 253)


class HearsLess(AtZero):
    """A call has come, and is the first byte of one that came before."""

    def misbehave(self) -> None:
        os.eventfd_write(int(sys.argv[5]), 1 << 8 | 254)


class ClosesAll(AtZero):
    """As a daemon does that wants nothing of what it was started with."""

    def misbehave(self) -> None:
        os.closerange(3, 1024)


class EatsMemory(AtZero):
    """More than the limit of the tests, and little enough to be given where there is none."""

    def misbehave(self) -> None:
        bytearray(2**34)


class WritesOutside(AtZero):
    def misbehave(self) -> None:
        raise OutOfBounds("pool +7")


class Poisons(AtZero):
    """An error of no meaning; only the probe knows that the device is gone, for this process."""

    gone: ClassVar[bool] = False

    def open(self, geometry: Geometry) -> Facts:
        if Poisons.gone:
            raise DeviceLost("gone")
        return super().open(geometry)

    def misbehave(self) -> None:
        Poisons.gone = True
        raise RuntimeError("an error of no meaning")

    def probe(self) -> None:
        if Poisons.gone:
            raise DeviceLost("it sticks")


class WritesBehind(AtZero):
    """By code that nobody checks, a page behind the pool."""

    def misbehave(self) -> None:
        pool = self.view("pool")
        ctypes.memset(pool.ctypes.data + -(-pool.size // 4096) * 4096, 0, 1)


class ShowsCopies(CpuEngine):
    def view(self, area: Area) -> Bytes:
        return super().view(area).copy()


class LoadsNothing(CpuEngine):
    def load(self, area: Area, data: Bytes) -> None:
        pass


class BadClose(CpuEngine):
    families = ("one_group",)

    def close(self) -> None:
        was_open = self._cache is not None
        super().close()
        if was_open:
            raise OSError("cannot close")


class BadLaunches(CpuEngine):
    families = ("one_group",)

    def launches(self) -> dict[str, int]:
        return {"write": "often"}  # type: ignore[dict-item]


class Moody(CpuEngine):
    """Ops of many kinds fail, each in a way of its own."""

    families = ("one_group",)
    raises: ClassVar[dict[type[Op], type[Exception]]] = {
        CopyBlocks: ValueError,
        Read: KeyError,
        Evict: OutOfBounds,
        Zero: OSError,
    }

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is Reset:
            os._exit(3)
        if type(op) in self.raises:
            raise self.raises[type(op)]("no reason")
        return super().apply(op, rows)
