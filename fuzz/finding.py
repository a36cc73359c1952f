"""A finding: a failure, reduced, as it is saved and shown."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Failure
from kvexact.fuzz.reduce import BUDGET, failure_of, program_of, reduce_failure
from kvexact.fuzz.run import Run
from kvexact.fuzz.trace import IN_ORDER, Trace
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Target


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure, mostly reduced.

    Attributes:
        failure: of the trace.
        trace: the reduced trace, or what ran.
        original_ops: ops that the run had when it failed.
        executions: programs that reducing ran; 0: it is not reduced.
    """

    failure: Failure
    trace: Trace
    original_ops: int
    executions: int


def find(
    make_target: Callable[[], Target],
    target_name: str,
    family: str,
    run: Run,
    wrong: Wrong,
    budget: int = BUDGET,
) -> Finding:
    """Explain and reduce the failure at which a run ended."""
    failure = explain_failure(run, wrong)
    reducer = reduce_failure(make_target, run, failure, budget)
    program, reduced_run = reducer.program, run
    again = failure_of(make_target(), program)
    if again is not None and again[1].signature == failure.signature:
        reduced_run, failure = again
    else:
        program = program_of(run)
    if program.schedule != IN_ORDER:
        line = _in_order(failure_of(make_target(), program._replace(schedule=IN_ORDER)))
        failure = replace(failure, lines=(*failure.lines, line))
    trace = Trace(
        program.geometry,
        program.ops,
        target_name,
        family,
        tuple(reduced_run.recorded),
        tuple(failure.signature),
        schedule=program.schedule,
    )
    return Finding(failure, trace, len(run.done), reducer.executions)


def _in_order(again: tuple[Run, Failure] | None) -> str:
    """Whether order alone is at fault, as a line."""
    if again is None:
        return f"  under schedule {IN_ORDER}, all in order, it passes: an order fault"
    return f"  under schedule {IN_ORDER}, all in order, it fails, too: {again[1].signature}"


def as_it_is(target_name: str, family: str, run: Run, failure: Failure) -> Finding:
    """A finding that is not reduced."""
    trace = Trace(
        run.geometry,
        tuple(run.done),
        target_name,
        family,
        tuple(run.recorded),
        tuple(failure.signature),
        schedule=run.schedule,
    )
    return Finding(failure, trace, len(run.done), 0)


def is_lost(make_target: Callable[[], Target], run: Run, failure: Failure) -> bool:
    """Whether a failure took this process's device with it: a new target does not fail alike.

    Then nothing that runs in this process means anything any more, least of all a reduction.
    """
    if failure.signature.outcome != "device_lost":
        return False
    try:
        again = failure_of(make_target(), program_of(run))
    except Exception:  # noqa: BLE001 - without a device, a target may fail in any way
        return True
    return again is None or again[1].signature != failure.signature


def block(finding: Finding, command: str) -> list[str]:
    """The message of a finding; its last line shows the same failure again."""
    ops = len(finding.trace.ops)
    reduced = (
        f"reduced from {finding.original_ops} ops to {ops} in {finding.executions} executions"
        if finding.executions
        else f"not reduced, {ops} ops"
    )
    return [
        f"{finding.trace.target}, {finding.trace.family}: {finding.failure.signature}",
        *finding.failure.lines,
        f"  {reduced}",
        f"reproduce: {command}",
    ]
