"""Which ops are refused, and why: predictions from ownership alone, no byte looked at."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Evict,
    Free,
    Job,
    Offload,
    Op,
    Read,
    Reset,
    Restore,
    WriteTokens,
    Zero,
)
from kvexact.refmodel.spec import Geometry


@dataclass(slots=True)
class Ownership:
    """Who owns which block, and what each host slot holds.

    Attributes:
        owners: group by block id; None: nobody.
        holders: group by host slot; None: nobody.
        parts: parts of the chunk that a host slot holds.
    """

    geometry: Geometry
    host_slots: int
    owners: list[int | None] = field(init=False)
    holders: list[int | None] = field(init=False)
    parts: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nobody owns or holds anything."""
        self.owners = [None] * self.geometry.blocks
        self.holders = [None] * self.host_slots
        self.parts = [set() for _ in range(self.host_slots)]

    def refusal(self, op: Op) -> str | None:
        """The first reason of `OP_REASONS` for which this op, blocks bound to ids, is illegal."""
        match op:
            case Allocate(group=group, blocks=blocks):
                owned = any(self.owner_of(b) is not None for b in blocks)
                return _first(
                    range=not (self._is_group(group) and self._are_blocks(blocks)),
                    duplicate=_repeats(blocks),
                    owner=owned,
                )
            case Free(group=group, blocks=blocks) | Zero(group=group, blocks=blocks):
                return _first(
                    range=not (self._is_group(group) and self._are_blocks(blocks)),
                    duplicate=_repeats(blocks),
                    owner=not self._owns(group, blocks),
                )
            case WriteTokens(group=group, slots=slots) | Read(group=group, slots=slots):
                named = [slot for slot in slots if slot is not None]
                blocks = tuple([slot.block for slot in named])
                tokens = [slot.token for slot in named]
                return _first(
                    range=not (
                        self._is_group(group)
                        and self._are_blocks(blocks)
                        and _within(tokens, self.geometry.groups[group].block_size)
                    ),
                    duplicate=type(op) is WriteTokens and _repeats(named),
                    owner=not self._owns(group, blocks),
                )
            case CopyBlocks(group=group, pairs=pairs, tokens=count):
                blocks = tuple([block for pair in pairs for block in pair])
                return _first(
                    range=not (
                        self._is_group(group)
                        and self._are_blocks(blocks)
                        and (count is None or 0 <= count <= self.geometry.groups[group].block_size)
                    ),
                    owner=not self._owns(group, blocks),
                )
            case Offload(jobs=jobs):
                return self._transfer_refusal(jobs, to_host=True)
            case Restore(jobs=jobs):
                return self._transfer_refusal(jobs, to_host=False)
            case Evict(host_slots=host_slots):
                return _first(
                    range=not _within(host_slots, len(self.holders)),
                    duplicate=_repeats(host_slots),
                    host=any(self.holder_of(slot) is None for slot in host_slots),
                )
        assert type(op) is Reset
        return None

    def owner_of(self, block: object) -> int | None:
        """The group that owns a block; None also for what is no block."""
        return self.owners[block] if type(block) is int and 0 <= block < len(self.owners) else None

    def holder_of(self, host_slot: int) -> int | None:
        """The group whose chunk a host slot holds; None also for what is no slot."""
        return self.holders[host_slot] if 0 <= host_slot < len(self.holders) else None

    def _transfer_refusal(self, jobs: tuple[Job, ...], *, to_host: bool) -> str | None:
        moves = [(job.group, move) for job in jobs for move in job.moves]
        in_range = (
            all(self._is_group(job.group) for job in jobs)
            and self._are_blocks([move.block for _, move in moves])
            and _within([move.host_slot for _, move in moves], len(self.holders))
            and _within([move.part for _, move in moves], self.geometry.host.chunk_blocks)
        )
        if not in_range:
            return "range"
        if to_host:
            repeats = _repeats([(move.host_slot, move.part) for _, move in moves])
        else:
            repeats = _repeats([move.block for _, move in moves])
        return _first(
            duplicate=repeats,
            owner=any(self.owner_of(move.block) != group for group, move in moves),
            host=self._crowded(jobs) if to_host else self._absent(jobs),
        )

    def _crowded(self, jobs: tuple[Job, ...]) -> bool:
        """Whether an offload would put two groups into one host slot."""
        holders: dict[int, int] = {}
        for job in jobs:
            for move in job.moves:
                held_by = self.holders[move.host_slot]
                holder = holders.setdefault(
                    move.host_slot, job.group if held_by is None else held_by
                )
                if holder != job.group:
                    return True
        return False

    def _absent(self, jobs: tuple[Job, ...]) -> bool:
        """Whether a restore asks for what the host tier does not hold."""
        return any(
            self.holders[move.host_slot] != job.group or move.part not in self.parts[move.host_slot]
            for job in jobs
            for move in job.moves
        )

    def _is_group(self, group: int) -> bool:
        return 0 <= group < len(self.geometry.groups)

    def _are_blocks(self, blocks: Iterable[object]) -> bool:
        return all(type(b) is int and 0 <= b < len(self.owners) for b in blocks)

    def _owns(self, group: int, blocks: Iterable[object]) -> bool:
        return all(self.owner_of(block) == group for block in blocks)


def _first(**reasons: bool) -> str | None:
    return next((reason for reason, applies in reasons.items() if applies), None)


def _within(values: Iterable[int], end: int) -> bool:
    return all(0 <= value < end for value in values)


def _repeats(values: Iterable[object]) -> bool:
    listed = list(values)
    return len(set(listed)) < len(listed)
