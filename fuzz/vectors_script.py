"""The ops of a case: a fixed script that does everything once, or what a family draws."""

from collections.abc import Iterator
from itertools import count

from kvexact.fuzz.choose import Chooser, pick, sample
from kvexact.fuzz.family import Family
from kvexact.fuzz.names import Names
from kvexact.fuzz.steps import Mix, Steps
from kvexact.fuzz.vectors import Source
from kvexact.impl.target import Target
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import (
    VALUE_STYLES,
    VALUE_TYPES,
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
    bind,
)

_SLOTS_MOST = 3


def scripted(chooser: Chooser) -> Source:
    """Every kind of op for every group, and ops that are refused for each reason."""

    def ops(model: Cache) -> Iterator[Op]:
        ids = count()
        for group in range(len(model.plan.geometry.groups)):
            yield from _of_group(model, chooser, group, ids)
        yield Reset(next(ids))

    return ops


def _of_group(model: Cache, chooser: Chooser, group: int, ids: "count[int]") -> Iterator[Op]:
    """A group's part: it keeps its first block, so that groups meet in the pool."""
    free = [block for block, owner in enumerate(model.ownership.owners) if owner is None]
    first, *more = sample(chooser, free, 2)
    second = more[0] if more else first
    host_slot = model.ownership.holders.index(None)
    part = model.plan.geometry.host.chunk_blocks - 1
    move = (Job(group, (Move(second, host_slot, part),)),)

    yield Allocate(next(ids), group, (first, *more))
    yield Allocate(next(ids), group, (second,))  # refused: owner
    yield WriteTokens(tag := next(ids), group, _slots(model, chooser, group, first), tag)
    values = _slots(model, chooser, group, second)
    kind, style = pick(chooser, VALUE_TYPES), pick(chooser, VALUE_STYLES)
    yield WriteValues(tag := next(ids), group, values, tag, kind, style)
    yield ReadValues(next(ids), group, values)
    yield CopyBlocks(next(ids), group, (Pair(first, second),), 1)
    yield Offload(next(ids), move)
    yield Zero(next(ids), group, (second,))
    yield Restore(next(ids), move)
    yield Read(next(ids), group, _slots(model, chooser, group, second))
    twice = (Slot(first, 0), Slot(first, 0))
    yield WriteTokens(tag := next(ids), group, twice, tag)  # refused: duplicate
    beyond = (Slot(first, model.slots(group)),)
    yield WriteTokens(tag := next(ids), group, beyond, tag)  # refused: range
    yield CopyBlocks(next(ids), group, (Pair(second, first),))
    yield Free(next(ids), group, tuple(more))
    yield Allocate(next(ids), group, tuple(more), zero=True)
    yield Evict(next(ids), (host_slot,))
    yield Restore(next(ids), move)  # refused: host
    yield Offload(next(ids), move)
    yield Free(next(ids), group, tuple(more))


def _slots(model: Cache, chooser: Chooser, group: int, block: int) -> tuple[Slot | None, ...]:
    """Some slots of a block in drawn order, a pad among them."""
    tokens = sample(chooser, range(model.slots(group)), _SLOTS_MOST)
    slots: list[Slot | None] = [Slot(block, token) for token in tokens]
    slots.insert(chooser.below(len(slots) + 1), None)
    return tuple(slots)


def drawn(family: Family, chooser: Chooser, ops_count: int) -> Source:
    """Ops as a family draws them, legal and illegal ones."""

    def ops(model: Cache) -> Iterator[Op]:
        names = Names([{} for _ in model.plan.geometry.groups])
        steps = Steps(model, names, Mix.draw(chooser, family, Target))
        for op_id in range(ops_count):
            op = bind(steps.draw(chooser, op_id), names.claimed)
            acts = model.refusal(op) is None
            yield op
            if acts:
                names.follow(op)

    return ops
