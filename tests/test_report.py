"""The report: what it shows, that it believes nobody, and the command that writes it."""

import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from click.testing import Result as Ended
from example_run import EVIL, make_run

from kvexact.fuzz import summary_file
from kvexact.fuzz.cli import main
from kvexact.fuzz.report import files as report
from kvexact.fuzz.report.faults import FaultRow
from kvexact.fuzz.report.page import page
from kvexact.fuzz.report.tables import short
from kvexact.fuzz.results import Result

FAULT = FaultRow("copy_without_scales", "COVER", "a#1", "prng", 9, 10, 120, 2, 2, minimal=True)
BASELINE = """
[[known]]
signature = "*"
until = 2026-12-31
why = "all of it"
"""


class Elements(HTMLParser):
    """Tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def result(directory: Path) -> Result:
    return summary_file.load(directory)


def kvexact(*args: object) -> Ended:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_the_page_shows_all_there_is(directory: Path, result: Result) -> None:
    html = page(replace(result, notes=("an entry expired",)), directory, [FAULT])
    shown = Elements(html)
    words = ("2 new failures", "NVIDIA H200", "580.1", "abc123", "an entry expired", "9 of 10")
    for word in (*words, "FLAKY 1 of 3 runs", "fp8_per_token_head".replace("_", " ")):
        assert word in shown.text, word
    for found in result.findings:
        assert all(line in shown.text for line in "\n".join(found.lines).split("\n"))
        assert found.command in shown.text
        assert (directory / found.reproducer).read_text() in shown.text
        assert (directory / found.trace).read_text() in shown.text
    sources = [attributes["src"] or "" for attributes in shown.of("img")]
    assert len(sources) == 2
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)


def test_the_page_needs_no_other_file(directory: Path, result: Result) -> None:
    shown = Elements(page(result, directory))
    assert not shown.of("link")
    assert not [of for of in shown.of("a") if not (of["href"] or "").startswith("#")]
    assert not re.search(r"url\(|@import", page(result, directory))
    anchors = {of["id"] for _, of in shown.found if "id" in of}
    assert {(of["href"] or "").removeprefix("#") for of in shown.of("a")} <= anchors


def test_the_page_believes_nobody(directory: Path, result: Result) -> None:
    hostile = tuple(
        replace(
            found,
            target=EVIL,
            family=EVIL,
            lines=(EVIL,),
            command=EVIL,
            facts=((EVIL, EVIL, EVIL),),
        )
        for found in result.findings
    )
    run = replace(result.runs[0], target=EVIL, commit=EVIL, ended=EVIL)
    evil = Result((run,), result.parts, hostile, (EVIL,), (EVIL,))
    for shown in (Elements(page(result, directory)), Elements(page(evil, directory))):
        assert EVIL in shown.text
        assert len(shown.of("script")) == 1
        assert all("onerror" not in attributes for _, attributes in shown.found)
        assert all((of["src"] or "").startswith("data:") for of in shown.of("img"))


def test_a_run_without_failures_and_one_without_files(directory: Path, result: Result) -> None:
    sound = Elements(page(replace(result, findings=()), directory))
    assert "Sound" in sound.text
    assert "None. Every byte" in sound.text
    bare = Elements(page(result, directory / "elsewhere"))
    assert not bare.of("img")
    assert f"{result.findings[0].reproducer}, beside this page" in bare.text
    assert "Sound" in Elements(page(Result(()), directory)).text


def test_a_link_to_another_file_is_not_shown(tmp_path: Path, result: Result) -> None:
    (tmp_path / "secret").write_text("do not tell")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / result.findings[0].trace).symlink_to(tmp_path / "secret")
    assert "do not tell" not in page(result, tmp_path / "run")


def test_junit_has_a_test_for_each_family_and_failure(result: Result) -> None:
    complaints = ("cpu, refusals: no fact was compared", "cpu: no geometry was tried")
    root = ET.fromstring(report.junit(replace(result, complaints=complaints)))
    (suite,) = root
    names = {case.get("name"): case for case in suite.iter("testcase")}
    assert {"one_group", "refusals", "run", *(found.name for found in result.findings)} == set(
        names
    )
    failed = {name for name, case in names.items() if case.find("failure") is not None}
    assert failed == set(names) - {"one_group"}
    assert suite.get("tests") == "5"
    assert suite.get("failures") == "4"
    told = {item.get("name"): item.get("value") for item in suite.find("properties") or ()}
    assert (told["target"], told["seed"], told["gpu"]) == ("cpu", "7", "NVIDIA H200")


def test_junit_holds_any_text(result: Result) -> None:
    found = replace(result.findings[0], lines=("\0\x1b[31m\ud800 <![CDATA[ ]]>",))
    root = ET.fromstring(report.junit(replace(result, findings=(found,))))
    assert "<![CDATA[ ]]>" in "".join(root.itertext())


def test_the_command_merges_shards(tmp_path: Path) -> None:
    for shard in (0, 1):
        make_run(tmp_path / f"{shard}", f"{shard}/2")
    power = tmp_path / "power.json"
    power.write_text(json.dumps({"faults": [asdict(FAULT)]}))
    out = tmp_path / "out"
    ended = kvexact("report", tmp_path / "0", tmp_path / "1", "--out", out, "--power", power)
    assert ended.exit_code == 1, ended.output
    merged = summary_file.load(out)
    assert [found.count for found in merged.findings] == [4, 80]
    assert all((out / name).is_file() for name in report.files_of(merged.findings[0]))
    html = (out / "report.html").read_text()
    assert "copy without scales" in html
    assert "0/2, 1/2" in html


def test_the_command_takes_a_baseline_and_a_day(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    known = tmp_path / "known.toml"
    known.write_text(BASELINE.replace('"*"', '"*copy_blocks*"'))
    for day, code in (("2026-12-31", 0), ("2027-01-01", 1)):
        ended = kvexact("report", tmp_path / "run", "--baseline", known, "--today", day)
        assert ended.exit_code == code, ended.output
        assert ("expired" in ended.output) == (code == 1)
    known.write_text(BASELINE)
    ended = kvexact("report", tmp_path / "run", "--baseline", known)
    assert (ended.exit_code, ended.output.count("\n")) == (2, 1)
    assert "accepts every failure" in ended.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("missing",), "name a summary file"),
        (("run", "run"), "name a new one with --out"),
        (("run", "--power", "run/summary.json"), "kvexact power --json"),
        (("run", "--out", "run/summary.json/x"), "--out"),
        (("run", "--today", "soon"), "soon"),
    ],
)
def test_bad_input_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run")
    ended = kvexact("report", *args)
    assert (ended.exit_code, ended.output.count("\n")) == (2, 1)
    assert words in ended.output


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9960, "10k"), (999_499, "999k"), (2**62, "4.6E")],
)
def test_short_numbers(number: int, text: str) -> None:
    assert short(number) == text
