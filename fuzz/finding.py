"""A finding: a failure, reduced, as it is saved and shown."""

from collections.abc import Callable
from dataclasses import dataclass

from kvexact.fuzz.edits import Program
from kvexact.fuzz.failure import Failure, explain_failure
from kvexact.fuzz.reduce import failure_of, reduce_failure
from kvexact.fuzz.run import Run, Wrong
from kvexact.fuzz.trace import Trace
from kvexact.impl.target import Target


@dataclass(frozen=True, slots=True)
class Finding:
    """A reduced failure.

    Attributes:
        failure: of the reduced trace.
        trace: the reduced trace.
        original_ops: ops that the run had when it failed.
        executions: programs that reducing ran.
    """

    failure: Failure
    trace: Trace
    original_ops: int
    executions: int


def find(
    make_target: Callable[[], Target], target_name: str, family: str, run: Run, wrong: Wrong
) -> Finding:
    """Explain and reduce the failure at which a run ended."""
    failure = explain_failure(run, wrong)
    reducer = reduce_failure(make_target, run, failure)
    program, reduced_run = reducer.program, run
    again = failure_of(make_target(), program)
    if again is not None and again[1].signature == failure.signature:
        reduced_run, failure = again
    else:
        program = Program(run.geometry, tuple(run.done))
    trace = Trace(
        program.geometry,
        program.ops,
        target_name,
        family,
        tuple(reduced_run.recorded),
        tuple(failure.signature),
    )
    return Finding(failure, trace, len(run.done), reducer.executions)


def block(finding: Finding, command: str) -> list[str]:
    """The message of a finding; its last line shows the same failure again."""
    ops = len(finding.trace.ops)
    return [
        f"{finding.trace.target}, {finding.trace.family}: {finding.failure.signature}",
        *finding.failure.lines,
        f"  reduced from {finding.original_ops} ops to {ops} in {finding.executions} executions",
        f"reproduce: {command}",
    ]
