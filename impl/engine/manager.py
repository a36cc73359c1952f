"""Requests over blocks: a prefix cache with a host tier behind it.

Hits are as long as they can be. Blocks and host slots that have been unused longest make room.
What moves bytes is left to the operations on blocks of `Cache`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvexact.impl.engine.cache import Cache
from kvexact.impl.engine.hits import Hits, Source
from kvexact.impl.engine.prefixes import Blocks, Key
from kvexact.impl.engine.stored import Place, Stored
from kvexact.impl.target import Result, Rows
from kvexact.refmodel.answer import HOLE, Answer
from kvexact.refmodel.ops import Evict, Job, Move, Offload, Op, Read, Restore, Slot, WriteTokens
from kvexact.refmodel.serving_ops import (
    Admit,
    Attend,
    Compute,
    Finish,
    Lookup,
    Preempt,
    Readmit,
    Store,
)


@dataclass(slots=True)
class Request:
    """A running or preempted request.

    Attributes:
        tokens: what it knows.
        computed: how many of them have keys and values.
        tables: per group the blocks, by index.
    """

    tokens: list[int]
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)


class Manager:
    """Requests of one open geometry."""

    blocks_type: ClassVar[type[Blocks]] = Blocks
    stored_type: ClassVar[type[Stored]] = Stored
    hits_type: ClassVar[type[Hits]] = Hits

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        geometry = cache.plan.geometry
        self.sizes = [group.block_size for group in geometry.groups]
        self.blocks = self.blocks_type(geometry.blocks)
        self.stored = self.stored_type(cache.host.slots, cache.host.chunk_blocks)
        self.hits = self.hits_type(geometry.groups, self.blocks, self.stored)
        self.requests: dict[int, Request] = {}

    def apply(self, op: Any, rows: Rows | None) -> Result:
        """Run an op on requests, which is legal."""
        return HANDLERS[type(op)](self, op, rows)

    def submit(self, request: int, store: Offload) -> None:  # noqa: ARG002
        """Copy blocks of a request to the host tier."""
        self.cache.offload(store, None)

    def before(self, op: Op | None) -> None:
        """An op of any kind begins, or None: the host's own access to the tiers."""

    # Operations.

    def admit(self, op: Admit, _: Rows | None) -> Answer:
        self.requests[op.id] = Request(list(op.tokens))
        return self._enter(op.id, self.requests[op.id])

    def readmit(self, op: Readmit, _: Rows | None) -> Answer:
        return self._enter(op.id, self.requests[op.request])

    def _enter(self, op_id: int, request: Request) -> Answer:
        """Give a request the longest prefix that is cached and for which there is room."""
        hit, sources = self.hits.longest(request.tokens, limited=True)
        request.computed = hit
        self.hold_hits(sources)
        loads = []
        request.tables = []
        for group, entries in enumerate(sources):
            table, moves = [], []
            for index, source in enumerate(entries):
                if isinstance(source, int):
                    table.append(source)
                    continue
                block = self._take(group)
                moves.append(Move(block, *source))
                table.append(block)
                self.stored.touch(source[0])
                self.blocks.commit(block, self.hits.key(group, request.tokens, index))
            request.tables.append(table)
            if moves:
                loads.append(Job(group, tuple(moves)))
        if loads:
            self.cache.restore(Restore(op_id, tuple(loads)), None)
        tables = tuple(map(tuple, request.tables))
        return self._answer(hit=hit, tables=tables, loads=tuple(loads))

    def lookup(self, op: Lookup, _: Rows | None) -> Answer:
        return self._answer(hit=self.hits.longest(op.tokens, limited=False)[0])

    def compute(self, op: Compute, rows: Rows | None) -> Answer:
        request = self.requests[op.request]
        start, end = request.computed, request.computed + op.count + len(op.drafts)
        groups = range(len(self.sizes))
        dropped = [self._unseen(group, request) for group in groups]
        wanted = [max(0, -(-end // self.sizes[g]) - len(request.tables[g])) for g in groups]
        gained = [request.tables[g][index] for g in groups for index in dropped[g]]
        spare = len(self.blocks.free) + sum(self.blocks.references[b] == 1 for b in gained)
        if sum(wanted) > spare:
            return self._answer(accepted=False)
        for group, indexes in enumerate(dropped):
            for index in indexes:
                self._release(request.tables[group][index])
                request.tables[group][index] = HOLE
        taken = [tuple([self._take(group) for _ in range(wanted[group])]) for group in groups]
        for table, blocks in zip(request.tables, taken, strict=True):
            table += blocks
        assert rows is not None
        self._write(op.id, request, range(start, end), rows)
        written = [*request.tokens[: start + op.count], *op.drafts]
        request.tokens += op.drafts[: op.accepted]
        request.computed = start + op.count + op.accepted
        if op.sampled is not None:
            request.tokens.append(op.sampled)
        self._commit(request, self.offered(request, written))
        return self._answer(taken=tuple(taken), dropped=tuple(map(tuple, dropped)))

    def _write(self, op_id: int, request: Request, positions: range, rows: Rows) -> None:
        """Store rows of these positions, which come group after group."""
        first = 0
        for group, planned in enumerate(self.cache.plan.groups):
            end = first + len(planned.sets)
            slots = self._slots(group, request, positions)
            self.cache.write_tokens(WriteTokens(op_id, group, slots, 0), rows[first:end])
            first = end

    def _commit(self, request: Request, tokens: Sequence[int]) -> None:
        """Give blocks keys that are full with these tokens."""
        for group, table in enumerate(request.tables):
            for index, block in enumerate(table[: len(tokens) // self.sizes[group]]):
                if block != HOLE and self.blocks.keys[block] is None:
                    self.blocks.commit(block, self.hits.key(group, tokens, index))

    def finish(self, op: Finish, _: Rows | None) -> Answer:
        self._leave(self.requests.pop(op.request))
        return self._answer()

    def preempt(self, op: Preempt, _: Rows | None) -> Answer:
        self._leave(self.requests[op.request])
        return self._answer()

    def _leave(self, request: Request) -> None:
        """Give all blocks back; those at the end are taken first, which leaves prefixes."""
        for table in request.tables:
            for block in reversed(table):
                if block != HOLE:
                    self._release(block)
        request.tables = []
        request.computed = 0

    def store(self, op: Store, _: Rows | None) -> Answer:
        request = self.requests[op.request]
        committed = self._committed(request)
        kept = {key for _, key in committed}
        evicted: list[int] = []
        moves: dict[int, list[Move]] = {}
        for block, key in committed:
            if self.stored.find(key) is not None:
                continue
            place = self._place(key.group, kept, evicted)
            if place is None:
                break
            self.stored.put(key, place)
            moves.setdefault(key.group, []).append(Move(block, *place))
        stores = tuple([Job(group, tuple(found)) for group, found in moves.items()])
        if evicted:
            self.cache.evict(Evict(op.id, tuple(evicted)), None)
        if stores:
            self.submit(op.request, Offload(op.id, stores))
        return self._answer(stores=stores, evicted=tuple(evicted))

    def _committed(self, request: Request) -> list[tuple[int, Key]]:
        """Blocks of a request that have keys."""
        blocks = [block for table in request.tables for block in table if block != HOLE]
        keys = [(block, self.blocks.keys[block]) for block in blocks]
        return [(block, key) for block, key in keys if key is not None]

    def _place(self, group: int, kept: set[Key], evicted: list[int]) -> Place | None:
        """A place for a block; a slot that had to make room joins ``evicted``."""
        place = self.stored.place_for(group)
        if place is None:
            victim = self.stored.victim(kept)
            if victim is None:
                return None
            self.stored.evict(victim)
            evicted.append(victim)
            place = victim, 0
        return place

    def attend(self, op: Attend, _: Rows | None) -> Rows:
        request = self.requests[op.request]
        found: Rows = ()
        for group in range(len(self.sizes)):
            seen = range(self.hits.first_seen(group, request.computed), request.computed)
            slots = self._slots(group, request, seen)
            found += self.cache.read(Read(op.id, group, slots), None)
        return found

    # Parts of operations.

    def _slots(self, group: int, request: Request, positions: range) -> tuple[Slot, ...]:
        table, size = request.tables[group], self.sizes[group]
        return tuple([Slot(table[position // size], position % size) for position in positions])

    def _unseen(self, group: int, request: Request) -> list[int]:
        """Indexes of blocks that no later token sees."""
        table = request.tables[group]
        end = self.hits.first_seen(group, request.computed) // self.sizes[group]
        return [index for index in range(min(end, len(table))) if table[index] != HOLE]

    def _hold(self, group: int, block: int) -> None:
        if self.blocks.hold(block):
            self.cache.blocks.give(group, (block,))

    def _take(self, group: int) -> int:
        block = self.blocks.take()
        self.cache.blocks.give(group, (block,))
        return block

    def _release(self, block: int) -> None:
        if self.blocks.release(block):
            self.cache.blocks.take((block,))

    def _answer(self, **decided: Any) -> Answer:
        return Answer((len(self.blocks.free), self.stored.unused()), **decided)

    # Decisions.

    def offered(self, request: Request, written: Sequence[int]) -> Sequence[int]:  # noqa: ARG002
        """The tokens of which blocks may be offered; ``written`` are those with rejected drafts."""
        return request.tokens[: request.computed]

    def hold_hits(self, sources: list[list[Source]]) -> None:
        """Take the blocks of a hit out of the free ones, before others are taken for loads."""
        for group, entries in enumerate(sources):
            for source in entries:
                if isinstance(source, int) and source != HOLE:
                    self._hold(group, source)


#: Ops on requests that reach a target.
HANDLERS: dict[type, Callable[[Manager, Any, Rows | None], Result]] = {
    Admit: Manager.admit,
    Readmit: Manager.readmit,
    Compute: Manager.compute,
    Finish: Manager.finish,
    Preempt: Manager.preempt,
    Store: Manager.store,
    Lookup: Manager.lookup,
    Attend: Manager.attend,
}
