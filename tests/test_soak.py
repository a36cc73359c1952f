"""A soak: the same for any number of workers, goes on where it died, and loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner, Result

from kvexact.fuzz import coverage, results, summary_file
from kvexact.fuzz.cli import main
from kvexact.fuzz.cli_soak import _Keeper
from kvexact.fuzz.console import Output
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.favour import Favour, favour, favoured_example
from kvexact.fuzz.memory import resident_bytes
from kvexact.fuzz.soak_state import FILE, StateError, resume
from kvexact.fuzz.stop import Stop
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import find_target
from kvexact.fuzz.trace import load
from kvexact.fuzz.workers import Workers
from kvexact.impl.engine.engine import CpuEngine

NAMES = tuple(FAMILIES)
TESTS = Path(__file__).parent
BUGGY = "kvexact.impl.adapters.example:ExampleCacheWithBug"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rounds, so that few examples make several."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvexact.fuzz.cli_soak.ROUND", 16)


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
    assert len(json.loads(Path("1", FILE).read_text())["snapshot"]["counts"]) == len(FAMILIES)
    assert not list(Path("1").glob("*.journal"))


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
    keeper = _Keeper(named, Limits(), state, state.tally(), rounds, Output())
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
    assert "op pairs met: 1 of 133; never: allocate allocate, " in told
    assert "refusals met: 1 of 34; never: allocate range, " in told
    assert coverage.why_not(("reset", "free")) == "nobody owns or holds anything after a reset"
    assert coverage.why_not(("reset", "allocate")) is None


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_memory_is_that_of_all_processes() -> None:
    own = resident_bytes()
    assert own > 10_000_000
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert resident_bytes(child.pid) > 0
    child.communicate(b"\n")
    assert resident_bytes(2**30) == 0
