"""A journal outlives its process and never tells more than what was written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvexact.fuzz.campaign import run_example
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.journal import Journal, recover
from kvexact.impl.engine.engine import CpuEngine
from kvexact.refmodel.ops import Allocate, Free, Handle, Op, Reset
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

GEOMETRY = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "fp8_e4m3"),)),), 4, Host(8))
OPS: tuple[Op, ...] = (Allocate(0, 0, (2, 1)), Free(1, 0, (Handle(0, 1),)), Reset(2))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "one.journal")
    journal.target, journal.family = "cpu", "one_group"
    return journal


def write(journal: Journal, ops: tuple[Op, ...] = OPS) -> None:
    journal.begin(GEOMETRY)
    for op in ops:
        journal.write(op)


def test_what_was_written_is_recovered(journal: Journal) -> None:
    write(journal)
    trace = recover(journal.path)
    assert trace is not None
    assert (trace.geometry, trace.ops) == (GEOMETRY, OPS)
    assert (trace.target, trace.family, trace.recorded) == ("cpu", "one_group", ())


def test_each_op_is_visible_at_once(journal: Journal) -> None:
    journal.begin(GEOMETRY)
    for count, op in enumerate(OPS):
        journal.write(op)
        trace = recover(journal.path)
        assert trace is not None
        assert trace.ops == OPS[: count + 1]


def test_a_geometry_starts_anew(journal: Journal) -> None:
    write(journal, tuple(Reset(number) for number in range(50)))
    write(journal, OPS[:1])
    trace = recover(journal.path)
    assert trace is not None
    assert trace.ops == OPS[:1]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_example_is_recovered(journal: Journal, family: str) -> None:
    target = CpuEngine()
    for seed in range(3):
        example = run_example(target, FAMILIES[family], Prng(seed), Counts(), journal=journal)
        trace = recover(journal.path)
        assert trace is not None
        assert trace.geometry == example.run.geometry
        assert trace.ops == tuple(example.run.done)
        assert trace.family == family


def test_any_torn_tail_gives_a_prefix(journal: Journal) -> None:
    write(journal)
    data = journal.path.read_bytes()
    end = data.index(b"\0")
    for cut in range(end):
        journal.path.write_bytes(data[:cut])
        trace = recover(journal.path)
        assert trace is None or trace.ops == OPS[: len(trace.ops)]


def test_foreign_lines_end_the_trace(journal: Journal) -> None:
    write(journal)
    data = journal.path.read_bytes().partition(b"\0")[0]
    for line in (b"\xff\xfe\n", b"[]\n", b'{"op":"fly"}\n', b'{"op":"reset"}\n', b"{\n"):
        journal.path.write_bytes(data + line + b'{"op":"reset","id":9}\n')
        trace = recover(journal.path)
        assert trace is not None
        assert trace.ops == OPS


@pytest.mark.parametrize("data", [b"", b"\0" * 99, b"{}\n", b"no journal\n", b"\xff\n"])
def test_what_is_no_journal_gives_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(data)
    assert recover(path) is None
    assert recover(tmp_path / "missing") is None


def test_its_size_is_bounded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "small", 640)
    write(journal, tuple(Reset(number) for number in range(100)))
    trace = recover(journal.path)
    assert trace is not None
    assert 0 < len(trace.ops) < 20
    assert journal.path.stat().st_size == 640
    write(journal)
    again = recover(journal.path)
    assert again is not None
    assert again.ops == OPS


def test_closing_removes_it(tmp_path: Path) -> None:
    with Journal(tmp_path / "gone") as journal:
        journal.begin(GEOMETRY)
    assert not journal.path.exists()
    kept = Journal(tmp_path / "kept")
    kept.close(keep=True)
    assert kept.path.exists()


def test_it_outlives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "child.journal"
    code = f"""
import sys, time
from pathlib import Path
from test_journal import GEOMETRY, OPS, Journal, write
write(Journal(Path({str(path)!r})))
print("written", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"written\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    trace = recover(path)
    assert trace is not None
    assert trace.ops == OPS
