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


#: An enum is slow to tell its members.
_NON_BLOCKING, _BLOCKING = StreamKind.NON_BLOCKING, StreamKind.BLOCKING


class Stream:
    """A queue of actions.

    Attributes:
        tail: the last one; None: there was none.
        joined: what work behind it comes after, too.
    """

    __slots__ = ("joined", "kind", "name", "tail")

    def __init__(self, kind: StreamKind, name: str = "") -> None:
        self.kind = kind
        self.name = name
        self.tail: Action | None = None
        self.joined: tuple[Action, ...] = ()


class Event:
    """Captures what is in a stream: the last actions of what was pending."""

    __slots__ = ("captured",)

    def __init__(self) -> None:
        self.captured: tuple[Action, ...] = ()


class Streams:
    """All streams of a device."""

    def __init__(self) -> None:
        self.legacy = Stream(StreamKind.LEGACY, "default")
        self._blocking: list[Stream] = []

    def create(self, name: str, *, blocking: bool) -> Stream:
        """A new stream."""
        if not blocking:
            return Stream(_NON_BLOCKING, name)
        self._blocking.append(stream := Stream(_BLOCKING, name))
        return stream

    def before(self, stream: Stream) -> tuple[Action, ...]:
        """The pending actions that work queued in a stream now comes after.

        Its own last one and what it has joined; in a blocking stream also the legacy stream's, in
        the legacy stream also those of all blocking streams. An action has an order after all
        earlier ones of its stream, so the last one is enough.
        """
        if stream.kind is _NON_BLOCKING:
            if stream.joined:
                return _pending(stream)
            tail = stream.tail
            return () if tail is None or tail.done else (tail,)
        others = [self.legacy] if stream.kind is _BLOCKING else self._blocking
        return _pending(stream, *others)

    def join(self, stream: Stream, actions: tuple[Action, ...] = ()) -> None:
        """Let later work come after these, and after all that work queued now would come after."""
        stream.joined = self.before(stream) + actions


def _pending(*streams: Stream) -> tuple[Action, ...]:
    found: dict[Action, None] = {}
    for stream in streams:
        for action in (stream.tail, *stream.joined):
            if action is not None and not action.done:
                found[action] = None
    return tuple(found)
