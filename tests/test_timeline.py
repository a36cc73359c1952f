"""Pictures of time: notes of a run, spans of streams, terminal and SVG."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from kvexact.fuzz.cli import main
from kvexact.fuzz.pictures.timeline import Span, timeline
from kvexact.fuzz.targets import find_target
from kvexact.fuzz.trace import Trace, dump
from kvexact.fuzz.watched import watched
from kvexact.impl.notes import Note
from kvexact.refmodel.ops import (
    Allocate,
    Handle,
    Job,
    Move,
    Offload,
    Op,
    Restore,
    Slot,
    WriteTokens,
)
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

ROOT = Path(__file__).parent.parent
GEOMETRY = Geometry((Group(2, 2, (LayerSet(2, 1, 2, 2, "fp16"),)),), 4, Host(4096))
BLOCK = Handle(0, 0)
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (0,)),
    WriteTokens(1, 0, (Slot(BLOCK, 0),), 1),
    Offload(2, (Job(0, (Move(BLOCK, 0, 0),)),)),
    Restore(3, (Job(0, (Move(BLOCK, 0, 0),)),)),
)


def test_spans_of_notes() -> None:
    """A copy that is pending, is read, and never ends; a wait; records leave no span."""
    notes = [
        Note(0, -1, "", "", "begun"),
        Note(0, 0, "memcpy", "load", "queued"),
        Note(0, 1, "record", "load", "queued"),
        Note(1, -1, "", "", "begun"),
        Note(1, 0, "wait", "compute", "queued", (0,)),
        Note(0, 0, "memcpy", "load", "read"),
        Note(0, 1, "record", "load", "ended"),
        Note(1, 0, "wait", "compute", "ended"),
    ]
    found = timeline(notes, {0: "first"})
    assert found.streams == ("load", "compute")
    assert found.ops == ((0, "first"), (2, "end"))
    copy = Span(0, "memcpy", "load", 1, (4,), (), 5, ())
    wait = Span(1, "wait", "compute", 3, (), (), 3, (0,))
    assert found.spans == (copy, wait)
    assert found.moments == 5
    assert copy.text == "#0 copy: queued at moment 1, pending until moment 4, ended at 5"
    assert wait.text == "#1 wait, for #0: queued at moment 3, ended at 3"


@pytest.mark.parametrize("schedule", [0, 1, 7])
def test_a_run_is_watched(schedule: int) -> None:
    """Each transfer moves in its own stream, behind the work that it needs."""
    found = watched(Trace(GEOMETRY, OPS, schedule=schedule), find_target("streams"))
    assert found is not None
    assert [name for _, name in found.ops][:3] == ["#0 allocate", "#1 write_tokens", "#2 offload"]
    moved = {(span.op, span.stream): span for span in found.spans if not span.is_wait}
    assert set(moved) == {(1, "compute"), (2, "store"), (3, "load")}
    assert moved[1, "compute"].ended <= moved[2, "store"].begun
    assert moved[2, "store"].ended <= moved[3, "load"].begun


def test_nothing_is_pending_in_a_synchronous_target() -> None:
    assert watched(Trace(GEOMETRY, OPS), find_target("cpu")) is None


def test_without_notes_there_is_no_picture() -> None:
    """An asynchronous target need not note what it does."""
    assert watched(Trace(GEOMETRY, OPS), find_target("delayed_targets:Delayed")) is None


def test_show_draws_time(tmp_path: Path) -> None:
    """In the terminal a row a moment within 80 columns; in an SVG well-formed lanes."""
    path = tmp_path / "trace.json"
    path.write_bytes(dump(Trace(GEOMETRY, OPS, schedule=0)))
    shown = CliRunner().invoke(main, ["show", str(path), "--target", "streams"])
    assert shown.exit_code == 0, shown.output
    for words in ("compute", "#2 batch queued", "wait for #1", "#2 batch writes", "#3 batch ends"):
        assert words in shown.output
    svg = tmp_path / "picture.svg"
    drawn = CliRunner().invoke(main, ["show", str(path), "--target", "streams", "--svg", str(svg)])
    assert drawn.exit_code == 0, drawn.output
    texts = [item.text for item in ET.parse(svg).iter() if item.text]
    assert {"Time", "compute", "store", "load", "#2 offload"} <= set(texts)
    assert any("pending until" in text for text in texts)


def test_the_failure_in_the_docs_is_a_real_one() -> None:
    text = (ROOT / "docs/time.md").read_text()
    command, drawn = text.split("## A failure in time")[1].split("```")[1:4:2]
    words = command.removeprefix("sh\n").split()[1:]
    words[1] = str(ROOT / words[1])
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    lines = [line.rstrip() for line in shown.output.splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("at  host"))
    assert lines[first:] == drawn.removeprefix("text\n").rstrip().splitlines()
