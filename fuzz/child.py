"""Work in a spawned process, so that a target that kills it takes nothing else along."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from kvexact.fuzz.layout import same_addresses
from kvexact.fuzz.orphans import die_with_parent
from kvexact.fuzz.printing import print_to_stderr
from kvexact.fuzz.processes import Mark
from kvexact.impl.target import Unavailable

_END_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended on its own, with this status; None: it does not even end."""

    status: int | None


@dataclass(frozen=True, slots=True)
class _Said:
    """What the process says about itself: that it is done, or why it cannot go on."""

    unavailable: str = ""
    broken: str = ""


class ChildError(RuntimeError):
    """The work itself has a bug; the message is its traceback."""


class Child:
    """Runs a generator function in a process of its own.

    Attributes:
        signs: for `multiprocessing.connection.wait`; when any is ready, `receive` does not block.
    """

    def __init__(self, work: Callable[..., Iterator[Any]], *args: object) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(os.getpid(), theirs, work, args), daemon=True
        )
        resource_tracker.ensure_running()  # or `start` does it, and lets signals through
        self._mark = Mark()
        with _signals_wait(), same_addresses(), self._mark.inherited():
            self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self._life = os.pidfd_open(self._process.pid)
        self.signs: list[Connection | int] = [self._connection, self._life]

    def receive(self) -> Any:
        """The next item of the work; a `Died` where there is none any more; None: it is done.

        Raises:
            Unavailable: the target cannot run here.
            ChildError: the work raised something else.
        """
        if self._life in wait(self.signs):
            self._mark.kill(_END_S)  # what it started holds the connection open
        try:
            item = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_END_S)
            return Died(self._process.exitcode)
        if not isinstance(item, _Said):
            return item
        if item.unavailable:
            raise Unavailable(item.unavailable)
        if item.broken:
            raise ChildError(item.broken)
        return None

    def __iter__(self) -> Iterator[Any]:
        """Every item; a `Died` is the last one."""
        while (item := self.receive()) is not None:
            yield item
            if isinstance(item, Died):
                return

    def close(self) -> None:
        """End the process, whatever it is doing, and what it started."""
        self._connection.close()
        self._process.kill()
        self._mark.kill(_END_S)
        self._process.join(_END_S)
        os.close(self._life)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """A process that is started inside has them wait, too, until it says that it ignores them.

    Ctrl-C goes to all processes of a terminal, and would end those that are still importing.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(
    parent: int,
    connection: Connection,
    work: Callable[..., Iterator[Any]],
    args: tuple[Any, ...],
) -> None:
    die_with_parent(parent)
    print_to_stderr()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent hears it too, and decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        said = _Said()
        try:
            for item in work(*args):
                connection.send(item)
        except Unavailable as error:
            said = _Said(unavailable=str(error))
        except BrokenPipeError:
            return
        except Exception:  # noqa: BLE001 - the parent raises it again
            said = _Said(broken=traceback.format_exc())
        connection.send(said)
    except BrokenPipeError:
        sys.exit(0)  # nobody listens any more
