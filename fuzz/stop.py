"""How a long run is asked to end: by Ctrl-C, or by SIGTERM."""

import signal
from types import FrameType, TracebackType
from typing import Self


class Stop:
    """While entered, signals only ask, however many come, so that no summary is cut short.

    What is asked ends within seconds; SIGKILL ends it at once, and loses nothing reported.

    Attributes:
        asked: somebody wants the run to end.
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._ask) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as it is called
        self.asked = True
