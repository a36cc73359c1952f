"""The model: the bytes of the pool and of the host tier, and what each op makes of them.

Every byte is known from birth (poison) to the end. `apply` changes exactly the bytes that an op may
change; whatever else differs in an implementation is a fault. Bytes move in words, as long ones as
every field of a group consists of; that is all that words are for.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.content import Bytes, poison
from kvexact.refmodel.held import Name, Places
from kvexact.refmodel.layout import Mask
from kvexact.refmodel.ops import (
    Allocate,
    Block,
    CopyBlocks,
    Evict,
    Free,
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
#: Slots of what lies somewhere, as the bits of a number.
Slots = defaultdict[Name, int]
AREAS = ("pool", "host")

_BYTE = np.dtype(np.uint8)


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
        memory: the same memory, of a type that compares itself with other memory at once.
        ownership: who owns which block and what each host slot holds.
    """

    def __init__(self, planned: Plan) -> None:
        super().__init__(planned)
        geometry = planned.geometry
        self.areas: dict[str, Bytes] = {}
        self.memory: dict[str, bytearray] = {}
        self._places = [Places(layout, planned.row_bytes) for layout in self._layouts]
        #: Which row words a write of values stores; None: all.
        self._stored = [None if item.data.all() else item.data for item in self._layouts]
        self._memory: dict[tuple[str, int], Words] = {}
        words = {w for item in self._layouts for w in (item.cell_word, item.image_word)}
        sizes = (planned.physical_bytes, planned.host_slots * planned.row_bytes)
        for number, (area, size) in enumerate(zip(AREAS, sizes, strict=True)):
            self.memory[area] = bytearray(poison(number, size).tobytes())
            self.areas[area] = np.frombuffer(self.memory[area], np.uint8)
            self._memory |= {(area, word): in_words(self.areas[area], word) for word in words}
        self.ownership = Ownership(geometry, planned.host_slots)
        #: By group and block, which slots are `written`: bit t is slot t.
        self._written: list[Slots[Block]] = [defaultdict(int) for _ in self._layouts]
        #: The same of parts of chunks, by (host slot, part), as far as they are held.
        self._host_written: list[Slots[tuple[int, int]]] = [defaultdict(int) for _ in self._layouts]

    @property
    def written(self) -> list[Mask]:
        """Per group, which slots [block, slot] of its blocks hold what was stored there.

        Written, copied or restored; the others are undefined, whatever their bytes.
        """
        blocks = range(self.plan.geometry.blocks)
        masks = []
        for of_group, layout in zip(self._written, self._layouts, strict=True):
            slots = range(layout.slots)
            bits = [[of_group[block] >> slot & 1 for slot in slots] for block in blocks]
            masks.append(np.array(bits, np.bool_))
        return masks

    def refusal(self, op: Op) -> str | None:
        """Why this op must be refused, or None."""
        return self.ownership.refusal(op)

    def apply(self, op: ByteOp) -> Effect:
        """Do a legal op whose blocks are ids."""
        return self._does[type(op)](self, op)

    def _allocate(self, op: Allocate) -> Effect:
        for block in op.blocks:
            self.ownership.owners[block] = op.group
            self._written[op.group][block] = 0
        return self._zero(op) if op.zero else Effect(bool(op.blocks))

    def _free(self, op: Free) -> Effect:
        for block in op.blocks:
            self.ownership.owners[block_id(block)] = None
        return Effect(bool(op.blocks))

    def _evict(self, op: Evict) -> Effect:
        for slot in op.host_slots:
            self.ownership.holders[slot] = None
            self.ownership.parts[slot] = set()
        return Effect(bool(op.host_slots))

    def _reset(self, _: Reset) -> Effect:
        acted = {*self.ownership.owners, *self.ownership.holders} != {None}
        self.ownership.clear()
        return Effect(acted)

    def _load(self, area: str, word: int, places: Addresses) -> Bytes:
        """Bytes of words of this size at places; all that an op reads goes through here."""
        return self._memory[area, word][places].view(_BYTE)

    def _store(self, area: str, word: int, places: Addresses, data: Bytes) -> Effect:
        """Store bytes as words at places; all that an op writes goes through here."""
        memory = self._memory[area, word]
        before = memory[places].view(_BYTE)
        memory[places] = data.view(memory.dtype)
        return Effect(data.size > 0, data.size, int(np.count_nonzero(before != data)))

    def _write(self, op: WriteTokens) -> Effect:
        return self._write_rows(op, self.payload(op))

    def _write_values(self, op: WriteValues) -> Effect:
        return self._write_rows(op, self.encoded(op), self._stored[op.group])

    def _write_positions(self, op: WritePositions) -> Effect:
        effect = self._write_rows(op, self.positions(op))
        for block, token in op.slots[op.defined :]:
            self._written[op.group][block] &= ~(1 << token)
        return effect

    def _mutate(self, op: Mutate) -> Effect:
        """Overwrite all undefined slots; the blocks that nobody owns are any group's."""
        effect = _NOTHING
        owners, masks = self.ownership.owners, self.written
        for group, written in enumerate(masks):
            nobodys = [o is None and b % len(masks) == group for b, o in enumerate(owners)]
            owned = np.array([owner == group for owner in owners])[:, None]
            blocks, tokens = np.nonzero((owned & ~written) | np.array(nobodys)[:, None])
            numbers = (blocks * self.slots(group) + tokens).tolist()
            layout = self._layouts[group]
            places = layout.of_slots(blocks, tokens).reshape(-1)
            rows = self.undefined(op.tag, group, numbers).reshape(-1)
            effect += self._store("pool", layout.cell_word, places, rows)
        return effect

    def _write_rows(
        self,
        op: WriteTokens | WriteValues | WritePositions,
        rows: Bytes,
        stored: Mask | None = None,
    ) -> Effect:
        """Store rows of an op; of each only the words that are ``stored``, or all of them."""
        named = [slot for slot in op.slots if slot is not None]
        if not named:
            return _NOTHING
        written, word = self._written[op.group], self._layouts[op.group].cell_word
        for block, token in named:
            written[block] |= 1 << token
        if len(named) < len(rows):
            rows = rows.compress([slot is not None for slot in op.slots], axis=0)
        places = self._of_slots(op.group, named)
        if stored is not None:
            places = places.reshape(len(named), -1).compress(stored, axis=1).reshape(-1)
            rows = in_words(rows, word).compress(stored, axis=1).view(np.uint8)
        return self._store("pool", word, places, rows.reshape(-1))

    def _of_slots(self, group: int, named: list[Slot]) -> Addresses:
        """Addresses of the cells of slots, at least one, row after row."""
        cells = self._places[group].cells
        return _joined([cells[block][token] for block, token in named])

    def _of_blocks(self, group: int, blocks: Sequence[Block]) -> Addresses:
        """Addresses of the content of blocks, at least one, one after the other."""
        images = self._places[group].images
        return _joined([images[block] for block in blocks])

    def _zero(self, op: Zero | Allocate) -> Effect:
        if not op.blocks:
            return _NOTHING
        for block in op.blocks:
            self._written[op.group][block] = 0
        places, word = self._of_blocks(op.group, op.blocks), self._layouts[op.group].image_word
        return self._store("pool", word, places, np.zeros(places.size * word, np.uint8))

    def _read(self, op: Read | ReadValues) -> Effect:
        word, row_bytes = self._layouts[op.group].cell_word, self.row_bytes(op.group)
        named = [slot for slot in op.slots if slot is not None]
        if not named:
            rows = np.zeros((len(op.slots), row_bytes), np.uint8)
            return Effect(acted=False, rows=rows)
        found = self._load("pool", word, self._of_slots(op.group, named))
        rows = found.reshape(len(named), row_bytes)
        if len(named) < len(op.slots):
            padded = np.zeros((len(op.slots), row_bytes), np.uint8)
            padded[[slot is not None for slot in op.slots]] = rows
            rows = padded
        return Effect(acted=True, content_bytes=found.size, rows=rows)

    def _read_values(self, op: ReadValues) -> Effect:
        effect = self._read(op)
        assert effect.rows is not None
        effect.rows = self.decoded(op, effect.rows)
        return effect

    def _copy(self, op: CopyBlocks) -> Effect:
        layout, written = self._layouts[op.group], self._written[op.group]
        count = layout.slots if op.tokens is None else op.tokens
        word = layout.image_word if count == layout.slots else layout.cell_word
        effect = _NOTHING
        for pair in op.pairs:
            here, there = [self._of_tokens(op.group, block, count) for block in pair]
            effect += self._store("pool", word, there, self._load("pool", word, here))
            kept = -1 << count
            written[pair.target] = written[pair.target] & kept | written[pair.source] & ~kept
        return effect

    def _of_tokens(self, group: int, block: Block, count: int) -> Addresses:
        """Addresses of the first slots of a block: of words of the image where these are all."""
        places = self._places[group]
        if count == self.slots(group):
            return places.images[block]
        return places.cells[block][:count].reshape(-1)

    def _offload(self, op: Offload) -> Effect:
        effect = _NOTHING
        holders, held = self.ownership.holders, self.ownership.parts
        for group, moves in op.jobs:
            if not moves:
                continue
            written, host_written = self._written[group], self._host_written[group]
            places, here, there = self._places[group], [], []
            for block, slot, part in moves:
                holders[slot] = group
                held[slot].add(part)
                host_written[slot, part] = written[block]
                here.append(places.images[block])
                there.append(places.parts[slot, part])
            word = self._layouts[group].image_word
            data = self._load("pool", word, _joined(here))
            effect += self._store("host", word, _joined(there), data)
        return effect

    def _restore(self, op: Restore) -> Effect:
        effect = _NOTHING
        for group, moves in op.jobs:
            if not moves:
                continue
            written, host_written = self._written[group], self._host_written[group]
            places, here, there = self._places[group], [], []
            for block, slot, part in moves:
                written[block] = host_written[slot, part]
                here.append(places.images[block])
                there.append(places.parts[slot, part])
            word = self._layouts[group].image_word
            data = self._load("host", word, _joined(there))
            effect += self._store("pool", word, _joined(here), data)
        return effect

    #: By type of an op, what does it.
    _does: ClassVar[dict[type[ByteOp], Callable[[Any, Any], Effect]]] = {
        Allocate: _allocate,
        Free: _free,
        WriteTokens: _write,
        WriteValues: _write_values,
        WritePositions: _write_positions,
        Mutate: _mutate,
        Zero: _zero,
        CopyBlocks: _copy,
        Offload: _offload,
        Restore: _restore,
        Read: _read,
        ReadValues: _read_values,
        Evict: _evict,
        Reset: _reset,
    }


def _joined(parts: list[Addresses]) -> Addresses:
    """All of these, at least one; the only one is no copy."""
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def in_words(data: Bytes, size: int) -> Words:
    """The same bytes as words of a size, along the last axis; a rest that is no word is left out.

    It takes part in no op.
    """
    return data[..., : data.shape[-1] // size * size].view(f"V{size}")
