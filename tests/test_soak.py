"""A soak: the same for any number of workers, goes on where it died, and loses nothing."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner, Result

from kvexact.fuzz import coverage, journal, results, summary_file
from kvexact.fuzz.cli import main
from kvexact.fuzz.console import Output
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.families import FAMILIES, SERVING
from kvexact.fuzz.favour import Favour, favour, favoured_example
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.memory import resident_bytes
from kvexact.fuzz.reserve import BYTES, Reserve
from kvexact.fuzz.soak_keeper import Keeper
from kvexact.fuzz.soak_state import FILE, StateError, resume, sole
from kvexact.fuzz.stop import Stop
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import find_target
from kvexact.fuzz.trace import dump, load
from kvexact.fuzz.worker import Done, Fallen, Item, Reduced, Task
from kvexact.fuzz.workers import Workers
from kvexact.impl.engine.engine import CpuEngine

NAMES = (*FAMILIES, *SERVING)
TESTS = Path(__file__).parent
BUGGY = "kvexact.impl.faults:copy_without_scales"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rounds, so that few examples make several."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvexact.fuzz.cli_soak.ROUND", 16)
    monkeypatch.setattr("kvexact.fuzz.soak_keeper.ROUND", 16)


def soak(*args: object, out: str = "out") -> Result:
    words = ["soak", "--seed", 3, "--out", out, *args]
    return CliRunner().invoke(main, [str(word) for word in words])


def found(out: str = "out") -> results.Result:
    return summary_file.load(Path(out))


def test_the_number_of_workers_changes_nothing() -> None:
    for workers in (1, 2):
        result = soak("--target", "cpu", "--max-ops", 2000, "--workers", workers, out=f"{workers}")
        assert result.exit_code == 0, result.output
    assert found("1").parts == found("2").parts
    assert len(json.loads(Path("1", FILE).read_text())["snapshot"]["counts"]) == len(NAMES)
    assert not list(Path("1").glob("*.journal"))


def test_a_directory_has_one_soak_at_a_time() -> None:
    """Another one would write over its state and its journals."""
    Path("out").mkdir()
    part = Path("out", ".state.json.part")
    part.touch()
    with sole(Path("out")):
        refused = soak("--target", "cpu", "--max-ops", 10)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        "kvexact: out: another soak runs there; wait for its end or name another --out\n"
    )
    assert [*Path("out").iterdir()] == [part]
    for _ in range(2):
        assert soak("--target", "cpu", "--max-ops", 10).exit_code == 0


def test_where_directories_have_no_locks_a_soak_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.EBADF, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    with sole(Path()):
        pass


def test_the_same_command_goes_on() -> None:
    args = ("--target", BUGGY, "--workers", 2)
    whole = soak(*args, "--max-ops", 1600, out="whole")
    first = soak(*args, "--max-ops", 700)
    second = soak(*args, "--max-ops", 1600)
    assert [one.exit_code for one in (whole, first, second)] == [1, 1, 1]
    assert "goes on behind" in second.output
    assert found().parts == found("whole").parts
    told = [(one.signature, one.count, one.trace) for one in found().findings]
    assert told == [(one.signature, one.count, one.trace) for one in found("whole").findings]
    assert all(one.failed_runs == 3 for one in found().findings)


def test_a_target_that_dies_is_reduced_and_the_run_goes_on() -> None:
    result = soak("--target", "hostile_targets:Exits", "--max-ops", 400)
    assert result.exit_code == 1, result.output
    (one,) = found().findings
    assert one.signature == Signature("exit", "zero", "exit", "exit status 3")
    assert (one.ops, one.failed_runs) == (1, 3)
    assert one.count > 1
    assert found().total.acted >= 400
    assert load(Path("out", one.trace)).signature == one.signature
    assert not list(Path("out").glob("unreduced-*"))


def test_a_shard_is_another_share() -> None:
    for shard in ("0/2", "1/2"):
        args = ("--target", "cpu", "--max-ops", 300, "--shard", shard)
        assert soak(*args, out=shard[0]).exit_code == 0
    assert found("0").parts != found("1").parts
    assert found("1").runs[0].shard == "1/2"
    assert soak("--target", "cpu", "--shard", "2/2").exit_code == 2


def test_another_soak_is_refused() -> None:
    assert soak("--target", "cpu", "--max-ops", 100).exit_code == 0
    state = Path("out", FILE).read_bytes()
    for args in (("--target", "example"), ("--target", "cpu", "--seed", 4)):
        result = soak(*args, "--max-ops", 100)
        assert result.exit_code == 2
        assert "name another --out" in result.stderr
    assert Path("out", FILE).read_bytes() == state


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"kvexact_soak":1}', b"\xff", b"[" * 9999])
def test_what_is_no_state_is_one_line(data: bytes) -> None:
    Path("out").mkdir()
    Path("out", FILE).write_bytes(data)
    with pytest.raises(StateError):
        resume(Path("out"), "cpu", NAMES, "", 3)
    result = soak("--target", "cpu", "--max-ops", 100)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def start(*args: str) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).with_name("kvexact")), "soak", *args]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )


def test_sigterm_ends_with_a_report() -> None:
    process = start("--target", "cpu", "--workers", "2", "--out", "out", "--seed", "3")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("kvexact soak")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "op pairs met" in output
    assert "ended early: cpu : interrupted" in output
    assert found().runs[0].ended == "interrupted"


def test_what_was_reported_before_a_kill_is_on_disk() -> None:
    """Killed behind its first report, and again a little later; then it goes on to its end."""
    args = ("--target", "hostile_targets:Raises", "--out", "out", "--seed", "3")
    for delay in (0.0, 0.7):
        process = start(*args)
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        if not delay:
            assert any(line.startswith("reproduce: ") for line in lines)
        time.sleep(delay)
        process.kill()
        process.communicate()
        (one,) = resume(Path("out"), "hostile_targets:Raises", ("one_group",), "", 3).found
        assert load(Path("out", one.trace)).signature == one.signature
    result = soak("--target", "hostile_targets:Raises", "--max-ops", 100)
    assert result.exit_code == 1
    assert [one.signature for one in found().findings] == [one.signature]
    assert not list(Path("out").glob("*.journal"))
    assert not list(Path("out").glob(".*.part"))


def test_a_round_whose_failures_are_not_reported_yet_is_not_saved() -> None:
    """Or a soak that is killed then goes on behind a failure that nothing on disk tells of."""
    named = find_target("cpu")
    state = resume(Path(), "cpu", NAMES, "", 3)
    told: list[int] = []

    class Rounds:
        def start_round(self, favour: Favour, until: int) -> None:
            told.append(until)

    rounds = cast(Workers, Rounds())
    keeper = Keeper(named, Limits(), state, state.tally(), Reserve(Path()), rounds, Output())
    keeper.counted(16, reported=False)
    assert state.snapshot.next == 0
    keeper.counted(32, reported=True)
    assert state.snapshot.next == 32
    assert told == [32, 48]


def test_rounds_favour_what_was_met_least() -> None:
    counts = {name: Counts() for name in NAMES}
    even = favour(counts, NAMES, CpuEngine)
    assert len(set(even.families)) == 1
    assert {weight for _, weight in (*even.pairs, *even.refusals)} == {1001}
    for number in range(40):
        assert favoured_example(CpuEngine(), NAMES, even, 1, number, counts).wrong is None
    later = favour(counts, NAMES, CpuEngine)
    assert later == favour(counts, NAMES, CpuEngine)
    assert len(set(later.families)) > 1
    total = Counts()
    for one in counts.values():
        total.add(one)
    for names, met in ((later.pairs, total.pairs), (later.refusals, total.reasons)):
        weights = dict(names)
        by_times = sorted(weights, key=lambda name: met[name])
        assert weights[by_times[0]] > weights[by_times[-1]]


def test_what_ought_to_be_met_is_named() -> None:
    counts = Counts()
    counts.pairs["free", "zero"] = 1
    counts.reasons["free", "range"] = 1
    told = "\n".join(coverage.lines(counts, CpuEngine))
    assert "op pairs met: 1 of 197; never: allocate allocate, " in told
    assert "refusals met: 1 of 34; never: allocate range, " in told
    assert coverage.why_not(("reset", "free")) == "nobody owns or holds anything after a reset"
    assert coverage.why_not(("reset", "allocate")) is None


def test_signals_ask_and_cut_nothing_short() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        assert not stop.asked
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            signal.raise_signal(number)
        assert stop.asked
    assert signal.getsignal(signal.SIGTERM) is before


class Disk:
    """Has so much room, all files of the folder together; writing more fails as it really does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
        self.nbytes = nbytes
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, _: int) -> None:
        sizes = [path.stat().st_size for path in Path("out").iterdir() if path.is_file()]
        if sum(sizes) > self.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_a_soak_that_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, BYTES + journal.BYTES + 3000)
    result = soak("--target", "hostile_targets:Moody", "--max-ops", 10**6)
    assert result.exit_code == 1, result.output
    assert "ended early: hostile_targets:Moody : no room was left in out" in result.output
    kept = found()
    assert len(kept.findings) >= 1
    for one in kept.findings:
        assert load(Path("out", one.trace)).signature == one.signature
    assert Path("out", "report.html").exists()
    assert not Path("out", ".reserve").exists()
    assert "Traceback" not in result.output + result.stderr


def test_a_trace_that_no_file_can_hold_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, 10**9)
    keep = Keeper.came

    def came(keeper: Keeper, finding: Finding) -> None:
        disk.nbytes = 0
        keep(keeper, finding)

    monkeypatch.setattr(Keeper, "came", came)
    result = soak("--target", "hostile_targets:Raises", "--max-ops", 10**6)
    assert result.exit_code == 2
    head, _, last = result.stderr.strip().rpartition("\n")
    assert last.startswith("kvexact: out: No space left on device; free some room")
    Path("saved.json").write_text(head)
    assert load(Path("saved.json")).signature[0] == "exception"


def test_a_soak_needs_room_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    result = soak("--target", "cpu", "--max-ops", 100)
    assert result.exit_code == 2
    assert result.stderr.startswith("kvexact: out: No space left on device; ")
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in Path("out").iterdir()) == [FILE]


def test_what_a_killed_sitting_met_is_in_the_report() -> None:
    assert soak("--target", BUGGY, "--max-ops", 600).exit_code == 1
    (one, *_) = found().findings
    trace = load(Path("out", one.trace))
    for name, signature in (("again", trace.signature), ("never", ("hang", "zero", "hang", ""))):
        data = dump(replace(trace, signature=signature))
        Path("out", f"unreduced-{name}.json").write_bytes(data)
    assert soak("--target", BUGGY, "--max-ops", 600).exit_code == 1
    (left,) = (item for item in found().findings if item.outcome == "hang")
    assert (left.trace, left.often) == ("unreduced-never.json", "not run again")
    assert left.command == f"kvexact replay unreduced-never.json --target {BUGGY}"
    assert not Path("out", "unreduced-again.json").exists()


def workers(target: str, folder: Path) -> Workers:
    weights = favour({"one_group": Counts()}, ["one_group"], CpuEngine)
    task = Task(target, ("one_group",), 3, "soak", limits=Limits(), favour=weights, until=1000)
    return Workers(task, 1, folder)


def receive(source: Workers, kind: type[Item], most: int = 4000) -> list[Item]:
    """What comes until one of a kind does."""
    items: list[Item] = []
    for _ in range(most):
        items += source.poll()
        if any(isinstance(item, kind) for item in items):
            return items
    raise AssertionError(items)


def kill(source: Workers) -> None:
    pid = source._places[0].child._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_worker_that_is_killed_is_no_failure_of_an_isolated_target(tmp_path: Path) -> None:
    with closing(workers("cpu", tmp_path)) as source:
        last = receive(source, Done)[-1]
        assert isinstance(last, Done)
        kill(source)
        *before, fell = receive(source, Fallen)
        number = last.number + len(before) + 1
        assert isinstance(fell, Fallen)
        assert fell.text == (
            f"worker 0 died at example {number} (SIGKILL); "
            f"its target did not do that, so it is tried again"
        )
        after = receive(source, Done)[0]
        assert isinstance(after, Done)
        assert (after.number, after.signature) == (number, None)


def test_a_worker_that_is_killed_again_and_again_leaves_the_example_out(tmp_path: Path) -> None:
    with closing(workers("cpu", tmp_path)) as source:
        for left_out in (False, False, True):
            kill(source)
            items = receive(source, Fallen)
            assert isinstance(items[0], Fallen)
            assert items[0].left_out == left_out
        assert items[0].text.endswith("at example 0 (SIGKILL), 3 times; that example is left out")
        assert items[1] == Done(0, "one_group", Counts())
        (after, *_) = receive(source, Done)
        assert isinstance(after, Done)
        assert after.number == 1


def test_a_worker_that_is_killed_while_it_reduces_reduces_again(tmp_path: Path) -> None:
    with closing(workers("hostile_targets:Exits", tmp_path)) as source:
        items = receive(source, Done)
        while not (isinstance(items[-1], Done) and items[-1].finding):
            items = receive(source, Done)
        met = items[-1]
        kill(source)
        fell, *_ = receive(source, Fallen)
        assert isinstance(fell, Fallen)
        assert f"died while it reduced example {met.number} (SIGKILL)" in fell.text
        reduced, *_ = receive(source, Reduced)
        assert isinstance(reduced, Reduced)
        assert (reduced.number, reduced.failed_runs) == (met.number, 3)
        assert len(reduced.finding.trace.ops) == 1


def test_memory_is_that_of_all_processes() -> None:
    own = resident_bytes()
    assert own > 10_000_000
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert resident_bytes(child.pid) > 0
    child.communicate(b"\n")
    assert resident_bytes(2**30) == 0
