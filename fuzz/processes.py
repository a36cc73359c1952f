"""The end of all processes that came of one start, whatever group or session they moved to."""

import os
import secrets
import signal
import time
from contextlib import suppress
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
        self._bytes = name.encode()

    def kill(self, seconds: float) -> None:
        """Kill whatever has it, and what that starts meanwhile; goes on for so long at most."""
        until = time.monotonic() + seconds
        while [path for path in Path("/proc").glob("[0-9]*") if self._kill(path)]:
            if time.monotonic() > until:
                return
            time.sleep(0.001)

    def _kill(self, process: Path) -> bool:
        """Whether a process has the mark: it is being killed then."""
        with suppress(OSError):  # it has ended, or is somebody else's
            life = os.pidfd_open(int(process.name))
            try:
                if self._bytes in (process / "environ").read_bytes():
                    signal.pidfd_send_signal(life, signal.SIGKILL)
                    return True
            finally:
                os.close(life)
        return False
