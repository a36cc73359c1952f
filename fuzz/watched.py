"""A trace's run in time: run once more in a process of its own, with notes of what ran when."""

from collections.abc import Iterator
from multiprocessing.connection import wait

from kvexact.fuzz.child import Child
from kvexact.fuzz.pictures.timeline import Timeline, timeline
from kvexact.fuzz.run import execute
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace
from kvexact.impl.notes import Note
from kvexact.refmodel.ops import KIND_OF

_DEADLINE_S = 60.0


def watched(trace: Trace, target: NamedTarget) -> Timeline | None:
    """What ran when; None where nothing is noted, or the target does not come back.

    Raises:
        Unavailable: the target cannot run here.
    """
    if not target.target_type.is_async or not trace.ops:
        return None
    child = Child(_run, trace, target)
    try:
        notes = child.receive() if wait(child.signs, _DEADLINE_S) else None
    finally:
        child.close()
    if not isinstance(notes, list):
        return None
    named = {op.id: f"#{op.id} {KIND_OF[type(op)]}" for op in trace.ops}
    return timeline(notes, named)


def _run(trace: Trace, target: NamedTarget) -> Iterator[list[Note]]:
    made = target.make()
    notes = made.take_notes()
    execute(made, trace.geometry, trace.ops, trace.schedule)
    if notes:
        yield notes
