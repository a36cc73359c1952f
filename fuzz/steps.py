"""Draws one operation from what the model holds: mostly legal, at times to be refused."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from kvexact.fuzz.choose import Chooser, chance, pick, sample, weighted
from kvexact.fuzz.family import TIMED_WEIGHTS, Family
from kvexact.fuzz.names import Names
from kvexact.fuzz.step_parts import NOWHERE, Parts, insert_bad
from kvexact.impl.named import made
from kvexact.impl.target import Target
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import (
    BLOCK_OPS,
    TIMED_OPS,
    VALUE_STYLES,
    VALUE_TYPES,
    Allocate,
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
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.timed_ops import Fence, Poll, Step

_KEPT = frozenset({"allocate", "write_tokens", "write_values", "offload", "restore"})
_DROPPED_PERCENT = 30
#: What takes the place of an op of values where no group has any.
_RAW = {"write_values": "write_tokens", "read_values": "read"}
_SPECIAL_PERCENT = 30
#: Transfers that are polled most.
_LATEST = 3


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
        if target.is_async:
            urn += drawn_in_time(chooser)
        illegal = family.illegal_percent if target.op_refusals else 0
        zero = family.zero_percent if "zero" in target.op_kinds else 0
        return cls(tuple(urn), illegal, family.batch_percent, zero, target.copies_slots)


def drawn_in_time(chooser: Chooser) -> list[str]:
    """Ops in time that an example of an asynchronous target draws, each as often as it weighs."""
    urn: list[str] = []
    for kind, weight in TIMED_WEIGHTS.items():
        urn += [kind] * (0 if chance(chooser, _DROPPED_PERCENT) else weight)
    return urn


def polled(chooser: Chooser, jobs: list[int]) -> int:
    """One of the latest transfers, at times any."""
    return pick(chooser, jobs if chance(chooser, 10) else jobs[-_LATEST:])


class Steps(Parts):
    """Draws ops for one example."""

    def __init__(self, model: Cache, names: Names, mix: Mix) -> None:
        super().__init__(model, names, mix.batch_percent)
        self._mix = mix

    def draw(self, chooser: Chooser, op_id: int) -> Op:
        """The next op, with handles for blocks."""
        illegal = chance(chooser, self._mix.illegal_percent)
        kind = pick(chooser, self._mix.urn)
        if not illegal and not self._with_values:
            kind = _RAW.get(kind, kind)
        draw: Callable[..., Op] = getattr(self, f"_{self._able(kind)}")
        return draw(chooser, op_id, illegal=illegal)

    def _able(self, kind: str) -> str:
        """The kind itself, or one that makes way for it where it has nothing to act on."""
        ownership = self._model.ownership
        if kind == "poll" and not self._names.jobs:
            kind = "offload"
        if kind in ("restore", "evict") and ownership.holders.count(None) == ownership.host_slots:
            kind = "offload"
        if kind == "allocate" and None not in ownership.owners:
            kind = "write_tokens"
        if kind != "allocate" and not any(self._names.live):
            kind = "allocate"
        return kind

    def _allocate(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        owners = self._model.ownership.owners
        free = [block for block, owner in enumerate(owners) if owner is None]
        blocks = sample(chooser, free, 1 + chooser.below(4))
        if illegal:
            owned = [block for block, owner in enumerate(owners) if owner is not None]
            bad = pick(chooser, (*owned, *blocks, self._geometry.blocks, *NOWHERE))
            insert_bad(chooser, blocks, bad)
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

    def _write_tokens(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._group(chooser)
        return WriteTokens(op_id, group, self._written(chooser, group, bad=illegal), tag=op_id)

    def _write_values(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        group = self._value_group(chooser, illegal=illegal)
        slots = self._written(chooser, group, bad=illegal and group in self._with_values)
        plain, special = VALUE_STYLES
        style = special if chance(chooser, _SPECIAL_PERCENT) else plain
        return WriteValues(op_id, group, slots, op_id, pick(chooser, VALUE_TYPES), style)

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
        pairs = [made(Pair, pair) for pair in pairwise(blocks)]
        if chance(chooser, 30):
            pairs.reverse()
        size = self._sizes[group]
        of_slots = chance(chooser, 40) and self._mix.copies_slots
        tokens = chooser.below(size + 1) if of_slots else None
        if illegal and chance(chooser, 30):
            tokens = pick(chooser, (size + 1, -1))
        return CopyBlocks(op_id, group, tuple(pairs), tokens)

    def _offload(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        shared = self._slot_for_two(chooser) if illegal else ()
        if shared:
            return Offload(op_id, shared)
        jobs: list[Job] = []
        job_count = 1 + weighted(chooser, (1, 2) if illegal else (7, 3))
        bad_job = job_count - 1 if illegal else -1
        if illegal and chance(chooser, 30):
            bad_job = 0
        for nth in range(job_count):
            bad_block = nth == bad_job and chance(chooser, 60)
            group = self._group(chooser)
            count = self._moves_wanted(chooser, group)
            blocks = self._blocks(chooser, group, count, bad=bad_block)
            places = self._host_places(chooser, group, jobs, len(blocks))
            pairs = zip(blocks, places, strict=False)
            moves = [made(Move, (block, slot, part)) for block, (slot, part) in pairs]
            if nth == bad_job and not bad_block and moves:
                moves[0] = self._bad_place(chooser, moves[0])
            if bad_block and len(moves) > 2:  # a place twice, too: two reasons compete
                moves[-1] = made(Move, (moves[-1].block, *moves[0][1:]))
            jobs.append(made(Job, (group, tuple(moves))))
        return Offload(op_id, tuple(jobs))

    def _restore(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        jobs: list[Job] = []
        ownership = self._model.ownership
        job_count = 1 + weighted(chooser, (7, 3))
        bad_job = chooser.below(job_count) if illegal else -1
        for nth in range(job_count):
            group = self._restorable_group(chooser)
            held = [
                (slot, part)
                for slot, holder in enumerate(ownership.holders)
                if holder == group
                for part in sorted(ownership.parts[slot])
            ]
            count = self._moves_wanted(chooser, group)
            moves = []
            if held:
                used = {move.block for job in jobs for move in job.moves}
                owned = [b for b in self._names.live[group].values() if b not in used]
                blocks = sample(chooser, owned, count)
                moves = [made(Move, (block, *pick(chooser, held))) for block in blocks]
            if nth == bad_job:
                moves.append(self._bad_restore(chooser, group, moves))
            jobs.append(made(Job, (group, tuple(moves))))
        return Restore(op_id, tuple(jobs))

    def _evict(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        holders = self._model.ownership.holders
        held = [slot for slot, holder in enumerate(holders) if holder is not None]
        slots = sample(chooser, held, 1 + chooser.below(2))
        if illegal:
            slots.append(pick(chooser, (*range(len(holders) + 1), *NOWHERE)))
            if len(slots) > 2:  # twice: two reasons compete
                slots[0] = slots[-1]
        return Evict(op_id, tuple(slots))

    def _reset(self, _chooser: Chooser, op_id: int, *, illegal: bool) -> Op:  # noqa: ARG002 - as all
        return Reset(op_id)

    def _fence(self, _chooser: Chooser, op_id: int, *, illegal: bool) -> Op:  # noqa: ARG002 - as all
        return Fence(op_id)

    def _step(self, _chooser: Chooser, op_id: int, *, illegal: bool) -> Op:  # noqa: ARG002 - as all
        return Step(op_id)

    def _poll(self, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:  # noqa: ARG002 - as all
        return Poll(op_id, polled(chooser, self._names.jobs))


_DRAWN = {**BLOCK_OPS, **TIMED_OPS}
assert set(_DRAWN) == {name[1:] for name in vars(Steps) if name[1:] in _DRAWN}
