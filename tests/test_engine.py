"""The engine's operations: where bytes go, what is refused, how kernels run, what is caught."""

import os
import random
import re
import tempfile
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from kvexact.impl.engine import build
from kvexact.impl.engine.cpu import CpuDevice, guarded
from kvexact.impl.engine.device import HOST, POOL, Device
from kvexact.impl.engine.engine import CpuEngine, cpu_engine
from kvexact.impl.engine.tables import BlockTable
from kvexact.impl.target import Bytes, DeviceLost, OutOfBounds, Rows
from kvexact.refmodel.ops import (
    BLOCK_OPS,
    KIND_OF,
    Allocate,
    CopyBlocks,
    Evict,
    Free,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Read,
    ReadValues,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.spec import ORDERS, Geometry, Group, Host, LayerSet, Refused

INT8 = LayerSet(3, 2, 32, 32, "int8_per_token_head")
ODD = LayerSet(2, 3, 7, 3, "fp8_e4m3")


def geometry(*sets: LayerSet, order: str = "LBHNC", chunk: int = 2, **more: object) -> Geometry:
    return Geometry((Group(4, 4, sets),), 20, Host(1 << 17, chunk), order, **more)


def opened(shape: Geometry, engine_type: type[CpuEngine] = CpuEngine) -> CpuEngine:
    engine = engine_type()
    engine.open(shape)
    draw = np.random.default_rng(7)
    for area in ("pool", "host"):
        engine.load(area, draw.integers(1, 255, len(engine.view(area)), np.uint8))
    return engine


def rows_of(shape: Geometry, op: WriteTokens | WriteValues) -> Rows:
    draw = np.random.default_rng(op.tag)
    rows = []
    for one in shape.groups[op.group].layer_sets:
        width = one.head_size_k + one.head_size_v
        if type(op) is WriteValues:
            width *= 4
        elif one is INT8:
            width += 8
        size = (len(op.slots), one.layers, one.kv_heads, width)
        rows.append(draw.integers(0, 256, size, np.uint8))
    return tuple(rows)


def run(engine: CpuEngine, shape: Geometry, *ops: Op) -> Rows | None:
    """Run ops; what the last one read."""
    read = None
    for op in ops:
        writes = isinstance(op, WriteTokens | WriteValues)
        read = engine.apply(op, rows_of(shape, op) if writes else None)
    return read


def refusal(engine: CpuEngine, shape: Geometry, op: Op) -> str:
    before = engine.view("pool").tobytes(), engine.view("host").tobytes()
    with pytest.raises(Refused) as caught:
        run(engine, shape, op)
    assert before == (engine.view("pool").tobytes(), engine.view("host").tobytes())
    return caught.value.reason


CLAIM = Allocate(0, 0, tuple(range(18)))


def offload(*moves: tuple[int, int, int], group: int = 0) -> Offload:
    return Offload(0, (Job(group, tuple([Move(*move) for move in moves])),))


def restore(*moves: tuple[int, int, int], group: int = 0) -> Restore:
    return Restore(0, (Job(group, tuple([Move(*move) for move in moves])),))


# Where bytes go.


def fields_of(facts: dict, s: int) -> list[tuple[str, int, int]]:
    """(name, offset in the cell, bytes) of int8 cells of 32 + 4 + 32 + 4 bytes, or of `ODD`."""
    if f"g0.s{s}.k_scale.view" in facts:
        return [("k", 0, 32), ("k_scale", 32, 4), ("v", 36, 32), ("v_scale", 68, 4)]
    return [("k", 0, 7), ("v", 7, 3)]


@pytest.mark.parametrize("kv_split", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_a_write_reaches_the_bytes_that_facts_name_and_no_others(
    order: str, kv_split: bool
) -> None:
    shape = geometry(INT8, ODD, order=order, kv_split=kv_split, tail_alignment=512)
    engine = opened(shape)
    facts = engine.plan(shape)
    want = engine.view("pool").copy()
    write = WriteTokens(1, 0, (Slot(3, 1), None, Slot(17, 0), Slot(3, 3)), 5)
    for s, data in enumerate(rows_of(shape, write)):
        for row, layer, head in product(*map(range, data.shape[:3])):
            slot = write.slots[row]
            if slot is None:
                continue
            for name, at, size in fields_of(facts, s):
                offset, *strides = facts[f"g0.s{s}.{name}.view"]
                index = (layer, slot.block, head, slot.token)
                place = offset + sum(i * n for i, n in zip(index, strides, strict=True))
                want[place : place + size] = data[row, layer, head, at : at + size]
    run(engine, shape, CLAIM, write)
    assert (engine.view("pool") == want).all()


@pytest.mark.parametrize("order", ORDERS)
def test_read_returns_what_was_written_and_zeros_for_pads(order: str) -> None:
    shape = geometry(INT8, ODD, order=order)
    engine = opened(shape)
    write = WriteTokens(1, 0, tuple([Slot(2, token) for token in range(4)]), 9)
    run(engine, shape, CLAIM, write)
    read = run(engine, shape, Read(2, 0, (Slot(2, 3), None, Slot(2, 0), Slot(2, 3))))
    assert read is not None
    for got, put in zip(read, rows_of(shape, write), strict=True):
        assert (got[[0, 2, 3]] == put[[3, 0, 3]]).all()
        assert not got[1].any()
    assert run(engine, shape, Read(2, 0, ())) is not None


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_survives_host_and_another_block(order: str) -> None:
    shape = geometry(INT8, ODD, order=order, base_offset_bytes=4)
    engine = opened(shape)
    slots = tuple([Slot(5, token) for token in range(4)])
    write = WriteTokens(1, 0, slots, 9)
    run(engine, shape, CLAIM, write, offload((5, 3, 1)), Zero(2, 0, (5,)))
    zeros = run(engine, shape, Read(3, 0, slots))
    assert zeros is not None
    assert not any(data.any() for data in zeros)
    moved = tuple([Slot(0, token) for token in range(4)])
    copied = tuple([Slot(1, token) for token in range(4)])
    pairs = (Pair(0, 1),)
    run(engine, shape, restore((0, 3, 1)), CopyBlocks(4, 0, pairs))
    for place in (moved, copied):
        read = run(engine, shape, Read(5, 0, place))
        assert read is not None
        for got, put in zip(read, rows_of(shape, write), strict=True):
            assert (got == put).all()


def test_host_row_holds_layers_then_parts() -> None:
    shape = geometry(INT8, order="BLNHC")
    engine = opened(shape)
    page, stride = 576, 1728
    want = engine.view("host").copy()
    row = 3 * 2 * page
    for layer in range(3):
        at = 2 * row + (layer * 2 + 1) * page
        start = 7 * stride + layer * page
        want[at : at + page] = engine.view("pool")[start : start + page]
    run(engine, shape, CLAIM, offload((7, 2, 1)))
    assert (engine.view("host") == want).all()


def test_partial_copy_takes_the_first_tokens_across_kernel_blocks() -> None:
    shape = Geometry((Group(6, 2, (ODD,)),), 20, Host(1 << 16))
    engine = opened(shape)
    every = [tuple([Slot(block, token) for token in range(6)]) for block in (1, 4)]
    run(engine, shape, CLAIM)
    source = run(engine, shape, Read(1, 0, every[0]))
    target = run(engine, shape, Read(1, 0, every[1]))
    run(engine, shape, CopyBlocks(2, 0, (Pair(1, 4),), 5))
    result = run(engine, shape, Read(3, 0, every[1]))
    assert source is not None and target is not None and result is not None  # noqa: PT018
    assert (result[0][:5] == source[0][:5]).all()
    assert (result[0][5] == target[0][5]).all()


@pytest.mark.parametrize("tokens", [None, 2])
def test_copy_chains_carry_through(tokens: int | None) -> None:
    shape = geometry(ODD)
    pairs = (Pair(0, 1), Pair(1, 2), Pair(3, 0), Pair(4, 2), Pair(5, 5), Pair(2, 6))
    batch, single = opened(shape), opened(shape)
    run(batch, shape, CLAIM, CopyBlocks(1, 0, pairs, tokens))
    run(single, shape, CLAIM, *[CopyBlocks(1, 0, (pair,), tokens) for pair in pairs])
    assert (batch.view("pool") == single.view("pool")).all()


# Refusals, in order of precedence.


def test_refusals_of_blocks_and_slots() -> None:
    shape = Geometry((Group(4, 4, (ODD,)), Group(2, 2, (ODD,))), 6, Host(1 << 12), "BLHNC")
    engine = opened(shape)
    run(engine, shape, Allocate(0, 0, (0, 1)), Allocate(1, 1, (2,)))
    for op, reason in (
        (Allocate(2, 2, ()), "range"),
        (Allocate(2, -1, (0,)), "range"),
        (Allocate(2, 0, (3, 3, 6)), "range"),
        (Allocate(2, 0, (0, 3, 3)), "duplicate"),
        (Allocate(2, 1, (3, 0)), "owner"),
        (Free(2, 0, (2**31,)), "range"),
        (Free(2, 0, (2, 2)), "duplicate"),
        (Free(2, 0, (0, 2)), "owner"),
        (Zero(2, 1, (-1,)), "range"),
        (Zero(2, 1, (0,)), "owner"),
        (WriteTokens(2, 0, (Slot(0, 4),), 1), "range"),
        (WriteTokens(2, 1, (Slot(2, 1), Slot(2, 1), Slot(0, 2)), 1), "range"),
        (WriteTokens(2, 0, (Slot(2, 0), None, Slot(2, 0)), 1), "duplicate"),
        (WriteTokens(2, 0, (None, Slot(2, 0)), 1), "owner"),
        (Read(2, 0, (Slot(3, 0), Slot(3, 0))), "owner"),
        (Read(2, 0, (Slot(0, -1),)), "range"),
        (CopyBlocks(2, 0, (Pair(0, 6),)), "range"),
        (CopyBlocks(2, 0, (Pair(0, 2),), 5), "range"),
        (CopyBlocks(2, 0, (), -1), "range"),
        (CopyBlocks(2, 0, (Pair(0, 1), Pair(2, 0))), "owner"),
    ):
        assert refusal(engine, shape, op) == reason, op
    run(engine, shape, WriteTokens(3, 0, (None, None), 1), CopyBlocks(4, 0, (Pair(0, 1),), 0))


def test_refusals_of_values() -> None:
    """Of formats with unknown codebooks; after a wrong range, before anything else."""
    raw = LayerSet(1, 1, 16, 16, "turboquant_4bit_nc")
    plain = LayerSet(1, 1, 16, 16, "bf16")
    groups = tuple([Group(4, 4, sets) for sets in ((plain, raw), (plain,))])
    shape = Geometry(groups, 6, Host(1 << 12), "BLHNC")
    engine = opened(shape)
    run(engine, shape, Allocate(0, 0, (0, 1)), Allocate(1, 1, (2,)))
    for slots, reason in (
        ((), "format"),
        ((None,), "format"),
        ((Slot(0, 0),), "format"),
        ((Slot(2, 0), Slot(2, 0)), "format"),
        ((Slot(2, 0), Slot(2, 4)), "range"),
    ):
        assert refusal(engine, shape, WriteValues(2, 0, slots, 1)) == reason
        assert refusal(engine, shape, ReadValues(2, 0, slots)) == reason
    twice = (Slot(0, 0), Slot(0, 0))
    assert refusal(engine, shape, WriteValues(2, 1, twice, 1)) == "duplicate"
    assert refusal(engine, shape, ReadValues(2, 1, twice)) == "owner"
    assert refusal(engine, shape, ReadValues(2, 2, ())) == "range"
    run(engine, shape, WriteTokens(3, 0, (Slot(0, 0),), 1), Read(4, 0, twice))


def test_allocate_zeroes_content_after_all_checks() -> None:
    padded = LayerSet(2, 1, 8, 8, "fp8_e4m3", 80)
    shape = geometry(padded)
    engine = opened(shape)
    want = engine.view("pool").copy()
    run(engine, shape, Allocate(0, 0, (3,)))
    for blocks, reason in (((2, 20), "range"), ((2, 2), "duplicate"), ((2, 3), "owner")):
        assert refusal(engine, shape, Allocate(1, 0, blocks, zero=True)) == reason
    run(engine, shape, Allocate(1, 0, (2, 5), zero=True))
    for layer, block in product(range(2), (2, 5)):
        start = (layer * 20 + block) * 80
        want[start : start + 64] = 0
    assert (engine.view("pool") == want).all()
    assert refusal(engine, shape, Allocate(2, 0, (5,))) == "owner"


def test_refusals_of_slots_that_tokens_share() -> None:
    shape = Geometry((Group(10, 10, (ODD,), 4),), 6, Host(1 << 12))
    engine = opened(shape)
    run(engine, shape, Allocate(0, 0, (0, 1)), WriteTokens(1, 0, (Slot(0, 1),), 1))
    assert refusal(engine, shape, Read(2, 0, (Slot(0, 2),))) == "range"
    assert refusal(engine, shape, CopyBlocks(2, 0, (Pair(0, 1),), 3)) == "range"
    run(engine, shape, CopyBlocks(2, 0, (Pair(0, 1),), 2))
    read = run(engine, shape, Read(3, 0, (Slot(0, 1), Slot(1, 1))))
    assert read is not None
    assert (read[0][0] == read[0][1]).all()


def test_refusals_of_the_host_tier() -> None:
    shape = Geometry((Group(4, 4, (ODD,)), Group(4, 4, (ODD,))), 6, Host(2000, 2))
    engine = opened(shape)
    slots = engine.plan(shape)["host.scheduler_slots"]
    run(engine, shape, Allocate(0, 0, (0, 1)), Allocate(1, 1, (2, 3)), offload((0, 0, 1)))
    twice = Offload(2, (Job(0, (Move(0, 1, 0),)), Job(0, (Move(1, 1, 0),))))
    both = Offload(2, (Job(0, (Move(0, 1, 0),)), Job(1, (Move(2, 1, 1),))))
    again = Restore(2, (Job(0, (Move(0, 0, 1),)), Job(0, (Move(0, 0, 1),))))
    for op, reason in (
        (Offload(2, (Job(2, ()),)), "range"),
        (offload((0, slots, 0)), "range"),
        (offload((0, 0, 2)), "range"),
        (offload((6, 0, 0)), "range"),
        (twice, "duplicate"),
        (offload((2, 0, 0)), "owner"),
        (offload((2, 0, 0), group=1), "host"),
        (both, "host"),
        (restore((0, 0, -1)), "range"),
        (again, "duplicate"),
        (restore((2, 0, 1)), "owner"),
        (restore((0, 0, 0)), "host"),
        (restore((0, 1, 0)), "host"),
        (restore((2, 0, 1), group=1), "host"),
        (Evict(2, (slots,)), "range"),
        (Evict(2, (1, 1)), "duplicate"),
        (Evict(2, (0, 1)), "host"),
    ):
        assert refusal(engine, shape, op) == reason, op
    run(engine, shape, Evict(3, (0,)), offload((2, 0, 0), group=1), Reset(4))
    assert refusal(engine, shape, Evict(5, (0,))) == "host"
    run(engine, shape, Allocate(6, 1, (0, 1, 2, 3)))


# How kernels run.

ENGINES = [CpuEngine, *[cpu_engine(n, reverse=r) for n, r in ((1, False), (1, True), (32, True))]]


def random_ops(draw: random.Random) -> list[Op]:
    def blocks(count: int) -> list[int]:
        return draw.sample(range(18), count)

    ops: list[Op] = [CLAIM]
    held: set[tuple[int, int]] = set()
    for number in range(40):
        size = draw.randint(1, 18)
        slots = [Slot(block, draw.randrange(4)) for block in blocks(size)]
        pairs = tuple([Pair(draw.randrange(18), draw.randrange(18)) for _ in range(size)])
        places = draw.sample(list(product(range(10), range(2))), min(size, 20))
        ops += [
            WriteTokens(number, 0, (*slots, None), number),
            Read(number, 0, (None, *slots, *slots)),
            CopyBlocks(number, 0, pairs, draw.choice([None, 1, 3])),
            Zero(number, 0, tuple(blocks(1))),
            offload(*[(block, *place) for block, place in zip(blocks(size), places, strict=False)]),
        ]
        held.update(places[:size])
        known = draw.sample(sorted(held), min(len(held), size))
        ops.append(restore(*[(b, *p) for b, p in zip(blocks(size), known, strict=False)]))
    return ops


@pytest.mark.parametrize("order", ["LBHNC", "BHLNC", "LHBNC"])
@pytest.mark.parametrize("sets", [(INT8,), (ODD,), (INT8, ODD)], ids=["int8", "odd", "both"])
def test_lanes_and_direction_do_not_show(sets: tuple[LayerSet, ...], order: str) -> None:
    shape = geometry(*sets, order=order)
    engines = [opened(shape, engine) for engine in ENGINES]
    for op in random_ops(random.Random(3)):
        seen = []
        for engine in engines:
            read = run(engine, shape, op)
            rows = None if read is None else [data.tobytes() for data in read]
            seen.append((rows, engine.view("pool").tobytes(), engine.view("host").tobytes()))
        assert all(one == seen[0] for one in seen)


class _Unsafe(BlockTable):
    """Lets any id through."""

    def ids(self, blocks):
        return blocks

    def require_owned(self, group, blocks):
        pass


class _UnsafeEngine(CpuEngine):
    block_table: ClassVar[type[BlockTable]] = _Unsafe


@pytest.mark.parametrize("block", [20, -1, 2**31, -(2**40)])
@pytest.mark.parametrize(
    "op",
    [
        lambda block: WriteTokens(0, 0, (Slot(block, 0),), 1),
        lambda block: Read(0, 0, (Slot(block, 0),)),
        lambda block: Zero(0, 0, (block,)),
        lambda block: CopyBlocks(0, 0, (Pair(0, block),)),
        lambda block: CopyBlocks(0, 0, (Pair(block, 0),), 2),
        lambda block: offload((block, 0, 0)),
    ],
    ids=["write", "read", "zero", "copy", "partial", "offload"],
)
@pytest.mark.parametrize("engine_type", ENGINES)
def test_out_of_bounds_is_caught_and_touches_nothing(engine_type, op, block) -> None:
    shape = geometry(ODD, order="BLHNC")
    unsafe = type("Unsafe", (engine_type,), {"block_table": _Unsafe})
    engine = opened(shape, unsafe)
    before = engine.view("pool").tobytes(), engine.view("host").tobytes()
    made = op(block)
    if block < 0 and type(made) in (WriteTokens, Read):
        return  # a negative slot is a pad row
    with pytest.raises(OutOfBounds, match="outside registered memory"):
        run(engine, shape, made)
    assert before == (engine.view("pool").tobytes(), engine.view("host").tobytes())


def test_the_fast_path_checks_bounds_too() -> None:
    shape = geometry(INT8)
    engine = opened(shape, _UnsafeEngine)
    moves = [(block, block // 2, block % 2) for block in range(17)]
    run(engine, shape, CLAIM, offload(*moves))
    with pytest.raises(OutOfBounds, match=r"transfer: .* bytes at pool"):
        run(engine, shape, restore((20, 0, 0), *moves[1:]))
    assert engine.launches()["transfer"] == 1


def test_misaligned_access_loses_the_device() -> None:
    class Faulty(CpuEngine):
        macros: ClassVar[tuple[str, ...]] = ("KVEXACT_FAULT_SOURCE_ALIGNMENT_ONLY",)

    shape = geometry(LayerSet(1, 1, 16, 16, "fp8_e4m3"), base_offset_bytes=1)
    engine = opened(shape, Faulty)
    with pytest.raises(DeviceLost, match="misaligned"):
        run(engine, shape, CLAIM, WriteTokens(1, 0, (Slot(0, 0),), 1))


def test_a_view_outlives_close() -> None:
    shape = geometry(ODD)
    engine = opened(shape)
    view = engine.view("pool")
    kept = view.copy()
    engine.close()
    engine.close()
    assert (view == kept).all()
    with pytest.raises(RuntimeError, match="no geometry is open"):
        engine.view("pool")
    engine.open(shape)
    assert not engine.view("pool").any()
    assert engine.launches() == {}


def test_large_ops_grow_the_scratch_memory() -> None:
    shape = Geometry((Group(64, 16, (INT8,)),), 8, Host(1 << 20))
    engine = opened(shape)
    slots = tuple([Slot(block, token) for block in range(8) for token in range(64)])
    write = WriteTokens(1, 0, slots, 1)
    run(engine, shape, Allocate(0, 0, tuple(range(8))), write)
    read = run(engine, shape, Read(2, 0, slots))
    assert read is not None
    assert (read[0] == rows_of(shape, write)[0]).all()


def test_guarded_memory_is_zeroed_and_aligned() -> None:
    data, address = guarded(5000)
    assert len(data) == 5000
    assert not data.any()
    assert address % 4096 == 0


def test_guarded_memory_can_be_that_of_a_file() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 8192)
        file.flush()
        data, _ = guarded(5000, file.fileno())
        assert not data.any()
        data[[0, 4999]] = 1, 2
        assert os.pread(file.fileno(), 8192, 0) == b"\1" + bytes(4998) + b"\2" + b"x" * 3192


@pytest.mark.parametrize("lanes", [0, 33])
def test_lanes_have_bounds(lanes: int) -> None:
    with pytest.raises(ValueError, match="use 1 to 32"):
        CpuDevice(lanes=lanes)


# Launches and copies: every op that moves bytes does so by the kernel or copy that is meant.

MOVES = tuple((block, block // 2, block % 2) for block in range(16))
LAUNCHES: dict[str, tuple[Op, dict[str, int]]] = {
    "allocate": (Allocate(1, 0, (18,)), {}),
    "allocate, zero": (Allocate(1, 0, (18, 19), zero=True), {"zero": 1}),
    "allocate, zero none": (Allocate(1, 0, (), zero=True), {}),
    "free": (Free(1, 0, (17,)), {}),
    "write_tokens": (WriteTokens(1, 0, (Slot(0, 1), None), 3), {"write": 1}),
    "write_values": (WriteValues(1, 0, (Slot(0, 1), None), 3), {"encode": 1, "write": 1}),
    "zero": (Zero(1, 0, (0, 2)), {"zero": 1}),
    "copy_blocks": (CopyBlocks(1, 0, (Pair(0, 1), Pair(1, 2), Pair(3, 4))), {"copy": 2}),
    "offload": (offload(*MOVES), {"copy_batch": 1}),
    "restore": (restore((1, 0, 0)), {"copy_batch": 1}),
    "restore, fast": (restore((16, 0, 0), *MOVES[1:]), {"transfer": 1}),
    "read": (Read(1, 0, (Slot(0, 1), None)), {"read": 1}),
    "read_values": (ReadValues(1, 0, (Slot(0, 1), None)), {"read": 1, "decode": 1}),
    "evict": (Evict(1, (0,)), {}),
    "reset": (Reset(1), {}),
}


def before(kind: str) -> tuple[Op, ...]:
    return (CLAIM, offload(*MOVES)) if kind.startswith(("restore", "evict")) else (CLAIM,)


def test_launches_of_each_op_kind() -> None:
    assert {KIND_OF[type(op)] for op, _ in LAUNCHES.values()} == set(BLOCK_OPS)
    shape = geometry(INT8)
    for kind, (op, launches) in LAUNCHES.items():
        engine = opened(shape)
        run(engine, shape, *before(kind))
        seen = engine.launches()
        run(engine, shape, op)
        gained = {name: n - seen.get(name, 0) for name, n in engine.launches().items()}
        assert {name: n for name, n in gained.items() if n and " " not in name} == launches, kind


def test_paths_of_tasks_are_counted() -> None:
    """Rows of 20 bytes: pages of 80 are copied whole, slots at 4, 24, 44 with what is in common."""
    shape = Geometry((Group(4, 4, (LayerSet(1, 1, 20, 0, "fp8_e4m3"),)),), 20, Host(80))
    engine = opened(shape)
    run(engine, shape, CLAIM, WriteTokens(1, 0, (Slot(0, 0), Slot(0, 1), None), 1))
    run(engine, shape, CopyBlocks(2, 0, (Pair(0, 1), Pair(0, 2))))
    paths = {name: n for name, n in engine.launches().items() if " " in name}
    assert paths == {"write by 16 with a rest": 1, "write by 4": 1, "copy by 16": 2}
    run(engine, shape, offload((0, 0, 0)), restore((1, 0, 0)))
    assert engine.launches()["copy_batch to the host"] == 1
    assert engine.launches()["copy_batch of few runs"] == 1


@pytest.mark.parametrize(
    ("runs", "count", "fast"),
    [(16, 15, False), (16, 16, True), (17, 16, False), (28 * 1024, 16, False), (28664, 16, True)],
)
def test_edges_of_the_fast_path(runs: int, count: int, fast: bool) -> None:
    layer_set = LayerSet(1, 1, runs, 0, "fp8_e4m3")
    shape = Geometry((Group(1, 1, (layer_set,)),), 20, Host(20 * runs))
    engine = opened(shape)
    moves = [(block, block, 0) for block in range(count)]
    run(engine, shape, CLAIM, offload(*moves), Reset(1), CLAIM, offload(*moves))
    want = engine.view("host").copy()
    run(engine, shape, Zero(1, 0, tuple(range(18))), restore(*moves))
    assert ("transfer" in engine.launches()) == fast
    assert (engine.view("pool")[: count * runs] == want[: count * runs]).all()


KERNELS = re.findall(
    r"^struct (\w+) \{\n  static const Area", build.SOURCE.read_text(), re.MULTILINE
)


def pool_after(source: Path, kind: str) -> tuple[bytes, object, bytes]:
    """Pool, rows and host tier after an op, with kernels built from ``source``."""

    class Engine(CpuEngine):
        def make_device(self) -> Device:
            return CpuDevice(source=source)

    shape = geometry(INT8)
    sound, engine = opened(shape), opened(shape, Engine)
    # Get to the same state with sound kernels; tables as the op needs them.
    for one in (sound, engine):
        run(one, shape, *before(kind))
    run(sound, shape, WriteTokens(1, 0, (Slot(1, 1),), 1))
    for area in ("pool", "host"):
        engine.load(area, sound.view(area))
    read: list[Bytes] = list(run(engine, shape, LAUNCHES[kind][0]) or ())
    rows = [data.tobytes() for data in read]
    return engine.view("pool").tobytes(), rows, engine.view("host").tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_without_a_body_is_noticed(kernel: str, tmp_path: Path) -> None:
    text = build.SOURCE.read_text()
    start = text.index("{\n", text.index(f"segment(const {kernel}& k"))
    broken = tmp_path / "kernels.cu"
    broken.write_text(f"{text[:start]}{{ return {{}};\n{text[start + 2 :]}")
    noticed = {
        kind for kind in LAUNCHES if pool_after(build.SOURCE, kind) != pool_after(broken, kind)
    }
    name = {
        "Write": {"write_tokens", "write_values"},
        "Read": {"read", "read_values"},
        "Copy": {"copy_blocks"},
        "Zero": {"zero", "allocate, zero"},
        "Transfer": {"restore, fast"},
    }
    assert noticed == name[kernel]


def test_kernels_are_all_known() -> None:
    assert KERNELS == ["Write", "Read", "Copy", "Zero", "Transfer"]
    assert (POOL, HOST) == (0, 1)
