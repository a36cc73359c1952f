"""Each planted fault is told from the sound engine by a hand-written trace, at its last op."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.faults import FAULTS
from kvexact.impl.target import Bytes, DeviceLost, OutOfBounds, Rows, Target
from kvexact.refmodel.formats import cell_fields
from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Evict,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Read,
    ReadValues,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
)
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet, Refused

INT8 = "int8_per_token_head"

# What values a write stores, by its tag.
ORDINARY, ZEROS, HALVES, HUGE = 1, 2, 3, 4


def geometry(
    *sets: LayerSet, block: int = 4, kernel: int | None = None, **more: object
) -> Geometry:
    """One group, 6 blocks and room for some host rows unless ``more`` says otherwise."""
    host = more.pop("host", Host(1 << 14))
    blocks = more.pop("blocks", 6)
    group = Group(block, kernel or block, sets)
    return Geometry((group,), blocks, host, **more)


def layers(
    count: int = 1, heads: int = 2, size: int = 8, cell: str = INT8, **more: int
) -> LayerSet:
    return LayerSet(count, heads, size, size, cell, **more)


def claim(*blocks: int, group: int = 0) -> Allocate:
    return Allocate(0, group, blocks)


def offload(*moves: Move, group: int = 0) -> Offload:
    return Offload(0, (Job(group, moves),))


def restore(*moves: Move, group: int = 0) -> Restore:
    return Restore(0, (Job(group, moves),))


BIG = geometry(layers(3), order="BLHNC")
CHUNKS = geometry(layers(), host=Host(1 << 14, 3))
PADDED = geometry(layers(2, page_bytes=256))
TWO_SIZES = Geometry(
    (Group(4, 4, (layers(),)), Group(8, 8, (layers(),))), 6, Host(1 << 14), "BLHNC"
)
TAIL = geometry(layers(), tail_alignment=4096, host=Host(2000))
LATENT = {"fp8_ds_mla": 576, "nvfp4_ds_mla": 576, "deepseek_v4": 512, "indexer_fp8": 128}
SIDE = Geometry(
    (Group(4, 4, (layers(2), LayerSet(1, 1, 128, 0, "indexer_fp8", side=True))),),
    6,
    Host(1 << 14),
    "BLHNC",
)
STATE = Geometry((Group(8, 8, (LayerSet(1, 1, 4, 6, "state_fp32"),)),), 6, Host(1 << 14))
SHARED = Geometry((Group(8, 8, (layers(),), tokens_per_state=4),), 6, Host(1 << 14))


def latent(page_format: str, page_bytes: int | None = None) -> Geometry:
    size = LATENT[page_format]
    return geometry(LayerSet(1, 1, size, 0, page_format, page_bytes), blocks=4)


def coded(
    page_format: str, size: int = 8, pattern: int = 1, **more: float
) -> tuple[Geometry, tuple[Op, ...]]:
    """Values of a pattern, written into one slot of a format."""
    one = LayerSet(1, 2, size, size, page_format, **more)
    shape = latent(page_format) if page_format in LATENT else geometry(one)
    return shape, (claim(0), WriteValues(1, 0, (Slot(0, 1),), pattern))


MANY = tuple(Move(block, block, 0) for block in range(17))
SHIFTED = tuple(Move(block + 1, block, 0) for block in range(17))

TRACES: dict[str, tuple[Geometry, tuple[Op, ...]]] = {
    "cell_without_scales": (geometry(layers()), ()),
    "layers_counted_twice": (geometry(layers(2)), ()),
    "scale_views_from_shape": (BIG, ()),
    "scale_views_mended_in_writer_only": (BIG, (claim(1), Read(1, 0, (Slot(1, 0),)))),
    "padded_stride_from_content": (PADDED, (claim(1), WriteTokens(1, 0, (Slot(1, 0),), 1))),
    "hnd_walked_as_nhd": (geometry(layers()), (claim(0), Read(1, 0, (Slot(0, 1),)))),
    "split_read_as_packed": (geometry(layers()), (claim(0), Read(1, 0, (Slot(0, 1),)))),
    "read_by_flat_slot": (geometry(layers()), (claim(1), Read(1, 0, (Slot(1, 0),)))),
    "physical_viewed_as_regions": (geometry(layers(), tail_alignment=100), ()),
    "phantom_regions": (TAIL, ()),
    "phantom_regions_unreported": (TAIL, (claim(0), offload(Move(0, 9, 0)))),
    "host_row_from_first_group": (TWO_SIZES, ()),
    "width_without_scales": (geometry(layers()), (claim(0), offload(Move(0, 0, 0)))),
    "padding_moved_as_content": (PADDED, (claim(0), offload(Move(0, 0, 0)))),
    "kernel_stride_in_transfer": (
        geometry(layers(), kernel=2),
        (claim(1), offload(Move(1, 0, 0))),
    ),
    "offset_by_length": (PADDED, (claim(1), offload(Move(1, 0, 0)))),
    "base_offset_dropped": (
        geometry(layers(), base_offset_bytes=8),
        (claim(0), offload(Move(0, 0, 0))),
    ),
    "restore_from_chunk_start": (
        CHUNKS,
        (claim(0), offload(Move(0, 0, 1)), restore(Move(0, 0, 1))),
    ),
    "block_id_as_host_slot": (geometry(layers()), (claim(1), offload(Move(1, 0, 0)))),
    "last_descriptors_lost": (
        geometry(layers(), blocks=18),
        (claim(*range(18)), offload(*MANY), restore(*SHIFTED)),
    ),
    "fast_path_truncates_to_words": (
        geometry(layers(size=3, cell="fp8_e4m3", heads=1), block=3, blocks=18),
        (claim(*range(18)), offload(*MANY), restore(*SHIFTED)),
    ),
    "pad_row_in_last_slot": (geometry(layers()), (WriteTokens(0, 0, (None,), 1),)),
    "pad_row_not_cleared": (geometry(layers()), (Read(0, 0, (None,)),)),
    "wide_store_checks_source_only": (
        geometry(layers(size=16, cell="fp8_e4m3"), base_offset_bytes=1),
        (claim(0), WriteTokens(1, 0, (Slot(0, 0),), 1)),
    ),
    "rest_of_tile_lost": (
        geometry(layers(size=18, cell="fp8_e4m3")),
        (Read(0, 0, (None,)),),
    ),
    "copy_chain_in_one_wave": (
        geometry(layers()),
        (claim(0, 1, 2), CopyBlocks(1, 0, (Pair(0, 1), Pair(1, 2)))),
    ),
    "partial_copy_takes_all": (
        geometry(layers()),
        (claim(0, 1), CopyBlocks(1, 0, (Pair(0, 1),), 2)),
    ),
    "partial_copy_misses_last_token": (
        geometry(layers()),
        (claim(0, 1), CopyBlocks(1, 0, (Pair(0, 1),), 1)),
    ),
    "copy_without_scales": (geometry(layers()), (claim(0, 1), CopyBlocks(1, 0, (Pair(0, 1),)))),
    "copy_width_of_first_view": (
        TWO_SIZES,
        (claim(0, 1, group=1), CopyBlocks(1, 1, (Pair(0, 1),))),
    ),
    "zero_spans_block_stride": (PADDED, (Allocate(0, 0, (0,), zero=True),)),
    "zero_stride_from_page": (PADDED, (Allocate(0, 0, (1,), zero=True),)),
    "first_groups_block_size": (
        TWO_SIZES,
        (claim(1, group=1), WriteTokens(1, 1, (Slot(1, 0),), 1)),
    ),
    "overlay_ownership_unchecked": (TWO_SIZES, (claim(0), claim(0, group=1))),
    "out_of_range_clamped": (geometry(layers()), (claim(6),)),
    "evicted_slot_still_restores": (
        geometry(layers()),
        (claim(0), offload(Move(0, 0, 0)), Evict(2, (0,)), restore(Move(0, 0, 0))),
    ),
    "parts_outlive_eviction": (
        CHUNKS,
        (
            claim(0),
            offload(Move(0, 0, 1)),
            Evict(2, (0,)),
            offload(Move(0, 0, 0)),
            restore(Move(0, 0, 1)),
        ),
    ),
    "chunk_complete_at_first_part": (
        CHUNKS,
        (claim(0), offload(Move(0, 0, 0)), restore(Move(0, 0, 1))),
    ),
    "padded_pages_split": (geometry(layers(page_bytes=256), kernel=2), ()),
    "value_scales_in_key_order": coded("nvfp4_swizzled", 64),
    "regions_read_as_cells": (latent("deepseek_v4"), (claim(0), Read(1, 0, (Slot(0, 1),)))),
    "state_scaled_with_block_size": (STATE, ()),
    "state_moved_by_the_token": (
        Geometry((Group(7, 7, (LayerSet(1, 1, 4, 6, "state_fp32"),)),), 6, Host(1 << 14)),
        (claim(0), offload(Move(0, 0, 0))),
    ),
    "side_buffer_left_behind": (SIDE, (claim(0), offload(Move(0, 0, 0)))),
    "side_buffer_not_copied": (SIDE, (claim(0, 1), CopyBlocks(1, 0, (Pair(0, 1),)))),
    "side_buffer_at_the_blocks_stride": (SIDE, (claim(1), WriteTokens(1, 0, (Slot(1, 0),), 1))),
    "packed_padding_zeroed": (latent("deepseek_v4", 2880), (Allocate(0, 0, (0,), zero=True),)),
    "tokens_taken_for_slots": (SHARED, (claim(1), WriteTokens(1, 0, (Slot(1, 0),), 1))),
    "pad_written_with_values": coded("turboquant_k8v4", 2),
    "largest_element_of_128": coded(INT8),
    "no_least_scale": coded(INT8, pattern=ZEROS),
    "scale_of_the_next_head": coded(INT8),
    "half_to_even": coded(INT8, pattern=HALVES),
    "truncated_for_rounded": coded("bf16"),
    "overflow_wraps": coded("fp8_e4m3", pattern=HUGE),
    "overflow_is_nan": coded("fp8_e4m3", pattern=HUGE),
    "fnuz_for_fn": coded("fp8_per_token_head"),
    "rope_as_fp16": coded("fp8_ds_mla"),
    "high_nibble_first": coded("int4_per_token_head"),
    "latent_scales_in_order": coded("nvfp4_ds_mla"),
    "rotation_without_signs": coded("int4_per_token_head"),
    "rotation_one_step_short": coded("int4_per_token_head"),
    "zero_point_lost": coded("int4_per_token_head"),
    "zero_point_in_scale": (
        geometry(layers(cell="int4_per_token_head")),
        (claim(0), ReadValues(1, 0, (Slot(0, 0),))),
    ),
    "global_scale_lost": coded("nvfp4", 16, k_scale=0.5),
    "key_scale_for_values": coded("fp8_e4m3", k_scale=0.5),
    "slots_past_their_tile": (
        geometry(layers(size=64, cell="nvfp4_swizzled"), block=8),
        (claim(0), WriteTokens(1, 0, (Slot(0, 4),), 1)),
    ),
    "slot_for_two_groups": (
        replace(TWO_SIZES, host=Host(1 << 14, 2)),
        (
            claim(0),
            claim(1, group=1),
            Offload(2, (Job(0, (Move(0, 0, 0),)), Job(1, (Move(1, 0, 1),)))),
        ),
    ),
    "first_sets_format_decides": (
        geometry(layers(), layers(cell="turboquant_4bit_nc")),
        (WriteValues(0, 0, (), 1),),
    ),
    "exponent_rounded_down": coded("deepseek_v4"),
    "scale_to_nearest": coded("nvfp4_ds_mla"),
}


def rows_for(op: Op, shape: Geometry) -> Rows | None:
    """Rows of a write, every byte its own; None for other ops."""
    if type(op) not in (WriteTokens, WriteValues):
        return None
    made = []
    for one in shape.groups[op.group].layer_sets:
        size = (len(op.slots), one.layers, one.kv_heads)
        if type(op) is WriteTokens:
            cell = sum(field.width_bytes for field in cell_fields(one))
            made.append(np.random.default_rng(op.tag).integers(1, 255, (*size, cell), np.uint8))
        else:
            made.append(values(op.tag, (*size, one.head_size_k + one.head_size_v)))
    return tuple(made)


def values(pattern: int, size: tuple[int, ...]) -> Bytes:
    """fp32 elements of a pattern."""
    found = np.random.default_rng(pattern).normal(0, 8, size).astype(np.float32)
    if pattern == ZEROS:
        found[:] = 0
    elif pattern == HALVES:
        found[..., :3] = 127, 0.5, 2.5
        found[..., 3:] = 1.5
    elif pattern == HUGE:
        found[..., 0] = 1000
    return found.view(np.uint8)


def outcome(target: Target, shape: Geometry, op: Op | None) -> object:
    """All that can be seen of opening a geometry (None) or of an op."""
    try:
        if op is None:
            facts = target.open(shape)
            assert target.plan(shape) == facts
            poison = np.random.default_rng(1)
            for area in ("pool", "host"):
                size = len(target.view(area))
                target.load(area, poison.integers(1, 255, size, np.uint8))
            return facts
        read = target.apply(op, rows_for(op, shape))
    except Refused as refused:
        return refused.reason
    except (OutOfBounds, DeviceLost) as error:
        return type(error)
    rows = None if read is None else [data.tobytes() for data in read]
    return rows, target.view("pool").tobytes(), target.view("host").tobytes()


def first_difference(target: Target, shape: Geometry, ops: tuple[Op, ...]) -> int | None:
    """After how many ops a target differs from the sound engine; None for never."""
    sound = CpuEngine()
    for done, op in enumerate((None, *ops)):
        seen = outcome(target, shape, op), outcome(sound, shape, op)
        if seen[0] != seen[1]:
            return done
    return None


def test_every_fault_has_a_trace() -> None:
    """Here, or among those of `test_faults_saved`."""
    saved = {path.stem for path in (Path(__file__).parent / "faults").glob("*.json")}
    assert set(TRACES) | saved == set(FAULTS)
    assert not set(TRACES) & saved


@pytest.mark.parametrize("name", TRACES)
def test_fault_shows_at_its_known_minimum(name: str) -> None:
    shape, ops = TRACES[name]
    ops = tuple(replace(op, id=index) for index, op in enumerate(ops))
    fault = FAULTS[name]
    assert fault.known_minimum == len(ops)
    assert first_difference(fault.target(), shape, ops) == len(ops)


@pytest.mark.parametrize("name", TRACES)
def test_sound_engine_is_equal_to_itself(name: str) -> None:
    assert first_difference(CpuEngine(), *TRACES[name]) is None


@pytest.mark.parametrize("name", TRACES)
def test_trace_is_legal_and_small(name: str) -> None:
    shape, ops = TRACES[name]
    engine = CpuEngine()
    refused = [op for op in (None, *ops) if isinstance(outcome(engine, shape, op), str)]
    # What is refused is refused on purpose, and last: there the fault is that it accepts.
    assert refused in ([], [(None, *ops)[-1]])
    if not refused:
        assert engine.plan(shape)["pool.physical_bytes"] <= 1 << 16


def test_faults_are_many_and_of_many_kinds() -> None:
    kinds = Counter(fault.kind for fault in FAULTS.values())
    assert len(FAULTS) >= 20
    assert len(kinds) >= 10
    for name, fault in FAULTS.items():
        assert fault.name == name
        assert fault.summary.endswith(".")
        assert "#" in fault.report or fault.report == "no public report"
