"""The process of an isolated target, from outside: its start, its limits, its end."""

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from json import dumps

from kvexact.fuzz.channel import DAMAGED, SEGMENTS, Channel
from kvexact.fuzz.messages import Answer
from kvexact.fuzz.processes import Mark
from kvexact.fuzz.wrong import Outcome, Wrong
from kvexact.impl.target import Unavailable

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from kvexact.fuzz.isolated import serve; serve(sys.argv[2], *map(int, sys.argv[3:]))"
)
#: Starting a process imports all that the target needs, and may compile it.
_START_S = 300.0
#: A process that was killed is gone in milliseconds, or hangs in the kernel.
_END_S = 10.0
#: A young process that a signal ends is tried again: nothing of a run has happened in it.
_STARTS = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What a target may take.

    Attributes:
        deadline_s: seconds for an op; opening a geometry may take ten times as long.
        memory_bytes: address space of its process; None: no limit.
    """

    deadline_s: float = 30.0
    memory_bytes: int | None = None


class TargetProcess:
    """The process, as long as it lives. What it starts itself ends with it."""

    def __init__(self, name: str, limits: Limits) -> None:
        # This side waits for a bell only with a deadline, whoever else may have heard it.
        bells = [os.eventfd(0), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)]
        descriptors = [_memory(name) for name in SEGMENTS]
        self._mark = Mark()
        numbers = [limits.memory_bytes or 0, os.getpid(), *bells, *descriptors]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, dumps(sys.path), name, *map(str, numbers)],
            pass_fds=numbers[2:],
            stdin=subprocess.DEVNULL,
            env=self._mark.environment,
            process_group=0,
        )
        self._life = os.pidfd_open(self.pid)
        self.channel = Channel(bells[1], bells[0], descriptors, self._life)

    @property
    def pid(self) -> int:
        return self._process.pid

    def receive(self, deadline_s: float) -> Answer:
        """The answer to a call.

        Raises:
            Wrong: there is none, as the process died or was too slow, or it is damaged; the process
                is gone then.
            Unavailable: the target cannot run any more.
        """
        try:
            answer = self.channel.answer(deadline_s)
        except TimeoutError:
            self.close()
            text = f"no answer within {deadline_s:g} s, so its process was killed"
            raise Wrong("hang", None, text) from None
        except (OSError, OverflowError, ValueError) as error:
            self.close()
            text = "its answer is damaged, as by a stray write, so its process was killed"
            raise Wrong("exit", None, text, name="damaged answer") from error
        if answer is None:
            self.close()
            raise as_death(self._process.returncode)
        if answer.unavailable is not None:
            self.close()
            raise Unavailable(answer.unavailable)
        return answer

    def close(self) -> None:
        """Kill it, and what it started, wherever these have moved to."""
        self._process.kill()
        self._mark.kill(_END_S)
        with suppress(ProcessLookupError):  # until `wait`, its number is nobody else's
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        os.close(self._life)
        self.channel.close()


def _memory(name: str) -> int:
    """Memory without a name that nobody can make smaller: to look at what is gone is a signal."""
    descriptor = os.memfd_create(f"kvexact-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def start_process(name: str, limits: Limits) -> TargetProcess:
    """A process that is ready for calls.

    Raises:
        Unavailable: the target cannot run here, or its process never gets so far.
    """
    for left in reversed(range(_STARTS)):
        process = TargetProcess(name, limits)
        try:
            process.receive(_START_S)
        except Wrong as wrong:
            if wrong.outcome == "signal" and left:
                continue
            often = f", {_STARTS} times" if wrong.outcome == "signal" else ""
            text = f"its process ended before a geometry was opened ({wrong.name or 'hang'}{often})"
            raise Unavailable(text) from wrong
        return process
    raise AssertionError


def as_death(status: int | None) -> Wrong:
    """The end of a process as a failure of the target in it; None: nobody knows how it ended."""
    outcome: Outcome = "exit"
    how = ""
    if status is None:
        name = "unknown status"
    elif status == DAMAGED:
        name, how = "damaged call", ": something wrote to, or closed, what it is called by"
    elif status < 0:
        known = {number.value: number.name for number in signal.Signals}
        outcome, name = "signal", known.get(-status, f"signal {-status}")
    else:
        name = f"exit status {status}"
    return Wrong(outcome, None, f"the process died ({name}){how}", name=name)
