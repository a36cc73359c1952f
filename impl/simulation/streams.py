"""Streams and events, and what work in a stream comes after.

All of the order between streams is here: one function says which actions a stream's next action
waits for, and recording an event, synchronising and asking take the same answer.
"""

from enum import Enum

from kvexact.impl.simulation.actions import Action


class StreamKind(Enum):
    """How a stream stands to the legacy default stream."""

    LEGACY = "legacy"
    BLOCKING = "blocking"
    NON_BLOCKING = "non-blocking"


class Stream:
    """A queue of actions, of which ``tail`` is the last; None: all of them have ended."""

    __slots__ = ("kind", "name", "tail")

    def __init__(self, kind: StreamKind, name: str = "") -> None:
        self.kind = kind
        self.name = name
        self.tail: Action | None = None


class Event:
    """Captures what is in a stream; None: nothing, or all of it has ended."""

    __slots__ = ("captured",)

    def __init__(self) -> None:
        self.captured: Action | None = None


class Streams:
    """All streams of a device."""

    def __init__(self) -> None:
        self.legacy = Stream(StreamKind.LEGACY, "default")
        self._blocking: list[Stream] = []

    def create(self, name: str, *, blocking: bool) -> Stream:
        """A new stream."""
        if not blocking:
            return Stream(StreamKind.NON_BLOCKING, name)
        self._blocking.append(stream := Stream(StreamKind.BLOCKING, name))
        return stream

    def before(self, stream: Stream) -> tuple[Action, ...]:
        """The pending actions that work queued in a stream now comes after.

        Its own last one; in a blocking stream also the legacy stream's, in the legacy stream also
        those of all blocking streams. An action has an order after all earlier ones of its stream,
        so the last one is enough.
        """
        if stream.kind is StreamKind.NON_BLOCKING:
            tails = [stream.tail]
        elif stream.kind is StreamKind.BLOCKING:
            tails = [stream.tail, self.legacy.tail]
        else:
            tails = [self.legacy.tail, *(other.tail for other in self._blocking)]
        return tuple(tail for tail in tails if tail is not None and not tail.done)
