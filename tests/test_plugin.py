"""The pytest plugin, in processes of its own: what it says, saves and exits with."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kvexact.fuzz import plugin
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.items import PROFILES
from kvexact.fuzz.plugin_report import distinct
from kvexact.fuzz.summary import complaints, merge, summary
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import parse
from kvexact.impl.adapters.example import ExampleCache

pytest_plugins = ["pytester"]

FUZZ = ("--pyargs", "kvexact.fuzz", "-p", "no:cacheprovider")
QUICK = (*FUZZ, "--kv-profile", "quick", "--kv-examples", "9")
BUG = "kvexact.impl.faults:copy_without_scales"

TARGETS = """
import os
import signal

from kvexact import DeviceLost, Unavailable
from kvexact.impl.engine.engine import CpuEngine
from kvexact.refmodel.ops import Restore


# A process that imports it does without torch.
class Small(CpuEngine):
    families = ("one_group", "padded", "batch")
    op_refusals = frozenset()


class Away(Small):
    @classmethod
    def check_available(cls):
        raise Unavailable("no such thing here: buy one")


class Lost(Small):
    families = ("one_group", "no_group")


class SaysSoLate(Small):
    families = ("padded",)
    opened = 0

    def open(self, geometry):
        SaysSoLate.opened += 1
        if SaysSoLate.opened > 5:
            raise Unavailable("it ran out: buy another one")
        return super().open(geometry)


class NoFamily(Small):
    families = ("refusals",)


class CannotBeMade(Small):
    families = ("padded",)

    def __init__(self):
        raise OSError("no room")


class Gone(Small):
    families = ("one_group", "padded")
    gone = False
    opened = 0

    def open(self, geometry):
        Gone.opened += 1
        if Gone.opened > 60:
            os.kill(os.getpid(), signal.SIGKILL)
        if Gone.gone:
            raise DeviceLost("gone")
        return super().open(geometry)

    def apply(self, op, rows):
        if isinstance(op, Restore):
            Gone.gone = True
            raise DeviceLost("made up")
        return super().apply(op, rows)


class Blind(Small):
    declared = frozenset()
    op_kinds = Small.op_kinds - {"read", "read_values"}


class Deadly(Small):
    families = ("padded",)

    def apply(self, op, rows):
        if isinstance(op, Restore):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().apply(op, rows)
"""


@pytest.fixture(autouse=True)
def _targets(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(own=TARGETS)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def lines_with(result: pytest.RunResult, text: str) -> list[str]:
    return [line for line in result.outlines if text in line]


def test_silent_where_nothing_is_fuzzed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_something_else(): pass")
    for workers in ("0", "1"):
        result = pytester.runpytest_subprocess("-n", workers, "-p", "no:cacheprovider")
        result.assert_outcomes(passed=1)
        assert all(line.startswith("plugins: ") for line in lines_with(result, "kvexact"))
        assert result.errlines == []
    assert not {"artifacts", ".hypothesis"} & {path.name for path in pytester.path.iterdir()}


def test_header_and_summary(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*QUICK, "--kv-target", "example", "--kv-seed", "5")
    assert result.ret == 0
    result.stdout.re_match_lines(
        [
            r"kvexact \d.*: target example; profile quick, seed 5; hypothesis \d.*, torch \d.*",
            r"=+ kvexact =+",
            r"example: \d+ geometries of 3 families: \d+ accepted(, \d+ unsent)?",
            r"  op +acted +refused +no-op +bytes that had to change",
            r"  restore +\d+ +0 +\d+ +[\d,]+",
            r"  all +[\d,]+ +0 +\d+ +[\d,]+",
            r"  [\d,]+ bytes and \d+ facts compared",
            r"  features met: order ",
            r"  never met: format ",
            r"  facts not told: ",
            r"  geometries: one_group \d+, padded \d+, batch \d+",
            r"=+ 3 passed in .*=+",
        ]
    )
    assert not Path("artifacts").exists()


def test_one_bug_is_one_block_whatever_the_number_of_workers(pytester: pytest.Pytester) -> None:
    """Its last line shows the failure again, and JUnit has what a report needs."""
    args = (*FUZZ, "--kv-examples", "9", "--kv-target", BUG, "--junitxml", "junit.xml")
    result = pytester.runpytest_subprocess(*args, "-n", "2", "-k", "one_group")
    assert result.ret == 1
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] >= 4
    headings = [line for line in result.outlines if re.match(rf"{BUG}, \w+: mismatch / ", line)]
    commands = [line for line in result.outlines if line.startswith("reproduce: ")]
    assert headings
    assert len(commands) == len(headings) == len({line.split(": ")[1] for line in headings})
    assert lines_with(result, "  met by ")
    # An item's own message is one line, and no traceback.
    assert not lines_with(result, "Traceback")
    assert not [line for line in result.outlines if re.search(r"test_fuzz\.py:\d", line)]

    shown = subprocess.run(
        shlex.split(commands[0].removeprefix("reproduce: ")),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert shown.returncode == 1, shown.stderr
    signature = headings[0].split(": ")[1]
    assert signature in shown.stdout

    cases = ET.parse("junit.xml").iter("testcase")
    found = [{p.get("name"): p.get("value") for p in case.iter("property")} for case in cases]
    told_of_each = {f"kvexact_{name}" for name in ("target", "family", "seed", "ops", "geometries")}
    assert all(told_of_each <= set(properties) for properties in found)
    told = [json.loads(one["kvexact_findings"] or "") for one in found if "kvexact_findings" in one]
    assert all(Path(finding["trace"]).exists() for one in told for finding in one)


def test_worker_that_dies_leaves_its_trace(pytester: pytest.Pytester) -> None:
    args = (*QUICK, "--kv-target", "own:Deadly", "-n", "1", "--max-worker-restart", "0")
    result = pytester.runpytest_subprocess(*args)
    assert result.ret == 1
    result.stdout.re_match_lines(
        [
            r"own:Deadly, padded: signal / restore / signal / SIGKILL",
            r"op \d+ restore.*: the process died \(SIGKILL\)",
            r"  reduced from .*",
            r"reproduce: kvexact replay artifacts/.*\.json --target own:Deadly",
        ]
    )


def test_targets_that_cannot_be(pytester: pytest.Pytester) -> None:
    for name, text in {
        "cpuu": "ERROR: target 'cpuu' is not registered; use one of cpu, cuda, cuda-st",
        "own:Nothing": "ERROR: target 'own:Nothing' cannot be imported",
        "own:Lost": "ERROR: target 'own:Lost': family 'no_group' does not exist; use one_group, p",
        "own:NoFamily": "ERROR: target 'own:NoFamily': no family is left to fuzz; name some of ",
    }.items():
        result = pytester.runpytest_subprocess(*QUICK, "--kv-target", name)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert [line[: len(text)] for line in result.errlines if line] == [text]


def test_target_that_is_unavailable_fails_one_item(pytester: pytest.Pytester) -> None:
    names = ("--kv-target", "own:Away", "--kv-target", "own:Small")
    result = pytester.runpytest_subprocess(*QUICK, *names)
    assert result.ret == 1
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.fnmatch_lines(["own:Away: no such thing here: buy one"])


def test_targets_that_cannot_be_made_or_go_on_fail_in_one_line(
    pytester: pytest.Pytester,
) -> None:
    names = ("--kv-target", "own:CannotBeMade", "--kv-target", "own:SaysSoLate")
    result = pytester.runpytest_subprocess(*QUICK, *names)
    assert result.ret == 1
    lines = ["own:CannotBeMade: making it raised OSError: no room"]
    lines += ["own:SaysSoLate: it ran out: buy another one"]
    result.stdout.fnmatch_lines(lines)
    assert not lines_with(result, "During handling") + lines_with(result, "raise ")


def test_nothing_is_reduced_on_a_device_that_is_gone(pytester: pytest.Pytester) -> None:
    """It would run thousands of programs, and the target here dies after a few."""
    result = pytester.runpytest_subprocess(*QUICK, "--kv-target", "own:Gone")
    assert result.ret == 1
    result.assert_outcomes(failed=2)
    assert len(lines_with(result, "reproduce: ")) == 1
    result.stdout.fnmatch_lines(["own:Gone: an item before this one lost the device"])
    result.stdout.re_match_lines([r"  not reduced, \d+ ops"])


def test_what_was_there_before_a_run_stays(pytester: pytest.Pytester) -> None:
    args = (*QUICK, "--kv-target", "own:Small", "-k", "padded", "--kv-artifacts")
    pytester.mkdir("mine")
    for place in ("mine", "new/one"):
        assert pytester.runpytest_subprocess(*args, place).ret == 0
    assert list(Path("mine").iterdir()) == []
    assert not Path("new").exists()
    Path("file").touch()
    result = pytester.runpytest_subprocess(*args, "file")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "name another one with --kv-artifacts" in result.stderr.str()


def test_without_a_compiler_the_example_is_fuzzed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    result = pytester.runpytest_subprocess(*QUICK, "-n", "2")
    assert result.ret == 1
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.fnmatch_lines(["cpu: CXX='no-such-compiler' is not on PATH: install one *"])


def test_run_that_proves_nothing_fails(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*QUICK, "-n", "1", "--kv-target", "own:Blind")
    assert result.ret == 1
    result.assert_outcomes(passed=3)
    expected = "proves less than it claims: own:Blind: no byte was compared"
    result.stdout.fnmatch_lines([expected])


def test_blind_harness_fails_every_item(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "from kvexact.fuzz import areas\n\nareas.Known.equals = lambda self, other: True\n"
    )
    result = pytester.runpytest_subprocess(*QUICK, "--kv-target", "own:Small", "--confcutdir", ".")
    if result.parseoutcomes().get("passed"):
        pytest.fail("\n".join(result.outlines))
    result.assert_outcomes(failed=3)


@pytest.mark.parametrize("args", [("--kv-examples", "0"), ("--kv-profile", "long")])
def test_values_that_cannot_be(pytester: pytest.Pytester, args: tuple[str, str]) -> None:
    result = pytester.runpytest_subprocess(*FUZZ, *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert args[0] in result.stderr.str()


def test_nightly_draws_its_seed_and_says_so(pytester: pytest.Pytester) -> None:
    seeds = set()
    for _ in range(2):
        args = (*FUZZ, "--kv-profile", "nightly", "--kv-target", "own:Small", "--collect-only")
        result = pytester.runpytest_subprocess(*args)
        seeds.add(re.search(r"profile nightly, seed (\d+)", result.stdout.str()).group(1))  # type: ignore[union-attr]
    assert len(seeds - {"0"}) == 2


def test_profiles_are_those_of_the_option() -> None:
    assert set(plugin._PROFILES) == set(PROFILES)


def test_distinct_shows_the_shortest_of_each_signature() -> None:
    def finding(target: str, signature: str, ops: int) -> dict[str, object]:
        block = [f"{target} {ops}", "reproduce: it"]
        return {
            "target": target,
            "signature": [signature],
            "ops": ops,
            "trace": str(ops),
            "block": block,
        }

    found = [finding("a", "x", 5), finding("a", "x", 3), finding("b", "x", 9), finding("a", "y", 1)]
    assert distinct(found) == [
        ["a 3", "  met by 2 items", "reproduce: it"],
        ["a 1", "reproduce: it"],
        ["b 9", "reproduce: it"],
    ]
    assert distinct(found[::-1]) == distinct(found)


def test_summary_of_nothing() -> None:
    lines = summary(merge([("cpu", "planning", Counts())]))
    assert lines[0] == "cpu: 0 geometries of 1 family: none"
    assert max(map(len, lines)) <= 100


def counted(geometries: int, **other: int) -> Counts:
    counts = Counts(**other)  # type: ignore[arg-type]
    counts.geometries["accepted"] = geometries
    return counts


def test_few_geometries_of_a_family_are_judged_with_the_others() -> None:
    target = [NamedTarget("it", ExampleCache)]
    nothing = ["it: no fact was compared", "it: no byte was compared"]
    nothing.append("it: no content byte had to change")

    def judged(**families: Counts) -> list[str]:
        return complaints(merge(("it", name, counts) for name, counts in families.items()), target)

    assert judged() == judged(padded=Counts()) == ["it: no geometry was tried"]
    assert judged(padded=counted(1)) == nothing
    assert judged(planning=counted(1)) == nothing[:1]
    good = counted(1, facts=1, compared_bytes=1)
    good.changed_bytes["zero"] = 1
    assert judged(padded=good, one_group=counted(19)) == []
    alone = judged(padded=good, one_group=counted(20))
    assert alone
    assert all(line.startswith("it, one_group: ") for line in alone)
    cut_short = complaints(merge([("it", "padded", counted(1))]), target, {"it"})
    assert cut_short == []


def test_the_table_has_a_column_for_ops_not_sent_where_there_are_any() -> None:
    counts = Counts()
    counts.ops["zero", "acted"] = 2
    assert "unsent" not in "\n".join(summary({("it", "padded"): counts}))
    counts.ops["zero", "unsent"] = 3
    lines = summary({("it", "padded"): counts})
    assert "unsent" in lines[1]
    assert lines[2].split() == ["zero", "2", "0", "0", "3", "0"]


def test_facts_not_told_are_named_once_for_all_groups_and_layer_sets() -> None:
    counts = Counts()
    counts.unchecked.update(["g0.s0.k.view", "g1.s2.k.view", "host.row_bytes"])
    lines = summary({("it", "padded"): counts})
    assert "  facts not told: host.row_bytes, k.view" in lines


#: A plugin that has a call of the system find no room on disk.
FULL = """
import errno, os

def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

os.{call} = full
"""


def test_a_full_disk_is_a_line_where_no_journal_can_be_made(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(full=FULL.format(call="posix_fallocate"))
    result = pytester.runpytest_subprocess(
        "-p", "full", *QUICK, "-k", "batch", "--kv-target", "own:Small"
    )
    assert result.ret == 1
    lines = lines_with(result, "No space left on device; free some room or name another")
    # Where CI is set, pytest's own summary does not cut the message short and has it once more.
    (line,) = (line for line in lines if not line.startswith("FAILED "))
    assert line.startswith(str(pytester.path / "artifacts"))
    assert not lines_with(result, "Traceback") + lines_with(result, "Errno")
    assert not (pytester.path / "artifacts").exists()


def test_a_full_disk_leaves_the_failure_and_its_trace_in_the_report(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(full=FULL.format(call="fsync"))
    result = pytester.runpytest_subprocess(
        "-p", "full", *QUICK, "-k", "one_group", "--kv-target", BUG
    )
    assert result.ret == 1
    assert lines_with(result, "FAILED ")
    assert not lines_with(result, "Traceback") + lines_with(result, "OSError")
    (last,) = lines_with(result, "not saved: ")
    assert "No space left on device; free some room or name another directory by" in last
    (trace,) = lines_with(result, "  trace  ")
    loaded = parse(trace.removeprefix("  trace  ").encode())
    assert str(Signature(*loaded.signature)) in result.stdout.str()
    assert not (pytester.path / "artifacts").exists()
