"""The outcomes of a stream program, from a happens-before relation, by brute force.

Nothing here is shared with the simulation, and it works the other way round: first all moments of a
program are written down (each byte read, each byte written, each end of an action, the call and the
return of each op), then the pairs of moments that the documents put in order, and then every order
of all moments that respects these pairs is run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from stream_programs import (
    BLOCKING,
    DEVICE,
    LEGACY,
    Batch,
    Copy,
    Fill,
    Get,
    Host,
    Launch,
    Op,
    Program,
    Query,
    QueryStream,
    Record,
    Set,
    StreamOp,
    Sync,
    SyncDevice,
    SyncEvent,
    Until,
    Wait,
    place,
)


@dataclass(frozen=True)
class World:
    """Bytes by (area, index), bytes on their way by moment, and what the host has seen."""

    bytes: tuple[tuple[tuple[str, int], str], ...]
    moving: tuple[tuple[int, str], ...] = ()
    seen: tuple[str, ...] = ()

    def get(self, at: tuple[str, int]) -> str:
        return dict(self.bytes)[at]

    def put(self, at: tuple[str, int], byte: str) -> "World":
        return replace(self, bytes=tuple(sorted((dict(self.bytes) | {at: byte}).items())))


Effect = Callable[[World, int], World]  # the world, and the moments that have passed


@dataclass
class Moments:
    """Effects by number; for each the moments that come before it, as bits."""

    effects: list[Effect] = field(default_factory=list)
    before: list[int] = field(default_factory=list)

    def add(self, *before: int, effect: Effect = lambda world, _: world) -> int:
        self.effects.append(effect)
        self.before.append(sum(1 << moment for moment in set(before)))
        return len(self.effects) - 1

    def order(self, first: int, then: int) -> None:
        self.before[then] |= 1 << first


def _read(at: tuple[str, int], key: int) -> Effect:
    def effect(world: World, _: int) -> World:
        return replace(world, moving=tuple(sorted((*world.moving, (key, world.get(at))))))

    return effect


def _write(at: tuple[str, int], key: int) -> Effect:
    def effect(world: World, _: int) -> World:
        moving = dict(world.moving)
        byte = moving.pop(key)
        return replace(world.put(at, byte), moving=tuple(sorted(moving.items())))

    return effect


def _put(places: list[tuple[str, int]], text: str, world: World, _: int) -> World:
    for at, byte in zip(places, text, strict=True):
        world = world.put(at, byte)
    return world


def _move(
    targets: list[tuple[str, int]], sources: list[tuple[str, int]], world: World, passed: int
) -> World:
    return _put(targets, "".join(world.get(at) for at in sources), world, passed)


def _see(places: list[tuple[str, int]], world: World, _: int) -> World:
    return replace(world, seen=(*world.seen, "".join(world.get(at) for at in places)))


def _answer(goals: int, world: World, passed: int) -> World:
    return replace(world, seen=(*world.seen, "T" if goals & ~passed == 0 else "F"))


class Relation:
    """All moments of a program and their order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.moments = Moments()
        #: Of each op in a stream: the stream, and the moment at which it ends.
        self.ends: list[tuple[str, int]] = []
        self.captured: dict[str, int] = {}
        last = self.moments.add()
        for op in program.ops:
            last = self._op(op, last)

    def places(self, text: str) -> list[tuple[str, int]]:
        area, start, end = place(text)
        return [(area, at) for at in range(len(self.program.memory[area]))[start:end]]

    def ends_before(self, stream: str) -> list[int]:
        """Ends of all ops that an op queued in a stream now comes after (S1, S3)."""
        streams = {stream}
        if stream == LEGACY:
            streams |= set(BLOCKING)
        if stream in BLOCKING:
            streams.add(LEGACY)
        return [end for other, end in self.ends if other in streams]

    def _op(self, op: Op, last: int) -> int:
        """Add an op that is called after a moment; the moment of its return."""
        call = self.moments.add(last)
        if isinstance(op, Copy | Fill | Batch | Launch | Host | Record | Wait):
            return self._queue(op, call)
        if isinstance(op, Set):
            effect: Effect = partial(_put, self.places(op.target), op.text)
        elif isinstance(op, Get):
            effect = partial(_see, self.places(op.source))
        else:
            goals = self._goals(op)
            if not isinstance(op, Query | QueryStream):
                return self.moments.add(call, *goals)
            effect = partial(_answer, sum(1 << goal for goal in set(goals)))
        return self.moments.add(call, effect=effect)

    def _goals(self, op: Op) -> list[int]:
        """The ends that an op waits for or asks about (S4, S5, E3, E4)."""
        if isinstance(op, Query | Until | SyncEvent):
            return [self.captured[op.event]] if op.event in self.captured else []
        if isinstance(op, Sync | QueryStream):
            return self.ends_before(op.stream)
        assert isinstance(op, SyncDevice)
        return [end for _, end in self.ends]

    def _queue(self, op: StreamOp, call: int) -> int:
        """Add an op in a stream."""
        returned = self.moments.add(call)
        before = [call, *self.ends_before(op.stream)]
        if isinstance(op, Wait) and op.event in self.captured:  # E2, E3
            before.append(self.captured[op.event])
        work = self._work(op, call, returned, before)
        end = self.moments.add(*before, *work)
        self.ends.append((op.stream, end))
        if isinstance(op, Record):  # E1
            self.captured[op.event] = end
        if isinstance(op, Copy) and not {op.target[0], op.source[0]} & set(DEVICE):  # C4
            self.moments.order(end, returned)
        return returned

    def _work(self, op: StreamOp, call: int, returned: int, before: list[int]) -> list[int]:
        """Add what an op does to memory; its writes."""
        if isinstance(op, Host):  # H1
            effect = partial(_move, self.places(op.target), self.places(op.source))
            return [self.moments.add(*before, effect=effect)]
        if isinstance(op, Fill):
            return [
                self.moments.add(*before, effect=partial(_put, [at], op.byte))
                for at in self.places(op.target)
            ]
        if isinstance(op, Record | Wait):
            return []
        writes = []
        moves = op.moves if isinstance(op, Batch | Launch) else ((op.target, op.source),)
        for target, source in moves:
            for to, at in zip(self.places(target), self.places(source), strict=True):
                early = isinstance(op, Batch) and op.access != "stream"  # B3, B4
                key = len(self.moments.effects)
                read = self.moments.add(*([call] if early else before), effect=_read(at, key))
                writes.append(self.moments.add(read, *before, effect=_write(to, key)))  # C1, B5
                if isinstance(op, Batch) and op.access == "during":  # B3
                    self.moments.order(read, returned)
        return writes


def outcomes(program: Program) -> set[str]:
    """All outcomes of a program."""
    relation = Relation(program)
    moments = relation.moments
    everything = (1 << len(moments.effects)) - 1
    start = World(
        tuple(sorted(((a, i), b) for a, text in program.memory.items() for i, b in enumerate(text)))
    )
    met = {(0, start)}
    waiting = [(0, start)]
    found = set()
    while waiting:
        passed, world = waiting.pop()
        if passed == everything:
            shown = ["".join(map(world.get, relation.places(area))) for area in program.shows]
            found.add(" ".join([*world.seen, *shown]))
        for moment, before in enumerate(moments.before):
            if passed >> moment & 1 or before & ~passed:
                continue
            state = passed | 1 << moment, moments.effects[moment](world, passed)
            if state not in met:
                met.add(state)
                waiting.append(state)
    return found
