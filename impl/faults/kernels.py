"""Faults of kernels that move bytes, of copies and of zeroing."""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from collections.abc import Sequence

from kvexact.impl.engine.copies import Copies, IdPair
from kvexact.impl.engine.plans import FieldView, GroupPlan, SetPlan
from kvexact.impl.engine.views import Strip, Views
from kvexact.impl.faults.register import BOUNDS, LOST, READ, SOURCE, planted, register

register(
    "pad_row_in_last_slot",
    "PADSLOT",
    "vllm#39444",
    1,
    {"frame", "foreign", "wrong"},  # where the op writes the last slot itself, a foreign row
    "A pad row, slot -1, is written into the pool's last slot.",
    macros=("KVEXACT_FAULT_PAD_ROW_IN_LAST_SLOT",),
)
register(
    "pad_row_not_cleared",
    "STALE",
    "vllm#57156",
    1,
    READ,
    "A pad row reads as whatever the row's memory held before.",
    macros=("KVEXACT_FAULT_PAD_ROW_NOT_CLEARED",),
)
register(
    "wide_store_checks_source_only",
    "ALIGN",
    "vllm#41257",
    2,
    {"device lost"},
    "The width of an access follows from the source's alignment; the target's may be less.",
    macros=("KVEXACT_FAULT_SOURCE_ALIGNMENT_ONLY",),
)
register(
    "rest_of_tile_lost",
    "ALIGN",
    "sglang#15522",
    1,
    LOST | READ | {"shifted"},  # shifted: what a copy left is copied on by one that has no rest
    "Bytes behind the last full wide access are left out.",
    macros=("KVEXACT_FAULT_REST_OF_TILE_LOST",),
)


@planted("copy_chain_in_one_wave", "REUSE", "no public report", 2, SOURCE)
class _OneWave(Copies):
    """Pairs that depend on each other, such as a to b and b to c, run in parallel."""

    def waves(self, pairs: Sequence[IdPair]) -> list[int]:
        return [len(pairs)]


@planted("partial_copy_takes_all", "WIDTH", "no public report", 2, {"frame"})
class _PartialCopyOfAll(Copies):
    """A copy of the first tokens of a block copies the whole block."""

    def tokens(self, tokens: int | None) -> int | None:
        return None


@planted("partial_copy_misses_last_token", "OBO", "llama.cpp#26063", 2, LOST)
class _LastTokenMissed(Copies):
    """A copy of n tokens ends one token early."""

    def tokens(self, tokens: int | None) -> int | None:
        return max(tokens - 1, 0) if tokens is not None else None


@planted("copy_without_scales", "COVER", "sglang#36121", 2, LOST)
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
        Strip(
            view.offset
            + layer * view.layer
            + part * view.block
            + head * view.head
            + t * view.token,
            one.block_stride,
            0,
            view.field.bytes,
        )
        for layer in range(one.shape.layers)
        for part in range(group.parts)
        for head in range(one.shape.heads)
        for t in range(group.kernel_slots)
    ]


@planted("copy_width_of_first_view", "COVER", "vllm#55112", 2, LOST)
class _CopyWidthOfFirstView(Views):
    """Of views that start at the same byte, the first group's decides how much is copied."""

    def copy_runs(self, group: GroupPlan) -> list[Strip]:
        first = {run.offset: run.bytes for run in reversed(super().copy_runs(self.plan.groups[0]))}
        return [
            run._replace(bytes=min(run.bytes, first.get(run.offset, run.bytes)))
            for run in super().copy_runs(group)
        ]


@planted("zero_spans_block_stride", "ZERO", "vllm#52709", 1, {"frame"} | BOUNDS)
class _ZeroWholeStride(Views):
    """A block is zeroed from each layer's page to the next block, neighbours included."""

    def zero_bytes(self, one: SetPlan) -> int:
        return one.block_stride


@planted("zero_stride_from_page", "ZERO", "vllm#50276", 1, {"frame", "lost"})
class _ZeroStrideFromPage(Views):
    """Zeroing finds a block at its id times the bytes that it clears."""

    def zero_runs(self, group: GroupPlan) -> list[Strip]:
        return [run._replace(block_stride=run.bytes) for run in super().zero_runs(group)]
