"""Faults of tables and refusals."""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from collections.abc import Sequence

from kvexact.impl.engine.plans import Plan
from kvexact.impl.engine.refusals import Refusals
from kvexact.impl.engine.tables import RAW_ONLY, BlockTable, HostTable, Moves
from kvexact.impl.faults.register import BOUNDS, PLACED, READ, VERDICT, planted
from kvexact.refmodel.spec import Refused


@planted("first_groups_block_size", "MAP", "vllm#53142", 2, PLACED | READ | BOUNDS)
class _FirstGroupsBlockSize(BlockTable):
    """Slots of every group are computed with the first group's block size."""

    def slots_of_block(self, group: int) -> int:
        return super().slots_of_block(0)


@planted("overlay_ownership_unchecked", "ALIAS", "vllm#41657", 2, VERDICT)
class _OverlayUnchecked(BlockTable):
    """A group may claim a block that another group owns, although both lie on the same bytes."""

    def require_free(self, group: int, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.owners[block] == group:
                raise Refused("owner", f"block {block} is group {group}'s")


@planted("out_of_range_clamped", "CAP", "tpu-inference#2366", 1, VERDICT)
class _OutOfRangeClamped(BlockTable):
    """A block id outside the pool is clamped to the nearest block instead of refused."""

    def ids(self, blocks: Sequence[int]) -> Sequence[int]:
        return [min(max(block, 0), self.blocks - 1) for block in blocks]


@planted("evicted_slot_still_restores", "EVICT", "LMCache#3130", 4, VERDICT)
class _EvictedStillHeld(HostTable):
    """A restore looks into an index that eviction does not clear."""

    def __init__(self, slots: int, chunk_blocks: int) -> None:
        super().__init__(slots, chunk_blocks)
        self._seen: set[tuple[int, int, int]] = set()

    def keep(self, jobs: Sequence[Moves]) -> None:
        super().keep(jobs)
        for group, _, slots, parts in jobs:
            self._seen.update([(group, *place) for place in zip(slots, parts, strict=True)])

    def holds(self, group: int, slot: int, part: int) -> bool:
        return (group, slot, part) in self._seen


@planted("parts_outlive_eviction", "STALE", "sglang#31108", 5, VERDICT)
class _PartsOutliveEviction(HostTable):
    """Eviction forgets who holds a slot but not its parts; the next chunk inherits them."""

    def drop(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.holder[slot]


@planted("chunk_complete_at_first_part", "STALE", "LMCache#3022", 3, VERDICT)
class _ChunkCompleteAtOnce(HostTable):
    """A chunk counts as complete once any of its parts was stored."""

    def present(self, part: int) -> Sequence[int]:
        return range(self.chunk_blocks)


@planted("padded_pages_split", "GRAN", "vllm#54877", 0, VERDICT)
class _PaddedPagesSplit(Refusals):
    """Padded pages are cut into kernel blocks, which then do not follow each other evenly."""

    def kernel_split(self, plan: Plan) -> str | None:
        padded = any(
            one.shape.page_bytes != one.shape.content_bytes
            for group in plan.groups
            for one in group.sets
        )
        return None if padded else super().kernel_split(plan)


@planted("slot_for_two_groups", "ALIAS", "no public report", 3, VERDICT)
class _SlotForTwoGroups(HostTable):
    """Jobs of one offload fill a slot for two groups: each looks only at what was there before."""

    def require_room(self, jobs: Sequence[Moves]) -> None:
        for job in jobs:
            super().require_room((job,))


@planted("first_sets_format_decides", "DTYPE", "no public report", 1, VERDICT)
class _FirstSetsFormatDecides(BlockTable):
    """Whether a group takes values is asked of its first layer set only."""

    def require_format(self, group: int) -> None:
        if self.page_formats[group][0] in RAW_ONLY:
            super().require_format(group)
