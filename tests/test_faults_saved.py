"""Faults that only a fuzzer shows: each is told from the sound engine by a reduced trace."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvexact.fuzz.run import execute
from kvexact.fuzz.trace import Trace, load
from kvexact.impl.faults import FAULTS
from kvexact.impl.target import Target

SAVED = {path.stem: path for path in sorted((Path(__file__).parent / "faults").glob("*.json"))}


#: Where a change of the simulation gives a schedule another meaning, one of these will do.
SCHEDULES = (0, *range(2, 64))


@pytest.mark.parametrize("name", SAVED)
def test_a_trace_tells_a_fault_from_the_sound_engine(name: str) -> None:
    """It fails on the faulted engine, passes on the sound one, and has the fewest ops known."""
    trace, fault = load(SAVED[name]), FAULTS[name]
    schedules = dict.fromkeys((trace.schedule, *(SCHEDULES if trace.target == "streams" else ())))
    failing = (n for n in schedules if fails(fault.target, trace, n))
    schedule = next(failing, None)
    assert schedule is not None
    assert not fails(fault.sound, trace, schedule)
    assert len(trace.ops) == fault.known_minimum
    assert trace.note == fault.summary


def fails(make_target: Callable[[], Target], trace: Trace, schedule: int) -> bool:
    run, wrong = execute(make_target(), trace.geometry, trace.ops, schedule)
    assert len(run.done) == len(trace.ops) or wrong
    return wrong is not None
