"""The end of all processes that came of one start, whatever group or session they moved to."""

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path


class Mark:
    """A name in the environment of a process, which all that it starts inherits.

    A program that is started with an environment made anew does not.

    Attributes:
        environment: for the process to be started with.
    """

    def __init__(self) -> None:
        name = f"KVEXACT_PROCESS_{secrets.token_hex(8)}"
        self.environment = {**os.environ, name: "1"}
        self._name = name

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Around the start of a process that cannot be given an environment."""
        os.environ[self._name] = "1"
        try:
            yield
        finally:
            del os.environ[self._name]

    def kill(self, seconds: float) -> None:
        """Kill whatever has it, and what that starts meanwhile; waits for so long at most."""
        until = time.monotonic() + seconds
        while lives := [life for path in Path("/proc").glob("[0-9]*") for life in self._kill(path)]:
            for life in lives:
                wait([life], max(0.0, until - time.monotonic()))
                os.close(life)
            if time.monotonic() > until:
                return

    def _kill(self, process: Path) -> tuple[int, ...]:
        """Where a process has the mark, kill it; a descriptor of it then, to be closed."""
        try:
            life = os.pidfd_open(int(process.name))
        except OSError:  # it has ended
            return ()
        with suppress(OSError):  # it ends now, or is somebody else's
            if self._name.encode() in (process / "environ").read_bytes():
                signal.pidfd_send_signal(life, signal.SIGKILL)
                return (life,)
        os.close(life)
        return ()
