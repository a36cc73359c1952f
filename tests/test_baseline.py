"""A baseline accepts what it names, until its date, and says what it no longer needs."""

from datetime import date
from pathlib import Path

import pytest
from example_run import make_run

from kvexact.fuzz.baseline import Baseline, BaselineError, load
from kvexact.fuzz.results import Result

TODAY = date(2026, 11, 29)
KNOWN = """
[[known]]
signature = "mismatch / copy_blocks / *"
until = 2026-12-31
why = "copies forget scales"
link = "https://example.org/1"
"""


@pytest.fixture
def result(tmp_path: Path) -> Result:
    return make_run(tmp_path)


def baseline(folder: Path, text: str) -> Baseline:
    path = folder / "known.toml"
    path.write_text(text)
    return load(path)


def test_a_known_failure_is_accepted_and_a_new_one_behind_it_is_not(
    tmp_path: Path, result: Result
) -> None:
    judged = baseline(tmp_path, KNOWN).judge(result, TODAY)
    known, new = judged.findings
    assert known.accepted is not None
    assert known.accepted.why == "copies forget scales"
    assert (known.accepted.until, known.accepted.link) == ("2026-12-31", "https://example.org/1")
    assert judged.new == (new,)
    assert new.outcome == "exception"
    assert not judged.sound
    assert judged.notes == ()


def test_the_last_day_counts_and_the_next_does_not(tmp_path: Path, result: Result) -> None:
    known = baseline(tmp_path, KNOWN)
    assert len(known.judge(result, date(2026, 12, 31)).new) == 1
    late = known.judge(result, date(2027, 1, 1))
    assert len(late.new) == 2
    (note,) = late.notes
    assert "entry 1, 'mismatch / copy_blocks / *', expired on 2026-12-31; mend" in note


def test_an_entry_that_nothing_met_is_said(tmp_path: Path, result: Result) -> None:
    other = KNOWN.replace("copy_blocks", "restore")
    notes = baseline(tmp_path, KNOWN + other).judge(result, TODAY).notes
    (note,) = notes
    assert "entry 2, 'mismatch / restore / *', was not met; remove it" in note
    expired = baseline(tmp_path, other).judge(result, date(2030, 1, 1)).notes
    assert "expired on 2026-12-31; remove it" in expired[0]


def test_an_entry_may_name_its_target(tmp_path: Path, result: Result) -> None:
    elsewhere = baseline(tmp_path, KNOWN + 'target = "cuda*"\n')
    assert len(elsewhere.judge(result, TODAY).new) == 2
    here = baseline(tmp_path, KNOWN + 'target = "c?u"\n')
    assert len(here.judge(result, TODAY).new) == 1


def test_judging_again_takes_back_what_is_no_longer_accepted(
    tmp_path: Path, result: Result
) -> None:
    judged = baseline(tmp_path, KNOWN).judge(result, TODAY)
    assert len(Baseline().judge(judged, TODAY).new) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("known = 3", "'known' means nothing here"),
        ("[[knwon]]", "'knwon' means nothing here"),
        ("signature", "no TOML"),
        (KNOWN + "untl = 3", "entry 1: unknown key 'untl'; keys are signature, until"),
        (KNOWN.replace("2026-12-31", '"soon"'), "dates are 2027-01-31"),
        (KNOWN.replace("until = 2026-12-31", ""), "missing required field `until`"),
        (KNOWN.replace("mismatch / copy_blocks / *", "* / *"), "accepts every failure"),
        (KNOWN.replace("copies forget scales", " "), "why is empty"),
        ("known = [1]", "entry 1: Expected"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BaselineError, match=r"known\.toml: .*") as error:
        baseline(tmp_path, text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_baseline_is_said(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="name a baseline file"):
        load(tmp_path / "none.toml")
