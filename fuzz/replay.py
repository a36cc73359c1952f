"""Runs a saved trace again, three times, and says what became of its failure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kvexact.fuzz.child import Died
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.run import execute
from kvexact.fuzz.sizes import storage_bytes
from kvexact.fuzz.target_process import Limits, as_death
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace
from kvexact.impl.target import Target, Unavailable
from kvexact.refmodel.ops import KIND_OF

Verdict = Literal["FIXED", "FAILED", "FLAKY", "DRIFTED", "ERROR"]

#: Runs of a trace; FIXED needs all of them clean.
RUNS = 3
#: Pool and host tier together; a trace that needs more is not run.
MEMORY_BYTES = 1024**3


class TooLargeError(ValueError):
    """A geometry that needs more memory than a replay may take."""


@dataclass(frozen=True, slots=True)
class Once:
    """One run of a trace.

    Attributes:
        recorded: what happened to each op.
        failure: how it failed, if it did.
        opened: False where the geometry was refused or declined, so that no op ran.
    """

    recorded: tuple[str, ...]
    failure: Failure | None
    opened: bool = True


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a trace's failure.

    Attributes:
        failed: runs that failed.
        failure: the first one.
        notes: what differs from what the trace recorded; why it could not run.
    """

    verdict: Verdict
    failed: int = 0
    failure: Failure | None = None
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The verdict as a person reads it."""
        return f"FLAKY {self.failed} of {RUNS}" if self.verdict == "FLAKY" else self.verdict


def replay(trace: Trace, target: NamedTarget, limits: Limits | None = None) -> Replay:
    """Run a trace three times, isolated.

    Raises:
        TooLargeError: it needs too much memory.
    """
    check_memory(trace)
    isolation = Isolation(target, limits or Limits())
    try:
        runs = repeat(isolation.make, trace)
    except Unavailable as error:
        return Replay("ERROR", notes=(f"target {target.name} cannot run: {error}",))
    finally:
        isolation.close()
    return judge(trace, runs)


def repeat(make_target: Callable[[], Target], trace: Trace) -> list[Once]:
    """Run a trace three times, each time on a new target."""
    return [_once(make_target(), trace) for _ in range(RUNS)]


def _once(target: Target, trace: Trace) -> Once:
    run, wrong = execute(target, trace.geometry, trace.ops, trace.schedule)
    failure = explain_failure(run, wrong) if wrong else None
    opened = bool(run.done) or run.counts.geometries["accepted"] > 0
    return Once(tuple(run.recorded), failure, opened)


def died(trace: Trace | None, end: Died) -> Once:
    """The run that a dead process's journal tells of."""
    wrong = as_death(end.status)
    if trace is None:
        raise Unavailable(f"its process ended before a geometry was opened ({wrong.name})")
    last = trace.ops[-1] if trace.ops else None
    kind = KIND_OF[type(last)] if last else "open"
    where = f"op {last.id} {kind}" if last else "open"
    signature = Signature(wrong.outcome, kind, wrong.outcome, wrong.name)
    failure = Failure(signature, (f"{where}: {wrong.text}",))
    return Once(("",) * (len(trace.ops) - 1) + ("failed",) * bool(trace.ops), failure)


def judge(trace: Trace, runs: Sequence[Once]) -> Replay:
    """The verdict on a trace from its runs."""
    failures = [run.failure for run in runs if run.failure]
    notes = list(dict.fromkeys(note for run in runs for note in drift(trace, run)))
    if len(failures) < len(runs) and notes:
        return Replay("DRIFTED", len(failures), failures[0] if failures else None, tuple(notes))
    if not failures:
        return Replay("FIXED")
    others = [one for one in failures if trace.signature and one.signature != trace.signature]
    if others:
        saved = str(Signature(*trace.signature))
        notes.append(f"another failure than the saved one: {others[0].signature}, not {saved:.200}")
    verdict: Verdict = "FAILED" if len(failures) == len(runs) else "FLAKY"
    return Replay(verdict, len(failures), failures[0], tuple(notes))


def drift(trace: Trace, run: Once) -> Iterator[str]:
    """How a run differs from what the trace recorded, up to where either of them failed."""
    if not run.opened:
        if trace.recorded and run.failure is None:
            yield "the geometry is refused now, so no op ran"
        return
    for op, before, now in zip(trace.ops, trace.recorded, run.recorded, strict=False):
        if "failed" in (before, now):
            return
        if now and before != now:
            yield f"op {op.id} {KIND_OF[type(op)]}: recorded {before!r:.60}, now {now!r}"


def check_memory(trace: Trace) -> None:
    """Refuse a trace that needs more memory than a replay may take; one without ops is planned."""
    needed = storage_bytes(trace.geometry) if trace.ops else 0
    if needed > MEMORY_BYTES:
        raise TooLargeError(
            f"pool and host tier take {needed:,} bytes, more than {MEMORY_BYTES:,}; "
            f"use fewer blocks or a smaller host capacity"
        )
