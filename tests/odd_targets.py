"""Targets that misbehave on purpose, for tests of what stands around a target."""

import os
import signal
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np

from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import Area, DeviceLost, Facts, Result, Rows, Unavailable
from kvexact.refmodel.answer import Answer
from kvexact.refmodel.ops import CopyBlocks, Op, Restore
from kvexact.refmodel.spec import Geometry, Refused


class Sound(CpuEngine):
    families = ("one_group",)


class Killed(Sound):
    """The process dies at the first restore."""

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is Restore:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().apply(op, rows)


class Lost(Sound):
    """The device is lost at the first copy; from then on nothing opens in this process."""

    gone: ClassVar[bool] = False

    def open(self, geometry: Geometry) -> Facts:
        if Lost.gone:
            raise DeviceLost("gone")
        return super().open(geometry)

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is CopyBlocks:
            Lost.gone = True
            raise DeviceLost("made up")
        return super().apply(op, rows)


class Flaky(Sound):
    """Every other instance raises at a copy."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Flaky.made += 1
        self.bad = Flaky.made % 2 == 0

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is CopyBlocks and self.bad:
            raise RuntimeError("now and then")
        return super().apply(op, rows)


class NoCopies(Sound):
    op_kinds = Sound.op_kinds - {"copy_blocks"}


class Declines(Sound):
    geometry_refusals = frozenset[str]()
    may_refuse = frozenset({"unsupported"})

    def plan(self, geometry: Geometry) -> Facts:
        raise Refused("unsupported", "no geometry at all")

    def open(self, geometry: Geometry) -> Facts:
        return self.plan(geometry)


class Away(Sound):
    @classmethod
    def check_available(cls) -> None:
        raise Unavailable("no such device; plug it in")


class Exits(Sound):
    """The process ends before any geometry is opened."""

    def __init__(self) -> None:
        sys.exit(3)


class KilledWhileYoung(Sound):
    """Its process is killed twice before any geometry is opened; ``TooOften`` always."""

    often: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        marks = len(list(Path().glob("young-*")))
        if marks < self.often:
            Path(f"young-{marks}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class TooOften(KilledWhileYoung):
    often = 100


class CannotBeMade(Sound):
    def __init__(self) -> None:
        raise OSError("no room\nfor it")


class BadCheck(Sound):
    @classmethod
    def check_available(cls) -> None:
        raise KeyError("HOME")


class LostForAll(Sound):
    """The device is lost at the first copy, for any process that starts later, too."""

    mark: ClassVar[Path] = Path("lost")

    @classmethod
    def check_available(cls) -> None:
        if cls.mark.exists():
            raise Unavailable("the device is gone; restart the machine")

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is CopyBlocks:
            self.mark.touch()
            raise DeviceLost("made up")
        return super().apply(op, rows)


class Blind(Sound):
    """It declares no bytes, tells no fact, and reads nothing."""

    families = None
    declared = frozenset[Area]()
    op_kinds = Sound.op_kinds - {"read"}
    op_refusals = frozenset[str]()

    def plan(self, geometry: Geometry) -> Facts:
        super().plan(geometry)
        return {}

    def open(self, geometry: Geometry) -> Facts:
        super().open(geometry)
        return {}


class NoFamily(Sound):
    families = ("refusals",)
    op_refusals = frozenset[str]()


class AnswersAll(Sound):
    """Every op that has no result has one here: of the form that some other op's has."""

    def apply(self, op: Op, rows: Rows | None) -> Result:
        return super().apply(op, rows) or self.result

    result: ClassVar[Result] = True


class AnswersAllInRows(AnswersAll):
    result = (np.zeros((1, 2), np.uint8),)


class AnswersAllAsRequests(AnswersAll):
    result = Answer((0, 0))


class AnswersAllInWords(AnswersAll):
    result = "done"  # type: ignore[assignment]
