"""Each verdict of a replay, from made-up runs and from real ones."""

from dataclasses import replace

import pytest

from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.replay import (
    MEMORY_BYTES,
    Once,
    Replay,
    TooLargeError,
    check_memory,
    judge,
    replay,
)
from kvexact.fuzz.targets import find_target
from kvexact.fuzz.trace import Trace
from kvexact.refmodel.ops import Allocate, CopyBlocks, Handle, Job, Move, Offload, Pair, Restore
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

GEOMETRY = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "int8_per_token_head"),)),), 2, Host(16))
LOST = Signature("mismatch", "copy_blocks", "lost", "k_scale")
FAILURE = Failure(LOST, ("lost",))
OTHER = Failure(Signature("mismatch", "copy_blocks", "frame", "tail"), ("frame",))
COPY = Trace(
    GEOMETRY,
    (
        Allocate(0, 0, (0,)),
        Allocate(1, 0, (1,)),
        CopyBlocks(2, 0, (Pair(Handle(1, 0), Handle(0, 0)),)),
    ),
    recorded=("acted", "acted", "failed"),
    signature=tuple(LOST),
)
MOVES = (Move(Handle(0, 0), 0, 0),)
RESTORE = Trace(
    GEOMETRY,
    (Allocate(0, 0, (0,)), Offload(1, (Job(0, MOVES),)), Restore(2, (Job(0, MOVES),))),
    recorded=("acted", "acted", "failed"),
    signature=("mismatch", "restore", "lost", "k"),
)
FAULTY = "kvexact.impl.faults:copy_without_scales"

CLEAN = Once(("acted", "acted", "acted"), None)
FAILED = Once(("acted", "acted", "failed"), FAILURE)
DRIFTED = Once(("acted", "refused:owner", "acted"), None)


def again(trace: Trace, target: str) -> Replay:
    return replay(trace, find_target(target))


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([CLEAN] * 3, "FIXED"),
        ([FAILED] * 3, "FAILED"),
        ([CLEAN, FAILED, CLEAN], "FLAKY 1 of 3"),
        ([FAILED, FAILED, CLEAN], "FLAKY 2 of 3"),
        ([DRIFTED] * 3, "DRIFTED"),
        ([CLEAN, CLEAN, DRIFTED], "DRIFTED"),
        ([FAILED, DRIFTED, CLEAN], "DRIFTED"),
        ([Once((), None, opened=False)] * 3, "DRIFTED"),
        ([Once(("acted", "failed"), OTHER)] * 3, "FAILED"),
        ([Once((), OTHER, opened=False)] * 3, "FAILED"),
    ],
)
def test_verdicts(runs: list[Once], words: str) -> None:
    assert judge(COPY, runs).words == words


def test_a_drift_names_the_op() -> None:
    assert judge(COPY, [DRIFTED] * 3).notes == (
        "op 1 allocate: recorded 'acted', now 'refused:owner'",
    )


def test_ops_behind_the_failure_do_not_drift() -> None:
    """Where the trace failed, nothing says what would have happened."""
    early = replace(COPY, recorded=("acted", "failed"))
    assert judge(early, [DRIFTED] * 3).verdict == "FIXED"


def test_another_failure_is_told() -> None:
    result = judge(COPY, [Once(("acted", "acted", "failed"), OTHER)] * 3)
    assert result.verdict == "FAILED"
    assert "another failure" in result.notes[0]
    assert judge(COPY, [FAILED] * 3).notes == ()


def test_what_was_not_recorded_cannot_drift() -> None:
    assert judge(replace(COPY, recorded=()), [DRIFTED] * 3).verdict == "FIXED"


def test_a_fault_that_is_still_there() -> None:
    result = again(COPY, FAULTY)
    assert (result.words, result.failed) == ("FAILED", 3)
    assert result.failure is not None
    assert result.failure.signature == LOST
    assert result.notes == ()


def test_a_fault_that_is_gone() -> None:
    assert again(COPY, "cpu") == Replay("FIXED")


def test_a_fault_that_comes_and_goes() -> None:
    assert again(COPY, "odd_targets:Flaky").words == "FLAKY 1 of 3"


def test_an_op_that_is_not_sent_any_more() -> None:
    trace = replace(COPY, recorded=("acted", "acted", "acted"), signature=())
    result = again(trace, "odd_targets:NoCopies")
    assert result.verdict == "DRIFTED"
    assert result.notes == ("op 2 copy_blocks: recorded 'acted', now 'unsent'",)


def test_a_handle_that_dangles() -> None:
    trace = replace(COPY, ops=COPY.ops[1:], recorded=("acted", "acted"), signature=())
    result = again(trace, "cpu")
    assert result.verdict == "DRIFTED"
    assert "dangling" in result.notes[0]


def test_a_geometry_that_is_declined_now() -> None:
    result = again(COPY, "odd_targets:Declines")
    assert result.verdict == "DRIFTED"
    assert "refused now" in result.notes[0]


def test_a_target_that_cannot_run() -> None:
    result = again(COPY, "odd_targets:Away")
    assert result.verdict == "ERROR"
    assert "plug it in" in result.notes[0]


def test_a_process_that_ends_before_anything_ran() -> None:
    result = again(COPY, "odd_targets:Exits")
    assert result.verdict == "ERROR"
    assert "exit status 3" in result.notes[0]


def test_an_op_that_kills_its_process() -> None:
    result = again(RESTORE, "odd_targets:Killed")
    assert (result.words, result.failed) == ("FAILED", 3)
    assert result.failure is not None
    assert result.failure.signature == Signature("signal", "restore", "signal", "SIGKILL")


def test_a_device_that_is_lost_each_time() -> None:
    result = again(COPY, "odd_targets:Lost")
    assert (result.words, result.failed) == ("FAILED", 3)
    assert result.failure is not None
    assert result.failure.signature.outcome == "device_lost"


def test_what_is_too_large_is_not_run() -> None:
    large = replace(COPY, geometry=replace(GEOMETRY, blocks=MEMORY_BYTES // 16))
    with pytest.raises(TooLargeError, match="use fewer blocks"):
        replay(large, find_target("cpu"))
    check_memory(replace(large, geometry=replace(GEOMETRY, blocks=MEMORY_BYTES // 16 - 1)))
    with pytest.raises(TooLargeError, match="34,359,738,"):
        check_memory(replace(COPY, geometry=replace(GEOMETRY, tail_alignment=2**35)))


def test_what_is_too_large_is_planned_where_there_are_no_ops() -> None:
    geometry = replace(GEOMETRY, blocks=2**40)
    trace = Trace(geometry, (), signature=("fact", "open", "fact", "pool.bytes_per_block"))
    assert again(trace, "cpu").verdict == "FIXED"
    assert again(trace, "kvexact.impl.faults:cell_without_scales").verdict == "FAILED"
