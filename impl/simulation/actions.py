"""Actions: work in a stream, taken apart into steps that run one at a time.

A step is the smallest thing that a schedule can run: read the sources of one part, write its
targets (calls run then), or, when all parts are written, end the action. Parts have no order among
themselves. An action that has ended lets what comes after it begin, and queries see it.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from kvexact.impl.simulation.copying import Sides, are_kept, move, read, write
from kvexact.impl.simulation.memory import Memory
from kvexact.impl.simulation.work import Copy, Fill, Work, call, perform, size

#: Names an action: the id of the op that made it, and the ordinal of the call within that op.
Key = tuple[int, int]


class Order(Enum):
    """When the sources of a batch may be read (`cudaMemcpySrcAccessOrder`)."""

    STREAM = "stream"
    DURING_API_CALL = "during the call"
    ANY = "any"


#: An enum is slow to tell its members.
_STREAM = Order.STREAM


class Piece(NamedTuple):
    """Bytes or tasks ``start`` to ``end`` of the ``item``-th work; of a call 0 to 1."""

    item: int
    start: int
    end: int


Part = Sequence[Piece]
#: Takes the action of a key apart, of which these are the sizes of the items.
Split = Callable[[Key, Sequence[int]], list[Part]]

#: Whether an action has ended, as functions in C ask it.
is_done = attrgetter("done")

_UNREAD, _READ, _WRITTEN = range(3)
#: How many steps are left in each of these phases, and how many of them read.
_STEPS, _READS = (2, 1, 0), (1, 0, 0)

#: In place of a part's number: the step that ends an action, and all steps that may run.
END, REST = -1, -2

#: An action, and the number of the part whose next step runs, or one of these two.
Step = tuple["Action", int]


class Action:
    """See the module.

    Args:
        key: its name.
        what: the call that made it, for people.
        items: what it does.
        split: how it is taken apart, when a step is first asked for; each byte of each item is then
            in exactly one part.
        after: actions that must have ended before this one begins.
        order: when its sources may be read.
        stream: the name of the stream that it is in, for people.
        sides: where all items are copies that were found in two areas, these; None: not known.

    Attributes:
        is_apart: whether it was taken apart, so that it has ``parts``, ``phases``, ``staged``.
        phases: what was done of each part.
        staged: what parts have read and not yet written.
        missing: how many actions before it have not ended.
        mood: a number that its schedule keeps here.
        later: those behind it that wait for it.
    """

    __slots__ = (
        "after",
        "done",
        "is_apart",
        "items",
        "key",
        "later",
        "missing",
        "mood",
        "order",
        "parts",
        "phases",
        "sides",
        "split",
        "staged",
        "stream",
        "what",
    )

    def __init__(
        self,
        key: Key,
        what: str,
        items: Sequence[Work],
        split: Split,
        after: tuple["Action", ...],
        order: Order = Order.STREAM,
        stream: str = "",
        sides: Sides | None = None,
    ) -> None:
        self.key = key
        self.sides = sides
        self.what = what
        self.items = items
        self.split = split
        self.after = after
        self.order = order
        self.stream = stream
        self.done = self.is_apart = False
        self.missing = self.mood = 0
        self.later: list[Action] = []
        for before in after:
            if not before.done:
                before.later.append(self)
                self.missing += 1

    def _take_apart(self) -> list[int]:
        """The phases of its parts; it is taken apart when these are first asked for."""
        if not self.is_apart:
            self.is_apart = True
            items = self.items
            parts = self.split(self.key, [size(item) for item in items])
            self.parts: Sequence[Part] = parts
            self.staged: dict[int, list[bytes]] = {}
            self.phases = [_UNREAD] * len(parts)
            if self.sides is None:  # a part without copies has nothing to read ahead
                for number, part in enumerate(parts):
                    if not [1 for one in part if isinstance(items[one[0]], Copy)]:
                        self.phases[number] = _READ
        return self.phases

    def is_read(self) -> bool:
        """Whether no source remains to be read."""
        return _UNREAD not in self._take_apart()

    def may_run(self) -> bool:
        """Whether there may be steps; False until an action before it ends."""
        return not self.missing or self.order is not _STREAM

    def steps(self) -> list[Step]:
        """The steps that may run now."""
        if not self.may_run():
            return []
        if self.missing:
            return self.reads()
        found = [(self, part) for part, phase in enumerate(self._take_apart()) if phase <= _READ]
        return found or [(self, END)]

    def reads(self) -> list[Step]:
        """Those of them that read."""
        return [(self, part) for part, phase in enumerate(self._take_apart()) if phase == _UNREAD]

    def left(self) -> Iterator[int]:
        """How many steps of each part may run, one after the other; of one that may run."""
        return map((_READS if self.missing else _STEPS).__getitem__, self._take_apart())

    def phases_of(self, part: int) -> list[int]:
        """What a step does, or each of the rest. 0: reads; 1: writes; -1: the action ends."""
        if part != REST:
            return [END if part == END else self.phases[part]]
        if self.missing:
            return [_UNREAD] * len(self.steps())
        if self.is_apart:
            phases = self.phases
        else:
            phases = [_UNREAD if any(isinstance(item, Copy) for item in self.items) else _READ]
        return [*(does for phase in phases for does in range(phase, _WRITTEN)), END]

    def unread(self) -> Iterator[Piece]:
        """The pieces that may still read."""
        self._take_apart()
        for part, phase in zip(self.parts, self.phases, strict=True):
            if phase == _UNREAD:
                yield from part
            elif phase == _READ:  # the copies are staged; calls read when they run
                yield from (one for one in part if not isinstance(self.items[one.item], Copy))

    def unwritten(self) -> Iterator[Piece]:
        """The pieces that may still write."""
        self._take_apart()
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
            self._write(part, self.staged.pop(part, ()), memory)
            self.phases[part] = _WRITTEN

    def run(self, memory: Memory) -> None:
        """Run all steps that may run: if it is ready, all that are left. Raises `OutOfBounds`."""
        if self.missing:
            for _, part in self.reads():
                self.advance(part, memory)
            return
        if not self.is_apart:  # what was never taken apart goes as it is
            if self.sides is not None and are_kept(self.sides):
                move(self.items, self.sides)
            else:
                perform(self.items, memory)
        else:
            for part, phase in enumerate(self.phases):
                if phase == _UNREAD:
                    self._write(part, self._read(part, memory), memory)
                elif phase == _READ:
                    self._write(part, self.staged.pop(part, ()), memory)
                self.phases[part] = _WRITTEN
        self.done = True

    def _read(self, part: int, memory: Memory) -> list[bytes]:
        if self.sides is not None and are_kept(self.sides):
            return read(self.items, self.parts[part], self.sides)
        found = []
        for index, start, end in self.parts[part]:
            item = self.items[index]
            if isinstance(item, Copy):
                found.append(memory.read(item.source + start, end - start))
        return found

    def _write(self, part: int, staged: Sequence[bytes], memory: Memory) -> None:
        if self.sides is not None and are_kept(self.sides):
            write(self.items, self.parts[part], self.sides, staged)
            return
        data = iter(staged)
        for index, start, end in self.parts[part]:
            item = self.items[index]
            if isinstance(item, Copy):
                memory.write(item.target + start, next(data))
            elif isinstance(item, Fill):
                memory.fill(item.target + start, item.value, end - start)
            else:
                call(item, memory, start, end)

    def state(self) -> Hashable:
        """Equal for two runs of a program where this action has done, and waits for, the same."""
        self._take_apart()
        staged = tuple((part, tuple(data)) for part, data in sorted(self.staged.items()))
        return self.key, self.missing, tuple(self.phases), staged
