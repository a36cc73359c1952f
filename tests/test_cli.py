"""The command line: exit codes, one-line errors, and what a run says and leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import asdict, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kvexact.fuzz.cli import main
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.families import FAMILIES, SERVING
from kvexact.fuzz.features import FEATURES
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.progress import progress_line
from kvexact.fuzz.soak import DEATHS_MOST, Soak
from kvexact.fuzz.tally import Tally
from kvexact.fuzz.trace import Trace, dump, load
from kvexact.fuzz.worker import Done, Reduced
from kvexact.refmodel.ops import Allocate, CopyBlocks, Free, Handle, Op, Pair
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

COMMANDS = [
    *("targets", "fuzz", "soak", "replay", "reduce", "show", "vectors", "soak-ray", "corpus"),
    *("report", "power", "bench"),
]
FAULTY = "kvexact.impl.faults:copy_without_scales"
GEOMETRY = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "int8_per_token_head"),)),), 2, Host(16))
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (0,)),
    Allocate(1, 0, (1,)),
    CopyBlocks(2, 0, (Pair(Handle(1, 0), Handle(0, 0)),)),
)
SIGNATURE = ("mismatch", "copy_blocks", "lost", "k_scale")
TRACE = Trace(GEOMETRY, OPS, "cpu", "one_group", ("acted", "acted", "failed"), SIGNATURE)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)


def kvexact(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def script(*args: str, **options: object) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).with_name("kvexact")), *args]
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(dump(TRACE))
    return path


def runs() -> list[Path]:
    return sorted(Path("artifacts").iterdir()) if Path("artifacts").exists() else []


def paths_of(command: click.Command) -> Iterator[str]:
    """A command and all below it, as they are typed."""
    yield ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from (f"{name} {path}".rstrip() for path in paths_of(below))


@pytest.mark.parametrize("command", [*paths_of(main)][1:])
def test_help_has_an_example(command: str) -> None:
    result = kvexact(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"kvexact {command}" in result.output.partition("Example")[2]


def test_help_lists_commands_and_exit_codes() -> None:
    result = kvexact("--help")
    assert result.exit_code == 0
    for word in (*COMMANDS, "130  interrupted", "2    bad input", "Example"):
        assert word in result.output


def test_help_loads_next_to_nothing() -> None:
    code = """
import sys
from kvexact.fuzz.cli import main
try:
    main(["--help"])
except SystemExit:
    assert not {"numpy", "torch", "hypothesis", "rich", "msgspec"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)


def test_fuzzing_the_cpu_loads_no_torch() -> None:
    code = """
import sys
from kvexact.fuzz.cli import main
try:
    main(["fuzz", "--max-ops", "100"])
except SystemExit as end:
    assert not end.code
assert not {"torch", "hypothesis"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--bogus"], ["--bogus", "--help"]),
        (["nope"], ["'nope'", "--help"]),
        (["fuzz", "--target", "nix"], ["'nix'", "not registered", "cpu", "module:Class"]),
        (["fuzz", "--target", "nix:Y"], ["'nix:Y'", "cannot be imported", "module:Class"]),
        (["fuzz", "--target", "json:dumps"], ["'json:dumps'", "subclass"]),
        (["fuzz", "--target", "odd_targets:Away"], ["Away", "plug it in"]),
        (["fuzz", "--target", "odd_targets:Exits"], ["Exits", "exit status 3"]),
        (
            ["fuzz", "--target", "odd_targets:CannotBeMade"],
            ["CannotBeMade", "OSError: no room for"],
        ),
        (["fuzz", "--target", "odd_targets:BadCheck"], ["BadCheck", "KeyError: 'HOME'"]),
        (["fuzz", "--target", "odd_targets:NoFamily"], ["NoFamily", "no family is left", "padded"]),
        (["fuzz", "--target", "no_module:Odd"], ["no_module:Odd", "RuntimeError: on two lines"]),
        (["fuzz", "--target", "kvexact:Target"], ["kvexact:Target", "TypeError", "abstract"]),
        (["fuzz", "--family", "x"], ["'x'", "one_group, padded"]),
        (
            ["fuzz", "--target", "example", "--family", "refusals"],
            ["'example'", "'refusals'", "`op_refusals`"],
        ),
        (["fuzz", "--max-time", "0"], ["'0'", "give more"]),
        (["fuzz", "--max-time", "0.0m"], ["'0.0m'", "give more"]),
        (["fuzz", "--chooser", "dice"], ["'dice'", "prng"]),
        (["fuzz", "--max-time", "8x"], ["'8x'", "8m"]),
        (["fuzz", "--max-ops", "0"], ["--max-ops", "0"]),
        (["fuzz", "--seed", "-3"], ["-3"]),
        (["fuzz", "--workers", "0"], ["--workers", "0"]),
        (["fuzz", "--artifacts", "trace.json"], ["trace.json"]),
        (["fuzz", "--artifacts", "trace.json/x"], ["trace.json/x", "--artifacts"]),
        (["replay"], ["FILES", "--help"]),
        (["replay", "missing.json"], ["missing.json", "No such file"]),
        (["replay", "foreign.json"], ["foreign.json", "kvexact"]),
        (["replay", "large.json"], ["large.json", "bytes", "fewer blocks"]),
        (["replay", "named.json"], ["named.json", "'os:system'", "--target os:system"]),
        (["replay", "trace.json", "--target", "nix"], ["'nix'", "cpu"]),
        (["reduce", "foreign.json"], ["foreign.json", "kvexact"]),
        (["reduce", "trace.json", "--target", "odd_targets:Away"], ["plug it in"]),
        (["reduce", "trace.json", "--target", "odd_targets:CannotBeMade"], ["OSError"]),
        (["reduce", "trace.json", "--target", FAULTY, "-o", "no/file"], ["no/file", "-o"]),
        (["show", "missing.json"], ["missing.json", "No such file"]),
        (["show", "foreign.json"], ["foreign.json", "kvexact"]),
        (["show", "impossible.json"], ["impossible.json", "pool_size", "physical_bytes at least"]),
        (["show", "wrong.json"], ["wrong.json", "order is 'X'", "LBHNC"]),
        (["show", "trace.json", "--svg", "no/file"], ["no/file", "--svg"]),
    ],
)
def test_bad_input_is_one_line(trace: Path, args: list[str], words: list[str]) -> None:
    folder = trace.parent
    (folder / "no_module.py").write_text("raise RuntimeError('on\\ntwo lines')")
    (folder / "foreign.json").write_text('{"events": []}')
    large = replace(TRACE, geometry=replace(GEOMETRY, blocks=2**40))
    (folder / "large.json").write_bytes(dump(large))
    (folder / "named.json").write_bytes(dump(replace(TRACE, target="os:system")))
    odd = asdict(replace(GEOMETRY, physical_bytes=1))
    (folder / "impossible.json").write_text(json.dumps(odd))
    (folder / "wrong.json").write_text(json.dumps({**odd, "order": "X"}))
    result = kvexact(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("kvexact: ")
    for word in words:
        assert word in result.stderr
    assert runs() == []


def test_targets_says_what_can_be_fuzzed() -> None:
    result = kvexact("targets", "--families")
    assert result.exit_code == 0
    assert re.search(
        r"^cpu +yes: kvexact.impl.engine.engine:CpuEngine$", result.output, re.MULTILINE
    )
    assert re.search(r"^cuda +(yes|no): .+$", result.output, re.MULTILINE)
    assert re.search(r"^example +yes: ", result.output, re.MULTILINE)
    for name in FAMILIES:
        assert re.search(rf"^{name} +\w", result.output, re.MULTILINE)


def test_a_sound_run() -> None:
    result = kvexact("fuzz", "--max-ops", "1500", "--seed", "7")
    assert result.exit_code == 0, result.output
    head = r"kvexact fuzz: target cpu, prng, seed 7, files in artifacts/\S+-7-[0-9a-f]{4}\n"
    assert re.match(head, result.output)
    for word in ("restore", "bytes that had to change", "geometries", "features", "order LBHNC"):
        assert word in result.output
    assert runs() == [], "nothing is left of a run that found nothing"


def test_what_was_there_before_a_run_stays(tmp_path: Path) -> None:
    for name in ("artifacts", "mine"):
        (tmp_path / name).mkdir()
        assert kvexact("fuzz", "--max-ops", 50, "--seed", 7, "--artifacts", name).exit_code == 0
        assert list((tmp_path / name).iterdir()) == []
    assert kvexact("fuzz", "--max-ops", 50, "--seed", 7, "--artifacts", "new/one").exit_code == 0
    assert not (tmp_path / "new").exists()


def test_families_that_fit_the_target_are_fuzzed_once_each() -> None:
    result = kvexact("fuzz", "--target", "odd_targets:Blind", "--max-ops", 10, "--seed", 1)
    fitting = len(FAMILIES) + len(SERVING) - 1
    assert f"of {fitting} families" in result.output
    assert "refusals" not in result.output
    twice = ["--family", "padded"] * 2
    assert "of 1 family" in kvexact("fuzz", *twice, "--max-ops", 50, "--seed", 1).output


def test_a_bug_of_kvexact_is_no_failure_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code is not the one of a failure."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("kvexact.fuzz.cli_fuzz.Soak", broken)
    result = kvexact("fuzz", "--seed", 1)
    assert result.exit_code == 2
    assert result.stderr.startswith("kvexact has a bug:\nTraceback")
    assert "ZeroDivisionError: of ours" in result.stderr
    assert runs() == []


def test_nothing_depends_on_the_order_of_sets() -> None:
    def outcome(hash_seed: str) -> str:
        process = script(
            *("fuzz", "--target", FAULTY, "--seed", "3", "--max-ops", "900"),
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        output, _ = process.communicate()
        assert process.returncode == 1
        return re.sub(r"^\d+:\d\d.*$|artifacts/[^/\n]*", "", output, flags=re.MULTILINE)

    assert outcome("1") == outcome("2")


#: A target with several failures, and a run of it.
SEVERAL = "kvexact.impl.faults:zero_spans_block_stride"
RUN = ("fuzz", "--target", SEVERAL, "--max-ops", 2500, "--seed", 1)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What that run says, and its directory."""
    folder = tmp_path_factory.mktemp("failing")
    with chdir(folder):
        result = kvexact(*RUN)
    assert result.exit_code == 1
    (directory,) = (folder / "artifacts").iterdir()
    return result.output, directory


def test_a_failing_run_shows_saves_and_goes_on(failing: tuple[str, Path]) -> None:
    output, directory = failing
    commands = re.findall(r"^reproduce: (.+)$", output, re.MULTILINE)
    counted = re.findall(r"^failed (?:once|([\d,]+) times): (.+)$", output, re.MULTILINE)
    assert len(commands) == len(counted) >= 2
    assert any(number for number, _ in counted), "a known failure is counted, not shown"
    assert len(list(directory.iterdir())) == 3 * len(commands)
    assert not list(directory.glob("*.journal"))
    for path in directory.glob("*.json"):
        found = load(path)
        assert found.target == SEVERAL
        assert len(found.ops) <= 4


def test_the_last_line_shows_the_same_failure() -> None:
    process = script("fuzz", "--target", FAULTY, "--seed", "2", "--first")
    output, _ = process.communicate()
    assert process.returncode == 1
    shown = output[: output.index("reproduce: ")].splitlines()
    command = re.findall(r"^reproduce: (.+)$", output, re.MULTILINE)[-1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    again = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PATH": path},
        check=False,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 1
    message = [line for line in shown if line.startswith(("op ", "  layer", "  want", "  got"))]
    assert len(message) == 4
    for line in message:
        assert line in again.stdout


def test_the_same_for_any_number_of_workers(failing: tuple[str, Path]) -> None:
    def outcome(output: str, directory: Path) -> tuple[str, list[str]]:
        assert output.count("reproduce: ") >= 2
        text = re.sub(r"^\d+:\d\d.*$|artifacts/[^/\n]*", "", output, flags=re.MULTILINE)
        return text, sorted(path.name for path in directory.iterdir())

    result = kvexact(*RUN, "--workers", 3)
    assert result.exit_code == 1
    (directory,) = runs()
    assert outcome(result.output, directory) == outcome(*failing)


def test_the_first_failure_ends_the_run() -> None:
    result = kvexact("fuzz", "--target", FAULTY, "--seed", "1", "--first")
    assert result.exit_code == 1
    assert result.output.count("reproduce: ") == 1


def test_hypothesis_chooses() -> None:
    result = kvexact(
        *("fuzz", "--chooser", "hypothesis", "--target", FAULTY, "--family", "one_group"),
        *("--seed", 1, "--first"),
    )
    assert result.exit_code == 1
    assert "copy_blocks" in result.output[: result.output.index("reproduce: ")]


def test_time_ends_a_run() -> None:
    """Worker and first geometry have their time on a busy machine, too."""
    result = kvexact("fuzz", "--max-time", "8s", "--seed", "1")
    assert result.exit_code == 0
    assert re.search(r"^0:(0[89]|1\d)  [\d,]+ ops acted", result.output, re.MULTILINE)


def test_seeds_are_drawn_but_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def seed() -> str:
        result = kvexact("fuzz", "--max-ops", "1", "--family", "one_group")
        match = re.search(r"seed (\d+)", result.output)
        assert match
        return match[1]

    assert seed() != seed()
    monkeypatch.setenv("CI", "true")
    assert seed() == seed() == "0"


def test_a_killed_worker_leaves_its_trace() -> None:
    result = kvexact(
        "fuzz", "--target", "odd_targets:Killed", "--seed", 1, "--max-ops", 5, "--workers", 2
    )
    assert result.exit_code == 1
    assert "signal / restore / signal / SIGKILL" in result.output
    assert "the process died (SIGKILL)" in result.output
    (directory,) = runs()
    (path,) = directory.glob("*.json")
    assert type(load(path).ops[-1]).__name__ == "Restore"
    assert not list(directory.glob("*.journal"))
    again = kvexact("replay", path, "--target", "odd_targets:Killed")
    assert again.exit_code == 1
    assert again.output.startswith("FAILED")
    reduced = kvexact("reduce", path, "--target", "odd_targets:Killed")
    assert reduced.exit_code == 1
    assert "signal / restore / signal / SIGKILL" in reduced.output
    assert "reduced from" in reduced.output


def test_what_a_worker_forked_neither_hides_its_death_nor_outlives_it() -> None:
    """It has open all that the worker had: what that sends by, and what the command prints to."""
    process = script(
        *("fuzz", "--target", "hostile_targets:HidesAChild", "--seed", "1", "--first"),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "exit / zero / exit / exit status 3" in output


def test_a_lost_device_is_replaced() -> None:
    result = kvexact("fuzz", "--target", "odd_targets:Lost", "--seed", 1, "--max-ops", 150)
    assert result.exit_code == 1
    assert result.output.count("reproduce: ") == 1
    assert "device_lost / copy_blocks" in result.output
    assert re.search(r"^  not reduced, \d+ ops$", result.output, re.MULTILINE)


def test_a_device_that_is_gone_for_good_ends_the_run() -> None:
    result = kvexact("fuzz", "--target", "odd_targets:LostForAll", "--seed", 1)
    assert result.exit_code == 1
    assert result.output.count("reproduce: ") == 1
    assert "ended early: the target cannot run any more: the device is gone" in result.output


def test_a_device_that_comes_back_needs_no_new_process() -> None:
    faulty = "kvexact.impl.faults:wide_store_checks_source_only"
    result = kvexact("fuzz", "--target", faulty, "--seed", 1, "--first")
    assert result.exit_code == 1
    (path,) = runs()[0].glob("*.json")
    assert load(path).signature[0] == "device_lost"
    assert len(load(path).ops) <= 3
    (test,) = runs()[0].glob("test_*.py")
    assert "3 of 3 runs" in test.read_text()


def test_a_run_that_proves_nothing_fails() -> None:
    """A target that declines everything agrees with everything."""
    result = kvexact("fuzz", "--target", "odd_targets:Declines", "--max-ops", 25, "--seed", 1)
    assert result.exit_code == 1
    for text in (
        "proves less than it claims: odd_targets:Declines: no byte was compared",
        "proves less than it claims: odd_targets:Declines, one_group: no fact was compared",
    ):
        assert text in result.output


@pytest.mark.parametrize("budget", [("--max-ops", 16), ("--max-ops", 1), ("--max-time", "0.001s")])
def test_a_short_run_that_proves_nothing_fails(budget: tuple[object, ...]) -> None:
    result = kvexact("fuzz", "--target", "odd_targets:Blind", *budget, "--seed", 1)
    assert result.exit_code == 1, result.output
    assert "proves less than it claims: odd_targets:Blind: no " in result.output


@pytest.mark.parametrize("seed", range(3))
def test_a_short_run_that_compares_something_passes(seed: int) -> None:
    """Whatever a family of few geometries met, the run as a whole compared bytes that changed."""
    result = kvexact("fuzz", "--max-ops", 60, "--seed", seed)
    assert result.exit_code == 0, result.output
    assert "judged only together" in result.output


@pytest.mark.parametrize("seconds", [0, 8])
def test_an_interrupted_run_sums_up(seconds: int) -> None:
    """Also where its workers are still starting, which hear the signal, too."""
    process = script(
        *("fuzz", "--seed", "1", "--max-time", "1h", "--workers", "2"),
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("kvexact fuzz")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(seconds)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "bytes that had to change" in output or not seconds
    assert "features" in output
    assert errors == ""
    assert runs() == []


def test_a_reader_that_leaves_early_is_no_error(trace: Path) -> None:
    for args in (["targets", "--families"], ["show", str(trace)], ["--help"]):
        process = script(*args)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with process.stderr:
            errors = process.stderr.read()
        assert process.wait() == 2
        assert errors == ""


def test_replay_exit_codes(trace: Path) -> None:
    assert kvexact("replay", trace).exit_code == 0
    failed = kvexact("replay", trace, "--target", FAULTY)
    assert failed.exit_code == 1
    assert failed.output.startswith("FAILED        ")
    flaky = kvexact("replay", trace, "--target", "odd_targets:Flaky")
    assert flaky.exit_code == 1
    assert flaky.output.startswith("FLAKY 1 of 3  ")
    drifted = trace.with_name("drifted.json")
    drifted.write_bytes(dump(replace(TRACE, recorded=("acted", "refused:owner", "failed"))))
    result = kvexact("replay", drifted)
    assert result.exit_code == 2
    assert result.output.startswith("DRIFTED       ")
    assert "op 1 allocate: recorded 'refused:owner', now 'acted'" in result.output
    away = kvexact("replay", trace, "--target", "odd_targets:Away")
    assert away.exit_code == 2
    assert away.output.startswith("ERROR         ")
    assert "plug it in" in away.output


def test_replay_of_several_files(trace: Path) -> None:
    broken = trace.with_name("broken.json")
    broken.write_text("{")
    result = kvexact("replay", trace, broken, trace)
    assert result.exit_code == 2
    assert result.stdout.count("FIXED") == 2
    assert result.stderr.count("\n") == 1
    failed = kvexact("replay", broken, trace, "--target", FAULTY)
    assert failed.exit_code == 1


def test_reduce(trace: Path) -> None:
    spare: tuple[Op, ...] = (*OPS[:1], Free(7, 0, (Handle(0, 0),)), Allocate(8, 0, (0,)), *OPS[1:])
    moved = CopyBlocks(2, 0, (Pair(Handle(1, 0), Handle(8, 0)),) * 2)
    long = trace.with_name("long.json")
    long.write_bytes(dump(replace(TRACE, ops=(*spare[:-1], moved), recorded=())))
    result = kvexact("reduce", long, "--target", FAULTY)
    assert result.exit_code == 1
    small = load(trace.with_name("long.reduced.json"))
    assert len(small.ops) <= 3
    assert small.signature == SIGNATURE
    assert "reduced from 5 ops to " in result.output
    assert result.output.endswith(
        f"reproduce: kvexact replay long.reduced.json --target {FAULTY}\n"
    )
    sound = kvexact("reduce", trace)
    assert sound.exit_code == 0
    assert "nothing to reduce" in sound.output


def test_show_draws_traces_and_geometries(trace: Path) -> None:
    plain = kvexact("show", trace)
    assert plain.exit_code == 0
    assert "host row" in plain.output
    failing = kvexact("show", trace, "--target", FAULTY)
    assert "op 2 copy_blocks(1 -> 0): 8 bytes of the pool differ" in failing.output
    picture = trace.with_name("picture.svg")
    assert kvexact("show", trace, "--target", FAULTY, "--svg", picture).exit_code == 0
    assert "8 wrong bytes in the pool" in picture.read_text()
    geometry = trace.with_name("geometry.json")
    geometry.write_text(json.dumps(asdict(GEOMETRY)))
    assert kvexact("show", geometry).output == plain.output
    foreign = trace.with_name("named.json")
    foreign.write_bytes(dump(replace(TRACE, target="mine:Cache")))
    result = kvexact("show", foreign)
    assert result.exit_code == 0
    assert "--target mine:Cache" in result.stderr


# The order in which results count.


class Script:
    """A source that hands out what it is told, a batch a poll."""

    def __init__(self, *batches: list[Done | Reduced]) -> None:
        self.batches = list(batches)

    def poll(self) -> list[Done | Reduced]:
        if not self.batches:
            raise KeyboardInterrupt
        return self.batches.pop(0)

    def close(self) -> None:
        pass


def done(number: int, acted: int = 10, field: str = "") -> Done:
    counts = Counts()
    counts.ops["read", "acted"] = acted
    counts.geometries["accepted"] = 1
    if not field:
        return Done(number, "one_group", counts)
    signature = Signature("mismatch", "read", "lost", field)
    return Done(number, "one_group", counts, signature, finding(number, field))


def finding(number: int, field: str) -> Finding:
    signature = Signature("mismatch", "read", "lost", field)
    return Finding(Failure(signature, ()), TRACE, number, 0)


def soak(source: Script, **options: object) -> tuple[Soak, list[Finding]]:
    told: list[Finding] = []
    tally = Tally({"one_group": Counts()})
    made = Soak(tally, source, lambda found, _: told.append(found), lambda _: None, **options)  # type: ignore[arg-type]
    return made, told


def test_results_count_in_order() -> None:
    source = Script([done(2), done(1)], [done(3), done(0)], [])
    made, _ = soak(source, max_ops=30)
    assert made.run()
    assert made.tally.acted == 30
    assert made.tally.geometries == 3


def test_what_is_counted_is_told_with_whether_all_was_reported() -> None:
    counted: list[tuple[int, bool]] = []
    batches = [done(0, field="k"), done(1)], [Reduced(0, finding(0, "k"))], [done(2)]
    made, _ = soak(Script(*batches), max_ops=30, counted=lambda *told: counted.append(told))
    assert made.run()
    assert counted == [(1, False), (2, False), (3, True)]


def test_kinds_of_failure_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvexact.fuzz.soak.KINDS_MOST", 2)
    source = Script([done(number, field=f"{number}") for number in range(3)])
    made, told = soak(source, max_seconds=0.1)
    monkeypatch.setattr("kvexact.fuzz.soak._GRACE_S", -1.0)
    assert made.run()
    assert made.tally.ended == "2 kinds of failure"
    assert told == [finding(0, "0"), finding(1, "1")]


def test_the_first_in_order_is_reported_once() -> None:
    late = Reduced(5, finding(50, "k"))
    early = Reduced(1, finding(10, "k"))
    source = Script([done(5, field="k"), late], [done(0), done(1, field="k")], [early], [])
    made, told = soak(source, first=True)
    assert made.run()
    assert told == [early.finding]
    assert made.tally.failures.total() == 1


def test_an_interrupt_counts_what_came_and_tells_what_is_not_reduced() -> None:
    source = Script([done(0), done(1, field="v"), done(3)])
    made, told = soak(source)
    assert not made.run()
    assert made.tally.acted == 30
    assert told == [finding(1, "v")]


def test_a_run_in_which_nothing_acts_ends() -> None:
    source = Script([done(number, acted=0) for number in range(9)])
    made, _ = soak(source, max_ops=5)
    assert made.run()
    assert made.tally.examples == 5


def test_a_run_that_only_dies_ends() -> None:
    signature = Signature("signal", "restore", "signal", "SIGKILL")
    items: list[Done | Reduced] = [
        replace(done(number, field="k"), signature=signature, died=True) for number in range(200)
    ]
    made, told = soak(Script([*items, Reduced(0, finding(0, "k"))], []))
    assert made.run()
    assert made.tally.deaths == DEATHS_MOST
    assert len(told) == 1


def test_findings_are_told_in_the_order_of_their_numbers() -> None:
    """Whichever process has reduced its own first; none is told unreduced for want of time."""
    first, second = Reduced(0, finding(10, "k")), Reduced(1, finding(20, "v"))
    start: list[Done | Reduced] = [done(0, field="k"), done(1, field="v")]
    made, told = soak(Script(start, [second], [], [first]), max_ops=20)
    assert made.run()
    assert told == [first.finding, second.finding]


def test_a_run_without_a_time_waits_for_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvexact.fuzz.soak._GRACE_S", -1.0)
    late = Reduced(0, finding(10, "k"))
    made, told = soak(Script([done(0, field="k")], [], [late]), max_ops=10)
    assert made.run()
    assert told == [late.finding]
    made, told = soak(Script([done(0, field="k")], [], [late]), max_ops=10, max_seconds=60.0)
    assert made.run()
    assert told == [finding(0, "k")]


def test_progress_is_one_line() -> None:
    tally = Tally({}, geometries=3810, acted=1_204_112, seconds=60.0)
    assert progress_line(tally) == (
        "1:00  1,204,112 ops acted, 20,069 a second  3,810 geometries  "
        f"0 of {len(FEATURES)} features  0 kinds of failure"
    )
