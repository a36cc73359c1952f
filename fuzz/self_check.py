"""A check of the harness itself: a second copy of the model as a target, with one thing spoilt.

Each of these must be reported, and the copy without a fault must not be. Where a comparison, the
poison or the payload has gone soft, one of them is missed, and no result after it counts.
"""

from collections.abc import Iterator, Sequence

from kvexact.fuzz.run import execute
from kvexact.fuzz.self_check_copy import GEOMETRY, Base, Copy
from kvexact.fuzz.self_check_timed import OPS, SPOILT, InTime
from kvexact.fuzz.spoilt_answers import SPOILT_ANSWERS
from kvexact.fuzz.spoilt_bytes import SPOILT_BYTES
from kvexact.refmodel.ops import (
    Allocate,
    Job,
    Move,
    Offload,
    Op,
    Read,
    ReadValues,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
)

_ROWS = (Slot(2, 1), None, Slot(2, 0))
_OPS: tuple[Op, ...] = (
    Allocate(0, 0, (2, 0)),
    WriteTokens(1, 0, _ROWS, tag=1),
    Offload(2, (Job(0, (Move(2, 1, 0),)),)),
    WriteTokens(3, 0, _ROWS, tag=3),
    Restore(4, (Job(0, (Move(2, 1, 0),)),)),
    Read(5, 0, _ROWS),
    WriteValues(6, 0, _ROWS, tag=6, value_type="bf16"),
    ReadValues(7, 0, _ROWS),
    Allocate(8, 0, (3,), zero=True),
    Allocate(9, 0, (1, 0)),
)
_HAPPENS = ["acted"] * 9 + ["refused:owner"]


def missed() -> list[str]:
    """What the harness does not see, or sees where it is not; empty where it can be trusted."""
    found = []
    run, wrong = execute(Copy(), GEOMETRY, _OPS)
    if wrong is not None:
        found.append(f"a fault where there is none: {wrong.text}")
    elif run.recorded != _HAPPENS:
        found.append(f"what ops do: {', '.join(run.recorded)}; not {', '.join(_HAPPENS)}")
    wrong = execute(InTime(), GEOMETRY, OPS)[1]
    if wrong is not None:
        found.append(f"a fault of order where there is none: {wrong.text}")
    for spoilt, outcome in {**dict.fromkeys(SPOILT_BYTES, "mismatch"), **SPOILT_ANSWERS}.items():
        found += _unlike(outcome, spoilt, _OPS)
    for in_time, outcome in SPOILT.items():
        found += _unlike(outcome, in_time, OPS)
    return found


def _unlike(outcome: str, spoilt: type[Base], ops: Sequence[Op]) -> Iterator[str]:
    """How a target shows, where it is in another way than this."""
    wrong = execute(spoilt(), spoilt.geometry, ops)[1]
    if wrong is None or wrong.outcome != outcome:
        seen = "nothing seen" if wrong is None else f"seen as {wrong.text!r}"
        yield f"{spoilt.__name__.lstrip('_')}: {seen}"
