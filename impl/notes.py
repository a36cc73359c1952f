"""Notes of what ran when in an asynchronous target, in the order in which it happened."""

from typing import Literal, NamedTuple

#: The host begins an op; an action is queued in a stream; one of its parts is read, or written; it
#: has ended.
Did = Literal["begun", "queued", "read", "written", "ended"]


class Note(NamedTuple):
    """One thing that happened.

    Attributes:
        op: id of the op that the action belongs to.
        ordinal: number of the action's call within that op; -1 for the host.
        what: the action: "memcpy", "memcpy batch", "wait", the name of a kernel.
        stream: where it is queued; "" for the host.
        after: of a wait, the ops whose work it waits for.
    """

    op: int
    ordinal: int
    what: str
    stream: str
    did: Did
    after: tuple[int, ...] = ()
