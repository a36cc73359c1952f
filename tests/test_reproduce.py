"""Reproducers and the other files of a finding."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import kvexact
from kvexact import check
from kvexact.fuzz.artefacts import file_name, make_run_directory, save, write_atomically
from kvexact.fuzz.campaign import run_example
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Failure
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.reproduce import literal, render
from kvexact.fuzz.run import execute
from kvexact.fuzz.targets import NamedTarget, find_target
from kvexact.fuzz.trace import Trace, load
from kvexact.impl.engine.engine import CpuEngine
from kvexact.refmodel import ops
from kvexact.refmodel.ops import Allocate, CopyBlocks, Handle, Op, Pair
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

GEOMETRY = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "int8_per_token_head"),)),), 2, Host(16))
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (0,)),
    Allocate(1, 0, (1,)),
    CopyBlocks(2, 0, (Pair(Handle(1, 0), Handle(0, 0)),)),
)
FAULTY = "kvexact.impl.faults:copy_without_scales"
BIN = Path(sys.executable).parent


def finding_of(name: str, geometry: Geometry = GEOMETRY, ran: tuple[Op, ...] = OPS) -> Finding:
    run, wrong = execute(find_target(name).target_type(), geometry, ran)
    assert wrong is not None
    failure = explain_failure(run, wrong)
    trace = Trace(geometry, ran, name, "one_group", tuple(run.recorded), tuple(failure.signature))
    return Finding(failure, trace, 17, 42)


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    return subprocess.run(command, cwd=cwd, env=env, check=False, capture_output=True, text=True)


def test_check_passes_on_a_sound_target() -> None:
    check(CpuEngine, GEOMETRY, OPS)
    check(CpuEngine(), GEOMETRY, OPS)
    check(partial(CpuEngine), GEOMETRY, OPS)


def test_check_raises_the_whole_message() -> None:
    with pytest.raises(AssertionError) as caught:
        check(find_target(FAULTY).target_type, GEOMETRY, OPS)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("op 2 copy_blocks(1 -> 0): 8 bytes of the pool differ")
    assert "field k_scale" in lines[1]
    assert tuple(lines) == finding_of(FAULTY).failure.lines


def test_check_refuses_to_run_nothing() -> None:
    odd = replace(GEOMETRY, physical_bytes=1)
    check(CpuEngine, odd, ())
    with pytest.raises(ValueError, match="refused:pool_size"):
        check(CpuEngine, odd, OPS)


def test_literals_are_the_values() -> None:
    names = {**vars(kvexact.refmodel.spec), **vars(ops), "ops": ops}
    target = CpuEngine()
    for family in FAMILIES.values():
        for seed in range(5):
            example = run_example(target, family, Prng(seed), Counts()).run
            for value in (example.geometry, tuple(example.done)):
                text = literal(value)
                assert eval(text, dict(names)) == value
                assert max(map(len, text.splitlines())) <= 100


def test_a_reproducer_needs_no_more_than_the_product() -> None:
    text = render(finding_of(FAULTY), find_target(FAULTY), 3)
    imported = re.findall(r"^(?:from|import) (\S+)", text, re.MULTILINE)
    assert imported == ["kvexact", "kvexact.fuzz.targets"]
    for word in ("seed", "hypothesis", "database"):
        assert word not in text.lower()
    for words in (
        f"kvexact {kvexact.__version__}",
        f"Python {sys.version.split()[0]}",
        "numpy ",
        "mismatch / copy_blocks / lost / k_scale",
        "3 of 3 runs",
        "3, reduced from 17",
        "op 2 copy_blocks(1 -> 0)",
    ):
        assert words in text


@pytest.mark.parametrize("tool", [["python"], ["pytest", "-q"]])
def test_a_reproducer_fails_as_the_finding_did(tmp_path: Path, tool: list[str]) -> None:
    finding = finding_of(FAULTY)
    saved = save(finding, find_target(FAULTY), tmp_path, 3)
    result = run(*tool, str(saved.reproducer), cwd=tmp_path)
    assert result.returncode == 1
    for line in finding.failure.lines:
        assert line in result.stdout + result.stderr


@pytest.mark.parametrize("tool", [["python"], ["pytest", "-q"]])
def test_a_reproducer_passes_where_the_target_is_sound(tmp_path: Path, tool: list[str]) -> None:
    """Named by the registry, as the trace of a fault that is mended by now."""
    saved = save(finding_of(FAULTY), find_target("cpu"), tmp_path)
    result = run(*tool, str(saved.reproducer), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_reproducer_of_a_class_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from kvexact.fuzz.targets import find_target\n"
        f"class Mine(find_target({FAULTY!r}).target_type):\n    pass\n"
    )
    (tmp_path / "saved").mkdir()
    faulty = find_target(FAULTY).target_type
    target = NamedTarget("mine:Mine", type("Mine", (faulty,), {"__module__": "mine"}))
    saved = save(finding_of(FAULTY), target, tmp_path / "saved")
    for tool in (["python"], ["pytest", "-q"]):
        result = run(*tool, f"saved/{saved.reproducer.name}", cwd=tmp_path)
        assert result.returncode == 1
        assert "op 2 copy_blocks(1 -> 0)" in result.stdout + result.stderr


def test_odd_text_of_a_target_stays_text(tmp_path: Path) -> None:
    """What a target raises is quoted in the header; it must not become code."""
    finding = finding_of(FAULTY)
    failure = Failure(
        finding.failure.signature, ('bad: """ + boom() + """ \\', "\\N{nothing} \\x", 'ends "')
    )
    text = render(replace(finding, failure=failure), find_target("cpu"))
    compile(text, "reproducer", "exec")
    path = tmp_path / "test_odd.py"
    path.write_text(text)
    assert run("python", "-W", "error", str(path), cwd=tmp_path).returncode == 0


def test_files_are_named_by_content_and_saved_once(tmp_path: Path) -> None:
    finding = finding_of(FAULTY)
    saved = save(finding, find_target(FAULTY), tmp_path, 3)
    assert saved.trace.name == f"mismatch-copy-blocks-lost-k-scale-{finding.trace.name}.json"
    assert saved.picture is not None
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(files) == {saved.trace.name, saved.reproducer.name, saved.picture.name}
    assert saved.reproducer.name.startswith("test_")
    assert saved.reproducer.stem.isidentifier()
    assert save(finding, find_target(FAULTY), tmp_path, 3) == saved
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert load(saved.trace) == finding.trace


def test_the_picture_marks_the_wrong_bytes(tmp_path: Path) -> None:
    saved = save(finding_of(FAULTY), find_target(FAULTY), tmp_path)
    assert saved.picture is not None
    assert "8 wrong bytes in the pool" in saved.picture.read_text()


def test_a_geometry_that_cannot_be_has_no_picture(tmp_path: Path) -> None:
    geometry = replace(GEOMETRY, groups=(replace(GEOMETRY.groups[0], block_size=2),))
    padded = LayerSet(1, 1, 4, 4, "int8_per_token_head", page_bytes=64)
    geometry = replace(geometry, groups=(Group(2, 1, (padded,)),))
    name = "kvexact.impl.faults:padded_pages_split"
    saved = save(finding_of(name, geometry, ()), find_target(name), tmp_path)
    assert saved.picture is None
    assert run("python", str(saved.reproducer), cwd=tmp_path).returncode == 1


def test_the_command_is_relative_and_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "a b's"
    directory.mkdir()
    finding = finding_of(FAULTY)
    command = save(finding, find_target(FAULTY), directory).command
    assert shlex.split(command) == [
        "kvexact",
        "replay",
        f"a b's/{file_name(finding.trace)}.json",
        "--target",
        FAULTY,
    ]
    assert "--target" not in save(finding, find_target("cpu"), directory).command
    shown = run("bash", "-c", command, cwd=tmp_path)
    assert shown.returncode == 1
    assert "\n".join(finding.failure.lines) in shown.stdout


def test_run_directories_do_not_meet(tmp_path: Path) -> None:
    made = {make_run_directory(tmp_path / "artifacts", 7).path for _ in range(5)}
    assert len(made) == 5
    for directory in made:
        assert re.fullmatch(r"\d{8}T\d{6}Z-7-[0-9a-f]{4}", directory.name)


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
