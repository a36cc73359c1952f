"""Which bytes are settled: as docs/time.md says, beside a plain account kept byte by byte."""

import numpy as np
import pytest

from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Read,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    Zero,
)
from kvexact.refmodel.order import Writers
from kvexact.refmodel.plan import plan
from kvexact.refmodel.serving_ops import Mutate
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet
from kvexact.refmodel.timed_ops import Fence, Poll, Step

# 3 layers of 3 blocks; a page has 2 cells of 10 bytes and 4 of padding; 2 host rows of 60.
GEOMETRY = Geometry(
    (Group(2, 2, (LayerSet(3, 1, 5, 5, "fp8_e4m3", page_bytes=24),)),), 3, Host(130)
)
ALLOCATE = Allocate(10, 0, (2, 0))
WRITE = WriteTokens(11, 0, (Slot(2, 1), None), tag=1)
OFFLOAD = Offload(12, (Job(0, (Move(2, 1, 0),)),))
RESTORE = Restore(13, (Job(0, (Move(0, 1, 0),)),))


def after(*ops: Op) -> Writers:
    model = Writers(plan(GEOMETRY))
    for op in ops:
        assert model.refusal(op) is None
        model.apply(op)
    return model


def content(block: int, *tokens: int) -> list[int]:
    """Where the cells of a block lie: layers of 3 pages of 24 bytes."""
    return [
        layer * 72 + block * 24 + token * 10 + byte
        for layer in range(3)
        for token in tokens
        for byte in range(10)
    ]


def unsettled(model: Writers, area: str = "pool") -> list[int]:
    marks = model.unsettled[area]
    assert np.array_equal(model.blurred[area], model.areas[area] | marks)
    return np.flatnonzero(marks).tolist()


def test_nothing_is_unsettled_at_birth() -> None:
    model = after()
    assert unsettled(model) == unsettled(model, "host") == []
    assert not model.pending
    assert {int(writer) for writer in model.writers["pool"]} == {-1}
    assert [model.writers[area].size for area in ("pool", "host")] == [216, 120]


def test_bytes_that_an_op_stores_are_unsettled_until_a_fence() -> None:
    """Each op's own bytes, and no padding."""
    model = after(ALLOCATE, WRITE)
    assert unsettled(model) == content(2, 1)
    assert set(model.writers["pool"][content(2, 1)]) == {11}
    model.apply(CopyBlocks(20, 0, (Pair(2, 0),)))
    assert unsettled(model) == sorted(content(2, 1) + content(0, 0, 1))
    model.apply(OFFLOAD)
    assert unsettled(model, "host") == list(range(60, 120))
    assert model.apply(Fence(21)).acted
    assert unsettled(model) == unsettled(model, "host") == []
    assert not model.pending
    assert set(model.writers["pool"][content(0, 0, 1)]) == {20}


@pytest.mark.parametrize("op", [Fence(50), Reset(50), Mutate(50, tag=1)])
def test_fences_settle_all_and_end_all_transfers(op: Op) -> None:
    model = after(ALLOCATE, WRITE, OFFLOAD)
    model.apply(op)
    assert unsettled(model) == unsettled(model, "host") == []
    assert model.jobs == {12: True}
    assert not model.pending


def test_a_finished_transfer_settles_what_it_wrote_last() -> None:
    """What an op wrote over it stays as it is, and so does what it has from another op."""
    model = after(ALLOCATE, WRITE, OFFLOAD, RESTORE, WriteTokens(14, 0, (Slot(0, 0),), tag=2))
    assert model.jobs == {12: False, 13: False}
    model.settle(13)
    assert model.jobs == {12: False, 13: True}
    assert unsettled(model) == sorted(content(2, 1) + content(0, 0))
    assert unsettled(model, "host") == list(range(60, 120))
    model.settle(12)
    assert unsettled(model, "host") == []
    assert model.pending


def test_a_transfer_is_done_once() -> None:
    """What was stored after it was said to be done stays unsettled when that is said again."""
    model = after(ALLOCATE, WRITE, OFFLOAD, RESTORE)
    model.settle(13)
    model.apply(WriteTokens(14, 0, (Slot(0, 1),), tag=2))
    before = unsettled(model)
    model.settle(13)
    assert unsettled(model) == before == sorted(content(2, 1) + content(0, 1))


def test_ops_in_time_act_where_something_is_not_known_to_be_done() -> None:
    model = after(ALLOCATE)
    assert not model.apply(Fence(30)).acted
    assert not model.apply(Step(31)).acted
    model.apply(WRITE)
    model.apply(OFFLOAD)
    assert model.apply(Step(32)).acted
    assert model.apply(Poll(33, 12)).acted
    model.settle(12)
    assert not model.apply(Poll(34, 12)).acted
    assert model.apply(Fence(35)).acted
    assert not model.apply(Poll(36, 12)).acted


def test_a_transfer_of_nothing_is_begun_all_the_same() -> None:
    model = after(Offload(5, ()))
    assert model.jobs == {5: False}
    assert model.pending


def test_reads_and_claims_begin_nothing() -> None:
    model = after(ALLOCATE, Read(40, 0, (Slot(2, 0),)), WriteTokens(41, 0, (None,), tag=0))
    assert not model.pending
    assert unsettled(model) == []


def test_bytes_and_refusals_are_those_of_the_model() -> None:
    """What a `Cache` makes of the same ops, in areas of other than whole words."""
    ops = (ALLOCATE, WRITE, OFFLOAD, Zero(15, 0, (2,)), RESTORE)
    ordered, plain = after(*ops), Cache(plan(GEOMETRY))
    for op in ops:
        plain.apply(op)
    for area in plain.areas:
        assert np.array_equal(plain.areas[area], ordered.areas[area])
    assert ordered.refusal(Allocate(16, 0, (0,))) == "owner"
