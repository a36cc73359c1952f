"""Draws one operation from what the model holds: mostly legal, at times to be refused."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, starmap

from kvexact.fuzz.choose import Chooser, chance, pick, sample, weighted
from kvexact.fuzz.family import Family
from kvexact.fuzz.names import Names
from kvexact.impl.target import Target
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.formats import takes_values
from kvexact.refmodel.ops import (
    OPS,
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

_NO_BLOCKS = (-1, 2**31)
_KEPT = frozenset({"allocate", "write_tokens", "write_values", "offload", "restore"})
_DROPPED_PERCENT = 30
#: What takes the place of an op of values where no group has any.
_RAW = {"write_values": "write_tokens", "read_values": "read"}
#: Most slots of one block in a write or a read; whole small blocks are within it.
_RUN_MOST = 8
#: Most rows of a large write: more than a wave of a kernel.
_ROWS_MOST = 160
_SPECIAL_PERCENT = 30


@dataclass(frozen=True, slots=True)
class Mix:
    """What one example draws: a swarm of op kinds that keeps those that write and restore bytes.

    Attributes:
        urn: op kinds, each as many times as it weighs.
        copies_slots: whether a copy may name a number of slots.
    """

    urn: tuple[str, ...]
    illegal_percent: int
    batch_percent: int
    zero_percent: int
    copies_slots: bool = True

    @classmethod
    def draw(cls, chooser: Chooser, family: Family, target: type[Target] | Target) -> "Mix":
        urn: list[str] = []
        for kind, weight in family.weights.items():
            dropped = weight and kind not in _KEPT and chance(chooser, _DROPPED_PERCENT)
            if kind in target.op_kinds and not dropped:
                urn += [kind] * weight
        illegal = family.illegal_percent if target.op_refusals else 0
        zero = family.zero_percent if "zero" in target.op_kinds else 0
        return cls(tuple(urn), illegal, family.batch_percent, zero, target.copies_slots)


class Steps:
    """Draws ops for one example."""

    def __init__(self, model: Cache, names: Names, mix: Mix) -> None:
        self._model = model
        self._names = names
        self._mix = mix
        self._geometry = model.plan.geometry
        self._groups = range(len(self._geometry.groups))
        self._with_values = [
            number
            for number, group in enumerate(self._geometry.groups)
            if all(takes_values(layers.page_format) for layers in group.layer_sets)
        ]
        self._runs_per_block = [
            sum(p.extents["L"] for p in placements) for placements in model.plan.placements
        ]

    def draw(self, chooser: Chooser, op_id: int) -> Op:
        """The next op, with handles for blocks."""
        illegal = chance(chooser, self._mix.illegal_percent)
        kind = pick(chooser, self._mix.urn)
        if not illegal and not self._with_values:
            kind = _RAW.get(kind, kind)
        kind = self._able(kind)
        draw: Callable[..., Op] = getattr(self, f"_{kind}")
        return draw(chooser, op_id, illegal=illegal)

    def _able(self, kind: str) -> str:
        """The kind itself, or one that makes way for it where it has nothing to act on."""
        ownership = self._model.ownership
        owning = any(self._names.live)
        if kind in ("restore", "evict") and all(h is None for h in ownership.holders):
            kind = "offload"
        if kind == "allocate" and None not in ownership.owners:
            kind = "write_tokens"
        if kind != "allocate" and not owning:
            kind = "allocate"
        return kind

    def _group(self, chooser: Chooser) -> int:
        """A group, mostly one that owns blocks."""
        if len(self._groups) == 1:
            return 0
        owning = [group for group in self._groups if self._names.live[group]]
        if owning and not chance(chooser, 5):
            return pick(chooser, owning)
        return chooser.below(len(self._groups))

    def _value_group(self, chooser: Chooser, *, illegal: bool) -> int:
        """A group as for other ops; one that takes values, unless the op is to be refused."""
        group = self._group(chooser)
        if illegal or group in self._with_values:
            return group
        return pick(chooser, self._with_values)

    def _bad_block(self, chooser: Chooser, group: int) -> Block:
        """A block that the group does not own: freed, another group's, or none at all."""
        foreign = [h for g in self._groups if g != group for h in self._names.live[g].values()]
        others = self._names.freed + foreign
        if others and chance(chooser, 60):
            return pick(chooser, others)
        return pick(chooser, (self._geometry.blocks, *_NO_BLOCKS))

    def _blocks(self, chooser: Chooser, group: int, count: int, *, bad: bool) -> list[Block]:
        """Different blocks of a group, and a bad one among them if asked."""
        owned: list[Block] = list(self._names.live[group].values())
        blocks = sample(chooser, owned, count)
        if bad:
            extra = self._bad_block(chooser, group)
            if blocks and chance(chooser, 20):
                extra = blocks[0]
            blocks.insert(chooser.below(len(blocks) + 1), extra)
        return blocks

    def _allocate(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        owners = self._model.ownership.owners
        free = [block for block, owner in enumerate(owners) if owner is None]
        blocks = sample(chooser, free, 1 + chooser.below(4))
        if illegal:
            owned = [block for block, owner in enumerate(owners) if owner is not None]
            bad = pick(chooser, (*owned, *blocks, self._geometry.blocks, *_NO_BLOCKS))
            blocks.insert(chooser.below(len(blocks) + 1), bad)
        zero = chance(chooser, self._mix.zero_percent)
        return Allocate(op_id, chooser.below(len(self._groups)), tuple(blocks), zero)

    def _free(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._group(chooser)
        blocks = self._blocks(chooser, group, 1 + chooser.below(2), bad=illegal)
        return Free(op_id, group, tuple(blocks))

    def _zero(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._group(chooser)
        blocks = self._blocks(chooser, group, 1 + chooser.below(3), bad=illegal)
        return Zero(op_id, group, tuple(blocks))

    def _slots(self, chooser: Chooser, group: int, *, bad: bool) -> list[Slot | None]:
        """Runs of slots, or single ones all over; pads among them."""
        size = self._model.slots(group)
        slots = self._run(chooser, group, size)
        if chance(chooser, 50):
            slots.reverse()
        if chance(chooser, 25):
            slots.insert(chooser.below(len(slots) + 1), None)
        if bad:
            slot = Slot(self._bad_block(chooser, group), 0)
            owned = list(self._names.live[group].values())
            if owned and chance(chooser, 40):
                slot = Slot(pick(chooser, owned), pick(chooser, (size, *_NO_BLOCKS)))
            slots.insert(chooser.below(len(slots) + 1), slot)
        return slots

    def _run(self, chooser: Chooser, group: int, size: int) -> list[Slot | None]:
        """Slots of one or two blocks: single ones, up to the end, or on from there.

        On from the end of a block is the next block, or where there is one alone, a ring, its
        begin.
        """
        if chance(chooser, self._mix.batch_percent) and chance(chooser, 10):
            every = [(block, n) for block in self._names.live[group].values() for n in range(size)]
            return list(starmap(Slot, every[:_ROWS_MOST]))
        blocks = self._blocks(chooser, group, 1 + chooser.below(2), bad=False)
        near = min(size, _RUN_MOST)
        if blocks and size > 1 and chance(chooser, 20):
            first = size - 1 - chooser.below(near)
            places = [divmod(n, size) for n in range(first, first + 1 + chooser.below(near))]
            return [Slot(blocks[which % len(blocks)], slot) for which, slot in places]
        slots: list[Slot | None] = []
        for block in blocks:
            first = chooser.below(size)
            end = size if chance(chooser, 50) else first + 1
            slots += [Slot(block, slot) for slot in range(first, min(end, first + near))]
        return slots

    def _write_tokens(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._group(chooser)
        return WriteTokens(op_id, group, self._written(chooser, group, bad=illegal), tag=op_id)

    def _write_values(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._value_group(chooser, illegal=illegal)
        slots = self._written(chooser, group, bad=illegal and group in self._with_values)
        plain, special = VALUE_STYLES
        style = special if chance(chooser, _SPECIAL_PERCENT) else plain
        return WriteValues(op_id, group, slots, op_id, pick(chooser, VALUE_TYPES), style)

    def _written(self, chooser: Chooser, group: int, *, bad: bool) -> tuple[Slot | None, ...]:
        slots = self._slots(chooser, group, bad=bad)
        if bad and len(slots) > 1 and chance(chooser, 20):
            slots[0] = slots[-1]
        return tuple(slots)

    def _read(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._group(chooser)
        return Read(op_id, group, tuple(self._slots(chooser, group, bad=illegal)))

    def _read_values(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._value_group(chooser, illegal=illegal)
        bad = illegal and group in self._with_values
        return ReadValues(op_id, group, tuple(self._slots(chooser, group, bad=bad)))

    def _copy_blocks(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._group(chooser)
        blocks = self._blocks(chooser, group, 2 + chooser.below(3), bad=illegal)
        pairs = [Pair(*pair) for pair in pairwise(blocks)]
        if chance(chooser, 30):
            pairs.reverse()
        size = self._model.slots(group)
        of_slots = chance(chooser, 40) and self._mix.copies_slots
        tokens = chooser.below(size + 1) if of_slots else None
        if illegal and chance(chooser, 30):
            tokens = pick(chooser, (size + 1, -1))
        return CopyBlocks(op_id, group, tuple(pairs), tokens)

    def _moves_wanted(self, chooser: Chooser, group: int) -> int:
        """A few moves; or as many as make about 16 descriptors, where fast paths begin."""
        few = 1 + chooser.below(3)
        if chance(chooser, self._mix.batch_percent):
            return max(few, 15 // self._runs_per_block[group] + chooser.below(3))
        return few

    def _offload(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        jobs = []
        taken: set[int] = set()
        job_count = 1 + weighted(chooser, (7, 3))
        bad_job = chooser.below(job_count) if illegal else -1
        for nth in range(job_count):
            group = self._group(chooser)
            count = self._moves_wanted(chooser, group)
            blocks = self._blocks(chooser, group, count, bad=nth == bad_job)
            places = self._host_places(chooser, group, taken, len(blocks))
            moves = [Move(block, *place) for block, place in zip(blocks, places, strict=False)]
            if nth == bad_job and moves:
                moves[0] = self._bad_place(chooser, moves[0])
            taken.update(move.host_slot for move in moves)
            jobs.append(Job(group, tuple(moves)))
        return Offload(op_id, tuple(jobs))

    def _host_places(
        self, chooser: Chooser, group: int, taken: set[int], count: int
    ) -> list[tuple[int, int]]:
        """Different (host slot, part) that a group may fill, in drawn order."""
        holders = self._model.ownership.holders
        slots = [
            slot
            for slot, holder in enumerate(holders)
            if holder in (None, group) and slot not in taken
        ]
        parts = range(self._geometry.host.chunk_blocks)
        if len(parts) == 1:
            return [(slot, 0) for slot in sample(chooser, slots, count)]
        wanted = 1 + count // len(parts) + chooser.below(2)
        places = [(slot, part) for slot in sample(chooser, slots, wanted) for part in parts]
        return sample(chooser, places, count)

    def _bad_place(self, chooser: Chooser, move: Move) -> Move:
        """The same move with a host slot or a part that cannot be, or a slot that is held."""
        holders = self._model.ownership.holders
        held = [slot for slot, holder in enumerate(holders) if holder is not None]
        if held and chance(chooser, 40):
            return Move(move.block, pick(chooser, held), move.part)
        if chance(chooser, 50):
            return Move(move.block, pick(chooser, (len(holders), *_NO_BLOCKS)), move.part)
        return Move(
            move.block, move.host_slot, pick(chooser, (self._geometry.host.chunk_blocks, -1))
        )

    def _restore(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        jobs = []
        used: set[Block] = set()
        job_count = 1 + weighted(chooser, (7, 3))
        bad_job = chooser.below(job_count) if illegal else -1
        for nth in range(job_count):
            group = self._restorable_group(chooser)
            held = [
                (slot, part)
                for slot, holder in enumerate(self._model.ownership.holders)
                if holder == group
                for part in sorted(self._model.ownership.parts[slot])
            ]
            count = self._moves_wanted(chooser, group)
            owned = [b for b in self._names.live[group].values() if b not in used]
            blocks: list[Block] = sample(chooser, owned, count) if held else []
            moves = [Move(block, *pick(chooser, held)) for block in blocks]
            if nth == bad_job:
                moves.append(self._bad_restore(chooser, group, moves))
            used.update(move.block for move in moves)
            jobs.append(Job(group, tuple(moves)))
        return Restore(op_id, tuple(jobs))

    def _bad_restore(self, chooser: Chooser, group: int, moves: list[Move]) -> Move:
        """Into a block that is not the group's, or from a place that holds nothing of it."""
        place = moves[0][1:] if moves else (0, 0)
        if chance(chooser, 30):
            return Move(self._bad_block(chooser, group), *place)
        used = {move.block for move in moves}
        owned = [block for block in self._names.live[group].values() if block not in used]
        block = pick(chooser, owned) if owned else self._bad_block(chooser, group)
        if chance(chooser, 20):
            return self._bad_place(chooser, Move(block, *place))
        return Move(block, *self._absent_place(chooser, group))

    def _absent_place(self, chooser: Chooser, group: int) -> tuple[int, int]:
        """Where nothing of a group is: it may have been, be another part, or be anywhere."""
        ownership = self._model.ownership
        held = [slot for slot, holder in enumerate(ownership.holders) if holder == group]
        parts = range(self._geometry.host.chunk_blocks)
        places = [(slot, part) for slot in range(len(ownership.holders)) for part in parts]
        absent = [
            (s, part) for s, part in places if s not in held or part not in ownership.parts[s]
        ]
        once = [place for place in self._names.stored if place in absent]
        again = [place for place in once if place[0] in held]
        others = [place for place in absent if place[0] in held]
        kinds = [kind for kind in (again, once, others, absent) if kind]
        return pick(chooser, pick(chooser, kinds)) if kinds else (len(ownership.holders), 0)

    def _restorable_group(self, chooser: Chooser) -> int:
        """A group, mostly one that owns blocks and has something in the host tier."""
        holders = set(self._model.ownership.holders)
        able = [group for group in self._groups if group in holders and self._names.live[group]]
        return pick(chooser, able) if able and not chance(chooser, 5) else self._group(chooser)

    def _evict(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        holders = self._model.ownership.holders
        held = [slot for slot, holder in enumerate(holders) if holder is not None]
        slots = sample(chooser, held, 1 + chooser.below(2))
        if illegal:
            slots.append(pick(chooser, (*range(len(holders) + 1), *_NO_BLOCKS)))
        return Evict(op_id, tuple(slots))

    def _reset(self, _chooser: Chooser, op_id: int, *, illegal: bool) -> Op:  # noqa: ARG002 - as all
        return Reset(op_id)


assert set(OPS) == {name[1:] for name in vars(Steps) if name[1:] in OPS}
