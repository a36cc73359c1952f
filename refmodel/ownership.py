"""Which ops are refused, and why: predictions from ownership alone, no byte looked at."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvexact.refmodel.formats import slots as slots_of
from kvexact.refmodel.formats import takes_values
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
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.spec import Geometry

_OF_VALUES = frozenset({WriteValues, ReadValues})
_WRITES = frozenset({WriteTokens, WriteValues})
_INT = {int}


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
    _slots: list[int] = field(init=False)
    _take_values: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.geometry.groups
        self._slots = [slots_of(group, group.layer_sets[0]) for group in groups]
        self._take_values = [
            all(takes_values(layers.page_format) for layers in group.layer_sets) for group in groups
        ]
        self.clear()

    def clear(self) -> None:
        """Nobody owns or holds anything."""
        self.owners = [None] * self.geometry.blocks
        self.holders = [None] * self.host_slots
        self.parts = [set() for _ in range(self.host_slots)]

    def refusal(self, op: Op) -> str | None:
        """The first reason of `OP_REASONS` for which this op, blocks bound to ids, is illegal."""
        match op:
            case WriteTokens() | WriteValues() | Read() | ReadValues():
                return self._slots_refusal(op)
            case Offload(jobs=jobs):
                return self._transfer_refusal(jobs, to_host=True)
            case Restore(jobs=jobs):
                return self._transfer_refusal(jobs, to_host=False)
            case Allocate(group=group, blocks=blocks):
                if not self._are_blocks(group, blocks):
                    return "range"
                if _repeats(blocks):
                    return "duplicate"
                return self._unless_owned(None, blocks)
            case Free(group=group, blocks=blocks) | Zero(group=group, blocks=blocks):
                if not self._are_blocks(group, blocks):
                    return "range"
                if _repeats(blocks):
                    return "duplicate"
                return self._unless_owned(group, blocks)
            case CopyBlocks(group=group, pairs=pairs, tokens=count):
                both = [block for pair in pairs for block in pair]
                counted = () if count is None else (count,)
                if not (self._are_blocks(group, both) and _within(counted, self._slots[group] + 1)):
                    return "range"
                return self._unless_owned(group, both)
            case Evict(host_slots=host_slots):
                if not _within(host_slots, len(self.holders)):
                    return "range"
                if _repeats(host_slots):
                    return "duplicate"
                return "host" if None in [self.holders[slot] for slot in host_slots] else None
        assert type(op) is Reset
        return None

    def _slots_refusal(self, op: WriteTokens | WriteValues | Read | ReadValues) -> str | None:
        named = [slot for slot in op.slots if slot is not None]
        blocks = [block for block, _ in named]
        if not (
            self._are_blocks(op.group, blocks)
            and _within([token for _, token in named], self._slots[op.group])
        ):
            return "range"
        if type(op) in _OF_VALUES and not self._take_values[op.group]:
            return "format"
        if type(op) in _WRITES and _repeats(named):
            return "duplicate"
        return self._unless_owned(op.group, blocks)

    def _are_blocks(self, group: int, blocks: Sequence[Block]) -> bool:
        """Whether these are a group and ids of blocks."""
        if not 0 <= group < len(self._slots):
            return False
        return {*map(type, blocks)} <= _INT and _within(_ids(blocks), len(self.owners))

    def _unless_owned(self, group: int | None, blocks: Sequence[Block]) -> str | None:
        """A reason where one of these blocks has another owner; None stands for nobody."""
        owners = self.owners
        return None if {owners[block] for block in _ids(blocks)} <= {group} else "owner"

    def _transfer_refusal(self, jobs: tuple[Job, ...], *, to_host: bool) -> str | None:
        groups: list[int] = []
        blocks: list[Block] = []
        slots: list[int] = []
        parts: list[int] = []
        for group, moves in jobs:
            for block, slot, part in moves:
                groups.append(group)
                blocks.append(block)
                slots.append(slot)
                parts.append(part)
        if not (
            _within([job.group for job in jobs], len(self._slots))
            and self._are_blocks(0, blocks)
            and _within(slots, len(self.holders))
            and _within(parts, self.geometry.host.chunk_blocks)
        ):
            return "range"
        if _repeats(list(zip(slots, parts, strict=True)) if to_host else blocks):
            return "duplicate"
        owners = self.owners
        if [owners[block] for block in _ids(blocks)] != groups:
            return "owner"
        refused = self._crowded(groups, slots) if to_host else self._absent(groups, slots, parts)
        return "host" if refused else None

    def _crowded(self, groups: list[int], slots: list[int]) -> bool:
        """Whether an offload would put two groups into one host slot."""
        holders: dict[int, int] = {}
        for group, slot in zip(groups, slots, strict=True):
            held_by = self.holders[slot]
            if holders.setdefault(slot, group if held_by is None else held_by) != group:
                return True
        return False

    def _absent(self, groups: list[int], slots: list[int], parts: list[int]) -> bool:
        """Whether a restore asks for what the host tier does not hold."""
        for group, slot, part in zip(groups, slots, parts, strict=True):
            if self.holders[slot] != group or part not in self.parts[slot]:
                return True
        return False


def _ids(blocks: Sequence[Block]) -> Sequence[int]:
    """The same, of blocks that are ids."""
    return blocks  # type: ignore[return-value]


def _within(values: Sequence[int], end: int) -> bool:
    return not values or (min(values) >= 0 and max(values) < end)


def _repeats(values: Sequence[object]) -> bool:
    return len(set(values)) < len(values)
