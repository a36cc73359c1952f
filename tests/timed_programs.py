"""Random programs for an asynchronous engine, with what a synchronous one makes of them."""

import random
from itertools import pairwise

import numpy as np

from kvexact.impl.target import Bytes, Result, Rows, Target
from kvexact.refmodel.ops import (
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
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet, Refused
from kvexact.refmodel.timed_ops import Fence, Step

INT8 = LayerSet(3, 2, 8, 4, "int8_per_token_head")
BF16 = LayerSet(2, 1, 4, 4, "bf16")

#: One layer, several, two groups with other layers on the same blocks, pieces for the kernel.
SHAPES = (
    Geometry((Group(2, 2, (INT8,)),), 6, Host(4096, 2)),
    Geometry((Group(4, 4, (BF16, LayerSet(1, 1, 3, 5, "bf16"))),), 5, Host(2048, 1), "BLHNC"),
    Geometry(
        (Group(2, 2, (BF16,)), Group(2, 2, (LayerSet(4, 1, 2, 2, "bf16"),))), 6, Host(1024), "BLHNC"
    ),
    Geometry((Group(2, 2, (LayerSet(8, 1, 4, 4, "bf16"),)),), 5, Host(4096, 2), "BHLNC"),
)


def rows_for(shape: Geometry, op: Op) -> Rows | None:
    """What a write stores: a function of its tag."""
    if not isinstance(op, WriteTokens | WriteValues):
        return None
    draw = np.random.default_rng(op.tag)
    rows = []
    for one in shape.groups[op.group].layer_sets:
        size = CELLS[one.page_format](one)
        if isinstance(op, WriteValues):
            size = (one.head_size_k + one.head_size_v) * 4
            values = draw.standard_normal((len(op.slots), one.layers, one.kv_heads, size // 4))
            rows.append(values.astype(np.float32).view(np.uint8))
        else:
            counts = (len(op.slots), one.layers, one.kv_heads, size)
            rows.append(draw.integers(0, 256, counts, np.uint8))
    return tuple(rows)


#: Bytes of a cell.
CELLS = {
    "bf16": lambda one: 2 * (one.head_size_k + one.head_size_v),
    "int8_per_token_head": lambda one: one.head_size_k + one.head_size_v + 8,
}


def draw_program(number: int) -> tuple[Geometry, list[Op]]:
    """A geometry and some forty ops, a few of them refused; no poll."""
    rng = random.Random(number)
    shape = rng.choice(SHAPES)
    draw = Draw(rng, shape)
    return shape, [draw.op(index) for index in range(40)]


class Draw:
    """Draws ops that are mostly legal."""

    def __init__(self, rng: random.Random, shape: Geometry) -> None:
        self.rng = rng
        self.shape = shape
        self.owner: dict[int, int] = {}
        self.held: dict[tuple[int, int], int] = {}

    def op(self, index: int) -> Op:
        """The next op; block and host tables follow it as if it were accepted."""
        rng, shape = self.rng, self.shape
        group = rng.randrange(len(shape.groups))
        free = [block for block in range(shape.blocks) if block not in self.owner]
        owned = [block for block, owner in self.owner.items() if owner == group]
        places = {place for place, owner in self.held.items() if owner == group}
        others = {slot for (slot, _), owner in self.held.items() if owner != group}
        parts = range(shape.host.chunk_blocks)
        room = [(slot, part) for slot in range(3) if slot not in others for part in parts]
        if len(owned) < 2 and free:
            blocks = tuple(rng.sample(free, rng.randint(1, min(3, len(free)))))
            self.owner.update(dict.fromkeys(blocks, group))
            return Allocate(index, group, blocks, zero=rng.random() < 0.6)
        blocks = tuple(rng.sample(owned, rng.randint(1, min(3, len(owned)))) if owned else ())
        kind = rng.choices(KINDS, WEIGHTS)[0]
        if kind is Free:
            for block in blocks:
                del self.owner[block]
            return Free(index, group, blocks)
        if kind is Offload:
            moves = list(zip(blocks, rng.sample(room, min(len(room), len(blocks))), strict=False))
            self.held.update({place: group for _, place in moves})
            return Offload(index, (job_of(group, moves),))
        if kind is Restore:
            held = rng.sample(sorted(places), min(len(places), len(blocks)))
            return Restore(index, (job_of(group, list(zip(blocks, held, strict=False))),))
        if kind is Evict and self.held:
            slot = rng.choice(sorted(self.held))[0]
            self.held = {place: owner for place, owner in self.held.items() if place[0] != slot}
            return Evict(index, (slot,))
        if kind is Reset:
            self.owner.clear()
            self.held.clear()
            return Reset(index)
        return self._on_blocks(kind, index, group, blocks)

    def _on_blocks(self, kind: type, index: int, group: int, blocks: tuple[int, ...]) -> Op:
        rng = self.rng
        tokens = range(self.shape.groups[group].block_size)
        slots = [Slot(block, token) for block in blocks for token in tokens if rng.random() < 0.8]
        padded = tuple([slot if rng.random() < 0.9 else None for slot in slots])
        tag = rng.randrange(1 << 20)
        if kind is CopyBlocks:
            pairs = tuple([Pair(one, other) for one, other in pairwise(blocks)])
            return CopyBlocks(index, group, pairs, rng.choice((None, 1)))
        if kind is Zero:
            return Zero(index, group, blocks[:1])
        if kind in (Read, ReadValues):
            return kind(index, group, padded)
        if kind in (WriteTokens, WriteValues):
            return kind(index, group, padded, tag)
        return Step(index)


KINDS = (Free, WriteTokens, WriteValues, Zero, CopyBlocks, Offload, Restore, Read, ReadValues)
KINDS += (Evict, Reset, Step)
WEIGHTS = (4, 6, 2, 3, 4, 8, 9, 1, 1, 1, 0.2, 1)


def job_of(group: int, moves: list[tuple[int, tuple[int, int]]]) -> Job:
    """Blocks and their places, as a job."""
    return Job(group, tuple([Move(block, *place) for block, place in moves]))


def begin(target: Target, shape: Geometry, number: int) -> None:
    """Open a geometry under a schedule, with other bytes everywhere."""
    target.schedule(number)
    target.open(shape)
    draw = np.random.default_rng(7)
    for area in ("pool", "host"):
        target.load(area, draw.integers(0, 256, target.view(area).size, np.uint8))


def apply(target: Target, shape: Geometry, op: Op) -> Result | str:
    """What an op returned, or why it was refused."""
    if isinstance(op, Fence | Step) and not target.is_async:
        return None
    try:
        return target.apply(op, rows_for(shape, op))
    except Refused as refused:
        return refused.reason


def areas(target: Target) -> tuple[Bytes, Bytes]:
    """Copies of both tiers."""
    return target.view("pool").copy(), target.view("host").copy()


def seen(target: Target, shape: Geometry, ops: list[Op], number: int) -> list[object]:
    """What the host sees of a program: results, and all bytes after a fence."""
    begin(target, shape, number)
    found: list[object] = []
    for op in ops:
        result = apply(target, shape, op)
        found.append([rows.tobytes() for rows in result] if type(result) is tuple else result)
    apply(target, shape, Fence(len(ops)))
    found += [data.tobytes() for data in areas(target)]
    target.close()
    return found
