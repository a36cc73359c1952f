"""The model: the bytes of the pool and of the host tier, and what each op makes of them.

Every byte is known from birth (poison) to the end. `apply` changes exactly the bytes that an op may
change; whatever else differs in an implementation is a fault. Bytes move in words, as long ones as
every field of a group consists of; that is all that words are for.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.content import Bytes, poison
from kvexact.refmodel.layout import Mask, word_bytes
from kvexact.refmodel.ops import (
    Allocate,
    Block,
    CopyBlocks,
    Evict,
    Free,
    Job,
    Offload,
    Op,
    Read,
    ReadValues,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
    block_id,
)
from kvexact.refmodel.ownership import Ownership
from kvexact.refmodel.plan import Plan, round_up
from kvexact.refmodel.positions import ByteOp, WritePositions
from kvexact.refmodel.rows import Rows
from kvexact.refmodel.serving_ops import Mutate

Words = npt.NDArray[np.unsignedinteger]
AREAS = ("pool", "host")
_WORDS = (1, 2, 4, 8)


@dataclass(slots=True)
class Effect:
    """What an op did in the model.

    Attributes:
        acted: False where there was nothing to act on.
        content_bytes: content that the op wrote or read.
        changed_bytes: bytes among the written ones that had another value before.
        rows: what a read returns, pad rows as zeros; else None.
    """

    acted: bool
    content_bytes: int = 0
    changed_bytes: int = 0
    rows: Bytes | None = None

    def __add__(self, other: "Effect") -> "Effect":
        return Effect(
            self.acted or other.acted,
            self.content_bytes + other.content_bytes,
            self.changed_bytes + other.changed_bytes,
        )


_NOTHING = Effect(acted=False)


class Cache(Rows):
    """The reference model of one geometry.

    Attributes:
        areas: bytes by area, "pool" and "host"; what an implementation must hold too.
        ownership: who owns which block and what each host slot holds.
        written: per group, which slots [block, slot] of the blocks that it owns hold what
            was written, copied or restored there; the others are undefined, whatever their bytes.
    """

    def __init__(self, planned: Plan) -> None:
        super().__init__(planned)
        geometry = planned.geometry
        self.areas: dict[str, Bytes] = {}
        self._memory: dict[tuple[str, int], Words] = {}
        sizes = (planned.physical_bytes, planned.host_slots * planned.row_bytes)
        for number, (area, size) in enumerate(zip(AREAS, sizes, strict=True)):
            whole = poison(number, round_up(size, max(_WORDS)))
            self.areas[area] = whole[:size]
            self._memory |= {(area, word): whole.view(f"u{word}") for word in _WORDS}
        self.ownership = Ownership(geometry, planned.host_slots)
        self._host_written: dict[tuple[int, int], Mask] = {}
        self.written: list[Mask] = [
            np.zeros((geometry.blocks, layout.slots), np.bool_) for layout in self._layouts
        ]
        self._words = [word_bytes(planned, group) for group in range(len(geometry.groups))]
        self._in_words = [
            layout.in_words(word) for layout, word in zip(self._layouts, self._words, strict=True)
        ]

    def refusal(self, op: Op) -> str | None:
        """Why this op must be refused, or None."""
        return self.ownership.refusal(op)

    def apply(self, op: ByteOp) -> Effect:
        """Do a legal op whose blocks are ids."""
        match op:
            case Allocate(group=group, blocks=blocks):
                for block in blocks:
                    self.ownership.owners[block] = group
                if op.zero:
                    return self._zero(group, blocks)
                self.written[group][list(blocks)] = False
                return Effect(bool(blocks))
            case Free(blocks=blocks):
                for name in blocks:
                    self.ownership.owners[block_id(name)] = None
                return Effect(bool(blocks))
            case WriteTokens():
                return self._write(op)
            case WriteValues():
                return self._write_values(op)
            case WritePositions():
                return self._write_positions(op)
            case Mutate(tag=tag):
                return self._mutate(tag)
            case Zero(group=group, blocks=blocks):
                return self._zero(group, blocks)
            case CopyBlocks():
                return self._copy(op)
            case Offload(jobs=jobs):
                return self._offload(jobs)
            case Restore(jobs=jobs):
                return self._restore(jobs)
            case Read():
                return self._read(op)
            case ReadValues():
                return self._read_values(op)
            case Evict(host_slots=host_slots):
                for slot in host_slots:
                    self.ownership.holders[slot] = None
                    self.ownership.parts[slot] = set()
                return Effect(bool(host_slots))
        assert type(op) is Reset
        acted = {*self.ownership.owners, *self.ownership.holders} != {None}
        self.ownership.clear()
        return Effect(acted)

    def _load(self, area: str, group: int, places: Addresses) -> Words:
        return self._memory[area, self._words[group]][places]

    def _store(self, area: str, group: int, places: Addresses, data: Words) -> Effect:
        """Store words of a group at these places; all of an op go through here."""
        memory = self._memory[area, self._words[group]]
        before = memory[places]
        memory[places] = data
        changed = np.count_nonzero(before.view(np.uint8) != data.view(np.uint8))
        return Effect(places.size > 0, before.nbytes, int(changed))

    def _write(self, op: WriteTokens) -> Effect:
        return self._write_rows(op, self.payload(op))

    def _write_values(self, op: WriteValues) -> Effect:
        return self._write_rows(op, self.encoded(op), self._in_words[op.group].data)

    def _write_positions(self, op: WritePositions) -> Effect:
        effect = self._write_rows(op, self.positions(op))
        _, blocks, tokens = _slot_arrays(op.slots[op.defined :])
        self.written[op.group][blocks, tokens] = False
        return effect

    def _mutate(self, tag: int) -> Effect:
        """Overwrite all undefined slots; the blocks that nobody owns are any group's."""
        effect = _NOTHING
        owners = self.ownership.owners
        for group, written in enumerate(self.written):
            nobodys = [o is None and b % len(self.written) == group for b, o in enumerate(owners)]
            owned = np.array([owner == group for owner in owners])[:, None]
            blocks, tokens = np.nonzero((owned & ~written) | np.array(nobodys)[:, None])
            rows = self.undefined(tag, group, blocks * self.slots(group) + tokens)
            places = self._in_words[group].of_slots(blocks, tokens)
            effect += self._store("pool", group, places, rows.view(f"u{self._words[group]}"))
        return effect

    def _write_rows(
        self,
        op: WriteTokens | WriteValues | WritePositions,
        rows: Bytes,
        stored: Mask | None = None,
    ) -> Effect:
        """Store rows of an op; of each only the words that are ``stored``, or all of them."""
        kept, blocks, tokens = _slot_arrays(op.slots)
        self.written[op.group][blocks, tokens] = True
        places = self._in_words[op.group].of_slots(blocks, tokens)
        written = rows if len(kept) == len(rows) else rows[kept]
        words = written.view(f"u{self._words[op.group]}")
        if stored is not None and not stored.all():
            places, words = (item.compress(stored, axis=1) for item in (places, words))
        return self._store("pool", op.group, places, words)

    def _zero(self, group: int, blocks: tuple[Block, ...]) -> Effect:
        ids = np.array(blocks, np.intp)
        self.written[group][ids] = False
        places = self._in_words[group].of_blocks(ids)
        zeros = np.zeros(places.shape, f"u{self._words[group]}")
        return self._store("pool", group, places, zeros)

    def _read(self, op: Read | ReadValues) -> Effect:
        layout = self.layout(op.group)
        kept, blocks, tokens = _slot_arrays(op.slots)
        rows = np.zeros((len(op.slots), layout.row_bytes), np.uint8)
        places = self._in_words[op.group].of_slots(blocks, tokens)
        rows[kept] = self._load("pool", op.group, places).view(np.uint8)
        return Effect(bool(kept), len(kept) * layout.row_bytes, rows=rows)

    def _read_values(self, op: ReadValues) -> Effect:
        effect = self._read(op)
        assert effect.rows is not None
        effect.rows = self.decoded(op, effect.rows)
        return effect

    def _copy(self, op: CopyBlocks) -> Effect:
        layout, written = self._in_words[op.group], self.written[op.group]
        count = layout.slots if op.tokens is None else op.tokens
        effect = _NOTHING
        for source, target in op.pairs:
            here, there = block_id(source), block_id(target)
            data = self._load("pool", op.group, layout.of_tokens(here, count))
            effect += self._store("pool", op.group, layout.of_tokens(there, count), data)
            written[there, :count] = written[here, :count]
        return effect

    def _offload(self, jobs: tuple[Job, ...]) -> Effect:
        effect = _NOTHING
        holders, parts = self.ownership.holders, self.ownership.parts
        for job, blocks, in_pool, in_host in self._transfers(jobs):
            masks = self.written[job.group][blocks]
            for move, mask in zip(job.moves, masks, strict=True):
                holders[move.host_slot] = job.group
                parts[move.host_slot].add(move.part)
                self._host_written[move.host_slot, move.part] = mask
            data = self._load("pool", job.group, in_pool)
            effect += self._store("host", job.group, in_host, data)
        return effect

    def _restore(self, jobs: tuple[Job, ...]) -> Effect:
        effect = _NOTHING
        for job, _, in_pool, in_host in self._transfers(jobs):
            written = self.written[job.group]
            for move in job.moves:
                written[block_id(move.block)] = self._host_written[move.host_slot, move.part]
            data = self._load("host", job.group, in_host)
            effect += self._store("pool", job.group, in_pool, data)
        return effect

    def _transfers(
        self, jobs: tuple[Job, ...]
    ) -> list[tuple[Job, Addresses, Addresses, Addresses]]:
        """Per job that moves something: its block ids, their words in pool and host tier."""
        found = []
        for job in jobs:
            if not job.moves:
                continue
            layout = self._in_words[job.group]
            row_words = self.plan.row_bytes // self._words[job.group]
            blocks, slots, parts = np.array(job.moves, np.intp).T
            in_host = layout.host[parts]
            in_host += (slots * row_words)[:, None]
            found.append((job, blocks, layout.of_blocks(blocks), in_host))
        return found


def _slot_arrays(slots: tuple[Slot | None, ...]) -> tuple[list[int], Addresses, Addresses]:
    """Of the slots that are no pads: which they are, their blocks and their tokens."""
    kept = [i for i, slot in enumerate(slots) if slot is not None]
    named = [slot for slot in slots if slot is not None]
    blocks = np.array([slot.block for slot in named], np.intp)
    return kept, blocks, np.array([slot.token for slot in named], np.intp)
