"""Planted faults: each makes one decision of the built-in engine as a real system once made it.

A fault replaces a width, a stride, an order, a bound or a check, never bytes after an op. `report`
is the public report that it is modelled on, where there is one. The fuzzer's power is measured on
these faults.

Kinds: WIDTH transfer extent, STRIDE stride from shape or dropped offset, PAD padding taken for
data, GRAN block granularities mixed up, LAYOUT axes or halves exchanged, ALIAS overlaid views, ELEM
size of an element, CAP capacity, MAP wrong id mapping, OBO off by one, PADSLOT pad row written,
ALIGN alignment or tile, COVER part of the state not moved, ZERO zeroed range, STALE or EVICT
content that is gone, REUSE source or target in use.
"""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvexact.impl.engine.copies import Copies, IdPair
from kvexact.impl.engine.device import Device
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.engine.planner import FieldView, GroupPlan, Plan, Planner, SetPlan, Shape, Strides
from kvexact.impl.engine.refusals import Refusals
from kvexact.impl.engine.regions import Region, Registered, Registrar
from kvexact.impl.engine.tables import BlockTable, HostTable, Moves
from kvexact.impl.engine.transfers import FAST_RUN_BYTES, Transfers
from kvexact.impl.engine.views import Strip, Views
from kvexact.impl.target import Target
from kvexact.refmodel.spec import Geometry, Group, LayerSet, Refused


@dataclass(frozen=True)
class Fault:
    """A fault that can be told from the sound engine in some geometry of at most 64 KiB.

    Attributes:
        name: what reports and tests call it.
        kind: one of the kinds in the module's text.
        report: the public report that it is modelled on, or "no public report".
        summary: what is decided wrongly.
        known_minimum: fewest ops of a trace that fails; 0 where planning or opening already fails.
        differences: what a report may call the first difference that it makes.
        target: makes an engine that has the fault.
    """

    name: str
    kind: str
    report: str
    summary: str
    known_minimum: int
    differences: frozenset[str]
    target: Callable[[], Target]


#: All faults by name.
FAULTS: dict[str, Fault] = {}


_PARTS: dict[type, str] = {
    Planner: "planner",
    Refusals: "refusals",
    Registrar: "registrar",
    BlockTable: "block_table",
    HostTable: "host_table",
    Views: "views",
    Copies: "copies",
    Transfers: "transfers",
}


# What a difference may be called, by what is decided wrongly: sizes and places on paper, a verdict,
# room, how much is moved, what a reader walks, from where content comes, where it lies. Content
# that comes in pieces of fewer than eight bytes cannot be named: it is "wrong".
_PLANNED = {"fact", "refusal"}
_VERDICT = {"refusal"}
_BOUNDS = {"out of bounds"}
_LOST = {"lost"}
_READ = {"read"}
_SOURCE = {"lost", "shifted", "stale", "foreign", "zeroed", "wrong"}
_PLACED = _SOURCE | {"frame"}


def _register(
    name: str,
    kind: str,
    report: str,
    known_minimum: int,
    differences: set[str],
    summary: str,
    **part: Any,
) -> None:
    named = {**part, "__doc__": summary, "__module__": __name__}
    engine: type[CpuEngine] = type(name, (CpuEngine,), named)
    globals()[name] = engine  # found by kvexact fuzz --target kvexact.impl.faults:NAME
    FAULTS[name] = Fault(name, kind, report, summary, known_minimum, frozenset(differences), engine)


def _planted(
    name: str, kind: str, report: str, known_minimum: int, differences: set[str]
) -> Callable[[type], type]:
    """Register an engine that has the decorated class for a part; its docstring is the summary."""

    def register(part: type) -> type:
        summary = str(part.__doc__)
        slot = next(_PARTS[base] for base in part.__mro__ if base in _PARTS)
        _register(name, kind, report, known_minimum, differences, summary, **{slot: part})
        return part

    return register


# Sizes and places.


# Where a cell has nothing but scales, none of it is left, and capacities are divided by zero.
@_planted("cell_without_scales", "ELEM", "kvcached#424", 0, _PLANNED | {"exception"})
class _CellWithoutScales(Planner):
    """Sizes come from an element that has no room for the inline scales."""

    def shape(self, group: Group, layer_set: LayerSet) -> Shape:
        right = super().shape(group, layer_set)
        data = sum([field.bytes for field in right.fields if not field.is_scale])
        head = group.block_size * data
        content = right.heads * head
        page = layer_set.page_bytes or content
        return right._replace(head_bytes=head, content_bytes=content, page_bytes=page)


@_planted("layers_counted_twice", "WIDTH", "vllm#40075", 0, _PLANNED)
class _LayersCountedTwice(Planner):
    """Bytes that are already a sum over a layer set's layers are multiplied by them again."""

    def set_bytes(self, shape: Shape) -> int:
        return super().set_bytes(shape) * shape.layers


@_planted("scale_views_from_shape", "STRIDE", "vllm#48412", 0, _PLANNED)
class _ScaleViewsFromShape(Planner):
    """Scale views step from block to block as if each layer had a contiguous buffer of its own."""

    def views(
        self, geometry: Geometry, shape: Shape, start: int, strides: Strides, kernel_block: int
    ) -> tuple[FieldView, ...]:
        right = super().views(geometry, shape, start, strides, kernel_block)
        if kernel_block != strides.block:
            return right  # split blocks are dense anyway
        dense = shape.content_bytes
        return tuple([one._replace(block=dense) if one.field.is_scale else one for one in right])


@_planted("scale_views_mended_in_writer_only", "ALIAS", "vllm#49226", 2, _READ | _BOUNDS)
class _ReaderScalesFromShape(Views):
    """Scale views were mended in the writer; the reader still takes strides from the shape."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        if consumer == "read" and view.field.is_scale:
            return view._replace(block=one.shape.content_bytes // group.parts)
        return view


@_planted("padded_stride_from_content", "STRIDE", "vllm#49716", 2, _PLACED | _READ)
class _PaddedStrideFromContent(Views):
    """Views of padded pages step by the content that their shape holds."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        padding = one.shape.page_bytes - one.shape.content_bytes
        if padding == 0:
            return view
        pages = one.shape.layers if self.plan.geometry.order[0] == "B" else 1
        return view._replace(block=view.block - pages * padding)


@_planted("hnd_walked_as_nhd", "LAYOUT", "LMCache#2374", 2, _READ)
class _HeadsOutsideReadAsInside(Views):
    """The reader walks pages whose heads lie outside the tokens as if they lay inside."""

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        if consumer == "read" and self.plan.geometry.order in ("LBHNC", "BLHNC"):
            return view._replace(head=view.token, token=view.token * one.shape.heads)
        return view


@_planted("split_read_as_packed", "LAYOUT", "LMCache#4463", 2, _READ)
class _SplitReadAsPacked(Views):
    """The reader takes cells of key and value for a key half and a value half, and the reverse."""

    def __init__(self, plan: Plan, device: Device) -> None:
        super().__init__(plan, device)
        other = replace(plan.geometry, kv_split=not plan.geometry.kv_split)
        self._other = Planner().plan(other)

    def view(self, group: GroupPlan, one: SetPlan, view: FieldView, consumer: str) -> FieldView:
        if consumer != "read":
            return view
        g = self.plan.groups.index(group)
        s = group.sets.index(one)
        return self._other.groups[g].sets[s].views[one.views.index(view)]


_register(
    "read_by_flat_slot",
    "STRIDE",
    "vllm#47783",
    2,
    _READ,
    "The reader multiplies the flat slot by the token stride and ignores the block stride.",
    macros=("KVEXACT_FAULT_READ_BY_FLAT_SLOT",),
)
# What a pool registers, and the host tier.


@_planted("physical_viewed_as_regions", "PAD", "vllm#54021", 0, _PLANNED)
class _PhysicalAsRegions(Registrar):
    """The whole storage is viewed as blocks; a tail that does not divide stops the start-up."""

    def bound(self, storage_bytes: int, logical_bytes: int, pool_bytes: int) -> int:
        return storage_bytes


@_planted("phantom_regions", "CAP", "vllm#54021", 0, {"fact"})
class _PhantomRegions(Registrar):
    """The storage is cut into as many pools as fit; a long tail makes regions that nobody has."""

    def bound(self, storage_bytes: int, logical_bytes: int, pool_bytes: int) -> int:
        return storage_bytes // pool_bytes * pool_bytes


@_planted("phantom_regions_unreported", "CAP", "vllm#54021", 2, _BOUNDS)
class _PhantomRows(Registrar):
    """Phantom regions leave the worker fewer host rows than both sides report."""

    def register(self, plan: Plan, storage_bytes: int, logical_bytes: int | None) -> Registered:
        right = super().register(plan, storage_bytes, logical_bytes)
        wrong = _PhantomRegions().register(plan, storage_bytes, logical_bytes)
        return right._replace(host_rows=wrong.worker_slots)


@_planted("host_row_from_first_group", "CAP", "vllm#50443", 0, _PLANNED)
class _RowFromFirstGroup(Planner):
    """A host row has room for the first group's chunk; other groups' chunks may be larger."""

    def block_content(self, shapes: list[list[Shape]]) -> int:
        return super().block_content(shapes[:1])


# Transfers.


@_planted("width_without_scales", "WIDTH", "vllm#48411", 2, _LOST)
class _WidthWithoutScales(Transfers):
    """A transfer moves as many bytes of a page as its keys and values have, not their scales."""

    def width(self, one: SetPlan, region: Region) -> int:
        shape = one.shape
        scales = sum([field.bytes for field in shape.fields if field.is_scale])
        return region.length // shape.cell_bytes * (shape.cell_bytes - scales)


@_planted(
    "padding_moved_as_content", "PAD", "vllm#50208", 2, {"frame", "shifted", "foreign"} | _BOUNDS
)
class _PaddingMoved(Transfers):
    """A transfer moves the padded page, and its padding lands on what follows in the host row."""

    def width(self, one: SetPlan, region: Region) -> int:
        return region.length + one.shape.page_bytes - one.shape.content_bytes


@_planted("kernel_stride_in_transfer", "GRAN", "vllm#51718", 2, _PLACED)
class _KernelBlockStride(Transfers):
    """A transfer steps from one manager block to the next by the stride of a kernel block."""

    def block_stride(self, group: GroupPlan, region: Region) -> int:
        return region.stride // group.parts


@_planted("offset_by_length", "MAP", "vllm-ascend#10342", 2, _PLACED)
class _OffsetByLength(Transfers):
    """A transfer finds a block at its id times a run's length instead of the stride."""

    def block_stride(self, group: GroupPlan, region: Region) -> int:
        return region.length


@_planted("base_offset_dropped", "STRIDE", "ROCm/mori#415", 2, _PLACED)
class _BaseOffsetDropped(Transfers):
    """A transfer counts from the start of the storage instead of the pool's base offset."""

    def base(self, region: Region) -> int:
        return region.base - self.plan.geometry.base_offset_bytes


@_planted("restore_from_chunk_start", "GRAN", "vllm#28951", 3, _SOURCE)
class _RestoreFromChunkStart(Transfers):
    """A restore that begins inside a host chunk reads from the chunk's start."""

    def places(self, job: Moves, *, to_pool: bool) -> tuple[Sequence[int], ...]:
        if to_pool:
            return job.blocks, job.slots, [0] * len(job.parts)
        return super().places(job, to_pool=to_pool)


@_planted("block_id_as_host_slot", "MAP", "TRT-LLM#13124", 2, _PLACED | _BOUNDS)
class _BlockIdAsSlot(Transfers):
    """The id of a block is taken for the index of its host slot."""

    def places(self, job: Moves, *, to_pool: bool) -> tuple[Sequence[int], ...]:
        return job.blocks, job.blocks, job.parts


@_planted("last_descriptors_lost", "OBO", "no public report", 3, _LOST)
class _LastDescriptorsLost(Transfers):
    """The transfer kernel is launched for full groups of 16 descriptors only."""

    def launched(self, count: int) -> int:
        return count // 16 * 16


@_planted("fast_path_truncates_to_words", "ALIGN", "no public report", 3, _LOST)
class _FastPathForAnyLength(Transfers):
    """Runs that are no multiple of 8 bytes reach the kernel that moves 8-byte words."""

    def fits_kernel(self, length: int) -> bool:
        return length < FAST_RUN_BYTES


# Kernels.

_register(
    "pad_row_in_last_slot",
    "PADSLOT",
    "vllm#39444",
    1,
    {"frame", "foreign", "wrong"},  # where the op writes the last slot itself, a foreign row
    "A pad row, slot -1, is written into the pool's last slot.",
    macros=("KVEXACT_FAULT_PAD_ROW_IN_LAST_SLOT",),
)
_register(
    "pad_row_not_cleared",
    "STALE",
    "vllm#57156",
    1,
    _READ,
    "A pad row reads as whatever the row's memory held before.",
    macros=("KVEXACT_FAULT_PAD_ROW_NOT_CLEARED",),
)
_register(
    "wide_store_checks_source_only",
    "ALIGN",
    "vllm#41257",
    2,
    {"device lost"},
    "The width of an access follows from the source's alignment; the target's may be less.",
    macros=("KVEXACT_FAULT_SOURCE_ALIGNMENT_ONLY",),
)
_register(
    "rest_of_tile_lost",
    "ALIGN",
    "sglang#15522",
    1,
    _LOST | _READ,
    "Bytes behind the last full wide access are left out.",
    macros=("KVEXACT_FAULT_REST_OF_TILE_LOST",),
)
# Copies and zeroing.


@_planted("copy_chain_in_one_wave", "REUSE", "no public report", 2, _SOURCE)
class _OneWave(Copies):
    """Pairs that depend on each other, such as a to b and b to c, run in parallel."""

    def waves(self, pairs: Sequence[IdPair]) -> list[int]:
        return [len(pairs)]


@_planted("partial_copy_takes_all", "WIDTH", "no public report", 2, {"frame"})
class _PartialCopyOfAll(Copies):
    """A copy of the first tokens of a block copies the whole block."""

    def tokens(self, tokens: int | None) -> int | None:
        return None


@_planted("partial_copy_misses_last_token", "OBO", "llama.cpp#26063", 2, _LOST)
class _LastTokenMissed(Copies):
    """A copy of n tokens ends one token early."""

    def tokens(self, tokens: int | None) -> int | None:
        return max(tokens - 1, 0) if tokens is not None else None


@_planted("copy_without_scales", "COVER", "sglang#36121", 2, _LOST)
class _CopyWithoutScales(Views):
    """A copy of a block carries keys and values and leaves their scales behind."""

    def copy_runs(self, group: GroupPlan) -> list[Strip]:
        runs = []
        for one in group.sets:
            for view in one.views:
                if not view.field.is_scale:
                    runs.extend(_pieces(group, one, view))
        return runs


def _pieces(group: GroupPlan, one: SetPlan, view: FieldView) -> list[Strip]:
    """Each place of a field in a block, as a run of its own."""
    return [
        (
            view.offset
            + layer * view.layer
            + part * view.block
            + head * view.head
            + t * view.token,
            one.block_stride,
            0,
            view.field.bytes,
            0,
            0,
            0,
        )
        for layer in range(one.shape.layers)
        for part in range(group.parts)
        for head in range(one.shape.heads)
        for t in range(group.kernel_tokens)
    ]


@_planted("copy_width_of_first_view", "COVER", "vllm#55112", 2, _LOST)
class _CopyWidthOfFirstView(Views):
    """Of views that start at the same byte, the first group's decides how much is copied."""

    def copy_runs(self, group: GroupPlan) -> list[Strip]:
        first = {run[0]: run[3] for run in reversed(super().copy_runs(self.plan.groups[0]))}
        runs = super().copy_runs(group)
        return [(*run[:3], min(run[3], first.get(run[0], run[3])), *run[4:]) for run in runs]


@_planted("zero_spans_block_stride", "ZERO", "vllm#52709", 2, {"frame"} | _BOUNDS)
class _ZeroWholeStride(Views):
    """A block is zeroed from each layer's page to the next block, neighbours included."""

    def zero_bytes(self, one: SetPlan) -> int:
        return one.block_stride


@_planted("zero_stride_from_page", "ZERO", "vllm#50276", 2, {"frame", "lost"})
class _ZeroStrideFromPage(Views):
    """Zeroing finds a block at its id times the bytes that it clears."""

    def zero_runs(self, group: GroupPlan) -> list[Strip]:
        return [(run[0], run[3], *run[2:]) for run in super().zero_runs(group)]


# Tables and refusals.


@_planted("first_groups_block_size", "MAP", "vllm#53142", 2, _PLACED | _READ | _BOUNDS)
class _FirstGroupsBlockSize(BlockTable):
    """Slots of every group are computed with the first group's block size."""

    def block_size(self, group: int) -> int:
        return super().block_size(0)


@_planted("overlay_ownership_unchecked", "ALIAS", "vllm#41657", 2, _VERDICT)
class _OverlayUnchecked(BlockTable):
    """A group may claim a block that another group owns, although both lie on the same bytes."""

    def require_free(self, group: int, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.owners[block] == group:
                raise Refused("owner", f"block {block} is group {group}'s")


@_planted("out_of_range_clamped", "CAP", "tpu-inference#2366", 1, _VERDICT)
class _OutOfRangeClamped(BlockTable):
    """A block id outside the pool is clamped to the nearest block instead of refused."""

    def ids(self, blocks: Sequence[int]) -> Sequence[int]:
        return [min(max(block, 0), self.blocks - 1) for block in blocks]


@_planted("evicted_slot_still_restores", "EVICT", "LMCache#3130", 4, _VERDICT)
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


@_planted("parts_outlive_eviction", "STALE", "sglang#31108", 5, _VERDICT)
class _PartsOutliveEviction(HostTable):
    """Eviction forgets who holds a slot but not its parts; the next chunk inherits them."""

    def drop(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.holder[slot]


@_planted("chunk_complete_at_first_part", "STALE", "LMCache#3022", 3, _VERDICT)
class _ChunkCompleteAtOnce(HostTable):
    """A chunk counts as complete once any of its parts was stored."""

    def present(self, part: int) -> Sequence[int]:
        return range(self.chunk_blocks)


@_planted("padded_pages_split", "GRAN", "vllm#54877", 0, _VERDICT)
class _PaddedPagesSplit(Refusals):
    """Padded pages are cut into kernel blocks, which then do not follow each other evenly."""

    def kernel_split(self, plan: Plan) -> str | None:
        padded = any(
            one.shape.page_bytes != one.shape.content_bytes
            for group in plan.groups
            for one in group.sets
        )
        return None if padded else super().kernel_split(plan)
