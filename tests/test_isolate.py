"""Whatever a target does to its process: a failure of its own kind, which replays to the same."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from kvexact.fuzz.campaign import place, run_example
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.isolate import HANGS_MOST, Isolation
from kvexact.fuzz.replay import replay
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.segment import Segment
from kvexact.fuzz.self_check import _OPS
from kvexact.fuzz.self_check_copy import GEOMETRY as _GEOMETRY
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import find_target
from kvexact.fuzz.trace import Trace
from kvexact.fuzz.worker import Done, Reduced, Task, fuzz, reduce_trace
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Unavailable
from kvexact.refmodel.ops import Allocate, CopyBlocks, Free, Handle, Op, Pair, Zero
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

GEOMETRY = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "int8_per_token_head"),)),), 3, Host(48))
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (0, 1)),
    CopyBlocks(1, 0, (Pair(Handle(0, 0), Handle(0, 1)),)),
    Allocate(2, 0, (2,)),
    Zero(3, 0, (Handle(0, 1), Handle(2, 0))),
    Free(4, 0, (Handle(0, 0),)),
)
MINIMAL: tuple[Op, ...] = (Zero(0, 0, ()),)
#: Nothing to reduce but ops, as every failure of a reduction may take a new process.
SIMPLEST = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "fp8_e4m3"),)),), 1, Host(8))
FEW: tuple[Op, ...] = (Allocate(0, 0, (0,)), Zero(1, 0, (Handle(0, 0),)))
LIMITS = Limits()
LITTLE = Limits(memory_bytes=4 * 1024**3)


@dataclass(frozen=True, slots=True)
class Case:
    target: str
    outcome: str
    field: str
    limits: Limits = LIMITS

    @property
    def signature(self) -> Signature:
        return Signature(self.outcome, "zero", self.outcome.replace("_", " "), self.field)


CASES = [
    Case("Segfaults", "signal", "SIGSEGV"),
    Case("Aborts", "signal", "SIGABRT"),
    Case("Hangs", "hang", "", Limits(1.0)),
    Case("Raises", "exception", "ZeroDivisionError"),
    Case("LeavesPython", "exception", "SystemExit"),
    Case("Interrupts", "exception", "KeyboardInterrupt"),
    Case("Mumbles", "exception", "Mumble"),
    Case("SendsSignal40", "signal", "signal 40"),
    Case("Exits", "exit", "exit status 3"),
    Case("ForksAndExits", "exit", "exit status 3"),
    Case("RingsNonsense", "exit", "damaged answer"),
    Case("EatsMemory", "out_of_memory", "MemoryError", LITTLE),
    Case("WritesOutside", "out_of_bounds", "OutOfBounds"),
    Case("Poisons", "device_lost", "DeviceLost"),
]


@pytest.fixture(params=CASES, ids=lambda case: case.target)
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture
def isolation(case: Case) -> Iterator[Isolation]:
    with closing(Isolation(find_target(f"hostile_targets:{case.target}"), case.limits)) as made:
        yield made


def test_each_failure_is_of_its_kind_and_the_next_run_is_sound(
    case: Case, isolation: Isolation
) -> None:
    target = isolation.make()
    run, wrong = execute(target, GEOMETRY, OPS)
    assert wrong is not None
    assert (wrong.outcome, wrong.name, type(wrong.op)) == (case.outcome, case.field, Zero)
    assert run.recorded == ["acted", "acted", "acted", "failed"]
    sound, wrong = execute(target, GEOMETRY, OPS[:3])
    assert (sound.recorded, wrong) == (["acted"] * 3, None)


def test_it_is_reduced_in_fresh_processes_and_replays_to_the_same(
    case: Case, isolation: Isolation
) -> None:
    finding = reduce_trace(isolation, Trace(SIMPLEST, FEW, case.target))
    assert finding is not None
    assert finding.failure.signature == case.signature
    assert finding.trace.ops == MINIMAL
    if case.outcome == "hang":
        assert finding.executions <= HANGS_MOST
    again = replay(finding.trace, isolation.named, case.limits)
    assert (again.words, again.failed, again.notes) == ("FAILED", 3, ())
    assert again.failure is not None
    assert again.failure.signature == case.signature


def test_a_hang_is_noticed_within_its_deadline_and_a_second() -> None:
    """From the call to the failure, process killed and gone.

    Nothing in between depends on how busy the machine is but a wake-up and the end of a process,
    which take milliseconds; a process that starts anew is not waited for.
    """
    with closing(Isolation(find_target("hostile_targets:Hangs"), Limits(2.0))) as isolation:
        run = Run(isolation.make(), GEOMETRY)
        assert run.open()
        for op in OPS[:3]:
            run.step(op)
        started = time.monotonic()
        with pytest.raises(Wrong) as raised:
            run.step(OPS[3])
        seconds = time.monotonic() - started
        assert isolation.process is None
    assert raised.value.text == "no answer within 2 s, so its process was killed"
    assert 2 <= seconds <= 3


def test_what_a_dead_process_forked_neither_hides_its_death_nor_outlives_it() -> None:
    with closing(
        Isolation(find_target("hostile_targets:ForksAndExits"), Limits(60.0))
    ) as isolation:
        target = isolation.make()
        group = isolation.start().pid
        started = time.monotonic()
        _, wrong = execute(target, GEOMETRY, OPS)
        assert wrong is not None
        assert wrong.name == "exit status 3"
        assert time.monotonic() - started < 30
    deadline = time.monotonic() + 5
    while _lives(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(group)


def test_what_it_forked_into_another_session_does_not_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(Isolation(find_target("hostile_targets:HidesAChild"))) as isolation:
        _, wrong = execute(isolation.make(), GEOMETRY, OPS)
        assert wrong is not None
        assert wrong.name == "exit status 3"
    hidden = Path("/proc", Path("hidden").read_text(), "stat")
    assert not hidden.exists() or _state(hidden) == "Z"


def test_it_ends_in_whatever_group_it_is() -> None:
    isolation = Isolation(find_target("hostile_targets:MovesAway"))
    assert execute(isolation.make(), GEOMETRY, OPS)[1] is None
    pid = isolation.start().pid
    assert os.getpgid(pid) == os.getpgid(0)
    closer = threading.Thread(target=isolation.close, daemon=True)
    closer.start()
    closer.join(20)
    assert not closer.is_alive()
    assert not Path("/proc", str(pid)).exists()


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]


def _lives(group: int) -> bool:
    """Whether a process of a group lives; one that nobody waited for has died, too."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                return True
    return False


@pytest.mark.parametrize("target", ["RingsItself", "HearsLess", "ClosesAll"])
def test_a_process_that_cannot_be_called_ends_and_says_nothing(
    target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """At that op, or at the next one, whose call is spoilt."""
    with closing(Isolation(find_target(f"hostile_targets:{target}"))) as isolation:
        made = isolation.make()
        _, wrong = execute(made, GEOMETRY, OPS)
        assert wrong is not None
        assert (wrong.outcome, wrong.name) == ("exit", "damaged call")
        assert wrong.text == (
            "the process died (damaged call): something wrote to, or closed, what it is called by"
        )
        assert execute(made, GEOMETRY, OPS[:3])[1] is None
    assert capfd.readouterr() == ("", "")


def test_shared_memory_cannot_be_cut_off() -> None:
    """Or else this process would die of a signal when it looks."""
    with closing(Isolation(find_target("cpu"))) as isolation:
        for segment in isolation.start().channel.segments.values():
            segment.grow(1)
            with pytest.raises(PermissionError):
                os.ftruncate(segment.descriptor, 0)


def test_what_is_said_to_lie_in_shared_memory_makes_no_room_for_itself() -> None:
    segment = Segment(os.memfd_create("segment"))
    segment.write(b"said")
    assert bytes(segment.read(4)) == b"said"
    for look in (segment.take, segment.read, lambda size: segment.arrays(((size,),))):
        with pytest.raises(ValueError, match="greater than file size"):
            look(2**20)
    assert os.fstat(segment.descriptor).st_size == 4096
    os.close(segment.descriptor)


def test_arrays_cross_whatever_their_form() -> None:
    segment = Segment(os.memfd_create("segment"))
    plain = np.arange(6 * 10**4, dtype=np.uint32).view(np.uint8).reshape(6, -1, 4)
    arrays = (plain[:, ::2], plain[:0], plain.T, np.array(7, np.uint8))
    found = segment.arrays(segment.put(arrays))
    assert all(map(np.array_equal, arrays, found))
    os.close(segment.descriptor)


def test_an_op_with_long_numbers_is_refused_like_any() -> None:
    ops = (Allocate(0, 0, (2**64,)), Zero(1, 2**64, ()), Free(2, 0, (-(2**63) - 1,)), *OPS[:1])
    with closing(Isolation(find_target("cpu"))) as isolation:
        run, wrong = execute(isolation.make(), GEOMETRY, ops)
    assert (wrong, run.recorded) == (None, [*["refused:range"] * 3, "acted"])


def test_nothing_at_all_crosses_whole() -> None:
    """As the first thing that crosses, too."""
    segment = Segment(os.memfd_create("segment"))
    (array,) = segment.arrays(segment.put((np.empty((0, 1, 8), np.uint8),)))
    assert array.shape == (0, 1, 8)
    os.close(segment.descriptor)


def test_a_young_process_that_is_killed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(Isolation(find_target("odd_targets:KilledWhileYoung"))) as isolation:
        assert execute(isolation.make(), GEOMETRY, OPS)[1] is None
    with pytest.raises(Unavailable, match=r"\(SIGKILL, 3 times\)"):
        Isolation(find_target("odd_targets:TooOften")).make()
    assert len(list(tmp_path.iterdir())) == 2 + 3


def test_a_process_that_is_stopped_is_noticed_though_it_reads_nothing() -> None:
    with closing(Isolation(find_target("cpu"), Limits(1.0))) as isolation:
        run = Run(isolation.make(), GEOMETRY)
        assert run.open()
        run.step(OPS[0])
        os.kill(isolation.start().pid, signal.SIGSTOP)
        more_than_a_pipe_holds = Free(1, 0, (Handle(0, 0),) * 100_000)
        with pytest.raises(Wrong) as raised:
            run.step(more_than_a_pipe_holds)
    assert raised.value.outcome == "hang"


def test_signals_that_a_target_handles_do_not_end_it() -> None:
    with closing(Isolation(find_target("hostile_targets:Ticks"))) as isolation:
        run = Run(isolation.make(), GEOMETRY)
        assert run.open()
        for op in OPS:
            time.sleep(0.01)
            assert run.step(op) == "acted"


@pytest.mark.parametrize("target", ["cpu", "example"])
def test_an_area_is_what_the_target_shows_after_every_op(target: str) -> None:
    """Whether it lies in shared memory (of cpu) or is copied there (of the example).

    One layer set is what the example takes.
    """
    (group,) = _GEOMETRY.groups
    one = replace(_GEOMETRY, groups=(replace(group, layer_sets=group.layer_sets[:1]),))
    with closing(Isolation(find_target(target))) as isolation:
        run, wrong = execute(isolation.make(), one, _OPS)
        assert (wrong, run.done) == (None, [*_OPS])


def test_memory_that_is_shared_lies_between_guard_pages() -> None:
    with closing(Isolation(find_target("hostile_targets:WritesBehind"))) as isolation:
        run, wrong = execute(isolation.make(), GEOMETRY, OPS)
        assert wrong is not None
        assert (wrong.outcome, wrong.name, run.recorded[-1]) == ("signal", "SIGSEGV", "failed")


def test_what_is_not_the_memory_that_was_shared_is_an_error() -> None:
    with closing(Isolation(find_target("hostile_targets:ShowsCopies"))) as isolation:
        _, wrong = execute(isolation.make(), GEOMETRY, OPS)
        assert wrong is not None
        assert (wrong.outcome, wrong.name) == ("exception", "view")
        assert "returned other memory" in wrong.text


def test_a_load_that_does_nothing_shows() -> None:
    """The bytes to load come apart from the area, or an area in shared memory would have them."""
    with closing(Isolation(find_target("hostile_targets:LoadsNothing"))) as isolation:
        _, wrong = execute(isolation.make(), GEOMETRY, OPS)
        assert wrong is not None
        assert wrong.outcome == "mismatch"


def test_a_worker_goes_on_behind_each_death() -> None:
    task = Task("hostile_targets:Exits", ("one_group",), 1, limits=LIMITS)
    found = fuzz(task)
    done = [next(found) for _ in range(6)]
    failed = [item for item in done if isinstance(item, Done) and item.signature]
    assert len(failed) > 1
    (exits,) = (case for case in CASES if case.target == "Exits")
    assert {item.signature for item in failed} == {exits.signature}
    assert not any(item.died for item in failed)
    (reduced,) = (item for item in done if isinstance(item, Reduced))
    assert reduced.finding.trace.ops == MINIMAL
    assert reduced.failed_runs == 3
    found.close()  # type: ignore[attr-defined]


def test_isolation_changes_no_result() -> None:
    families = [FAMILIES[name] for name in ("one_group", "overlay", "refusals", "planning")]
    results = []
    with closing(Isolation(find_target("cpu"))) as isolation:
        for target in (isolation.make(), find_target("cpu").make()):
            counts = Counts()
            for number in range(12):
                family, index = place(number, families)
                example = run_example(target, family, Prng(index), counts)
                assert example.wrong is None
            results.append(counts.to_json())
    assert results[0] == results[1]
    assert results[0]["launches"]


@pytest.mark.parametrize("fault", ["copy_without_scales", "width_without_scales"])
def test_a_fault_in_the_bytes_is_the_same_failure(fault: str) -> None:
    named = find_target(f"kvexact.impl.faults:{fault}")
    with closing(Isolation(named)) as isolation:
        texts = []
        for target in (isolation.make(), named.make()):
            for seed in range(30):
                example = run_example(target, FAMILIES["one_group"], Prng(seed), Counts())
                if example.wrong is not None:
                    texts.append((seed, example.wrong.outcome, example.wrong.text))
                    break
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("AnswersAll", "True"),
        ("AnswersAllInRows", "(array([[0, 0]], dtype=uint8),)"),
        ("AnswersAllAsRequests", "Answer(free=(0, 0), accepted=True, hit=0, "),
        ("AnswersAllInWords", "'done'"),
    ],
)
def test_a_result_of_an_op_that_has_none_is_wrong(target: str, shown: str) -> None:
    named = find_target(f"odd_targets:{target}")
    with closing(Isolation(named)) as isolation:
        for made in (named.make(), isolation.make()):
            run, wrong = execute(made, GEOMETRY, OPS)
            assert wrong is not None
            failure = explain_failure(run, wrong)
            assert failure.signature == Signature("rows", "allocate", "shape", "")
            line = "op 0 allocate(0, 1): this op has no result; it must return None, not "
            assert failure.lines[0].startswith(line + shown)


def test_rows_and_areas_cross_whole() -> None:
    with closing(Isolation(find_target("cpu"))) as isolation:
        run, wrong = execute(isolation.make(), _GEOMETRY, _OPS)
        assert wrong is None
        assert run.counts.compared_bytes > 0
        large = Geometry((Group(16, 16, (LayerSet(2, 4, 64, 64, "fp32"),)),), 40, Host(10**6))
        slots = tuple((Handle(0, nth), token) for nth in range(40) for token in range(16))
        ops: tuple[Op, ...] = (
            Allocate(0, 0, tuple(range(40))),
            _write(1, slots),
            _read(2, slots),
        )
        run, wrong = execute(isolation.make(), large, ops)
        assert (wrong, run.recorded) == (None, ["acted"] * 3)


def _write(op_id: int, slots: tuple[tuple[Handle, int], ...]) -> Op:
    from kvexact.refmodel.ops import Slot, WriteTokens

    return WriteTokens(op_id, 0, tuple(Slot(*slot) for slot in slots), 1)


def _read(op_id: int, slots: tuple[tuple[Handle, int], ...]) -> Op:
    from kvexact.refmodel.ops import Read, Slot

    return Read(op_id, 0, tuple(Slot(*slot) for slot in slots))


@pytest.mark.parametrize(
    ("name", "failure"), [("BadClose", "OSError"), ("BadLaunches", "launches")]
)
def test_what_goes_wrong_at_the_end_is_a_failure(name: str, failure: str) -> None:
    for make in (find_target(f"hostile_targets:{name}").make, None):
        isolation = Isolation(find_target(f"hostile_targets:{name}"))
        with closing(isolation):
            _, wrong = execute((make or isolation.make)(), GEOMETRY, OPS[:1])
        assert wrong is not None
        assert (wrong.outcome, wrong.during, wrong.name) == ("exception", "close", failure)


def test_a_target_that_cannot_run_says_so() -> None:
    for name, said in (("Away", "plug it in"), ("Exits", "exit status 3"), ("NoSuch", "imported")):
        with pytest.raises((Unavailable, ValueError), match=said):
            Isolation(find_target(f"odd_targets:{name}")).make()


def test_the_stand_in_declares_what_the_target_declares() -> None:
    with closing(Isolation(find_target("odd_targets:NoCopies"))) as isolation:
        target = isolation.make()
    assert "copy_blocks" not in target.op_kinds
    assert target.families == ("one_group",)
    assert np.array_equal(sorted(target.declared), ["host", "pool"])
