"""The corpus in git, replayed; and the commands that keep it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvexact.fuzz import corpus
from kvexact.fuzz.artefacts import file_name
from kvexact.fuzz.cli import main
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.run import execute
from kvexact.fuzz.trace import Trace, dump, load
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.faults import FAULTS
from kvexact.refmodel.ops import Reset

ROOT = Path(__file__).parents[1] / "corpus"
TRACES = corpus.traces_in(ROOT)


def kvexact(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """A corpus of four traces."""
    folder = tmp_path / "some"
    folder.mkdir()
    for path in TRACES[:4]:
        shutil.copy(path, folder)
    return folder


def names(folder: Path) -> list[str]:
    return [path.name for path in corpus.traces_in(folder)]


def test_there_is_a_corpus() -> None:
    assert len(TRACES) >= 12


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_trace_passes_and_still_does_what_it_did(path: Path) -> None:
    trace = load(path)
    run, wrong = execute(CpuEngine(), trace.geometry, trace.ops)
    assert wrong is None, "\n".join(explain_failure(run, wrong).lines)
    assert tuple(run.recorded) == trace.recorded


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_trace_says_what_it_guards_and_guards_it(path: Path) -> None:
    trace = load(path)
    assert path.stem == file_name(trace), "its name is not of its content"
    assert trace.note, "it has no note; say what it guards with kvexact corpus add"
    fault = trace.note.partition(":")[0]
    if fault in FAULTS:
        run, wrong = execute(FAULTS[fault].target(), trace.geometry, trace.ops)
        assert wrong is not None
        assert explain_failure(run, wrong).signature == trace.signature


def test_add(some: Path, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_bytes(dump(replace(load(TRACES[5]), note="")))
    ended = kvexact("corpus", "add", path, "--note", "guards it", "--corpus", some)
    assert (ended.exit_code, ended.output) == (0, f"{some / TRACES[5].name}\n")
    assert load(some / TRACES[5].name).note == "guards it"
    for args, words in ((("--note", " "), "--note is empty"), ((), "Missing option '--note'")):
        ended = kvexact("corpus", "add", path, *args)
        assert (ended.exit_code, ended.output.count("\n")) == (2, 1)
        assert words in ended.output


def test_merge_copies_what_is_new_and_keeps_notes(some: Path, tmp_path: Path) -> None:
    for number, path in enumerate(TRACES[3:6]):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / f"{number}.json").write_bytes(dump(replace(load(path), note="")))
    for name in ("summary.json", "state.json"):  # of a run, not traces
        (tmp_path / "run" / name).write_text("{}")
    ended = kvexact("corpus", "merge", tmp_path / "run", "--corpus", some)
    assert ended.exit_code == 0
    assert ended.output.endswith("2 new, 1 known\n")
    assert names(some) == [path.name for path in TRACES[:6]]
    assert load(some / TRACES[3].name).note
    (tmp_path / "run" / "torn.json").write_text("{")
    ended = kvexact("corpus", "merge", tmp_path / "run", "--corpus", some)
    assert ended.exit_code == 2
    assert "0 new, 3 known" in ended.output
    assert "torn.json: no JSON" in ended.output


def test_minimise_drops_what_others_cover(some: Path) -> None:
    kept = names(some)
    trace = load(some / kept[0])
    longer = replace(trace, ops=(*trace.ops, *(Reset(number) for number in (97, 98, 99))))
    longest = replace(longer, ops=(*longer.ops, Reset(100)))
    corpus.add(longer, "with resets", some)
    corpus.add(longest, "with one more", some)
    ended = kvexact("corpus", "minimise", "--corpus", some)
    assert ended.exit_code == 0, ended.output
    assert f"removed {some / file_name(longest)}.json" in ended.output
    left = [load(path) for path in corpus.traces_in(some)]
    assert longer.ops in [trace.ops for trace in left]
    before = names(some)
    assert kvexact("corpus", "minimise", "--corpus", some).exit_code == 0
    assert names(some) == before


def test_minimise_keeps_what_fails_or_kills(some: Path) -> None:
    count = len(names(some))
    target = f"kvexact.impl.faults:{load(TRACES[0]).note.partition(':')[0]}"
    ended = kvexact("corpus", "minimise", "--corpus", some, "--target", target)
    assert ended.exit_code == 1
    assert "1 of them failing" in ended.output
    ended = kvexact("corpus", "minimise", "--corpus", some, "--target", "odd_targets:Killed")
    assert f"of {count} traces stay" in ended.output
    ended = kvexact("corpus", "minimise", "--corpus", some / "none")
    assert ended.exit_code == 2
    assert "no traces in it" in ended.output


def test_superfluous_is_the_same_in_any_order() -> None:
    met: dict[Path, frozenset[object]] = {
        Path("a"): frozenset({1, 2}),
        Path("b"): frozenset({2, 3}),
        Path("c"): frozenset({1, 3}),
        Path("d"): frozenset({1, 2, 3}),
    }
    ops = dict.fromkeys(met, 2) | {Path("d"): 9}
    assert corpus.superfluous(met, ops) == [Path("c"), Path("d")]
    assert corpus.superfluous(dict(reversed(met.items())), ops) == [Path("c"), Path("d")]


def test_a_trace_keeps_its_name_whatever_its_note() -> None:
    trace: Trace = load(TRACES[0])
    assert file_name(replace(trace, note="another", recorded=())) == TRACES[0].stem
