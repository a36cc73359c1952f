"""Order as a thing that the fuzzer chooses, compares and reduces: on targets that lag behind."""

from dataclasses import replace
from pathlib import Path

import pytest
from delayed_targets import (
    AtOnce,
    Delayed,
    DoneAtOnce,
    LosesRestores,
    NeverDone,
    NoAnswer,
    NoSchedule,
    PollsNumpy,
)
from delayed_targets import OffloadsLate as Late

from kvexact.fuzz.campaign import numbered_example
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.edits import Program, renumbered, simpler_schedules
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.families import FAMILIES, SERVING, TIMED
from kvexact.fuzz.features import TIMED_FEATURES
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.items import families_of
from kvexact.fuzz.machine import run_item
from kvexact.fuzz.reduce import Reducer
from kvexact.fuzz.reproduce import check, render
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.summary import complaints, merge
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.timed import draw_schedule
from kvexact.fuzz.trace import Trace, dump, load
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import OutOfBounds, Rows, Target
from kvexact.refmodel.ops import (
    Allocate,
    Handle,
    Job,
    Move,
    Offload,
    Op,
    Read,
    ReadValues,
    Restore,
    Slot,
)
from kvexact.refmodel.ops import WriteTokens as Write
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet
from kvexact.refmodel.timed_ops import Fence, Poll, Step

GEOMETRY = Geometry((Group(2, 2, (LayerSet(2, 1, 8, 8, "fp8_e4m3"),)),), 3, Host(256))
BLOCK = Handle(0, 0)
MOVE = (Job(0, (Move(BLOCK, 1, 0),)),)
WRITE = Write(1, 0, (Slot(BLOCK, 0),), tag=1)
AGAIN = Write(3, 0, (Slot(BLOCK, 0),), tag=3)
OPS: tuple[Op, ...] = (Allocate(0, 0, (2,)), WRITE, Offload(2, MOVE), AGAIN)


def ran(target: Target, *ops: Op, schedule: int = 0) -> tuple[Run, Wrong | None]:
    return execute(target, GEOMETRY, ops or OPS, schedule)


def found_by(make: type[Target], *ops: Op) -> Finding:
    """What shows with these ops under the first schedule by hash that shows it, reduced."""
    for schedule in range(100, 200):
        run, wrong = ran(make(), *ops, schedule=schedule)
        if wrong is not None:
            return find(make, "it", "timed", run, wrong)
    raise AssertionError("nothing was found")


@pytest.mark.parametrize("schedule", [0, 1, 2, 77])
def test_a_sound_target_may_lag_behind(schedule: int) -> None:
    run, wrong = ran(Delayed(), *OPS, Step(4), Poll(5, 2), Fence(6), Poll(7, 2), schedule=schedule)
    assert wrong is None
    assert run.recorded[-2:] == ["acted", "no-op"]
    assert run.schedule == schedule


def test_settled_bytes_are_compared_at_once_and_all_at_the_end() -> None:
    """Block 0 is of no pending op; a byte of block 2 that is wrong shows at the end alone."""

    class Spoils(Delayed):
        def pass_time(self, op: Op, *, to_the_end: bool) -> None:
            super().pass_time(op, to_the_end=to_the_end)
            if type(op) is Write:
                self.late.areas["pool"][self.place] ^= 1

    class Neighbour(Spoils):
        place = 0

    class Itself(Spoils):
        place = 2 * 32

    run, wrong = ran(Neighbour())
    assert wrong is not None
    assert wrong.op == replace(WRITE, slots=(Slot(2, 0),))
    assert explain_failure(run, wrong).signature == ("mismatch", "pending", "frame", "neighbour")

    run, wrong = ran(Itself(), *OPS[:2], schedule=1)
    assert wrong is not None
    assert type(wrong.op) is Fence
    assert explain_failure(run, wrong).signature == ("mismatch", "pending", "write", "pool")
    assert run.recorded == ["acted", "acted"]


def test_what_a_poll_said_to_be_there_is_compared() -> None:
    run, wrong = ran(DoneAtOnce(), *OPS[:3], Poll(3, 2))
    assert wrong is not None
    failure = explain_failure(run, wrong)
    assert failure.signature == ("mismatch", "pending", "offload", "host")
    assert failure.lines[0].startswith("op 3 poll(op 2): 64 bytes of the host differ (lost)")
    assert failure.lines[-1] == (
        "  schedule 0, as late as allowed; since the last fence: op 1 write_tokens, op 2 offload"
    )


def test_what_a_failing_fence_waited_for_is_named() -> None:
    """The fence is one of the trace; one before it ended what was pending then."""

    class Itself(Delayed):
        def pass_time(self, op: Op, *, to_the_end: bool) -> None:
            super().pass_time(op, to_the_end=to_the_end)
            if type(op) is Fence and op.id == 5:
                self.late.areas["host"][-1] ^= 1

    run, wrong = ran(Itself(), *OPS[:2], Fence(3), *OPS[2:3], Fence(5))
    assert wrong is not None
    assert explain_failure(run, wrong).lines[-1] == (
        "  schedule 0, as late as allowed; since the last fence: op 2 offload"
    )


def test_a_poll_must_say_yes_after_a_fence() -> None:
    """Also after the one at the end."""
    for ops in ((*OPS[:3], Fence(4), Poll(5, 2)), OPS[:3]):
        run, wrong = ran(NeverDone(), *ops)
        assert wrong is not None
        assert wrong.text == "the transfer that op 2 began is not done, but a fence came after it"
        assert explain_failure(run, wrong).signature == ("poll", "poll", "poll", "not done")


def test_what_is_done_stays_done() -> None:
    class DoneOnce(Delayed):
        def poll(self, job: int) -> bool:
            self.asked = not getattr(self, "asked", False)
            return self.asked

    run, wrong = ran(DoneOnce(), *OPS[:3], Poll(4, 2), Poll(5, 2), schedule=1)
    assert wrong is not None
    assert wrong.text == "the transfer that op 2 began is not done, but a poll said that it is"
    assert explain_failure(run, wrong).signature == ("poll", "poll", "poll", "not done")


def test_a_poll_must_have_an_answer() -> None:
    _, wrong = ran(NoAnswer(), *OPS[:3], Poll(3, 2))
    assert wrong is not None
    assert wrong.text == "a poll must return True or False, not None"


def test_what_is_no_answer_is_named_also_from_another_process() -> None:
    isolation = Isolation(NamedTarget("delayed_targets:PollsNumpy", PollsNumpy))
    try:
        for target in (PollsNumpy(), isolation.make()):
            _, wrong = ran(target, *OPS[:3], Poll(3, 2))
            assert wrong is not None
            assert wrong.text == "a poll must return True or False, not np.False_"
    finally:
        isolation.close()


def test_a_target_that_fails_at_its_schedule() -> None:
    """It is reported like one that fails to open, in one line."""
    run, wrong = ran(NoSchedule(), *OPS[:3])
    assert wrong is not None
    assert wrong.text == "the target raised ValueError: no such schedule"
    assert explain_failure(run, wrong).signature == ("exception", "open", "exception", "ValueError")


def test_a_poll_of_what_was_never_begun_is_dangling() -> None:
    run, wrong = ran(Delayed(), OPS[0], Poll(1, 0), Poll(2, 9))
    assert wrong is None
    assert run.recorded == ["acted", "dangling", "dangling"]


def test_ops_in_time_are_not_sent_to_others() -> None:
    run, wrong = ran(CpuEngine(), *OPS[:3], Fence(3), Step(4), Poll(5, 2))
    assert wrong is None
    assert run.recorded[3:] == ["unsent"] * 3
    assert draw_schedule(Prng(1), CpuEngine) == 1


def test_a_source_that_is_written_while_pending_is_newer() -> None:
    run, wrong = ran(Late())
    assert wrong is not None
    failure = explain_failure(run, wrong)
    assert failure.signature == ("mismatch", "pending", "offload", "host")
    assert failure.lines[0].startswith("the fence at the end: 32 bytes of the host differ (newer)")


def test_an_order_fault_is_reduced_to_the_simplest_schedule() -> None:
    """Three ops, as late as allowed; the report says that in order it passes."""
    finding = found_by(Late, *OPS, Step(4), Fence(5), Poll(6, 2))
    trace = finding.trace
    assert (len(trace.ops), trace.schedule) == (3, 0)
    assert finding.failure.signature == ("mismatch", "pending", "offload", "host")
    assert "(newer)" in finding.failure.lines[0]
    assert (
        finding.failure.lines[-1] == "  under schedule 1, all in order, it passes: an order fault"
    )
    program = Program(trace.geometry, trace.ops, trace.schedule)
    checker = Reducer(Late, finding.failure.signature, program)
    assert checker.is_minimal()
    assert not Reducer(Late, finding.failure.signature, program._replace(schedule=5)).is_minimal()


def test_a_fault_that_is_none_of_order_is_reduced_to_schedule_1() -> None:
    finding = found_by(LosesRestores, *OPS, Restore(4, MOVE), Step(5))
    assert finding.trace.schedule == 1
    assert b"schedule" not in dump(finding.trace)


def test_a_schedule_that_hashes_ids_may_keep_them() -> None:
    """Where the renumbered trace does not fail, ids stay; it is minimal all the same."""

    class Once(Delayed):
        """The offload with id 12 is lost, under schedule 9 alone."""

        def run_next(self) -> None:
            if self.chosen == 9 and self.queue[0].id == 12:
                self.queue.pop(0)
            else:
                super().run_next()

    block = Handle(10, 0)
    ops = (Allocate(10, 0, (2,)), Fence(11), Offload(12, (Job(0, (Move(block, 1, 0),)),)))
    run, wrong = execute(Once(), GEOMETRY, ops, 9)
    assert wrong is not None
    reducer = Reducer(Once, explain_failure(run, wrong).signature, Program(GEOMETRY, ops, 9))
    program = reducer.reduce()
    assert program.schedule == 9
    assert [op.id for op in program.ops] == [10, 12]


def test_polls_follow_the_ids_of_their_transfers() -> None:
    program = Program(GEOMETRY, (Offload(7, MOVE), Poll(9, 7), Poll(12, 8)), 5)
    assert renumbered(program).ops[1:] == (Poll(1, 0), Poll(2, -1))
    assert [simpler.schedule for simpler in simpler_schedules(program)] == [1, 0, 2, 3, 4]


def test_a_finding_is_kept_with_its_schedule(tmp_path: Path) -> None:
    """In the trace, in the reproducer, and through isolation."""
    finding = found_by(Late)
    path = tmp_path / "trace.json"
    path.write_bytes(dump(finding.trace))
    trace = load(path)
    assert trace == finding.trace
    text = render(finding, NamedTarget("delayed_targets:OffloadsLate", Late))
    assert "check(TARGET, GEOMETRY, OPS, schedule=0)" in text
    with pytest.raises(AssertionError, match="newer"):
        check(Late, trace.geometry, trace.ops, trace.schedule)
    check(Late, trace.geometry, trace.ops)


def test_an_isolated_target_is_as_late() -> None:
    """Schedules go there, answers to polls come back; bytes are as they are."""
    isolation = Isolation(NamedTarget("delayed_targets:OffloadsLate", Late))
    try:
        ops = (*OPS[:3], Poll(4, 2), Fence(5), Poll(6, 2))
        run, wrong = ran(isolation.make(), *ops)
        assert wrong is None
        assert run.counts.features["poll says no"] == 1
        assert ran(isolation.make())[1] is not None
        assert ran(isolation.make(), schedule=1)[1] is None
    finally:
        isolation.close()


def test_families_in_time_are_for_asynchronous_targets() -> None:
    assert [family.name for family in families_of(Delayed)] == [*FAMILIES, *TIMED]
    assert [family.name for family in families_of(CpuEngine)] == [*FAMILIES, *SERVING]
    with pytest.raises(ValueError, match="about pending work"):
        families_of(CpuEngine, ["timed"])


@pytest.mark.parametrize("name", sorted(TIMED))
def test_families_in_time_meet_what_is_pending(name: str) -> None:
    """With either chooser: no report, and everything about order is met."""
    for chooser in ("prng", "hypothesis"):
        counts = Counts()
        if chooser == "prng":
            for number in range(60):
                example = numbered_example(Delayed(), TIMED[name], number, 3, counts)
                assert example.wrong is None, example.wrong
        else:
            assert run_item(Delayed(), TIMED[name], 3, 60, counts) is None
        assert [feature for feature in TIMED_FEATURES if not counts.features[feature]] == []
        found = merge([("it", name, counts)])
        assert complaints(found, [NamedTarget("it", Delayed)]) == []


def test_a_target_that_is_never_late_proves_nothing_about_order() -> None:
    counts = Counts()
    for number in range(40):
        assert numbered_example(AtOnce(), TIMED["timed"], number, 3, counts).wrong is None
    lines = complaints(merge([("it", "timed", counts)]), [NamedTarget("it", AtOnce)])
    assert lines == [
        f"it, timed: never met: {name}" for name in TIMED_FEATURES if name != "poll says yes"
    ]


def test_schedules_are_drawn() -> None:
    drawn = [draw_schedule(Prng(seed), Delayed) for seed in range(400)]
    assert 60 < drawn.count(0) < 140
    assert 5 < drawn.count(1) < 50
    assert len(set(drawn)) > 200
    assert Trace(GEOMETRY, OPS, schedule=max(drawn)).name


def test_a_restore_waits_for_its_offload_in_the_model() -> None:
    """Right bytes in any schedule, and nothing left to come."""
    ops = (*OPS[:3], Restore(9, (Job(0, (Move(BLOCK, 1, 0),)),)), Fence(10))
    run, wrong = ran(Delayed(), *ops, schedule=0)
    assert wrong is None
    assert run.counts.features["fence with bytes to come"] == 1


class ReadsWrong(Delayed):
    """A read returns other bytes in its first row."""

    def gather(self, op: Op) -> Rows | None:
        rows = super().gather(op)
        if rows is not None:
            rows[0][0] ^= 1
        return rows


@pytest.mark.parametrize(
    ("slots", "stored"),
    [
        ((Slot(BLOCK, 0),), "write"),
        ((Slot(BLOCK, 1), Slot(BLOCK, 0)), "zero"),
        ((None, Slot(BLOCK, 0)), "read"),
    ],
)
def test_wrong_rows_are_named_after_what_stored_them_last(
    slots: tuple[Slot | None, ...], stored: str
) -> None:
    """A pad row is stored by nothing."""
    ops = (Allocate(0, 0, (2,), zero=True), WRITE)
    for read in (Read(2, 0, slots), ReadValues(2, 0, slots)):
        run, wrong = ran(ReadsWrong(), *ops, read)
        assert wrong is not None
        assert explain_failure(run, wrong).signature == ("rows", "pending", stored, "pool")


def test_what_nothing_pending_may_do_is_the_ops_own() -> None:
    class Raises(Delayed):
        error: type[Exception]

        def pass_time(self, op: Op, *, to_the_end: bool) -> None:
            if type(op) is Offload:
                raise self.error

    for error, signature in (
        (OutOfBounds, ("out_of_bounds", "pending", "out of bounds", "OutOfBounds")),
        (ZeroDivisionError, ("exception", "offload", "exception", "ZeroDivisionError")),
    ):
        run, wrong = ran(type("It", (Raises,), {"error": error})())
        assert wrong is not None
        assert explain_failure(run, wrong).signature == signature
