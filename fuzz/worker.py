"""What one fuzzing process does: examples by number, and a reduction of each new failure.

An example's number alone decides its family and its seed. So the examples of a run are the same for
any number of processes, and their results can be put back in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kvexact.fuzz.campaign import numbered_example, place
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature, explain_failure
from kvexact.fuzz.families import EVERY_FAMILY
from kvexact.fuzz.finding import Finding, as_it_is, find, is_lost
from kvexact.fuzz.journal import Journal
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
        return place(number, self.families)[0]


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
    named = find_target(task.target)
    target = named.make()
    blind = missed()
    if blind:
        raise RuntimeError(f"the harness is blind to {'; '.join(blind)}")
    journal = Journal(task.journal) if task.journal else None
    if journal:
        journal.target = task.target
    known = set(task.known)
    for number in count(task.first, task.step):
        family = EVERY_FAMILY[task.family_of(number)]
        counts = Counts()
        draw = _hypothesis if task.chooser == "hypothesis" else _prng
        failed = draw(task, number, target, counts, journal)
        if failed is None:
            yield Done(number, family.name, counts)
            continue
        run, wrong = failed
        failure = explain_failure(run, wrong)
        signature = failure.signature
        lost = is_lost(named.make, run, failure)
        if signature in known:
            yield Done(number, family.name, counts, signature, died=lost)
        else:
            known.add(signature)
            finding = as_it_is(task.target, family.name, run, failure)
            yield Done(number, family.name, counts, signature, finding, lost)
            if lost:
                yield Reduced(number, finding)
            else:
                finding = find(named.make, task.target, family.name, run, wrong)
                yield Reduced(number, finding, _failed_runs(finding))
        if lost:
            return


def _prng(
    task: Task, number: int, target: Target, counts: Counts, journal: Journal | None
) -> tuple[Run, Wrong] | None:
    name, index = place(number, task.families)
    example = numbered_example(target, EVERY_FAMILY[name], index, task.seed, counts, journal)
    return (example.run, example.wrong) if example.wrong else None


def _hypothesis(
    task: Task, number: int, target: Target, counts: Counts, journal: Journal | None
) -> tuple[Run, Wrong] | None:
    from kvexact.fuzz.machine import run_item

    name, index = place(number, task.families)
    seed = derive(task.seed, "hypothesis", name, index)
    return run_item(target, EVERY_FAMILY[name], seed, HYPOTHESIS_EXAMPLES, counts, journal=journal)


def _failed_runs(finding: Finding) -> int:
    again = repeat(finding.trace.target, finding.trace, RUNS, stop_when_lost=False)
    runs = [one.failure for one in again]
    return sum(1 for one in runs if one and one.signature == finding.failure.signature)


def reduce_trace(target: str, trace: Trace) -> Iterator[Finding]:
    """The reduced finding of a trace; nothing where it does not fail."""
    named = find_target(target)
    run, wrong = execute(named.make(), trace.geometry, trace.ops)
    if wrong is None:
        return
    failure = explain_failure(run, wrong)
    if is_lost(named.make, run, failure):
        yield as_it_is(target, trace.family, run, failure)
    else:
        yield find(named.make, target, trace.family, run, wrong)
