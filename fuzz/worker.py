"""What one fuzzing process does: examples by number, and a reduction of each new failure.

An example's number alone decides its family and its seed; in a soak, together with what its round
favours. So the examples of a run are the same for any number of processes, and their results can be
put back in order.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from kvexact.fuzz.campaign import numbered_example, place
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.families import EVERY_FAMILY
from kvexact.fuzz.favour import Favour, favoured_example
from kvexact.fuzz.finding import Finding, as_it_is, find, is_lost
from kvexact.fuzz.isolate import HANGS_MOST, Isolation
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.replay import repeat
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.self_check import missed
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import NamedTarget, find_target
from kvexact.fuzz.trace import Trace
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Target

#: Geometries that Hypothesis draws at a time.
HYPOTHESIS_EXAMPLES = 9


@dataclass(frozen=True, slots=True)
class Task:
    """Which examples to run.

    Attributes:
        target: a registered name or ``module:Class``.
        chooser: "prng", "soak", or "hypothesis", which makes an example of several geometries.
        first, step: their numbers: first, first + step, ….
        journal: where to note each op before it runs.
        known: signatures that need no finding any more.
        limits: isolate the target; None: run it in this very process.
        favour, until: what to favour in examples before this number; the next favours come over a
            connection. None: families take turns.
        unreduced: what to reduce first, as the worker that met it died at that.
    """

    target: str
    families: tuple[str, ...]
    seed: int
    chooser: str = "prng"
    first: int = 0
    step: int = 1
    journal: Path | None = None
    known: frozenset[Signature] = frozenset()
    limits: Limits | None = None
    favour: Favour | None = None
    until: int = 0
    unreduced: "Reduced | None" = None

    def family_of(self, number: int) -> str:
        """The family of an example, of this round in a soak."""
        if self.favour:
            return self.favour.draw(self.families, self.seed, number)[0].name
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


@dataclass(frozen=True, slots=True)
class Fallen:
    """A worker died whose target is in another process, so it was not the target's doing.

    Attributes:
        text: one line of what it was doing, and what becomes of that.
        left_out: it happened too often there, so the example does not count.
    """

    text: str
    left_out: bool = False


#: What comes of examples.
Item = Done | Reduced | Fallen


def fuzz(task: Task, rounds: Connection | None = None) -> Iterator[Done | Reduced]:
    """Run examples without end; stops at a device that is lost for good.

    Args:
        rounds: where (favour, until) of the next round of a soak come from.
    """
    maker = _maker(task)
    target = maker.make()
    blind = missed()
    if blind:
        raise RuntimeError(f"the harness is blind to {'; '.join(blind)}")
    journal = Journal(task.journal) if task.journal else None
    if journal:
        journal.target = task.target
    if task.unreduced:
        yield _reduced_again(maker, task.unreduced)
    known = set(task.known)
    draw = {"prng": _prng, "hypothesis": _hypothesis, "soak": _soak}[task.chooser]
    for number in count(task.first, task.step):
        while rounds and number >= task.until:
            favour, until = rounds.recv()
            task = replace(task, favour=favour, until=until)
        family = EVERY_FAMILY[task.family_of(number)]
        counts = Counts()
        failed = draw(task, number, target, counts, journal)
        if failed is None:
            yield Done(number, family.name, counts)
            continue
        run, wrong = failed
        failure = explain_failure(run, wrong)
        signature = failure.signature
        lost = task.limits is None and is_lost(maker.make, run, failure)
        if signature in known:
            yield Done(number, family.name, counts, signature, died=lost)
        else:
            known.add(signature)
            finding = as_it_is(task.target, family.name, run, failure)
            yield Done(number, family.name, counts, signature, finding, lost)
            if lost:
                yield Reduced(number, finding)
            else:
                yield Reduced(number, *_reduced(maker, task.target, family.name, run, wrong))
        if lost:
            return


def _maker(task: Task) -> NamedTarget | Isolation:
    """What makes the targets."""
    named = find_target(task.target)
    if task.limits is None:
        return named
    isolation = Isolation(named, task.limits)
    isolation.share_core(task.first % task.step)
    return isolation


def _prng(
    task: Task, number: int, target: Target, counts: Counts, journal: Journal | None
) -> tuple[Run, Wrong] | None:
    name, index = place(number, task.families)
    example = numbered_example(target, EVERY_FAMILY[name], index, task.seed, counts, journal)
    return (example.run, example.wrong) if example.wrong else None


def _soak(
    task: Task, number: int, target: Target, counts: Counts, journal: Journal | None
) -> tuple[Run, Wrong] | None:
    assert task.favour is not None
    of_family = dict.fromkeys(task.families, counts)
    example = favoured_example(
        target, task.families, task.favour, task.seed, number, of_family, journal
    )
    return (example.run, example.wrong) if example.wrong else None


def _hypothesis(
    task: Task, number: int, target: Target, counts: Counts, journal: Journal | None
) -> tuple[Run, Wrong] | None:
    from kvexact.fuzz.machine import run_item

    name, index = place(number, task.families)
    seed = derive(task.seed, "hypothesis", name, index)
    return run_item(target, EVERY_FAMILY[name], seed, HYPOTHESIS_EXAMPLES, counts, journal=journal)


def _reduced(
    maker: NamedTarget | Isolation, target: str, family: str, run: Run, wrong: Wrong
) -> tuple[Finding, int]:
    """The reduced finding of a failure, and how many of three more runs failed."""
    if wrong.outcome == "hang" and isinstance(maker, Isolation):
        with closing(maker.hurried()) as hurried:
            finding = find(hurried.make, target, family, run, wrong, HANGS_MOST)
            runs = repeat(hurried.make, finding.trace)
    else:
        finding = find(maker.make, target, family, run, wrong)
        runs = repeat(maker.make, finding.trace)
    signature = finding.failure.signature
    return finding, sum(1 for one in runs if one.failure and one.failure.signature == signature)


def _reduced_again(maker: NamedTarget | Isolation, met: Reduced) -> Reduced:
    """What a worker that died did not come to; where it does not fail any more, what it met."""
    trace = met.finding.trace
    again = _reduced_trace(maker, trace.target, trace)
    return Reduced(met.number, *again) if again else met


def reduce_trace(isolation: Isolation, trace: Trace) -> Finding | None:
    """The reduced finding of a trace; None where it does not fail."""
    reduced = _reduced_trace(isolation, isolation.named.name, trace)
    return reduced[0] if reduced else None


def _reduced_trace(
    maker: NamedTarget | Isolation, target: str, trace: Trace
) -> tuple[Finding, int] | None:
    """As `_reduced`; None where the trace does not fail."""
    run, wrong = execute(maker.make(), trace.geometry, trace.ops, trace.schedule)
    return _reduced(maker, target, trace.family, run, wrong) if wrong else None
