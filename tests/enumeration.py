"""All short traces on a geometry, from a finite alphabet of ops: is a known minimum a minimum?"""

from collections.abc import Callable, Iterator
from itertools import product

from kvexact.fuzz.edits import Program
from kvexact.fuzz.run import execute
from kvexact.impl.target import Target
from kvexact.refmodel.formats import slots
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
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry, Refused

_FIRST_BLOCKS = 3


def failing(
    make_target: Callable[[], Target], geometry: Geometry, ops_most: int
) -> Iterator[Program]:
    """Traces of at most so many ops that fail, the shortest first; none that only go on after one.

    What was refused or did nothing changes nothing, so no longer trace starts with it. There are
    very many: ask for no more than are needed.
    """
    target = make_target()
    starts: list[tuple[Op, ...]] = [()]
    if execute(target, geometry, ())[1] is not None:
        yield Program(geometry, ())
        return
    for _ in range(ops_most):
        longer = []
        for start in starts:
            for op in alphabet(geometry, len(start)):
                ops = (*start, op)
                run, wrong = execute(target, geometry, ops)
                if wrong is not None:
                    yield Program(geometry, ops)
                elif run.recorded and run.recorded[-1] == "acted":
                    longer.append(ops)
        starts = longer


def alphabet(geometry: Geometry, op_id: int) -> Iterator[Op]:
    """Ops of every kind with small parameters, legal and illegal, in one element and in several."""
    try:
        host_slots = plan(geometry).host_slots
    except Refused:
        return
    last = geometry.blocks - 1
    inside = sorted({*range(min(geometry.blocks, _FIRST_BLOCKS)), last})
    blocks = [*inside, -1, last + 1]
    several = [*((block,) for block in blocks), *product(inside, repeat=2)]
    every = tuple(range(geometry.blocks))
    yield Reset(op_id)
    for slot in (0, 1, host_slots, -1):
        yield Evict(op_id, (slot,))
    for group, described in enumerate(geometry.groups):
        size = slots(described, described.layer_sets[0])
        for some in (*several, every):
            yield Allocate(op_id, group, some)
            yield Allocate(op_id, group, some, zero=True)
            yield Free(op_id, group, some)
            yield Zero(op_id, group, some)
        yield from _of_slots(op_id, group, blocks, size)
        yield from _copies(op_id, group, inside, blocks, size)
        yield from _transfers(op_id, group, blocks, host_slots, geometry.host.chunk_blocks)
        to_slots = [Move(b, b % host_slots, b // host_slots) for b in every]
        yield Offload(op_id, (Job(group, tuple(to_slots)),))
        yield Restore(op_id, (Job(group, tuple(Move(b, 0, 0) for b in every)),))


def _of_slots(op_id: int, group: int, blocks: list[int], size: int) -> Iterator[Op]:
    tokens = sorted({0, 1, size - 1, size})
    named: list[Slot | None] = [None, *(Slot(b, t) for b, t in product(blocks, tokens))]
    for slot in named:
        for row in ((slot,), (slot, None), (slot, slot)):
            yield WriteTokens(op_id, group, row, tag=0)
            yield WriteValues(op_id, group, row, tag=0)
            yield Read(op_id, group, row)
            yield ReadValues(op_id, group, row)


def _copies(
    op_id: int, group: int, inside: list[int], blocks: list[int], size: int
) -> Iterator[Op]:
    for tokens in (None, *sorted({0, 1, size, size + 1})):
        for source, target in product(blocks, repeat=2):
            yield CopyBlocks(op_id, group, (Pair(source, target),), tokens)
        for one, other, third in product(inside, repeat=3):
            yield CopyBlocks(op_id, group, (Pair(one, other), Pair(other, third)), tokens)


def _transfers(
    op_id: int, group: int, blocks: list[int], host_slots: int, parts: int
) -> Iterator[Op]:
    places = product(sorted({0, 1, host_slots}), sorted({0, 1, parts}))
    for block, (slot, part) in product(blocks, list(places)):
        job = Job(group, (Move(block, slot, part),))
        yield Offload(op_id, (job,))
        yield Restore(op_id, (job,))
