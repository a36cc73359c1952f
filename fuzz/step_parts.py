"""What ops are drawn from: groups, blocks, runs of slots and host places that a model holds.

Good ones, and bad ones for an op that is to be refused.
"""

from collections.abc import Sequence
from itertools import starmap
from typing import Any

from kvexact.fuzz.choose import Chooser, chance, pick, sample
from kvexact.fuzz.names import Names
from kvexact.impl.named import made
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.formats import takes_values
from kvexact.refmodel.ops import Block, Job, Move, Slot

#: Numbers that name no block, slot or part.
NOWHERE = (-1, 2**31)
#: Most slots of one block in a write or a read; whole small blocks are within it.
_RUN_MOST = 8
#: Most rows of a large write: more than a wave of a kernel.
_ROWS_MOST = 160


def insert_bad(chooser: Chooser, blocks: list[Any], bad: Block) -> None:
    """Put a bad block among others; at times twice, so that two reasons to refuse it compete."""
    place = chooser.below(len(blocks) + 1)
    blocks.insert(place, bad)
    if place == 0 and len(blocks) > 2:
        blocks[-1] = bad


class Parts:
    """Draws parts of ops for one example.

    Args:
        batch_percent: how often a write or a transfer is large.
    """

    def __init__(self, model: Cache, names: Names, batch_percent: int) -> None:
        self._model = model
        self._names = names
        self._batch_percent = batch_percent
        self._geometry = model.plan.geometry
        self._groups = range(len(self._geometry.groups))
        self._sizes = [model.slots(group) for group in self._groups]
        self._with_values = [
            number
            for number, group in enumerate(self._geometry.groups)
            if all(takes_values(layers.page_format) for layers in group.layer_sets)
        ]
        self._runs_per_block = [
            sum(p.extents["L"] for p in placements) for placements in model.plan.placements
        ]

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
        return pick(chooser, (self._geometry.blocks, *NOWHERE))

    def _blocks(self, chooser: Chooser, group: int, count: int, *, bad: bool) -> list[Block]:
        """Different blocks of a group, and a bad one among them if asked."""
        blocks: list[Block] = sample(chooser, self._names.live[group].values(), count)
        if bad:
            extra = self._bad_block(chooser, group)
            if blocks and chance(chooser, 20):
                extra = blocks[0]
            insert_bad(chooser, blocks, extra)
        return blocks

    def _slots(self, chooser: Chooser, group: int, *, bad: bool) -> list[Slot | None]:
        """Runs of slots, or single ones all over; pads among them."""
        size = self._sizes[group]
        slots = self._run(chooser, group, size)
        if chance(chooser, 50):
            slots.reverse()
        if chance(chooser, 25):
            slots.insert(chooser.below(len(slots) + 1), None)
        if bad:
            slot = Slot(self._bad_block(chooser, group), 0)
            owned = list(self._names.live[group].values())
            if owned and chance(chooser, 40):
                slot = Slot(pick(chooser, owned), pick(chooser, (size, *NOWHERE)))
            slots.insert(chooser.below(len(slots) + 1), slot)
        return slots

    def _run(self, chooser: Chooser, group: int, size: int) -> list[Slot | None]:
        """Slots of one or two blocks: single ones, up to the end, or on from there.

        On from the end of a block is the next block, or where there is one alone, a ring, its
        begin.
        """
        if chance(chooser, self._batch_percent) and chance(chooser, 10):
            every = [(block, n) for block in self._names.live[group].values() for n in range(size)]
            return list(starmap(Slot, every[:_ROWS_MOST]))
        blocks = sample(chooser, self._names.live[group].values(), 1 + chooser.below(2))
        near = min(size, _RUN_MOST)
        if blocks and size > 1 and chance(chooser, 20):
            first = size - 1 - chooser.below(near)
            places = [divmod(n, size) for n in range(first, first + 1 + chooser.below(near))]
            return [made(Slot, (blocks[which % len(blocks)], slot)) for which, slot in places]
        slots: list[Slot | None] = []
        for block in blocks:
            first = chooser.below(size)
            if chance(chooser, 50):
                run = range(first, min(size, first + near))
                slots += [made(Slot, (block, slot)) for slot in run]
            else:
                slots.append(made(Slot, (block, first)))
        return slots

    def _written(self, chooser: Chooser, group: int, *, bad: bool) -> tuple[Slot | None, ...]:
        slots = self._slots(chooser, group, bad=bad)
        if bad and len(slots) > 1 and chance(chooser, 20):
            slots[0] = slots[-1]
        return tuple(slots)

    def _moves_wanted(self, chooser: Chooser, group: int) -> int:
        """A few moves; or as many as make about 16 descriptors, where fast paths begin."""
        few = 1 + chooser.below(3)
        if chance(chooser, self._batch_percent):
            return max(few, 15 // self._runs_per_block[group] + chooser.below(3))
        return few

    def _host_places(
        self, chooser: Chooser, group: int, jobs: Sequence[Job], count: int
    ) -> list[tuple[int, int]]:
        """Different (host slot, part) that a group may fill, in drawn order.

        Slots that jobs of the same op fill are left out.
        """
        holders = self._model.ownership.holders
        taken = {move.host_slot for job in jobs for move in job.moves}
        slots = [
            slot
            for slot, holder in enumerate(holders)
            if (holder is None or holder == group) and slot not in taken
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
            return Move(move.block, pick(chooser, (len(holders), *NOWHERE)), move.part)
        return Move(
            move.block, move.host_slot, pick(chooser, (self._geometry.host.chunk_blocks, -1))
        )

    def _slot_for_two(self, chooser: Chooser) -> tuple[Job, ...]:
        """Jobs of two groups that would share a host slot which holds nothing yet; mostly none."""
        live, holders = self._names.live, self._model.ownership.holders
        owners = [group for group in self._groups if live[group]]
        unused = [slot for slot, holder in enumerate(holders) if holder is None]
        parts = range(self._geometry.host.chunk_blocks)
        if len(parts) < 2 or len(owners) < 2 or not unused or not chance(chooser, 50):
            return ()
        slot = pick(chooser, unused)
        jobs = []
        for group, part in zip(sample(chooser, owners, 2), sample(chooser, parts, 2), strict=True):
            block = pick(chooser, list(live[group].values()))
            jobs.append(Job(group, (Move(block, slot, part),)))
        return tuple(jobs)

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
