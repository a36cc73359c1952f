"""A small manager of requests over the model's own bytes, with faults that a class attribute names.

It looks for prefixes in plain dictionaries, gives blocks away in the order in which they became
free, and copies at once. Each fault is a line or two where its name stands.
"""

from math import lcm
from typing import ClassVar

import numpy as np

from kvexact.fuzz.self_check_copy import Base
from kvexact.impl.target import Area, Facts, Result, Rows
from kvexact.refmodel.answer import HOLE, Answer
from kvexact.refmodel.ops import SERVING_OPS, Job, Move, Op
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
from kvexact.refmodel.spec import Geometry

Key = tuple[int, int, tuple[int, ...]]
Place = tuple[int, int]


class Request:
    """What the manager knows of a request."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.known = tokens
        self.computed = 0
        self.tables: list[list[int]] = []
        self.preempted = False


class ServingTarget(Base):
    """Sound, unless ``fault`` names a fault."""

    op_kinds: ClassVar[frozenset[str]] = frozenset(SERVING_OPS)
    fault: ClassVar[str] = ""

    def open(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        believed = super().open(geometry)
        self.sizes = [group.block_size for group in geometry.groups]
        self.windows = [group.window_tokens for group in geometry.groups]
        self.references = [0] * geometry.blocks
        self.unused = list(range(geometry.blocks))
        self.keys: dict[int, Key] = {}
        self.requests: dict[int, Request] = {}
        self.host: dict[Place, Key] = {}
        self.host_slots = self.model.plan.host_slots
        self.parts = geometry.host.chunk_blocks
        self.turn = 0
        self.miscounted = 0
        self.stale: dict[Place, Key] = {}
        self.late: list[tuple[int, int, Place]] = []
        return believed

    def apply(self, op: Op, rows: Rows | None) -> Result:
        """See `Target`."""
        if self.fault == "store dropped by a preempt" and not isinstance(op, Preempt):
            self._copy_late()
        match op:
            case Admit(id=name, tokens=tokens):
                self.requests[name] = Request(tokens)
                return self._enter(self.requests[name])
            case Readmit(request=name):
                return self._enter(self.requests[name])
            case Compute(request=name):
                assert rows is not None
                return self._compute(op, self.requests[name], rows)
            case Finish(request=name) | Preempt(request=name):
                return self._leave(self.requests[name], preempted=isinstance(op, Preempt))
            case Store(request=name):
                return self._store(self.requests[name])
            case Lookup(tokens=tokens):
                return Answer(self._free(), hit=self._hit(tokens))
            case Attend(request=name):
                return self._attend(self.requests[name])
        raise AssertionError(op)

    def _free(self) -> tuple[int, int]:
        used = {slot for slot, _ in self.host}
        return self.references.count(0) + self.miscounted, self.host_slots - len(used)

    def _key(self, group: int, entry: int, tokens: tuple[int, ...]) -> Key:
        size = self.sizes[group]
        start = entry * size if self.fault == "key of the last block alone" else 0
        return group, entry, tokens[start : (entry + 1) * size]

    def _is_seen(self, group: int, entry: int, position: int, slack: int = 0) -> bool:
        window = self.windows[group]
        end = (entry + 1) * self.sizes[group]
        return window is None or end - slack > position - window + 1

    def _places(self, key: Key) -> tuple[int | None, Place | None]:
        """A block and a host part that have a key."""
        blocks = [block for block, held in sorted(self.keys.items()) if held == key]
        parts = [p for p, held in sorted({**self.stale, **self.host}.items()) if held == key]
        return (blocks[0] if blocks else None), (parts[0] if parts else None)

    def _missing(self, group: int, tokens: tuple[int, ...], hit: int) -> list[int]:
        """Entries that a hit needs and that are nowhere."""
        return [
            entry
            for entry in range(hit // self.sizes[group])
            if self._is_seen(group, entry, hit)
            and self._places(self._key(group, entry, tokens)) == (None, None)
        ]

    def _hit(self, tokens: tuple[int, ...]) -> int:
        most = len(tokens) - (self.fault != "off by one at a boundary")
        step = lcm(*self.sizes)
        groups = range(len(self.sizes))
        if self.fault == "deeper in one group":
            groups = range(1)
        hits = range(most // step * step, 0, -step)
        return next((h for h in hits if not any(self._missing(g, tokens, h) for g in groups)), 0)

    def _enter(self, request: Request) -> Answer:
        hit = self._hit(request.known)
        while True:
            tables, wanted = self._tables(request.known, hit)
            held = {block for table in tables for block in table}
            room = [block for block in self.unused if block not in held]
            if len(wanted) <= len(room):
                break
            hit = next((h for h in range(hit - 1, 0, -1) if self._all(request.known, h)), 0)
        jobs: dict[int, list[Move]] = {}
        for block, (group, entry, place) in zip(room, wanted, strict=False):
            tables[group][entry] = block
            self.keys[block] = self._key(group, entry, request.known)
            jobs.setdefault(group, []).append(Move(block, *place))
            self._copy("host", "pool", group, block, place)
        for table in tables:
            self._hold(table)
        request.tables, request.computed, request.preempted = tables, hit, False
        loads = tuple(Job(group, tuple(moves)) for group, moves in sorted(jobs.items()))
        return Answer(self._free(), hit=hit, tables=tuple(map(tuple, tables)), loads=loads)

    def _all(self, tokens: tuple[int, ...], hit: int) -> bool:
        groups = range(len(self.sizes))
        return not any(hit % self.sizes[g] or self._missing(g, tokens, hit) for g in groups)

    def _tables(
        self, tokens: tuple[int, ...], hit: int
    ) -> tuple[list[list[int]], list[tuple[int, int, Place]]]:
        """Blocks of a hit, and what of it must be loaded from where."""
        tables: list[list[int]] = []
        wanted: list[tuple[int, int, Place]] = []
        for group, size in enumerate(self.sizes):
            table = []
            for entry in range(hit // size):
                block, place = self._places(self._key(group, entry, tokens))
                if not self._is_seen(group, entry, hit):
                    block = place = None
                table.append(HOLE if block is None else block)
                if block is None and place is not None:
                    wanted.append((group, entry, place))
            tables.append(table)
        return tables, wanted

    def _hold(self, table: list[int]) -> None:
        for block in table:
            if block != HOLE:
                self.references[block] += 1
                if block in self.unused:
                    self.unused.remove(block)

    def _drop(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block] == 0:
            self.unused.append(block)
        elif self.fault == "free counted twice":
            self.miscounted += 1

    def _leave(self, request: Request, *, preempted: bool) -> Answer:
        for table in request.tables:
            for block in table:
                if block != HOLE:
                    self._drop(block)
        request.tables, request.computed, request.preempted = [], 0, preempted
        if self.fault == "store dropped by a preempt" and preempted:
            self.late.clear()
        return Answer(self._free())

    def _compute(self, op: Compute, request: Request, rows: Rows) -> Answer:
        start, end = request.computed, request.computed + op.count + len(op.drafts)
        slack = 1 if self.fault == "window dropped too early" else 0
        may = [
            [
                entry
                for entry, block in enumerate(table)
                if block != HOLE and not self._is_seen(group, entry, start, slack)
            ]
            for group, table in enumerate(request.tables)
        ]
        needed = [
            max(0, -(-end // size) - len(table))
            for size, table in zip(self.sizes, request.tables, strict=True)
        ]
        freed = sum(
            self.references[request.tables[g][entry]] == 1
            for g, entries in enumerate(may)
            for entry in entries
        )
        if sum(needed) > len(self.unused) + freed:
            return Answer(self._free(), accepted=False)
        for group, entries in enumerate(may):
            for entry in entries:
                self._drop(request.tables[group][entry])
                request.tables[group][entry] = HOLE
        taken = []
        for group, count in enumerate(needed):
            blocks, self.unused = self.unused[:count], self.unused[count:]
            for block in blocks:
                self.keys.pop(block, None)
                self.references[block] = 1
            request.tables[group] += blocks
            taken.append(tuple(blocks))
        self._write(request, start, rows)
        if self.fault == "window stored late":
            self._copy_late()
        self._learn(op, request)
        return Answer(self._free(), taken=tuple(taken), dropped=tuple(map(tuple, may)))

    def _learn(self, op: Compute, request: Request) -> None:
        request.computed += op.count + op.accepted
        committed, tokens = request.computed, request.known + op.drafts[: op.accepted]
        if self.fault == "uncommitted block offered":
            committed, tokens = len(request.known), request.known + op.drafts
        if self.fault == "rejected token offered":
            tokens = request.known + op.drafts
            committed = len(tokens) if op.drafts else committed
        request.known += op.drafts[: op.accepted]
        if op.sampled is not None:
            request.known += (op.sampled,)
        if self.fault == "sampled token offered":
            committed = request.computed + (op.sampled is not None)
            tokens = request.known
        for group, table in enumerate(request.tables):
            for entry in range(min(len(table), committed // self.sizes[group])):
                if table[entry] != HOLE and table[entry] not in self.keys:
                    self.keys[table[entry]] = self._key(group, entry, tokens)

    def _write(self, request: Request, start: int, rows: Rows) -> None:
        place = 0
        for group, size in enumerate(self.sizes):
            layout = self.model.layout(group)
            sets = rows[place : place + len(layout.shapes)]
            place += len(layout.shapes)
            for number in range(len(sets[0])):
                entry, token = divmod(start + number, size)
                row = b"".join(of_set[number].tobytes() for of_set in sets)
                where = layout.of_cells(request.tables[group][entry])[token]
                self.model.areas["pool"][where] = list(row)

    def _attend(self, request: Request) -> Rows:
        found = []
        for group, (size, window) in enumerate(zip(self.sizes, self.windows, strict=True)):
            end = request.computed
            start = 0 if window is None else max(0, end - window + 1)
            layout = self.model.layout(group)
            at = 0
            where = [
                layout.of_cells(request.tables[group][p // size])[p % size]
                for p in range(start, end)
            ]
            for layers, heads, cell in layout.shapes:
                width = layers * heads * cell
                places = np.array([one[at : at + width] for one in where], np.intp)
                rows = self.model.areas["pool"][places]
                found.append(rows.reshape(len(where), layers, heads, cell))
                at += width
        return tuple(found)

    def _store(self, request: Request) -> Answer:
        new = [
            (group, block)
            for group, table in enumerate(request.tables)
            for block in table
            if block in self.keys and self.keys[block] not in self.host.values()
        ]
        batch = {self.keys[b] for table in request.tables for b in table if b in self.keys}
        evicted: list[int] = []
        jobs: dict[int, list[Move]] = {}
        for group, block in new:
            place = self._host_place(group)
            if place is None:
                filled = {move.host_slot for moves in jobs.values() for move in moves}
                slot = self._victim(batch, filled)
                if slot is None:
                    break
                evicted.append(slot)
                if self.fault == "evicted slot still offered":
                    self.stale |= {p: key for p, key in self.host.items() if p[0] == slot}
                self.host = {p: key for p, key in self.host.items() if p[0] != slot}
                place = slot, 0
            self.host[place] = self.keys[block]
            jobs.setdefault(group, []).append(Move(block, *place))
            if self.fault in ("store dropped by a preempt", "window stored late"):
                self.late.append((group, block, place))
            else:
                self._copy("pool", "host", group, block, place)
        stores = tuple(Job(group, tuple(moves)) for group, moves in sorted(jobs.items()))
        return Answer(self._free(), stores=stores, evicted=tuple(evicted))

    def _host_place(self, group: int) -> Place | None:
        held = {slot: key[0] for (slot, _), key in self.host.items()}
        for slot in range(self.host_slots):
            for part in range(self.parts):
                if held.get(slot, group) == group and (slot, part) not in self.host:
                    return slot, part
        return None

    def _victim(self, batch: set[Key], filled: set[int]) -> int | None:
        """The next slot in turn that holds nothing of a batch, and was not filled by it."""
        for _ in range(self.host_slots):
            slot = self.turn % self.host_slots
            self.turn += 1
            held = {key for (other, _), key in self.host.items() if other == slot}
            protects = self.fault != "batch evicts its own"
            if slot not in filled and held and not (protects and held & batch):
                return slot
        return None

    def _copy_late(self) -> None:
        for group, block, place in self.late:
            self._copy("pool", "host", group, block, place)
        self.late.clear()

    def _copy(self, source: Area, target: Area, group: int, block: int, place: Place) -> None:
        layout = self.model.layout(group)
        slot, part = place
        pool = layout.image + block * layout.image_strides
        host = layout.host[part] + slot * self.model.plan.row_bytes
        where = {"pool": pool, "host": host}
        areas = self.model.areas
        areas[target][where[target]] = areas[source][where[source]]


class LastBlockKeys(ServingTarget):
    """Has one fault."""

    fault = "key of the last block alone"


class Lists(ServingTarget):
    """What it answers is lists, of which messages between processes could make tuples."""

    def _free(self) -> tuple[int, int]:
        return list(super()._free())  # type: ignore[return-value]


class NoAnswers(ServingTarget):
    """What it answers is none: numbers that are no ints."""

    def _free(self) -> tuple[int, int]:
        free, slots = super()._free()
        return np.int64(free), slots  # type: ignore[return-value]
