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
from kvexact.refmodel.layout import Mask
from kvexact.refmodel.ops import (
    Allocate,
    Block,
    CopyBlocks,
    Evict,
    Free,
    Job,
    Move,
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
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import ByteOp, WritePositions
from kvexact.refmodel.rows import Rows
from kvexact.refmodel.serving_ops import Mutate

Words = npt.NDArray[np.void]
AREAS = ("pool", "host")


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
        words = {w for item in self._layouts for w in (item.cell_word, item.image_word)}
        sizes = (planned.physical_bytes, planned.host_slots * planned.row_bytes)
        for number, (area, size) in enumerate(zip(AREAS, sizes, strict=True)):
            self.areas[area] = poison(number, size)
            self._memory |= {(area, word): in_words(self.areas[area], word) for word in words}
        self.ownership = Ownership(geometry, planned.host_slots)
        rows = planned.host_slots, geometry.host.chunk_blocks
        #: The same of the parts [host slot, part, slot] of chunks, as far as they are held.
        self._host_written: list[Mask] = [
            np.zeros((*rows, layout.slots), np.bool_) for layout in self._layouts
        ]
        self.written: list[Mask] = [
            np.zeros((geometry.blocks, layout.slots), np.bool_) for layout in self._layouts
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

    def _load(self, area: str, word: int, places: Addresses) -> Words:
        """Words of so many bytes at these places; all that an op reads goes through here."""
        return self._memory[area, word][places]

    def _store(self, area: str, places: Addresses, data: Words) -> Effect:
        """Store words at these places; all that an op writes goes through here."""
        memory = self._memory[area, data.itemsize]
        before = memory[places]
        memory[places] = data
        changed = np.count_nonzero(before.view(np.uint8) != data.view(np.uint8))
        return Effect(places.size > 0, before.nbytes, int(changed))

    def _write(self, op: WriteTokens) -> Effect:
        return self._write_rows(op, self.payload(op))

    def _write_values(self, op: WriteValues) -> Effect:
        return self._write_rows(op, self.encoded(op), self._layouts[op.group].data)

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
            layout = self._layouts[group]
            places = layout.of_slots(blocks, tokens)
            effect += self._store("pool", places, in_words(rows, layout.cell_word))
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
        layout = self._layouts[op.group]
        places = layout.of_slots(blocks, tokens)
        words = in_words(rows if len(kept) == len(rows) else rows[kept], layout.cell_word)
        if stored is not None and not stored.all():
            places, words = (item.compress(stored, axis=1) for item in (places, words))
        return self._store("pool", places, words)

    def _zero(self, group: int, blocks: tuple[Block, ...]) -> Effect:
        ids = np.array(blocks, np.intp)
        self.written[group][ids] = False
        layout = self._layouts[group]
        places = layout.of_blocks(ids)
        return self._store("pool", places, np.zeros(places.shape, f"V{layout.image_word}"))

    def _read(self, op: Read | ReadValues) -> Effect:
        layout = self._layouts[op.group]
        kept, blocks, tokens = _slot_arrays(op.slots)
        rows = np.zeros((len(op.slots), layout.row_bytes), np.uint8)
        places = layout.of_slots(blocks, tokens)
        rows[kept] = self._load("pool", layout.cell_word, places).view(np.uint8)
        return Effect(bool(kept), len(kept) * layout.row_bytes, rows=rows)

    def _read_values(self, op: ReadValues) -> Effect:
        effect = self._read(op)
        assert effect.rows is not None
        effect.rows = self.decoded(op, effect.rows)
        return effect

    def _copy(self, op: CopyBlocks) -> Effect:
        layout, written = self._layouts[op.group], self.written[op.group]
        count = layout.slots if op.tokens is None else op.tokens
        effect = _NOTHING
        for source, target in op.pairs:
            here, there = block_id(source), block_id(target)
            data = self._load("pool", layout.cell_word, layout.of_tokens(here, count))
            effect += self._store("pool", layout.of_tokens(there, count), data)
            written[there, :count] = written[here, :count]
        return effect

    def _offload(self, jobs: tuple[Job, ...]) -> Effect:
        effect = _NOTHING
        holders, held = self.ownership.holders, self.ownership.parts
        for group, moves in jobs:
            for _, slot, part in moves:
                holders[slot] = group
                held[slot].add(part)
            layout = self._layouts[group]
            blocks, slots, parts = _move_arrays(moves)
            self._host_written[group][slots, parts] = self.written[group][blocks]
            data = self._load("pool", layout.image_word, layout.of_blocks(blocks))
            effect += self._store("host", layout.of_parts(slots, parts, self.plan.row_bytes), data)
        return effect

    def _restore(self, jobs: tuple[Job, ...]) -> Effect:
        effect = _NOTHING
        for group, moves in jobs:
            layout = self._layouts[group]
            blocks, slots, parts = _move_arrays(moves)
            self.written[group][blocks] = self._host_written[group][slots, parts]
            places = layout.of_parts(slots, parts, self.plan.row_bytes)
            data = self._load("host", layout.image_word, places)
            effect += self._store("pool", layout.of_blocks(blocks), data)
        return effect


def in_words(data: Bytes, size: int) -> Words:
    """The same bytes as words of a size, along the last axis; a rest that is no word is left out.

    It takes part in no op.
    """
    return data[..., : data.shape[-1] // size * size].view(f"V{size}")


def _slot_arrays(slots: tuple[Slot | None, ...]) -> tuple[list[int], Addresses, Addresses]:
    """Of the slots that are no pads: which they are, their blocks and their tokens."""
    kept = [i for i, slot in enumerate(slots) if slot is not None]
    named = [slot for slot in slots if slot is not None]
    blocks = np.array([slot.block for slot in named], np.intp)
    return kept, blocks, np.array([slot.token for slot in named], np.intp)


def _move_arrays(moves: tuple[Move, ...]) -> tuple[Addresses, Addresses, Addresses]:
    """Blocks, host slots and parts of moves."""
    blocks, slots, parts = np.array(moves, np.intp).reshape(-1, 3).T
    return blocks, slots, parts
