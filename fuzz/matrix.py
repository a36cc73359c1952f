"""Targets by families: what a few seeds find in each, and whether that is known."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from kvexact.fuzz.campaign import numbered_example
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.family import Family
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.run import Run
from kvexact.fuzz.targets import NamedTarget

#: A name for a failure of a run that is known; None for one that is not.
NameOf = Callable[[Run, Failure], str | None]


@dataclass(slots=True)
class Cell:
    """What a family found in a target.

    Attributes:
        failed: failures by signature.
        known: failures by the name under which they are known.
        findings: the first failure of each signature and name, reduced.
    """

    family: str
    counts: Counts = field(default_factory=Counts)
    failed: Counter[Signature] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[str | None, Finding]] = field(default_factory=list)

    @property
    def new(self) -> list[Finding]:
        return [finding for name, finding in self.findings if name is None]

    @property
    def summary(self) -> str:
        """In a word or two."""
        words = [f"{len(self.new)} new"] if self.new else []
        words += [f"{len(self.known)} known"] if self.known else []
        return ", ".join(words) or "sound"


def fill(target: NamedTarget, family: Family, seeds: Sequence[int], ops: int, name: NameOf) -> Cell:
    """Fuzz a target with a family, from each seed for so many acted ops."""
    cell = Cell(family.name)
    instance = target.make()
    for seed in seeds:
        start = cell.counts.acted
        for index in count():
            example = numbered_example(instance, family, index, seed, cell.counts)
            if example.wrong is not None:
                failure = explain_failure(example.run, example.wrong)
                called = name(example.run, failure)
                if (called not in cell.known) if called else failure.signature not in cell.failed:
                    found = find(target.make, target.name, family.name, example.run, example.wrong)
                    cell.findings.append((called, found))
                if called:
                    cell.known[called] += 1
                else:
                    cell.failed[failure.signature] += 1
            if cell.counts.acted - start >= ops or index >= ops:
                break
    return cell
