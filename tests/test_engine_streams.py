"""The engine on streams ends as the synchronous engine does, whatever the order of its work."""

import pytest
from timed_programs import BF16, SHAPES, begin, draw_program, seen

from kvexact.impl.engine.engine import CpuEngine, StreamsEngine
from kvexact.impl.engine.stream_order import StreamOrder
from kvexact.refmodel.ops import Allocate, Fence, Free, Job, Move, Offload, Poll, Restore, Step
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

SCHEDULES = (0, 1, 2, 3)


@pytest.mark.parametrize("program", range(60))
def test_any_order_ends_alike(program: int) -> None:
    shape, ops = draw_program(program)
    want = seen(CpuEngine(), shape, ops, 1)
    engine = StreamsEngine()
    for number in (*SCHEDULES, 100 + program):
        assert seen(engine, shape, ops, number) == want, f"schedule {number}"


@pytest.mark.parametrize("number", SCHEDULES)
def test_one_schedule_one_run(number: int) -> None:
    shape, ops = draw_program(5)
    engine = StreamsEngine()
    assert seen(engine, shape, ops, number) == seen(StreamsEngine(), shape, ops, number)
    assert seen(engine, shape, ops, number) == seen(engine, shape, ops, number)


def test_work_is_pending_until_a_fence() -> None:
    shape = SHAPES[0]
    engine = StreamsEngine()
    begin(engine, shape, 0)
    before = engine.view("host").copy()
    engine.apply(Allocate(0, 0, (2,), zero=True), None)
    engine.apply(Offload(1, (Job(0, (Move(2, 0, 0),)),)), None)
    engine.apply(Step(2), None)
    assert engine.apply(Poll(3, 1), None) is False
    assert (engine.view("host") == before).all()
    engine.apply(Fence(4), None)
    assert engine.apply(Poll(5, 1), None) is True
    assert not (engine.view("host") == before).all()


def test_early_work_is_done_at_once() -> None:
    shape = SHAPES[0]
    engine = StreamsEngine()
    begin(engine, shape, 1)
    engine.apply(Allocate(0, 0, (2,), zero=True), None)
    engine.apply(Offload(1, (Job(0, (Move(2, 0, 0),)),)), None)
    assert engine.apply(Poll(2, 1), None) is True
    assert engine.launches().keys() >= {"zero", "copy_batch"}


def test_layers_of_another_group_lie_elsewhere_in_a_block() -> None:
    """The first layer of group 1 lies over both layers of group 0, which loaded the block."""
    groups = (Group(2, 2, (BF16,)), Group(2, 2, (LayerSet(1, 1, 8, 8, "bf16"),)))
    shape = Geometry(groups, 2, Host(1024), "BLHNC")
    move = (Job(0, (Move(0, 0, 0),)),)
    ops = [Allocate(0, 0, (0,)), Offload(1, move), Restore(2, move), Free(3, 0, (0,))]
    ops.append(Allocate(4, 1, (0,), zero=True))
    want = seen(CpuEngine(), shape, ops, 1)

    class ByNumber(StreamOrder):
        def compute_after_loads(self, work, layer):
            return [self.loaded[block].layers[layer] for block in work.writes]

    class Faulty(StreamsEngine):
        order = ByNumber

    faulty, engine = Faulty(), StreamsEngine()
    assert any(seen(faulty, shape, ops, number) != want for number in range(200))
    assert all(seen(engine, shape, ops, number) == want for number in range(200))
