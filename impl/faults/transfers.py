"""Faults of transfers between the pool and the host tier."""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from collections.abc import Sequence

from kvexact.impl.engine.plans import GroupPlan, SetPlan
from kvexact.impl.engine.regions import Region
from kvexact.impl.engine.tables import Moves
from kvexact.impl.engine.transfers import FAST_RUN_BYTES, Transfers
from kvexact.impl.faults.register import (
    BOUNDS,
    LOST,
    PLACED,
    SOURCE,
    planted,
)


@planted("width_without_scales", "WIDTH", "vllm#48411", 2, LOST)
class _WidthWithoutScales(Transfers):
    """A transfer moves as many bytes of a page as its keys and values have, not their scales."""

    def width(self, one: SetPlan, region: Region) -> int:
        shape = one.shape
        scales = sum([field.bytes for field in shape.fields if field.is_scale])
        return region.length // shape.cell_bytes * (shape.cell_bytes - scales)


@planted(
    "padding_moved_as_content", "PAD", "vllm#50208", 2, {"frame", "shifted", "foreign"} | BOUNDS
)
class _PaddingMoved(Transfers):
    """A transfer moves the padded page, and its padding lands on what follows in the host row."""

    def width(self, one: SetPlan, region: Region) -> int:
        return region.length + one.shape.page_bytes - one.shape.content_bytes


@planted("kernel_stride_in_transfer", "GRAN", "vllm#51718", 2, PLACED)
class _KernelBlockStride(Transfers):
    """A transfer steps from one manager block to the next by the stride of a kernel block."""

    def block_stride(self, group: GroupPlan, region: Region) -> int:
        return region.stride // group.parts


@planted("offset_by_length", "MAP", "vllm-ascend#10342", 2, PLACED)
class _OffsetByLength(Transfers):
    """A transfer finds a block at its id times a run's length instead of the stride."""

    def block_stride(self, group: GroupPlan, region: Region) -> int:
        return region.length


@planted("base_offset_dropped", "STRIDE", "ROCm/mori#415", 2, PLACED)
class _BaseOffsetDropped(Transfers):
    """A transfer counts from the start of the storage instead of the pool's base offset."""

    def base(self, region: Region) -> int:
        return region.base - self.plan.geometry.base_offset_bytes


@planted("restore_from_chunk_start", "GRAN", "vllm#28951", 3, SOURCE)
class _RestoreFromChunkStart(Transfers):
    """A restore that begins inside a host chunk reads from the chunk's start."""

    def places(self, job: Moves, *, to_pool: bool) -> tuple[Sequence[int], ...]:
        if to_pool:
            return job.blocks, job.slots, [0] * len(job.parts)
        return super().places(job, to_pool=to_pool)


@planted("block_id_as_host_slot", "MAP", "TRT-LLM#13124", 2, PLACED | BOUNDS)
class _BlockIdAsSlot(Transfers):
    """The id of a block is taken for the index of its host slot."""

    def places(self, job: Moves, *, to_pool: bool) -> tuple[Sequence[int], ...]:
        return job.blocks, job.blocks, job.parts


@planted("last_descriptors_lost", "OBO", "no public report", 3, LOST)
class _LastDescriptorsLost(Transfers):
    """The transfer kernel is launched for full groups of 16 descriptors only."""

    def launched(self, count: int) -> int:
        return count // 16 * 16


@planted("fast_path_truncates_to_words", "ALIGN", "no public report", 3, LOST)
class _FastPathForAnyLength(Transfers):
    """Runs that are no multiple of 8 bytes reach the kernel that moves 8-byte words."""

    def fits_kernel(self, length: int) -> bool:
        return length < FAST_RUN_BYTES
