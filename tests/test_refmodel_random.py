"""The model against a second, naive one: random ops on small pools of every kind, byte by byte.

The naive model knows bytes by where the walk of bruteforce.py found them, one list a token slot and
one a page, and who owns what in plain dictionaries. It shares no index array with the model.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from bruteforce import PADDING, content_of, pages, parts_of, slots_of, walk
from small_geometries import accepted

from kvexact.refmodel.cache import Cache
from kvexact.refmodel.codecs import decode, encode
from kvexact.refmodel.free import host_padding, page_padding
from kvexact.refmodel.ops import (
    VALUE_STYLES,
    VALUE_TYPES,
    Allocate,
    Block,
    CopyBlocks,
    Evict,
    Free,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Read,
    ReadValues,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.spec import PAGE_FORMATS, Geometry

OPS = 90
SHARDS = 4
POOL_BYTES = 4000
TOO_LARGE = {"bf16_cpu_amx"}  # the marking tests cover where its bytes lie
RAW_ONLY = {
    f"turboquant_{name}_nc{planes}"
    for name in ("4bit", "k3v4", "3bit")
    for planes in ("", "_planes")
}


def number(block: Block) -> int:
    """A block that is an id."""
    assert isinstance(block, int)
    return block


class Naive:
    """Bytes and owners, one by one."""

    def __init__(self, geometry: Geometry, cache: Cache) -> None:
        self.geometry = geometry
        self.row_bytes = cache.plan.row_bytes
        self.host_slots = cache.plan.host_slots
        self.pool = cache.areas["pool"].tolist()
        self.host = cache.areas["host"].tolist()
        self.owner: dict[int, int] = {}
        self.holder: dict[int, int] = {}
        self.kept: dict[tuple[int, int], set[int]] = {}
        self.defined: set[tuple[int, int, int]] = set()
        self.row: dict[tuple[int, int, int], list[int]] = {}
        self.pad: set[tuple[int, int]] = set()
        self._note_rows()

    def _note_rows(self) -> None:
        cells: dict[tuple[int, int, int], list[tuple[tuple[int, ...], range]]] = defaultdict(list)
        for note in walk(self.geometry):
            if note.field != PADDING:
                shape = self.geometry.groups[note.group].layer_sets[note.layer_set]
                field = [part.name for part in parts_of(shape)].index(note.field)
                rank = (note.layer_set, note.layer, note.head, field, note.at)
                cells[note.group, note.block, note.token].append((rank, note.span))
            if note.field == "pad":
                self.pad |= {(note.group, address) for address in note.span}
        for slot, spans in cells.items():
            ordered = sorted(spans, key=lambda item: item[0])
            self.row[slot] = [address for _, span in ordered for address in span]

    def size(self, group: int) -> int:
        described = self.geometry.groups[group]
        return slots_of(described, described.layer_sets[0])

    def zero(self, group: int, block: int) -> None:
        for token in range(self.size(group)):
            self.defined.discard((group, block, token))
            for address in self.row[group, block, token]:
                self.pool[address] = 0

    def read(self, op: Read | ReadValues) -> list[list[int]]:
        width = len(self.row[op.group, 0, 0])
        rows = []
        for slot in op.slots:
            row = [0] * width
            if slot:
                place = (op.group, number(slot.block), slot.token)
                row = [self.pool[address] for address in self.row[place]]
            rows.append(row)
        return rows

    def decoded(self, op: ReadValues) -> list[list[int]]:
        """What the rows of a read mean as fp32, layer set by layer set."""
        width = len(self.row[op.group, 0, 0])
        rows = np.array(self.read(op), np.uint8).reshape(len(op.slots), width)
        found: list[list[int]] = [[] for _ in op.slots]
        start = 0
        for shape in self.geometry.groups[op.group].layer_sets:
            cell = sum(int(part.width) for part in parts_of(shape))
            end = start + shape.layers * shape.kv_heads * cell
            cells = rows[:, start:end].reshape(len(op.slots), shape.layers, shape.kv_heads, cell)
            for row, values in zip(found, decode(shape, cells), strict=True):
                row += values.reshape(-1).tolist()
            start = end
        return [
            values if slot else [0] * len(values)
            for values, slot in zip(found, op.slots, strict=True)
        ]

    def transfer(self, group: int, move: Move) -> Iterator[tuple[int, int]]:
        """(pool address, host address) of each byte of one move, with its block bound."""
        chunk = self.geometry.host.chunk_blocks
        cursor = move.host_slot * self.row_bytes
        shapes = self.geometry.groups[group].layer_sets
        for s, shape in enumerate(shapes):
            content = content_of(self.geometry.groups[group], shape)
            for layer in range(shape.layers):
                page = pages(self.geometry)[group, s, layer, number(move.block)]
                here = cursor + move.part * content
                yield from zip(page, range(here, here + content), strict=True)
                cursor += chunk * content

    # --- verdicts

    def refusal(self, op: Op) -> str | None:
        checks = {"range": self.out_of_range, "format": self.raw_only, "duplicate": self.doubled}
        checks |= {"owner": self.not_owned, "host": self.wrong_host}
        for name, check in checks.items():
            if check(op):
                return name
        return None

    def out_of_range(self, op: Op) -> bool:
        blocks, groups, tokens, hosts, parts = [], [], [], [], []
        count: tuple[int, int] = (0, 0)
        match op:
            case Allocate() | Free() | Zero():
                groups, blocks = [op.group], list(op.blocks)
            case WriteTokens() | WriteValues() | Read() | ReadValues():
                groups = [op.group]
                blocks = [slot.block for slot in op.slots if slot]
                tokens = [slot.token for slot in op.slots if slot]
            case CopyBlocks():
                groups = [op.group]
                blocks = [block for pair in op.pairs for block in pair]
                count = (op.tokens or 0, 0)
            case Offload() | Restore():
                groups = [job.group for job in op.jobs]
                moves = [move for job in op.jobs for move in job.moves]
                blocks = [move.block for move in moves]
                hosts = [move.host_slot for move in moves]
                parts = [move.part for move in moves]
            case Evict():
                hosts = list(op.host_slots)
        if any(group not in range(len(self.geometry.groups)) for group in groups):
            return True
        chunk = self.geometry.host.chunk_blocks
        return (
            any(block not in range(self.geometry.blocks) for block in blocks)
            or any(token not in range(self.size(groups[0])) for token in tokens)
            or any(host not in range(self.host_slots) for host in hosts)
            or any(part not in range(chunk) for part in parts)
            or (count[0] != 0 and count[0] not in range(self.size(groups[0]) + 1))
        )

    def raw_only(self, op: Op) -> bool:
        sets = [group.layer_sets for group in self.geometry.groups]
        return isinstance(op, WriteValues | ReadValues) and any(
            shape.page_format in RAW_ONLY for shape in sets[op.group]
        )

    def doubled(self, op: Op) -> bool:
        places: list[object] = []
        match op:
            case Allocate() | Free() | Zero():
                places = [*op.blocks]
            case WriteTokens() | WriteValues():
                places = [slot for slot in op.slots if slot]
            case Offload():
                places = [(m.host_slot, m.part) for job in op.jobs for m in job.moves]
            case Restore():
                places = [m.block for job in op.jobs for m in job.moves]
            case Evict():
                places = [*op.host_slots]
        return any(places.count(place) > 1 for place in places)

    def not_owned(self, op: Op) -> bool:
        match op:
            case Allocate():
                return any(block in self.owner for block in op.blocks)
            case Free() | Zero():
                named = [(op.group, block) for block in op.blocks]
            case WriteTokens() | WriteValues() | Read() | ReadValues():
                named = [(op.group, slot.block) for slot in op.slots if slot]
            case CopyBlocks():
                named = [(op.group, block) for pair in op.pairs for block in pair]
            case Offload() | Restore():
                named = [(job.group, move.block) for job in op.jobs for move in job.moves]
            case _:
                return False
        return any((block, group) not in self.owner.items() for group, block in named)

    def wrong_host(self, op: Op) -> bool:
        match op:
            case Offload():
                after = set(self.holder.items())
                after |= {(m.host_slot, job.group) for job in op.jobs for m in job.moves}
                return len({slot for slot, _ in after}) < len(after)
            case Restore():
                return any(
                    (m.host_slot, job.group) not in self.holder.items()
                    or (m.host_slot, m.part) not in self.kept
                    for job in op.jobs
                    for m in job.moves
                )
            case Evict():
                return any(slot not in self.holder for slot in op.host_slots)
        return False

    # --- paddings

    def page_ends(self, op: Op) -> set[int]:
        """Padding of the pages that this op writes."""
        touched: set[tuple[int, object]] = set()
        match op:
            case Zero() | Allocate(zero=True):
                touched = {(op.group, block) for block in op.blocks}
            case WriteTokens() | WriteValues():
                touched = {(op.group, slot.block) for slot in op.slots if slot}
            case CopyBlocks() if op.tokens != 0:
                touched = {(op.group, pair.target) for pair in op.pairs}
            case Restore():
                touched = {(job.group, move.block) for job in op.jobs for move in job.moves}
        return {
            address
            for note in walk(self.geometry)
            if note.field == PADDING and (note.group, note.block) in touched
            for address in note.span
        }

    def row_ends(self, op: Op) -> set[int]:
        """Bytes of the host rows that this op writes, that hold no content of the row's group."""
        if not isinstance(op, Offload):
            return set()
        ends: set[int] = set()
        for job in op.jobs:
            chunk = self.geometry.host.chunk_blocks * sum(
                len(page)
                for key, page in pages(self.geometry).items()
                if key[::3] == (job.group, 0)
            )
            for move in job.moves:
                start = move.host_slot * self.row_bytes
                ends |= set(range(start + chunk, start + self.row_bytes))
        return ends

    # --- bytes

    def apply(self, op: Op, payload: list[list[int]] | None) -> list[list[int]] | None:
        match op:
            case Allocate():
                for block in op.blocks:
                    self.owner[block] = op.group
                    self.defined -= {(op.group, block, t) for t in range(self.size(op.group))}
                    if op.zero:
                        self.zero(op.group, block)
            case Free():
                for name in op.blocks:
                    del self.owner[number(name)]
            case WriteTokens() | WriteValues():
                assert payload is not None
                kept = self.pad if isinstance(op, WriteValues) else set()
                for slot, row in zip(op.slots, payload, strict=True):
                    if slot:
                        place = (op.group, number(slot.block), slot.token)
                        self.defined.add(place)
                        for address, byte in zip(self.row[place], row, strict=True):
                            if (op.group, address) not in kept:
                                self.pool[address] = byte
            case Zero():
                for name in op.blocks:
                    self.zero(op.group, number(name))
            case CopyBlocks():
                self._copy(op)
            case Offload():
                for job in op.jobs:
                    for move in job.moves:
                        for here, there in self.transfer(job.group, move):
                            self.host[there] = self.pool[here]
                        self.holder[move.host_slot] = job.group
                        tokens = range(self.size(job.group))
                        block = number(move.block)
                        self.kept[move.host_slot, move.part] = {
                            t for t in tokens if (job.group, block, t) in self.defined
                        }
            case Restore():
                for job in op.jobs:
                    for move in job.moves:
                        for here, there in self.transfer(job.group, move):
                            self.pool[here] = self.host[there]
                        block = number(move.block)
                        for t in range(self.size(job.group)):
                            self.defined.discard((job.group, block, t))
                        for t in self.kept[move.host_slot, move.part]:
                            self.defined.add((job.group, block, t))
            case Read():
                return self.read(op)
            case ReadValues():
                return self.decoded(op)
            case Evict():
                for evicted in op.host_slots:
                    del self.holder[evicted]
                    self.kept = {at: v for at, v in self.kept.items() if at[0] != evicted}
            case Reset():
                self.owner, self.holder, self.kept = {}, {}, {}
        return None

    def _copy(self, op: CopyBlocks) -> None:
        count = self.size(op.group) if op.tokens is None else op.tokens
        for source, target in op.pairs:
            for token in range(count):
                here = (op.group, number(source), token)
                there = (op.group, number(target), token)
                for a, b in zip(self.row[here], self.row[there], strict=True):
                    self.pool[b] = self.pool[a]
                if here in self.defined:
                    self.defined.add(there)
                else:
                    self.defined.discard(there)


KINDS: tuple[type[Op], ...] = (
    *(Allocate, Free, WriteTokens, WriteValues, Zero, CopyBlocks),
    *(Offload, Restore, Read, ReadValues, Evict, Reset),
)


class Chooser:
    """Draws ops that are legal two times of three."""

    def __init__(self, rng: random.Random, naive: Naive) -> None:
        self.rng = rng
        self.naive = naive
        self.op_id = 0

    def block(self, group: int) -> int:
        mine = [block for block, owner in self.naive.owner.items() if owner == group]
        if mine and self.rng.random() < 0.96:
            return self.rng.choice(mine)
        return self.rng.randint(-1, self.naive.geometry.blocks)

    def group(self) -> int:
        """A group that owns a block, more often than not."""
        owners = [*self.naive.owner.values()]
        if owners and self.rng.random() < 0.9:
            return self.rng.choice(owners)
        return self.rng.randrange(len(self.naive.geometry.groups))

    def blocks(self, group: int) -> tuple[int, ...]:
        drawn = [self.block(group) for _ in range(self.rng.choice((0, 1, 1, 2)))]
        return tuple(drawn if self.rng.random() < 0.1 else dict.fromkeys(drawn))

    def slots(self, group: int) -> tuple[Slot | None, ...]:
        size = self.naive.size(group)
        slots: list[Slot | None] = []
        for _ in range(self.rng.choice((0, 1, 2, 3, 5))):
            token = self.rng.randrange(size) if self.rng.random() < 0.98 else size
            slot = Slot(self.block(group), token)
            if self.rng.random() < 0.15:
                slots.append(None)
            elif slot not in slots or self.rng.random() < 0.05:
                slots.append(slot)
        return tuple(slots)

    def jobs(self, *, to_host: bool) -> tuple[Job, ...]:
        naive, rng = self.naive, self.rng
        jobs = []
        taken: set[object] = set()
        for _ in range(rng.choice((0, 1, 1, 2))):
            group = self.group()
            moves = []
            for _ in range(rng.choice((0, 1, 1, 2))):
                slot, part = (
                    rng.randrange(naive.host_slots),
                    rng.randrange(naive.geometry.host.chunk_blocks),
                )
                held = [key for key in naive.kept if naive.holder[key[0]] == group]
                if not to_host and held and rng.random() < 0.95:
                    slot, part = rng.choice(held)
                if rng.random() < 0.02:
                    part = naive.geometry.host.chunk_blocks
                if to_host and naive.holder.get(slot, group) != group and rng.random() < 0.3:
                    continue
                move = Move(self.block(group), slot, part)
                place: object = (slot, part) if to_host else move.block
                if place not in taken or rng.random() < 0.05:
                    moves.append(move)
                taken.add(place)
            jobs.append(Job(group, tuple(moves)))
        return tuple(jobs)

    def op(self) -> Op:
        naive, rng = self.naive, self.rng
        self.op_id += 1
        n = self.op_id
        group = self.group()
        kind = rng.choices(KINDS, (8, 3, 9, 9, 4, 7, 11, 9, 5, 5, 3, 0.4))[0]
        if kind is Allocate:
            free = [b for b in range(naive.geometry.blocks) if b not in naive.owner]
            some = rng.sample(free, min(len(free), rng.choice((0, 1, 1, 2))))
            if rng.random() < 0.1:
                some.append(rng.randint(-1, naive.geometry.blocks))
            group = rng.randrange(len(naive.geometry.groups))
            zero = rng.random() < 0.3
            return Allocate(n, group if rng.random() < 0.97 else -1, tuple(some), zero)
        if kind is Free:
            return Free(n, group, self.blocks(group))
        if kind is WriteTokens:
            return WriteTokens(n, group, self.slots(group), rng.randrange(9))
        if kind is WriteValues:
            how = rng.choice(VALUE_TYPES), rng.choice(VALUE_STYLES)
            return WriteValues(n, group, self.slots(group), rng.randrange(9), *how)
        if kind is ReadValues:
            return ReadValues(n, group, self.slots(group))
        if kind is Zero:
            return Zero(n, group, self.blocks(group))
        if kind is CopyBlocks:
            pairs = [Pair(self.block(group), self.block(group)) for _ in range(rng.randint(0, 3))]
            tokens = rng.choice((None, None, *range(naive.size(group) + 1), -1))
            return CopyBlocks(n, group, tuple(pairs), tokens)
        if kind is Offload:
            return Offload(n, self.jobs(to_host=True))
        if kind is Restore:
            return Restore(n, self.jobs(to_host=False))
        if kind is Read:
            return Read(n, group, self.slots(group))
        if kind is Evict:
            held = list(naive.holder)
            some = rng.sample(held, min(len(held), rng.choice((0, 1, 1, 2))))
            if rng.random() < 0.2:
                some.append(rng.randint(-1, naive.host_slots))
            return Evict(n, tuple(some))
        return Reset(n)


def written_rows(cache: Cache, op: Op) -> list[list[int]] | None:
    """What a write stores, one row a slot."""
    if isinstance(op, WriteTokens):
        return [[int(byte) for byte in row] for row in cache.payload(op)]
    if isinstance(op, WriteValues):
        sets = cache.plan.geometry.groups[op.group].layer_sets
        cells = [
            encode(shape, op.value_type, values)
            for shape, values in zip(sets, cache.values(op), strict=True)
        ]
        rows = range(len(op.slots))
        return [[int(byte) for of_set in cells for byte in of_set[i].flat] for i in rows]
    return None


def definedness(cache: Cache) -> set[tuple[int, int, int]]:
    """Slots that are defined in blocks that their group owns."""
    return {
        (g, int(block), int(token))
        for g, written in enumerate(cache.written)
        for block, token in np.argwhere(written)
        if cache.ownership.owners[block] == g
    }


def run(seed: int, geometry: Geometry, planned: Plan) -> Iterator[tuple[str, str]]:
    """Random ops on one geometry; yields (op kind, what came of it)."""
    cache = Cache(planned)
    naive = Naive(geometry, cache)
    chooser = Chooser(random.Random(f"ops {seed}"), naive)
    for _ in range(OPS):
        op = chooser.op()
        reason = naive.refusal(op)
        assert cache.refusal(op) == reason, (seed, op)
        kind = type(op).__name__
        if reason is not None:
            yield kind, reason
            continue
        before = {"pool": list(naive.pool), "host": list(naive.host)}
        payload = written_rows(cache, op)
        rows = naive.apply(op, payload)
        assert set(page_padding(cache, op).tolist()) == naive.page_ends(op), (seed, op)
        assert set(host_padding(cache, op).tolist()) == naive.row_ends(op), (seed, op)

        effect = cache.apply(op)
        assert cache.areas["pool"].tolist() == naive.pool, (seed, op)
        assert cache.areas["host"].tolist() == naive.host, (seed, op)
        owned = [naive.owner.get(block) for block in range(geometry.blocks)]
        assert cache.ownership.owners == owned, (seed, op)
        held = [naive.holder.get(slot) for slot in range(naive.host_slots)]
        assert cache.ownership.holders == held, (seed, op)
        parts = {(s, p) for s, of_slot in enumerate(cache.ownership.parts) for p in of_slot}
        assert parts == set(naive.kept), (seed, op)
        live = {place for place in naive.defined if naive.owner.get(place[1]) == place[0]}
        assert definedness(cache) == live, (seed, op)
        assert (None if effect.rows is None else effect.rows.tolist()) == rows, (seed, op)
        changed = sum(a != b for a, b in zip(before["pool"], naive.pool, strict=True))
        changed += sum(a != b for a, b in zip(before["host"], naive.host, strict=True))
        if not isinstance(op, CopyBlocks):  # a chain may write a byte twice
            assert effect.changed_bytes == changed, (seed, op)
        assert changed == 0 or effect.acted, (seed, op)
        yield kind, "acted" if effect.acted else "no-op"


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_ops(shard: int) -> None:
    """After every op both models hold the same bytes, owners, parts and definedness."""
    counts: Counter[tuple[str, str]] = Counter()
    small = [case for case in accepted() if case[2].physical_bytes <= POOL_BYTES]
    formats = {
        shape.page_format for case in small for g in case[1].groups for shape in g.layer_sets
    }
    assert formats >= set(PAGE_FORMATS) - TOO_LARGE
    for seed, geometry, planned in small[shard::SHARDS]:
        counts.update(run(seed, geometry, planned))
    for kind in KINDS:
        assert counts[kind.__name__, "acted"] >= 20, counts
    wanted = {("Restore", reason) for reason in ("range", "duplicate", "owner", "host", "no-op")}
    wanted |= {("Offload", reason) for reason in ("range", "duplicate", "owner", "host", "no-op")}
    wanted |= {("WriteTokens", reason) for reason in ("range", "duplicate", "owner", "no-op")}
    wanted |= {("WriteValues", reason) for reason in ("format", "duplicate", "owner", "no-op")}
    assert wanted <= set(counts), counts
