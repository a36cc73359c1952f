"""What a fuzzing run did so far."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from kvexact.fuzz.counts import Counts, vacuous
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.finding import Finding
from kvexact.refmodel.ops import OPS

#: A family with fewer geometries is not judged: a short run claims little.
JUDGED_LEAST = 20


@dataclass(slots=True)
class Tally:
    """What a run did so far.

    Attributes:
        counts: by family.
        failures: examples that failed, by signature.
        findings: the first failure of each signature, reported.
        op_kinds: those that the target has.
    """

    counts: dict[str, Counts]
    op_kinds: Collection[str] = tuple(OPS)
    failures: Counter[Signature] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    examples: int = 0
    geometries: int = 0
    acted: int = 0
    deaths: int = 0
    seconds: float = 0.0

    @property
    def total(self) -> Counts:
        """All families' counts together."""
        total = Counts()
        for counts in self.counts.values():
            total.add(counts)
        return total

    def complaints(self) -> list[str]:
        """Why the run proves less than it claims, by family."""
        found = []
        for name, counts in self.counts.items():
            family = FAMILIES[name]
            if counts.geometries.total() >= JUDGED_LEAST:
                found += [
                    f"{name}: {text}"
                    for text in vacuous(
                        counts,
                        plans_only=family.plans_only,
                        illegal_percent=family.illegal_percent,
                        op_kinds=self.op_kinds,
                    )
                ]
        return found
