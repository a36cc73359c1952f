"""Who owns which block, and what each host slot holds. Refusals of ops are decided here.

An op is refused for the first reason, in the order range, format, duplicate, owner, host, that any
of its elements meets. So every check goes over all elements before the next one starts, and nothing
is changed until all of them have passed.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvexact.impl.engine.plans import Plan
from kvexact.impl.named import made
from kvexact.refmodel.ops import Job, Pair, Slot
from kvexact.refmodel.spec import Refused

_NOBODY = -1

#: Formats whose codebooks no source states: they take raw writes only.
RAW_ONLY = frozenset(
    {
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
        "turboquant_4bit_nc_planes",
        "turboquant_k3v4_nc_planes",
        "turboquant_3bit_nc_planes",
    }
)


class Moves(NamedTuple):
    """What one group moves in a transfer, element by element."""

    group: int
    blocks: Sequence[int]
    slots: Sequence[int]
    parts: Sequence[int]


def _within(what: str, values: Sequence[int], count: int) -> None:
    for value in values:
        if not 0 <= value < count:
            raise Refused("range", f"{what} {value} of {count}")


def distinct(what: str, values: Sequence[object]) -> None:
    """Refuse a list that names something twice."""
    if len(set(values)) != len(values):
        raise Refused("duplicate", f"a {what} is named twice in {list(values)}")


class BlockTable:
    """The owner of each manager block: one at most, because groups overlay the same bytes."""

    def __init__(self, plan: Plan) -> None:
        self.blocks = plan.geometry.blocks
        self.block_slots = [group.slots for group in plan.groups]
        groups = plan.geometry.groups
        self.page_formats = [[one.page_format for one in group.layer_sets] for group in groups]
        self.owners = [_NOBODY] * self.blocks

    def slots_of_block(self, group: int) -> int:
        """Slots of one block of a group."""
        return self.block_slots[group]

    def group(self, index: int) -> int:
        """A group's index, in range."""
        if not 0 <= index < len(self.block_slots):
            raise Refused("range", f"group {index} of {len(self.block_slots)}")
        return index

    def ids(self, blocks: Sequence[int]) -> Sequence[int]:
        """Block ids, in range."""
        _within("block", blocks, self.blocks)
        return blocks

    def require_free(self, group: int, blocks: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse blocks that somebody owns: groups overlay the same bytes."""
        for block in blocks:
            if self.owners[block] != _NOBODY:
                raise Refused("owner", f"block {block} is group {self.owners[block]}'s")

    def require_owned(self, group: int, blocks: Sequence[int]) -> None:
        """Refuse blocks that the group does not own."""
        owners = self.owners
        for block in blocks:
            if owners[block] != group:
                raise Refused("owner", f"block {block} is not group {group}'s")

    def require_format(self, group: int) -> None:
        """Refuse values for a group of which some layer set takes raw writes only."""
        for name in self.page_formats[group]:
            if name in RAW_ONLY:
                raise Refused("format", f"group {group} has {name}, which takes raw writes only")

    def slots(
        self, group: int, slots: Sequence[Slot | None], *, unique: bool, values: bool = False
    ) -> list[int]:
        """Indexes of slots in the pool, -1 for a pad row; checked in the order of reasons.

        Args:
            unique: refuse a slot that is named twice.
            values: what is stored or gathered are real values, not raw bytes.
        """
        real = [slot for slot in slots if slot is not None]
        named, tokens = zip(*real, strict=True) if real else ((), ())
        blocks = self.ids(named)
        _within("token", tokens, self.block_slots[group])
        if values:
            self.require_format(group)
        if unique:
            distinct("slot", real)
        self.require_owned(group, blocks)
        per_block = self.slots_of_block(group)
        found = [block * per_block + token for block, token in zip(blocks, tokens, strict=True)]
        if len(real) < len(slots):
            known = iter(found)
            found = [-1 if slot is None else next(known) for slot in slots]
        return found

    def pairs(self, group: int, pairs: Sequence[Pair], tokens: int | None) -> list[tuple[int, int]]:
        """Pairs of blocks to copy, checked for range and owner."""
        blocks = self.ids([block for pair in pairs for block in pair])  # type: ignore[misc]  # bound
        if tokens is not None:
            _within("token count", [tokens], self.block_slots[group] + 1)
        self.require_owned(group, blocks)
        return list(zip(blocks[::2], blocks[1::2], strict=True))

    def give(self, group: int, blocks: Iterable[int]) -> None:
        """Record that the group owns these blocks."""
        for block in blocks:
            self.owners[block] = group

    def take(self, blocks: Iterable[int]) -> None:
        """Record that nobody owns these blocks."""
        self.give(_NOBODY, blocks)

    def reset(self) -> None:
        """Nobody owns anything."""
        self.owners = [_NOBODY] * self.blocks


class HostTable:
    """Which group's chunk each host slot holds, and which of its parts are there.

    Args:
        slots: host slots that the scheduler hands out.
        chunk_blocks: parts of a chunk.
    """

    def __init__(self, slots: int, chunk_blocks: int) -> None:
        self.slots = slots
        self.chunk_blocks = chunk_blocks
        self.holder: dict[int, int] = {}
        self.parts: dict[int, set[int]] = {}

    def ids(self, slots: Sequence[int]) -> Sequence[int]:
        """Host slots, in range."""
        _within("host slot", slots, self.slots)
        return slots

    def moves(self, table: BlockTable, jobs: Sequence[Job]) -> list[Moves]:
        """All that an op moves, in range."""
        found = []
        for job in jobs:
            group = table.group(job.group)
            named, places, parts = zip(*job.moves, strict=True) if job.moves else ((), (), ())
            blocks, slots = table.ids(named), self.ids(places)
            _within("part", parts, self.chunk_blocks)
            found.append(made(Moves, (group, blocks, slots, parts)))
        return found

    def require_room(self, jobs: Sequence[Moves]) -> None:
        """Refuse a slot that holds, or gets in the same op, another group's chunk."""
        gets: dict[int, int] = {}
        for group, _, slots, _ in jobs:
            for slot in slots:
                if self.holder.get(slot, group) != group or gets.setdefault(slot, group) != group:
                    raise Refused("host", f"slot {slot} is not for group {group}")

    def require_held(self, jobs: Sequence[Moves]) -> None:
        """Refuse a restore of what is not there."""
        for group, _, slots, parts in jobs:
            for slot, part in zip(slots, parts, strict=True):
                if not self.holds(group, slot, part):
                    raise Refused("host", f"slot {slot} has no part {part} of group {group}")

    def holds(self, group: int, slot: int, part: int) -> bool:
        """Whether a part of a group's chunk is in a slot."""
        return self.holder.get(slot) == group and part in self.parts[slot]

    def require_used(self, slots: Sequence[int]) -> None:
        """Refuse slots that hold nothing."""
        for slot in slots:
            if slot not in self.holder:
                raise Refused("host", f"slot {slot} holds nothing")

    def keep(self, jobs: Sequence[Moves]) -> None:
        """Record what an offload brought."""
        for group, _, slots, parts in jobs:
            for slot, part in zip(slots, parts, strict=True):
                self.holder[slot] = group
                self.parts.setdefault(slot, set()).update(self.present(part))

    def present(self, part: int) -> Sequence[int]:
        """The parts of a chunk that are there once ``part`` was stored."""
        return (part,)

    def drop(self, slots: Sequence[int]) -> None:
        """Record that these slots hold nothing."""
        for slot in slots:
            del self.holder[slot], self.parts[slot]

    def reset(self) -> None:
        """No slot holds anything."""
        self.holder.clear()
        self.parts.clear()
