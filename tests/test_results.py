"""A result on disk: read back as it was, merged, and refused in one line where it is none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from example_run import make_run

from kvexact.fuzz import about, results, summary_file
from kvexact.fuzz.results import Accepted, Ran, Result
from kvexact.fuzz.results_merge import merge
from kvexact.fuzz.summary_file import ResultError


def test_a_result_is_read_back_as_it_was(tmp_path: Path) -> None:
    result = make_run(tmp_path)
    assert summary_file.load(tmp_path) == summary_file.load(tmp_path / "summary.json") == result
    totals = json.loads((tmp_path / "summary.json").read_bytes())["totals"]
    assert totals["acted"] == result.total.acted > 0
    assert (totals["failures"], totals["new_failures"], totals["sound"]) == (2, 2, False)
    assert set(totals["features_met"]).isdisjoint(totals["features_never_met"])


def test_a_record_holds_what_a_report_shows(tmp_path: Path) -> None:
    sure, flaky = make_run(tmp_path).findings
    assert sure.wrong is not None
    assert sure.wrong.count == len(sure.wrong.at) == len(sure.wrong.want) // 2 > 0
    assert ("g0.s0.k.view", "(0, 0, 16, 0, 0)", "(0, 0, 16, 0, 0)") in sure.facts
    assert (sure.often, flaky.often) == ("3 of 3 runs", "FLAKY 1 of 3 runs")
    assert sure.command == f"kvexact replay {sure.trace}"
    for name in (sure.trace, sure.reproducer, sure.picture):
        assert (tmp_path / name).is_file()


def test_shards_add_up_in_any_order(tmp_path: Path) -> None:
    one, two = make_run(tmp_path, "0/2"), make_run(tmp_path, "1/2")
    longer = tuple(replace(found, ops=9, trace="longer.json") for found in two.findings)
    two = replace(two, findings=longer, complaints=("cpu: no fact was compared",))
    merged = merge([one, two])
    assert merged.findings == merge([two, one]).findings
    assert [found.count for found in merged.findings] == [4, 80]
    assert {found.trace for found in merged.findings} == {found.trace for found in one.findings}
    assert merged.total.acted == 2 * one.total.acted
    assert [run.shard for run in merged.runs] == ["0/2", "1/2"]
    assert merged.complaints == two.complaints


def test_a_run_is_sound_without_anything_new(tmp_path: Path) -> None:
    result = make_run(tmp_path)
    known = Accepted("*", "2027-01-01", "known")
    all_known = tuple(replace(found, accepted=known) for found in result.findings)
    assert not result.sound
    assert replace(result, findings=all_known).sound
    assert replace(result, findings=()).sound
    assert not replace(result, findings=(), complaints=("no byte was compared",)).sound
    ended = (Ran("cpu", 0, results.versions(), ended="100 processes died"),)
    assert not Result(ended).sound


def test_shards_that_are_not_all_of_one_run_are_said(tmp_path: Path) -> None:
    one, two = make_run(tmp_path, "0/3"), make_run(tmp_path, "2/3")
    assert merge([one, two]).complaints == ("cpu: 2 of 3 shards of seed 7 are here",)
    third = make_run(tmp_path, "1/3")
    assert merge([one, two, third]).complaints == ()
    (line,) = merge([one, two, third, two]).complaints
    assert line == "cpu: a shard of seed 7 is here twice, and counted twice"
    other = replace(third, runs=(replace(third.runs[0], commit="def456"),))
    (line,) = merge([one, two, other]).complaints
    assert line == "cpu: shards of seed 7 ran commits abc123 and def456"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kvexact_summary": 99}, "version 99; this kvexact reads version 1"),
        ({"runs": "none"}, "Expected `array`"),
        ({"parts": [{"target": "cpu", "family": "x", "counts": {}}]}, "geometries is missing"),
        ({"parts": None}, "Expected `array`"),
    ],
)
def test_what_is_no_result_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    make_run(tmp_path)
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(ResultError, match=words) as error:
        summary_file.load(tmp_path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", "a\0b"])
def test_a_name_of_a_file_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    make_run(tmp_path)
    path = tmp_path / "summary.json"
    raw = json.loads(path.read_bytes())
    raw["findings"][0]["picture"] = name
    path.write_text(json.dumps(raw))
    with pytest.raises(ResultError, match="matching regex"):
        summary_file.load(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "{}", "\xff"])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(text, "latin-1")
    with pytest.raises(ResultError, match="name a"):
        summary_file.load(path)
    with pytest.raises(ResultError, match="name a summary"):
        summary_file.load(tmp_path / "missing")


def program(folder: Path, name: str, answer: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    path.chmod(0o755)


def test_what_a_run_ran_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert about.gpu_and_driver() == ("", "")
    assert about.commit() == ""
    program(tmp_path, "nvidia-smi", "NVIDIA H200, 580.1\\nNVIDIA H200, 580.1\\nNVIDIA L4, 580.1\\n")
    program(tmp_path, "git", "abc123-dirty\\n")
    assert about.gpu_and_driver() == ("2 x NVIDIA H200, NVIDIA L4", "580.1")
    assert about.commit() == "abc123-dirty"
    found = results.versions()
    assert (found.gpu, found.driver) == ("2 x NVIDIA H200, NVIDIA L4", "580.1")
    program(tmp_path, "nvidia-smi", "No devices were found\\n")
    assert about.gpu_and_driver() == ("", "")
