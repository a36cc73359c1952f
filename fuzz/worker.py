"""What one fuzzing process does: examples by number, and a reduction of each new failure.

An example's number alone decides its family and its seed. So the examples of a run are the same for
any number of processes, and their results can be put back in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kvexact.fuzz.campaign import run_example
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.edits import Program
from kvexact.fuzz.failure import Failure, Signature, explain_failure
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.reduce import failure_of
from kvexact.fuzz.replay import RUNS, repeat
from kvexact.fuzz.run import Run, Wrong, execute
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.self_check import missed
from kvexact.fuzz.targets import find_target
from kvexact.fuzz.trace import Trace
from kvexact.impl.target import Target

#: Geometries that Hypothesis draws at a time.
HYPOTHESIS_EXAMPLES = 9


@dataclass(frozen=True, slots=True)
class Task:
    """Which examples to run.

    Attributes:
        target: a registered name or ``module:Class``.
        chooser: "prng", or "hypothesis", which makes an example of several geometries.
        first, step: their numbers: first, first + step, ….
        journal: where to note each op before it runs.
        known: signatures that need no finding any more.
    """

    target: str
    families: tuple[str, ...]
    seed: int
    chooser: str = "prng"
    first: int = 0
    step: int = 1
    journal: Path | None = None
    known: frozenset[Signature] = frozenset()

    def family_of(self, number: int) -> str:
        """The family of an example."""
        return self.families[number % len(self.families)]


@dataclass(frozen=True, slots=True)
class Done:
    """An example that ran.

    Attributes:
        signature: of its failure, if it failed.
        finding: the failure, not reduced, if this process had not met it before; a `Reduced`
            follows.
        died: the process died, or lost its device for good.
    """

    number: int
    family: str
    counts: Counts
    signature: Signature | None = None
    finding: Finding | None = None
    died: bool = False


@dataclass(frozen=True, slots=True)
class Reduced:
    """The reduced finding of an example.

    Attributes:
        failed_runs: how many of three more runs failed; None: not tried.
    """

    number: int
    finding: Finding
    failed_runs: int | None = None


def fuzz(task: Task) -> Iterator[Done | Reduced]:
    """Run examples without end; stops at a device that is lost for good."""
    target_type = find_target(task.target).target_type
    target_type.check_available()
    blind = missed()
    if blind:
        raise RuntimeError(f"the harness is blind to {'; '.join(blind)}")
    target = target_type()
    journal = Journal(task.journal) if task.journal else None
    if journal:
        journal.target = task.target
    known = set(task.known)
    for number in count(task.first, task.step):
        family = FAMILIES[task.family_of(number)]
        counts = Counts()
        draw = _hypothesis if task.chooser == "hypothesis" else _prng
        failed = draw(task, number, target, counts, journal)
        if failed is None:
            yield Done(number, family.name, counts)
            continue
        run, wrong = failed
        failure = explain_failure(run, wrong)
        signature = failure.signature
        lost = wrong.outcome == "device_lost" and not _fails_again(target_type(), run, signature)
        if signature in known:
            yield Done(number, family.name, counts, signature, died=lost)
        else:
            known.add(signature)
            finding = _as_it_is(task.target, family.name, run, failure)
            yield Done(number, family.name, counts, signature, finding, lost)
            if lost:
                yield Reduced(number, finding)
            else:
                finding = find(target_type, task.target, family.name, run, wrong)
                yield Reduced(number, finding, _failed_runs(finding))
        if lost:
            return


def _fails_again(target: Target, run: Run, signature: Signature) -> bool:
    """Whether a new target in this process fails alike; it does not where the device is gone."""
    failed = failure_of(target, Program(run.geometry, tuple(run.done)))
    return failed is not None and failed[1].signature == signature


def _prng(
    task: Task, number: int, target: Target, counts: Counts, journal: Journal | None
) -> tuple[Run, Wrong] | None:
    family = FAMILIES[task.family_of(number)]
    chooser = Prng(derive(task.seed, family.name, number // len(task.families)))
    example = run_example(target, family, chooser, counts, journal=journal)
    return (example.run, example.wrong) if example.wrong else None


def _hypothesis(
    task: Task, number: int, target: Target, counts: Counts, journal: Journal | None
) -> tuple[Run, Wrong] | None:
    from kvexact.fuzz.machine import run_item

    family = FAMILIES[task.family_of(number)]
    seed = derive(task.seed, "hypothesis", family.name, number // len(task.families))
    return run_item(target, family, seed, HYPOTHESIS_EXAMPLES, counts, journal=journal)


def _failed_runs(finding: Finding) -> int:
    again = repeat(finding.trace.target, finding.trace, RUNS, stop_when_lost=False)
    runs = [one.failure for one in again]
    return sum(1 for one in runs if one and one.signature == finding.failure.signature)


def _as_it_is(target: str, family: str, run: Run, failure: Failure) -> Finding:
    """A finding that is not reduced."""
    trace = Trace(
        run.geometry,
        tuple(run.done),
        target,
        family,
        tuple(run.recorded),
        tuple(failure.signature),
    )
    return Finding(failure, trace, len(run.done), 0)


def reduce_trace(target: str, trace: Trace) -> Iterator[Finding]:
    """The reduced finding of a trace; nothing where it does not fail."""
    target_type = find_target(target).target_type
    target_type.check_available()
    run, wrong = execute(target_type(), trace.geometry, trace.ops)
    if wrong is not None:
        yield find(target_type, target, trace.family, run, wrong)
