"""Follows what a target answers: judges it by docs/serving.md, and says what it does to bytes."""

from collections.abc import Iterable

from kvexact.refmodel.answer import HOLE, Answer
from kvexact.refmodel.answers import Inadmissible, check_shape
from kvexact.refmodel.content import prefixes
from kvexact.refmodel.offers import judge_hit, judge_lookup
from kvexact.refmodel.ops import (
    Allocate,
    Evict,
    Free,
    Move,
    Offload,
    Restore,
    Slot,
    block_id,
)
from kvexact.refmodel.positions import ByteOp, WritePositions
from kvexact.refmodel.requests import ENDED, PREEMPTED, RUNNING, Request, Requests
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

#: Ops that are answered with an `Answer`.
Answered = Admit | Readmit | Compute | Finish | Preempt | Store | Lookup


class Serving(Requests):
    """The model of ops on requests: `follow` what is answered to each, bound as `bind` does."""

    def follow(self, op: Answered, answer: object) -> list[ByteOp]:
        """Judge an answer and take it over.

        Returns:
            Ops on blocks, in order, that make of the bytes what they must be. A block belongs to
            a group while it has references or a key.

        Raises:
            Inadmissible: it breaks a rule; the state is of no use any more.
        """
        told = check_shape(self, op, answer)
        done = self._follow(op, told)
        if told.free != self.free:
            text = f"free is {told.free}, not {self.free}: blocks in no table, empty host slots"
            raise Inadmissible("free", text, "pool" if told.free[0] != self.free[0] else "host")
        return done

    def _follow(self, op: Answered, told: Answer) -> list[ByteOp]:
        match op:
            case Admit(id=op_id, tokens=tokens):
                return self._enter(op_id, Request(op_id, tokens), told)
            case Readmit(request=name):
                return self._enter(op.id, self.requests[name], told)
            case Compute():
                return self._compute(op, told) if told.accepted else self._no_room(op)
            case Finish(request=name):
                return self._leave(op.id, self.requests[name], ENDED)
            case Preempt(request=name):
                return self._leave(op.id, self.requests[name], PREEMPTED)
            case Store():
                return self._store(op, told)
        judge_lookup(self, op.tokens, told.hit)
        return []

    def seen(self, op: Attend) -> list[tuple[Slot, ...]]:
        """By group, the slots that the next token of a request sees, in order."""
        request = self.requests[op.request]
        return [
            self._slots(request, group, self.first_seen(group, request.computed), request.computed)
            for group in self.groups
        ]

    def hashes(self, op: Compute) -> tuple[int, ...]:
        """Of `kvexact.refmodel.content.prefixes`, those of the positions that an op computes."""
        request = self.requests[op.request]
        tokens = request.known[: request.computed + op.count] + op.drafts
        return tuple(prefixes(tokens)[request.computed :].tolist())

    def _enter(self, op_id: int, request: Request, told: Answer) -> list[ByteOp]:
        judge_hit(self, request, told)
        done: list[ByteOp] = []
        for job in told.loads:
            for move in job.moves:
                done += self._take(op_id, job.group, block_id(move.block))
                self.keys[block_id(move.block)] = self.parts[move.host_slot][move.part]
        if done:
            done.append(Restore(op_id, told.loads))
        self.requests[request.id] = request
        request.tables = [list(table) for table in told.tables]
        request.computed, request.state = told.hit, RUNNING
        for block in _blocks(request.tables):
            self.references[block] += 1
        return done

    def _leave(self, op_id: int, request: Request, state: str) -> list[ByteOp]:
        done: list[ByteOp] = []
        for group, table in enumerate(request.tables):
            for block in _blocks([table]):
                done += self._release(op_id, group, block)
        request.tables, request.computed, request.state = [], 0, state
        return done

    def _take(self, op_id: int, group: int, block: int) -> list[ByteOp]:
        """Give a block without references to a group; what it held is gone."""
        done: list[ByteOp] = []
        held = self.keys.pop(block, None)
        if held is not None:
            done.append(Free(op_id, held.group, (block,)))
        self.rejected = {place for place in self.rejected if place[0] != block}
        return [*done, Allocate(op_id, group, (block,))]

    def _release(self, op_id: int, group: int, block: int) -> list[ByteOp]:
        """One reference fewer; without any, and without a key, a block is nobody's."""
        self.references[block] -= 1
        if self.references[block] or block in self.keys:
            return []
        return [Free(op_id, group, (block,))]

    def _no_room(self, op: Compute) -> list[ByteOp]:
        request = self.requests[op.request]
        tables = request.tables
        last = [tables[g][e] for g, e in self.droppable(request)]
        room = self.references.count(0) + sum(self.references[block] == 1 for block in last)
        needed = sum(self.needed(request, request.computed + op.count + len(op.drafts)))
        if room >= needed:
            text = f"a compute of request a{request.id} was not accepted, but it takes {needed}"
            raise Inadmissible("room", f"{text} blocks, and there is room for {room}")
        return []

    def _compute(self, op: Compute, told: Answer) -> list[ByteOp]:
        request = self.requests[op.request]
        hashes = self.hashes(op)
        done = self._drop(op.id, request, told)
        start, end = request.computed, request.computed + op.count + len(op.drafts)
        for group, (needed, blocks) in enumerate(
            zip(self.needed(request, end), told.taken, strict=True)
        ):
            if len(blocks) != needed:
                text = f"group {group} took {len(blocks)} blocks for {end - start} positions from"
                raise Inadmissible("taken", f"{text} {start}, not {needed}", "number")
            for block in blocks:
                if self.references[block]:
                    text = f"group {group} took block {block}, which stands in a table"
                    raise Inadmissible("taken", text, "references")
                done += self._take(op.id, group, block)
                self.references[block] = 1
                request.tables[group].append(block)
        defined = op.count + op.accepted
        for group in self.groups:
            slots = self._slots(request, group, start, end)
            if slots:
                done.append(WritePositions(op.id, group, slots, hashes, defined))
            self.rejected -= {(block_id(slot.block), slot.token) for slot in slots[:defined]}
            self.rejected |= {(block_id(slot.block), slot.token) for slot in slots[defined:]}
        sampled = () if op.sampled is None else (op.sampled,)
        request.known += op.drafts[: op.accepted] + sampled
        request.computed += defined
        self._commit(request)
        return done

    def _drop(self, op_id: int, request: Request, told: Answer) -> list[ByteOp]:
        may = set(self.droppable(request))
        done: list[ByteOp] = []
        for group, entries in enumerate(told.dropped):
            for entry in entries:
                if (group, entry) not in may:
                    text = f"group {group} dropped entry {entry} of request a{request.id}, which"
                    text += f" is no block before the window of position {request.computed}"
                    raise Inadmissible("dropped", text)
                may.remove((group, entry))
                done += self._release(op_id, group, request.tables[group][entry])
                request.tables[group][entry] = HOLE
        return done

    def _commit(self, request: Request) -> None:
        """Give keys to the blocks whose positions are all computed."""
        for group, table in enumerate(request.tables):
            size = self.sizes[group]
            for entry, block in enumerate(table[: request.computed // size]):
                if block != HOLE and block not in self.keys:
                    self.keys[block] = request.key(group, entry, size)

    def _store(self, op: Store, told: Answer) -> list[ByteOp]:
        request = self.requests[op.request]
        kept = self.committed(request) & set(self.in_host())
        for slot in told.evicted:
            if self.parts.pop(slot, None) is None:
                text = f"host slot {slot} was evicted, but it holds nothing"
                raise Inadmissible("stored", text, "evicted")
        for job in told.stores:
            for move in job.moves:
                self._store_one(request, job.group, move)
        gone = sorted(kept - set(self.in_host()))
        if gone:
            group, entry, _ = gone[0]
            text = f"group {group} entry {entry} of request a{request.id} was in the host tier, and"
            raise Inadmissible("batch", f"{text} its own store evicted it")
        done: list[ByteOp] = [Evict(op.id, told.evicted)] if told.evicted else []
        return [*done, Offload(op.id, told.stores)] if any(j.moves for j in told.stores) else done

    def _store_one(self, request: Request, group: int, move: Move) -> None:
        block = block_id(move.block)
        what = f"block {block} was stored in host slot {move.host_slot} part {move.part}, but"
        if block not in request.tables[group]:
            text = f"{what} it is not in request a{request.id}'s table of group {group}"
            raise Inadmissible("stored", text, "table")
        key = self.keys.get(block)
        if key is None:
            cause, words = self._why_uncommitted(request, group, request.tables[group].index(block))
            raise Inadmissible("stored", f"{what} it has no key: {words}", cause)
        parts = self.parts.setdefault(move.host_slot, {})
        if move.part in parts:
            raise Inadmissible("stored", f"{what} that part holds something", "part")
        if any(held.group != group for held in parts.values()):
            raise Inadmissible("stored", f"{what} that slot holds another group", "slot")
        parts[move.part] = key

    def _slots(self, request: Request, group: int, start: int, end: int) -> tuple[Slot, ...]:
        """Slots of positions ``start`` to ``end`` - 1."""
        table, size = request.tables[group], self.sizes[group]
        return tuple([Slot(table[p // size], p % size) for p in range(start, end)])


def _blocks(tables: Iterable[list[int]]) -> list[int]:
    return [block for table in tables for block in table if block != HOLE]
