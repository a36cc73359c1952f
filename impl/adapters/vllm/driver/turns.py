"""Turns: a release's copy threads run only while the driver waits for them.

So nothing depends on how threads are scheduled, nor on how often one of them looks. When a thread
gets its turn is for the device's schedule to say.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_PATIENCE_S = 20.0


class Turns:
    """The queues that copy threads read, in the order in which they were made.

    Args:
        at_once: asked at each item; whether its thread gets its turn within the very call.
    """

    def __init__(self, at_once: Callable[[], bool]) -> None:
        self.at_once = at_once
        self._queues: list[TurnQueue] = []

    def queue(self) -> "TurnQueue":
        """In place of `queue.SimpleQueue`."""
        self._queues.append(made := TurnQueue(self.at_once))
        return made

    def forget(self) -> None:
        """Another geometry is opened; the threads of the last one have ended."""
        self._queues.clear()

    def run(self) -> None:
        """Let each thread work off what waits for it."""
        for one in self._queues:
            one.run()


class TurnQueue:
    """A queue of one reader, which sleeps until it has its turn."""

    def __init__(self, at_once: Callable[[], bool]) -> None:
        self._at_once = at_once
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        self._has_turn = False

    def put(self, item: Any) -> None:
        """Queue an item; None, which ends a thread, is for now."""
        self._items.append(item)
        if item is None or self._at_once():
            self.run()

    def get(self) -> Any:
        """The next item, at the reader's turn."""
        with self._changed:
            self._reader = threading.current_thread()
            if not self._items:
                self._has_turn = False
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_turn)
            return self._items.popleft()

    def run(self) -> None:
        """Let the reader work off all items, and wait for that.

        Raises:
            TimeoutError: it did not.
        """
        if not self._items:
            return
        with self._changed:
            is_last = self._items[-1] is None
            self._has_turn = True
            self._changed.notify_all()
            if not is_last and not self._changed.wait_for(self._is_idle, _PATIENCE_S):
                raise TimeoutError("the copy thread did not finish")

    def _is_idle(self) -> bool:
        return not self._has_turn
