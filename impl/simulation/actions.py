"""Actions: work in a stream, taken apart into steps that run one at a time.

A step is the smallest thing that a schedule can run: read the sources of one part, write its
targets (calls run then), or, when all parts are written, end the action. Parts have no order among
themselves. An action that has ended lets what comes after it begin, and queries see it.
"""

from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from kvexact.impl.simulation.memory import Memory
from kvexact.impl.simulation.work import Copy, Fill, Work, call

#: Names an action: the id of the op that made it, and the ordinal of the call within that op.
Key = tuple[int, int]


class Order(Enum):
    """When the sources of a batch may be read (`cudaMemcpySrcAccessOrder`)."""

    STREAM = "stream"
    DURING_API_CALL = "during the call"
    ANY = "any"


class Piece(NamedTuple):
    """Bytes ``start`` to ``end`` of the ``item``-th copy or fill; of a call 0 to 1."""

    item: int
    start: int
    end: int


Part = Sequence[Piece]

_UNREAD, _READ, _WRITTEN = range(3)

#: The step that ends an action, in place of a part's number.
END = -1


class Step(NamedTuple):
    """The next step of a part, or the end of an action."""

    action: "Action"
    part: int

    @property
    def phase(self) -> int:
        """0: the part is read; 1: it is written; -1: the action ends."""
        return END if self.part == END else self.action.phases[self.part]


class Action:
    """See the module.

    Args:
        key: its name.
        what: the call that made it, for people.
        items: what it does.
        parts: how the schedule takes it apart; each byte of each item is in exactly one part.
        after: actions that must have ended before this one begins.
        order: when its sources may be read.
        stream: the name of the stream that it is in, for people.
        number: how many were queued before it.

    Attributes:
        missing: how many actions before it have not ended.
        later: those behind it that wait for it.
    """

    __slots__ = (
        "after",
        "done",
        "items",
        "key",
        "later",
        "missing",
        "number",
        "order",
        "parts",
        "phases",
        "staged",
        "stream",
        "what",
    )

    def __init__(
        self,
        key: Key,
        what: str,
        items: Sequence[Work],
        parts: Sequence[Part],
        after: tuple["Action", ...],
        order: Order = Order.STREAM,
        stream: str = "",
        number: int = 0,
    ) -> None:
        self.key = key
        self.number = number
        self.what = what
        self.items = items
        self.parts = parts
        self.after = after
        self.order = order
        self.stream = stream
        self.done = False
        self.missing = 0
        self.later: list[Action] = []
        for before in dict.fromkeys(after):
            if not before.done:
                before.later.append(self)
                self.missing += 1
        # A part without copies has nothing to read ahead.
        self.phases = [
            _UNREAD if any(isinstance(items[piece.item], Copy) for piece in part) else _READ
            for part in parts
        ]
        self.staged: dict[int, list[bytes]] = {}

    def is_read(self) -> bool:
        """Whether no source remains to be read."""
        return _UNREAD not in self.phases

    def may_run(self) -> bool:
        """Whether there may be steps; False until an action before it ends."""
        return not self.missing or self.order is not Order.STREAM

    def steps(self) -> list[Step]:
        """The steps that may run now."""
        if self.missing:
            if self.order is Order.STREAM:
                return []
            return [Step(self, part) for part, phase in enumerate(self.phases) if not phase]
        found = [Step(self, part) for part, phase in enumerate(self.phases) if phase <= _READ]
        return found or [Step(self, END)]

    def rest(self) -> list[Step]:
        """Steps that may run in this order: if it is ready, all that are left, part by part."""
        if self.missing:
            return self.steps()
        found = [
            Step(self, part)
            for part, phase in enumerate(self.phases)
            for _ in range(_WRITTEN - phase)
        ]
        return [*found, Step(self, END)]

    def unread(self) -> Iterator[Piece]:
        """The pieces that may still read."""
        for part, phase in zip(self.parts, self.phases, strict=True):
            if phase == _UNREAD:
                yield from part
            elif phase == _READ:  # the copies are staged; calls read when they run
                yield from (one for one in part if not isinstance(self.items[one.item], Copy))

    def unwritten(self) -> Iterator[Piece]:
        """The pieces that may still write."""
        for part, phase in zip(self.parts, self.phases, strict=True):
            if phase != _WRITTEN:
                yield from part

    def advance(self, part: int, memory: Memory) -> None:
        """Run a step. Raises `OutOfBounds`."""
        if part == END:
            self.done = True
        elif self.phases[part] == _UNREAD:
            self.staged[part] = self._read(part, memory)
            self.phases[part] = _READ
        else:
            self._write(part, memory)
            self.phases[part] = _WRITTEN

    def release(self) -> list["Action"]:
        """It has ended: the actions that are ready from now on."""
        for action in self.later:
            action.missing -= 1
        self.after = ()
        return [action for action in self.later if not action.missing]

    def _read(self, part: int, memory: Memory) -> list[bytes]:
        found = []
        for index, start, end in self.parts[part]:
            item = self.items[index]
            if isinstance(item, Copy):
                found.append(memory.read(item.source + start, end - start))
        return found

    def _write(self, part: int, memory: Memory) -> None:
        staged = iter(self.staged.pop(part, ()))
        for index, start, end in self.parts[part]:
            item = self.items[index]
            if isinstance(item, Copy):
                memory.write(item.target + start, next(staged))
            elif isinstance(item, Fill):
                memory.fill(item.target + start, item.value, end - start)
            else:
                call(item, memory)

    def state(self) -> Hashable:
        """Equal for two runs of a program where this action has done the same in both."""
        staged = tuple((part, tuple(data)) for part, data in sorted(self.staged.items()))
        return self.key, tuple(self.phases), staged
