"""The result of a run, or of several: what ran, what it did, what it found.

Files of a finding lie in the directory of the result; they are named, not held.
"""

import platform
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

import msgspec

from kvexact.fuzz.about import gpu_and_driver
from kvexact.fuzz.artefacts import Saved
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.replay import RUNS
from kvexact.fuzz.summary import Merged

#: Wrong bytes that a result keeps of one finding; its picture has them all.
_WRONG_MOST = 64

#: Not negative, and no larger than anything that is counted.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^([^/\\\0.][^/\\\0]*)?$", max_length=255)]


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
    seed: Number
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
    count: Number
    at: tuple[Number, ...]
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
    count: Number
    ops: Number
    original_ops: Number
    executions: Number = 0
    failed_runs: Number | None = None
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
        beside(saved.command, saved.trace.name),
        wrong,
        failure.facts,
        saved.trace.name,
        saved.reproducer.name,
        saved.picture.name if saved.picture else "",
    )


def beside(command: str, trace: str) -> str:
    """A command that shows a finding again, to be run in the folder of its files."""
    program, replay, _, *options = shlex.split(command)
    return shlex.join([program, replay, trace, *options])
