"""What a fuzzing run did so far."""

from collections import Counter
from dataclasses import dataclass, field

from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.finding import Finding


@dataclass(slots=True)
class Tally:
    """What a run did so far.

    Attributes:
        counts: by family.
        failures: examples that failed, by signature.
        findings: the first failure of each signature, reported.
        left_out: examples that do not count, and why, one line each.
        ended: why the run could not go on.
    """

    counts: dict[str, Counts]
    failures: Counter[Signature] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    examples: int = 0
    geometries: int = 0
    acted: int = 0
    deaths: int = 0
    seconds: float = 0.0
    left_out: list[str] = field(default_factory=list)
    ended: str = ""
