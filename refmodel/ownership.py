"""Which ops are refused, and why: predictions from ownership alone, no byte looked at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvexact.refmodel.formats import slots as slots_of
from kvexact.refmodel.formats import takes_values
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
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.spec import Geometry
from kvexact.refmodel.timed_ops import Fence, Poll, Step

_OF_VALUES = frozenset({WriteValues, ReadValues})
_WRITES = frozenset({WriteTokens, WriteValues})


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
    #: What may be named: groups, blocks, tokens by group, host slots, parts of a chunk.
    _groups: frozenset[int] = field(init=False)
    _blocks: frozenset[Block] = field(init=False)
    _tokens: list[frozenset[int]] = field(init=False)
    _host_slots: frozenset[int] = field(init=False)
    _parts: frozenset[int] = field(init=False)
    _take_values: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.geometry.groups
        slots = [slots_of(group, group.layer_sets[0]) for group in groups]
        self._groups = frozenset(range(len(groups)))
        self._blocks = frozenset(range(self.geometry.blocks))
        self._tokens = [frozenset(range(of_group)) for of_group in slots]
        self._host_slots = frozenset(range(self.host_slots))
        self._parts = frozenset(range(self.geometry.host.chunk_blocks))
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
        return self._refusals[type(op)](self, op)

    def _allocate_refusal(self, op: Allocate) -> str | None:
        return self._blocks_refusal(op.group, op.blocks, None)

    def _owned_refusal(self, op: Free | Zero) -> str | None:
        return self._blocks_refusal(op.group, op.blocks, op.group)

    def _blocks_refusal(self, group: int, blocks: Sequence[Block], owner: int | None) -> str | None:
        if not self._are_blocks(group, blocks):
            return "range"
        if _repeats(blocks):
            return "duplicate"
        return self._unless_owned(owner, blocks)

    def _copy_refusal(self, op: CopyBlocks) -> str | None:
        both = [block for pair in op.pairs for block in pair]
        if not self._are_blocks(op.group, both):
            return "range"
        if op.tokens is not None and not 0 <= op.tokens <= len(self._tokens[op.group]):
            return "range"
        return self._unless_owned(op.group, both)

    def _evict_refusal(self, op: Evict) -> str | None:
        if not self._host_slots.issuperset(op.host_slots):
            return "range"
        if _repeats(op.host_slots):
            return "duplicate"
        return "host" if None in [self.holders[slot] for slot in op.host_slots] else None

    def _never(self, op: Reset | Fence | Step | Poll) -> None:
        """None: it is always legal."""

    def _slots_refusal(self, op: WriteTokens | WriteValues | Read | ReadValues) -> str | None:
        group, is_foreign = op.group, False
        if group not in self._groups:
            return "range"
        owners: Any = self.owners  # asked by blocks that are ids
        tokens = self._tokens[group]
        named = [slot for slot in op.slots if slot is not None]
        for block, token in named:
            if block not in self._blocks or token not in tokens:
                return "range"
            is_foreign |= owners[block] != group
        if type(op) in _OF_VALUES and not self._take_values[group]:
            return "format"
        if type(op) in _WRITES and _repeats(named):
            return "duplicate"
        return "owner" if is_foreign else None

    def _are_blocks(self, group: int, blocks: Sequence[Block]) -> bool:
        """Whether these are a group and ids of blocks."""
        return group in self._groups and self._blocks.issuperset(blocks)

    def _unless_owned(self, group: int | None, blocks: Sequence[Block]) -> str | None:
        """A reason where one of these blocks has another owner; None stands for nobody."""
        owners: Any = self.owners  # asked by blocks that are ids
        return None if {*map(owners.__getitem__, blocks)} <= {group} else "owner"

    def _transfer_refusal(self, op: Offload | Restore) -> str | None:
        to_host, is_foreign = type(op) is Offload, False
        owners: Any = self.owners  # asked by blocks that are ids
        once: list[object] = []  # what may be named but once: places in the host tier, or blocks
        for group, moves in op.jobs:
            if group not in self._groups:
                return "range"
            for block, slot, part in moves:
                if (
                    block not in self._blocks
                    or slot not in self._host_slots
                    or part not in self._parts
                ):
                    return "range"
                once.append((slot, part) if to_host else block)
                is_foreign |= owners[block] != group
        if _repeats(once):
            return "duplicate"
        if is_foreign:
            return "owner"
        return "host" if (self._crowded(op) if to_host else self._absent(op)) else None

    def _crowded(self, op: Offload | Restore) -> bool:
        """Whether this offload would put two groups into one host slot."""
        holders = self.holders.copy()
        for group, moves in op.jobs:
            for _, slot, _ in moves:
                holder = holders[slot]
                if holder is not None and holder != group:
                    return True
                holders[slot] = group
        return False

    def _absent(self, op: Offload | Restore) -> bool:
        """Whether this restore asks for what the host tier does not hold."""
        for group, moves in op.jobs:
            for _, slot, part in moves:
                if self.holders[slot] != group or part not in self.parts[slot]:
                    return True
        return False

    #: By type of an op, what finds a reason to refuse it.
    _refusals: ClassVar[dict[type[Op], Callable[[Any, Any], str | None]]] = {
        Allocate: _allocate_refusal,
        Free: _owned_refusal,
        WriteTokens: _slots_refusal,
        WriteValues: _slots_refusal,
        Zero: _owned_refusal,
        CopyBlocks: _copy_refusal,
        Offload: _transfer_refusal,
        Restore: _transfer_refusal,
        Read: _slots_refusal,
        ReadValues: _slots_refusal,
        Evict: _evict_refusal,
        **dict.fromkeys((Reset, Fence, Step, Poll), _never),
    }


def _repeats(values: Sequence[object]) -> bool:
    return len(set(values)) < len(values)
