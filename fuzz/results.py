"""The result of a run, as ``summary.json`` holds it: what ran, what it did, what it found.

Results of several runs (shards, targets, machines) merge into one of the same form. Files of a
finding lie beside ``summary.json`` and are named, not held.
"""

import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec

from kvexact.fuzz.about import gpu_and_driver
from kvexact.fuzz.artefacts import Saved, write_atomically
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.features import FEATURES
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.reading import UnreadableError, read_plain
from kvexact.fuzz.replay import RUNS
from kvexact.fuzz.summary import Merged
from kvexact.fuzz.summary import merge as merge_counts

#: Version of the format; a file of another one is refused, and kept.
VERSION = 1
FILE = "summary.json"
#: Wrong bytes that a result keeps of one finding; its picture has them all.
_WRONG_MOST = 64

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^([^/\\\0.][^/\\\0]*)?$", max_length=255)]


class ResultError(ValueError):
    """A file that is no result: one line that names the value, the rule and the fix."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What ran. Empty text: not there, or not loaded."""

    kvexact: str
    python: str
    numpy: str
    torch: str = ""
    gpu: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run, or one shard of it.

    Attributes:
        commit: of the checkout that it ran in; empty: in none.
        shard: "0/4"; empty: the whole.
        started: when, as text, for a person alone.
        ended: why it ended early; empty: it did all that it was asked for.
    """

    target: str
    seed: _Number
    versions: Versions
    chooser: str = "prng"
    commit: str = ""
    shard: str = ""
    started: str = ""
    seconds: float = 0.0
    ended: str = ""


@dataclass(frozen=True, slots=True)
class WrongAt:
    """Wrong bytes of an area, the first of them.

    Attributes:
        count: of all of them.
        at: positions; ``want`` and ``got`` have their bytes in hexadecimal.
    """

    area: str
    count: _Number
    at: tuple[_Number, ...]
    want: str
    got: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entry of a baseline that accepts a failure."""

    signature: str
    until: str
    why: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """All failures of one target and signature.

    Attributes:
        count: examples that failed so.
        failed_runs: how many of three more runs failed; None: not tried.
        original_ops: ops that the run had when it failed.
        executions: programs that reducing ran; 0: it is not reduced.
        lines: the explanation.
        command: what shows it again, in the folder of its files.
        facts: (name, believed, expected) of the view concerned and of facts that differ.
        trace, reproducer, picture: names of files beside the summary; empty: there is none.
        accepted: None: it counts as new.
    """

    target: str
    signature: Signature
    family: str
    count: _Number
    ops: _Number
    original_ops: _Number
    executions: _Number = 0
    failed_runs: _Number | None = None
    lines: tuple[str, ...] = ()
    command: str = ""
    wrong: WrongAt | None = None
    facts: tuple[tuple[str, str, str], ...] = ()
    trace: _Name = ""
    reproducer: _Name = ""
    picture: _Name = ""
    accepted: Accepted | None = None

    @property
    def outcome(self) -> str:
        """How it showed, e.g. "mismatch"."""
        return self.signature.outcome

    @property
    def name(self) -> str:
        """The signature as one text."""
        return str(self.signature)

    @property
    def often(self) -> str:
        """How surely it shows: "3 of 3 runs", "FLAKY 1 of 3 runs", "not run again"."""
        if self.failed_runs is None:
            return "not run again"
        return "FLAKY " * (self.failed_runs < RUNS) + f"{self.failed_runs} of {RUNS} runs"


@dataclass(frozen=True, slots=True)
class Part:
    """What one family did on one target."""

    target: str
    family: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run, or of several.

    Attributes:
        complaints: where it proves less than it claims.
        notes: what the baseline says of itself: entries that expired or that nothing met.
    """

    runs: tuple[Ran, ...]
    parts: tuple[Part, ...] = ()
    findings: tuple[Found, ...] = ()
    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def merged(self) -> Merged:
        """Counts by target and family."""
        return {(part.target, part.family): part.counts for part in self.parts}

    @property
    def total(self) -> Counts:
        """Counts of everything."""
        total = Counts()
        for part in self.parts:
            total.add(part.counts)
        return total

    @property
    def new(self) -> tuple[Found, ...]:
        """Failures that no baseline accepts."""
        return tuple(found for found in self.findings if found.accepted is None)

    @property
    def sound(self) -> bool:
        """Whether the run may pass: nothing new, whole, and not empty."""
        return not (self.new or self.complaints or any(run.ended for run in self.runs))


def versions() -> Versions:
    """Versions of what is loaded in this process, and of the GPU that is here."""
    torch = version("torch") if "torch" in sys.modules else ""
    python = platform.python_version()
    return Versions(version("kvexact"), python, version("numpy"), torch, *gpu_and_driver())


def record(finding: Finding, saved: Saved, count: int, failed_runs: int | None) -> Found:
    """The record of a finding whose files were saved."""
    failure, trace = finding.failure, finding.trace
    wrong = None
    if failure.wrong_at:
        wrong = WrongAt(
            failure.area,
            len(failure.wrong_at),
            failure.wrong_at[:_WRONG_MOST],
            failure.want[:_WRONG_MOST].hex(),
            failure.got[:_WRONG_MOST].hex(),
        )
    return Found(
        trace.target,
        failure.signature,
        trace.family,
        count,
        len(trace.ops),
        finding.original_ops,
        finding.executions,
        failed_runs,
        failure.lines,
        _beside(saved.command, saved.trace.name),
        wrong,
        failure.facts,
        saved.trace.name,
        saved.reproducer.name,
        saved.picture.name if saved.picture else "",
    )


def _beside(command: str, trace: str) -> str:
    """A command that shows a finding again, to be run in the folder of its files."""
    program, replay, _, *options = shlex.split(command)
    return shlex.join([program, replay, trace, *options])


def merge(results: Iterable[Result]) -> Result:
    """One result of several: counts added up, of each failure the one with the fewest ops."""
    results = list(results)
    runs = tuple(run for one in results for run in one.runs)
    complaints = [line for one in results for line in one.complaints]
    if len(results) > 1:  # one shard alone may be looked at, too
        complaints += _not_one(runs)
    counts = merge_counts(
        (part.target, part.family, part.counts) for one in results for part in one.parts
    )
    same: dict[tuple[str, ...], list[Found]] = {}
    for item in (item for one in results for item in one.findings):
        same.setdefault((item.target, *item.signature), []).append(item)
    return Result(
        runs,
        tuple(Part(*key, counts[key]) for key in sorted(counts)),
        tuple(_shortest(same[key]) for key in sorted(same)),
        tuple(dict.fromkeys(complaints)),
        tuple(dict.fromkeys(line for one in results for line in one.notes)),
    )


def _not_one(runs: Sequence[Ran]) -> Iterator[str]:
    """Why shards are not all of one run."""
    shards: dict[tuple[str, int, str], list[Ran]] = {}
    for run in runs:
        number, _, of = run.shard.partition("/")
        if number.isdecimal() and of.isdecimal():
            shards.setdefault((run.target, run.seed, of), []).append(run)
    for (target, seed, of), members in shards.items():
        there = {run.shard for run in members}
        if len(there) < int(of):
            yield f"{target}: {len(there)} of {of} shards of seed {seed} are here"
        commits = list(dict.fromkeys(run.commit for run in members))
        if len(commits) > 1:
            yield f"{target}: shards of seed {seed} ran commits {commits[0]} and {commits[1]}"


def _shortest(same: list[Found]) -> Found:
    best = min(same, key=lambda item: (item.executions == 0, item.ops, item.trace))
    return replace(best, count=sum(item.count for item in same))


def dump(result: Result) -> bytes:
    """A result as JSON. ``totals`` is for other programs to read; `load` has no use for it."""
    total = result.total
    parts = [
        {"target": part.target, "family": part.family, "counts": part.counts.to_json()}
        for part in result.parts
    ]
    data = {
        "kvexact_summary": VERSION,
        "totals": {
            "sound": result.sound,
            "acted": total.acted,
            "geometries": total.geometries.total(),
            "failures": len(result.findings),
            "new_failures": len(result.new),
            "features_met": [name for name in FEATURES if total.features[name]],
            "features_never_met": [name for name in FEATURES if not total.features[name]],
        },
        **{item.name: getattr(result, item.name) for item in fields(result)},
        "parts": parts,
    }
    return msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n"


def save(result: Result, directory: Path) -> Path:
    """Write ``summary.json`` into a directory, whole or not at all."""
    path = directory / FILE
    write_atomically(path, dump(result))
    return path


def load(path: Path) -> Result:
    """Read a result: ``summary.json``, or the directory that holds it.

    Raises:
        ResultError: it is missing, too large, of another version, or no result.
    """
    path = path / FILE if path.is_dir() else path
    try:
        return parse(read_plain(path, "summary"))
    except UnreadableError as error:
        raise ResultError(str(error)) from error
    except ResultError as error:
        raise ResultError(f"{path}: {error}") from error


def parse(data: bytes) -> Result:
    """A result from JSON."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"no JSON ({error}); name a file that kvexact wrote") from error
    if not isinstance(raw, dict) or "kvexact_summary" not in raw:
        raise ResultError('no "kvexact_summary" version in it; name a summary.json')
    if raw["kvexact_summary"] != VERSION:
        raise ResultError(
            f"version {raw['kvexact_summary']!r:.40}; this kvexact reads version {VERSION}, "
            f"use the one that wrote it"
        )
    try:
        parts = msgspec.convert(raw.get("parts"), list[_RawPart])
        rest = {item.name: raw.get(item.name, ()) for item in fields(Result)}
        result: Result = msgspec.convert({**rest, "parts": ()}, Result)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ResultError(f"{error}; mend the value, or run again") from error
    counted = [Part(part.target, part.family, _counts(part)) for part in parts]
    return replace(result, parts=tuple(counted))


@dataclass(frozen=True, slots=True)
class _RawPart:
    target: str
    family: str
    counts: dict[str, _Number | dict[str, _Number] | list[tuple[str, str, _Number]]]


def _counts(part: _RawPart) -> Counts:
    """Counts from plain data; each is of the kind that `Counts.to_json` writes."""
    where = f"counts of {part.family!r:.40}"
    for name, blank in Counts().to_json().items():
        if type(part.counts.get(name)) is not type(blank):
            raise ResultError(f"{where}: {name} is missing or no {type(blank).__name__}; run again")
    return Counts.from_json(part.counts)
