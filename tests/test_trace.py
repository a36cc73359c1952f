"""Traces: what is written is read back; what is no trace is refused in one line."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvexact.fuzz.campaign import run_example
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.trace import VERSION, Trace, TraceError, dump, load, load_geometry, parse
from kvexact.impl.engine.engine import CpuEngine
from kvexact.refmodel.ops import Allocate, CopyBlocks, Handle, Op, Pair, Reset, WriteValues
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

GEOMETRY = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "fp8_e4m3"),)),), 4, Host(8))
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (0, 1)),
    CopyBlocks(1, 0, (Pair(Handle(0, 0), Handle(0, 1)),)),
    Reset(2),
)
TRACE = Trace(
    GEOMETRY,
    OPS,
    "cpu",
    "one_group",
    ("acted", "acted", "failed"),
    ("mismatch", "reset", "frame", ""),
    "a note",
)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_round_trip_of_drawn_examples(family: str) -> None:
    target = CpuEngine()
    for seed in range(5):
        run = run_example(target, FAMILIES[family], Prng(seed), Counts()).run
        trace = Trace(run.geometry, tuple(run.done), recorded=tuple(run.recorded))
        assert parse(dump(trace)) == trace


def test_round_trip_of_everything(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(dump(TRACE))
    assert load(path) == TRACE
    assert load_geometry(path) == GEOMETRY


def test_an_op_is_a_line() -> None:
    lines = dump(TRACE).decode().splitlines()
    assert sum(line.startswith("  {") for line in lines) == len(OPS)
    assert json.loads(dump(replace(TRACE, ops=(), recorded=())))["ops"] == []


def test_a_name_says_geometry_and_ops_alone() -> None:
    assert replace(TRACE, target="cuda", note="", signature=()).name == TRACE.name
    assert replace(TRACE, ops=OPS[:2]).name != TRACE.name
    assert replace(TRACE, geometry=replace(GEOMETRY, blocks=5)).name != TRACE.name
    assert len(TRACE.name) == 12


def test_what_may_be_left_out() -> None:
    raw = json.loads(dump(TRACE))
    small = {key: raw[key] for key in ("kvexact", "geometry", "ops")}
    assert parse(json.dumps(small).encode()) == Trace(GEOMETRY, OPS)


def put(path: str, value: Any) -> Callable[[Any], None]:
    """Put a value at a dotted path."""
    *parents, last = path.split(".")

    def change(raw: Any) -> None:
        for part in parents:
            raw = raw[int(part) if part.isdigit() else part]
        raw[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("kvexact", 99), ["version 99", f"version {VERSION}"]),
        (put("kvexact", None), ["version None"]),
        (put("colour", 1), ["'colour'", "keys are"]),
        (put("ops", {}), ["ops", "list"]),
        (put("ops.0", 5), ["ops[0]", "None", "kinds are allocate"]),
        (put("ops.0.op", "fly"), ["ops[0]", "'fly'", "kinds are allocate"]),
        (put("ops.0.op", ["allocate"]), ["ops[0]", "kinds are allocate"]),
        (put("ops.1.colour", 1), ["ops[1]", "'colour'", "keys are id, group, pairs, tokens"]),
        (put("ops.1.pairs", 7), ["ops[1]", "pairs", "array"]),
        (put("ops.1.pairs.0", [1]), ["ops[1]", "pairs"]),
        (put("ops.1.id", 0), ["id 0", "twice"]),
        (put("ops.1.id", -1), ["id -1", "from 0"]),
        (put("ops.1.id", 2**63), ["id", "from 0"]),
        (put("ops.1.id", 10**400), ["id 1000", "from 0"]),
        (put("ops.1.group", True), ["ops[1]", "group", "int"]),
        (put("target", 3), ["target", "str"]),
        (put("signature", ["mismatch"]), ["signature", "4 parts"]),
        (put("recorded", "acted"), ["recorded", "array"]),
        (put("geometry", None), ["geometry"]),
        (put("geometry.blocks", 0), ["blocks is 0", "from 1"]),
        (put("geometry.order", "HLNBC"), ["order is 'HLNBC'", "use one of LBHNC"]),
        (put("geometry.colour", 1), ["geometry", "'colour'", "keys are groups"]),
        (put("geometry.host.rows", 1), ["geometry.host", "'rows'", "capacity_bytes"]),
        (
            put("geometry.groups.0.layer_sets.0.page_byte", 64),
            ["geometry.groups[0].layer_sets[0]", "'page_byte'", "page_bytes"],
        ),
        (put("geometry.groups", []), ["groups", "at least one Group"]),
    ],
)
def test_a_broken_trace_is_refused(
    tmp_path: Path, change: Callable[[Any], None], words: list[str]
) -> None:
    raw = json.loads(dump(TRACE))
    change(raw)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(TraceError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe\x00",
        b'{"events": []}',
        b"[" * 100_000,
        b'{"kvexact": 1}',
        b'{"kvexact": 1, "geometry": {}}',
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(data)
    for read in (load, load_geometry):
        with pytest.raises(TraceError, match=r"foreign\.json"):
            read(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(TraceError, match="name a trace file"):
            load(path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises(TraceError, match="larger than"):
        load(large)


def test_a_bare_geometry(tmp_path: Path) -> None:
    path = tmp_path / "geometry.json"
    raw = json.loads(dump(TRACE))["geometry"]
    path.write_text(json.dumps(raw))
    assert load_geometry(path) == GEOMETRY
    path.write_text(json.dumps({**raw, "colour": 1}))
    with pytest.raises(TraceError, match="unknown key 'colour'"):
        load_geometry(path)


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "trace.json"
    path.write_bytes(dump(replace(TRACE, target="trap:Class")))
    assert load(path).target == "trap:Class"
    assert "trap" not in sys.modules


def test_what_a_file_leaves_out_is_as_by_default() -> None:
    raw = json.loads(dump(TRACE))
    (group,) = raw["geometry"]["groups"]
    (layers,) = group["layer_sets"]
    for key in ("side", "k_scale", "v_scale"):
        del layers[key]
    del group["tokens_per_state"], raw["ops"][0]["zero"]

    assert parse(json.dumps(raw).encode()) == TRACE


def test_values_of_a_type_that_is_none_are_refused_in_a_line() -> None:
    raw = json.loads(dump(replace(TRACE, ops=(WriteValues(0, 0, (), 0),), recorded=())))
    raw["ops"][0]["value_type"] = "fp8"

    with pytest.raises(TraceError, match=r"value_type is 'fp8'; use one of fp32, fp16, bf16"):
        parse(json.dumps(raw).encode())


def test_a_schedule_is_part_of_a_trace_where_it_is_not_the_usual_one():
    """Old files read as before, and keep their names."""
    trace = parse(dump(TRACE))
    assert trace.schedule == 1
    assert b"schedule" not in dump(TRACE)
    late = replace(TRACE, schedule=0)
    assert parse(dump(late)) == late
    assert len({TRACE.name, late.name, replace(TRACE, schedule=7).name}) == 3


@pytest.mark.parametrize(("schedule", "said"), [(-1, "0 to"), (2**63, "0 to"), ("0", "schedule")])
def test_a_schedule_is_a_number(schedule, said):
    raw = json.loads(dump(TRACE)) | {"schedule": schedule}
    with pytest.raises(TraceError, match=said):
        parse(json.dumps(raw).encode())
