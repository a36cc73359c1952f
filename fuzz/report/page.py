"""A result as one standalone HTML page: no other file, no script needed, light and dark."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import jinja2

from kvexact.fuzz.reading import UnreadableError, read_plain
from kvexact.fuzz.report import tables
from kvexact.fuzz.report.faults import FaultRow
from kvexact.fuzz.results import Found, Result, WrongAt

_TEMPLATES = Path(__file__).parent / "templates"
#: Findings that the page shows with their files; of others it names the files.
_WHOLE_MOST = 50
_RUNS_MOST = 8


@dataclass(frozen=True, slots=True)
class Card:
    """A failure as the page shows it.

    Attributes:
        picture: a data URI; so too ``reproducer`` and ``trace`` are whole texts; empty: not there.
        wrong: (position, wanted, found) of runs of wrong bytes, in hexadecimal.
        facts: (name, believed, expected, whether they differ).
    """

    found: Found
    anchor: str
    picture: str
    reproducer: str
    trace: str
    wrong: tuple[tuple[str, str, str], ...]
    facts: tuple[tuple[str, str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first words of the page; ``level`` is "good", "bad" or "poor"."""

    level: str
    words: str


def page(result: Result, directory: Path, faults: Sequence[FaultRow] = ()) -> str:
    """Render a result.

    Args:
        directory: where the files of findings lie.
        faults: what `kvexact power` measured.
    """
    script = (_TEMPLATES / "report.js").read_text()
    total = result.total
    return (
        _environment()
        .get_template("report.html")
        .render(
            result=result,
            total=total,
            verdict=_verdict(result),
            targets=", ".join(dict.fromkeys(run.target for run in result.runs)),
            about=list(_about(result)),
            seconds=sum(run.seconds for run in result.runs),
            cards=list(_cards(result, directory)),
            pairs=tables.op_pairs(total),
            refusals=tables.op_refusals(total),
            geometry_refusals=tables.geometry_refusals(total),
            features=list(tables.feature_groups(total)),
            op_rows=tables.op_rows(total),
            launch_rows=tables.launch_rows(total),
            family_rows=tables.family_rows(result.parts),
            faults=faults,
            style=(_TEMPLATES / "report.css").read_text(),
            script=script,
            script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=tables.number, short=tables.short, duration=_duration)
    return environment


def _verdict(result: Result) -> Verdict:
    new = len(result.new)
    if new:
        return Verdict("bad", f"{new} new failure{'s' * (new > 1)}")
    if any(run.ended for run in result.runs):
        return Verdict("poor", "Ended early")
    if result.complaints:
        return Verdict("poor", "Proves less than it claims")
    known = len(result.findings)
    return Verdict("good", f"Sound, {known} known" if known else "Sound")


def _about(result: Result) -> Iterator[tuple[str, str]]:
    """What ran, a line for each thing that differs or not between runs."""
    runs = result.runs
    names = ("kvexact", "python", "numpy", "torch", "gpu", "driver")
    labels = {"kvexact": "kvexact", "gpu": "GPU", "numpy": "NumPy", "torch": "PyTorch"}
    yield "Target", _listed(run.target for run in runs)
    yield "Seed", _listed(f"{run.seed}" for run in runs)
    yield "Choices", _listed(run.chooser for run in runs)
    yield "Shards", _listed(run.shard for run in runs)
    yield "Commit", _listed(run.commit for run in runs)
    yield "Started", _listed(run.started for run in runs)
    for name in names:
        label = labels.get(name, name.capitalize())
        yield label, _listed(getattr(run.versions, name) for run in runs)


def _listed(values: Iterator[str]) -> str:
    """Different values, the first of them; those that are empty left out."""
    found = [value for value in dict.fromkeys(values) if value]
    more = f" and {len(found) - _RUNS_MOST} more" if len(found) > _RUNS_MOST else ""
    return ", ".join(found[:_RUNS_MOST]) + more


def _cards(result: Result, directory: Path) -> Iterator[Card]:
    """New failures first; within them as they stand in the result."""
    ordered = sorted(result.findings, key=lambda found: found.accepted is not None)
    for number, found in enumerate(ordered):
        whole = number < _WHOLE_MOST
        picture = _text(directory, found.picture) if whole else ""
        yield Card(
            found,
            f"failure-{number + 1}",
            f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}" * bool(picture),
            _text(directory, found.reproducer) if whole else "",
            _text(directory, found.trace) if whole else "",
            tuple(_wrong_runs(found.wrong)) if found.wrong else (),
            tuple((*fact, fact[1] not in (fact[2], "not told")) for fact in found.facts),
        )


def _text(directory: Path, name: str) -> str:
    """A file of a finding; empty where it is not there, or is a link to somewhere else."""
    path = directory / name
    if not name or path.is_symlink():
        return ""
    try:
        return read_plain(path, "report").decode(errors="replace")
    except UnreadableError:
        return ""


def _wrong_runs(wrong: WrongAt) -> Iterator[tuple[str, str, str]]:
    """Runs of neighbouring wrong bytes, at most eight to a run."""
    want, got = _bytes(wrong.want), _bytes(wrong.got)
    first = 0
    for i in range(1, len(wrong.at) + 1):
        run = wrong.at[first:i]
        if i < len(wrong.at) and wrong.at[i] == run[-1] + 1 and len(run) < 8:
            continue
        yield f"{run[0]:,}", " ".join(want[first:i]), " ".join(got[first:i])
        first = i


def _bytes(digits: str) -> list[str]:
    return [digits[i : i + 2] for i in range(0, len(digits), 2)]


def _duration(seconds: float) -> str:
    """Seconds as "8 s", "12 min" or "7 h 58 min"."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"
