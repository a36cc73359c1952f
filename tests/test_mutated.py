"""Files that were damaged or made up: a line that says so, no traceback, nothing lost.

KVEXACT_MUTATED says how many files of each kind to try.
"""

import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from example_run import make_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvexact.fuzz import corpus
from kvexact.fuzz.artefacts import file_name
from kvexact.fuzz.cli import main
from kvexact.fuzz.journal import Journal, recover
from kvexact.fuzz.trace import dump, load

EXAMPLES = int(os.environ.get("KVEXACT_MUTATED", "50"))
TRACES = corpus.traces_in(Path(__file__).parents[1] / "corpus")
BASELINE = b"""[[known]]
signature = "mismatch / copy_blocks / *"
until = 2026-12-31
why = "copies forget scales"
link = "https://example.org/1"
target = "cpu"
"""

#: What a value of a JSON file is replaced by.
ODD = st.one_of(
    st.sampled_from(
        [None, True, -1, 0, 1, 2, 255, 2**31, 2**62, 2**63, -(2**63), 10**40, 0.5, 1e300]
    ),
    st.sampled_from(["", "../../etc/passwd", "os:system", "\0", "<script>", "\ud7ff", "a" * 5000]),
    st.sampled_from([[], {}, [[]], [None] * 3, {"": {}}, {"kvexact": 1}]),
    st.integers(),
    st.text(max_size=20),
)


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(items):
        yield value, key
        if isinstance(child, dict | list):
            yield from nodes(child)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """A file with a few bytes changed, lost, doubled or put in."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        middle = draw(
            st.sampled_from([b"", data[start:end] * 2, b"[" * 2000]) | st.binary(max_size=9)
        )
        data = data[:start] + middle + data[end:]
    return data if draw(st.integers(0, 9)) else data[: draw(st.integers(0, len(data)))]


@st.composite
def made_up(draw: st.DrawFn, data: bytes) -> bytes:
    """A JSON file with a few values replaced, renamed or left out."""
    value = json.loads(data)
    for _ in range(draw(st.integers(1, 3))):
        places = list(nodes(value))
        if not places:
            break
        container, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["replace", "replace", "replace", "drop", "rename"]))
        if how == "replace":
            container[key] = deepcopy(draw(ODD))  # the next change may go into it
        elif isinstance(container, list):
            container.pop(key)
        else:
            kept = container.pop(key)
            if how == "rename":
                container[draw(st.text(max_size=9))] = kept
    return json.dumps(value).encode()


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    return damaged(data) | made_up(data)


def tried(examples: int = EXAMPLES) -> Callable[[Any], Any]:
    return settings(
        max_examples=max(1, examples),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


def run(*args: object) -> int:
    """A command's exit code; it says why in a line, and never with a traceback."""
    ended = CliRunner().invoke(main, [str(arg) for arg in args])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    assert "kvexact has a bug" not in ended.output, ended.output
    assert "Traceback" not in ended.output
    assert ended.exit_code in (0, 1, 2)
    if ended.exit_code == 2:
        assert ended.stderr.startswith("kvexact: ") or ended.stdout.startswith("DRIFTED")
    return ended.exit_code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutated")
    make_run(folder / "run")
    (folder / "corpus").mkdir()
    return folder


#: Traces that show no failure, so that drawing one need not run it.
PLAIN = [dump(replace(load(path), signature=())) for path in TRACES]


@tried()
@given(data=st.sampled_from(PLAIN).flatmap(mutated))
def test_traces(folder: Path, data: bytes) -> None:
    path = folder / "source" / "trace.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    run("show", path, "--svg", folder / "drawn.svg")
    merged = run("corpus", "merge", path.parent, "--corpus", folder / "corpus")
    assert path.read_bytes() == data
    if merged == 0:
        trace = load(path)
        assert load(folder / "corpus" / f"{file_name(trace)}.json").name == trace.name


@tried(EXAMPLES // 10)
@given(data=st.sampled_from([path.read_bytes() for path in TRACES]).flatmap(made_up))
def test_replayed_traces(folder: Path, data: bytes) -> None:
    path = folder / "replayed.json"
    path.write_bytes(data)
    run("replay", path, "--target", "cpu")
    assert path.read_bytes() == data


@tried()
@given(choice=st.data())
def test_summaries(folder: Path, choice: st.DataObject) -> None:
    """A report of what is no summary writes nothing and leaves it alone."""
    original = folder / "original.json"
    if not original.exists():
        original.write_bytes((folder / "run" / "summary.json").read_bytes())
    path = folder / "run" / "summary.json"
    data = choice.draw(mutated(original.read_bytes()))
    path.write_bytes(data)
    before = {one.name for one in (folder / "run").iterdir()}
    if run("report", folder / "run", "--out", folder / "report") == 2:
        assert path.read_bytes() == data
    assert {one.name for one in (folder / "run").iterdir()} == before


@tried()
@given(data=damaged(BASELINE))
def test_baselines(folder: Path, data: bytes) -> None:
    path = folder / "known.toml"
    path.write_bytes(data)
    make_run(folder / "known")
    run("report", folder / "known", "--baseline", path, "--today", "2026-11-29")
    assert path.read_bytes() == data


@tried()
@given(choice=st.data())
def test_journals(folder: Path, choice: st.DataObject) -> None:
    """What is left of a journal is a trace, or nothing."""
    trace = load(TRACES[0])
    path = folder / "one.journal"
    path.unlink(missing_ok=True)
    journal = Journal(path, 4096)
    journal.begin(trace.geometry)
    for op in trace.ops:
        journal.write(op)
    journal.close(keep=True)
    path.write_bytes(choice.draw(damaged(path.read_bytes())))
    found = recover(path)
    assert found is None or found.ops is not None
