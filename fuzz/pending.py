"""What is said of a failure of an asynchronous target: what may have been pending.

The op after which wrong bytes show says little, as they may be those of any pending op. What the
bytes are instead says little, too, as it follows from the schedule. What the model stored last at
the wrong place tells faults apart.
"""

import numpy as np
import numpy.typing as npt

from kvexact.fuzz.run import Run
from kvexact.fuzz.trace import IN_ORDER
from kvexact.fuzz.wrong import Outcome, Wrong
from kvexact.refmodel.ops import (
    KIND_OF,
    Allocate,
    CopyBlocks,
    Offload,
    Op,
    Read,
    ReadValues,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
    block_id,
)
from kvexact.refmodel.order import Writers
from kvexact.refmodel.positions import ByteOp, WritePositions
from kvexact.refmodel.serving_ops import Attend, Mutate
from kvexact.refmodel.timed_ops import Fence

#: In a signature, stands for the op: any that was pending.
PENDING = "pending"
#: What pending work may do wrong; all else is the op's after which it shows.
OF_PENDING: frozenset[Outcome] = frozenset({"mismatch", "rows", "out_of_bounds", "device_lost"})

#: What ops in bytes do, in a word.
_STORES = {
    WriteTokens: "write",
    WriteValues: "write",
    WritePositions: "write",
    Allocate: "zero",
    Zero: "zero",
    CopyBlocks: "copy",
    Offload: "offload",
    Restore: "restore",
}
#: Ops after which nothing is pending; bytes are mutated behind a fence.
_FENCES = frozenset({Fence, Reset, Mutate})
#: How many ops a line names that may be pending.
_SHOWN_MOST = 8


def pending_line(run: Run) -> str:
    """The schedule, and what may have been pending at the end."""
    stored = {op.id for op in run.applied if _stores(op)}
    since: list[str] = []
    for op, happened in zip(run.done, run.recorded, strict=True):
        if type(op) in _FENCES and happened in ("acted", "no-op"):
            since.clear()
        elif happened == "acted" and op.id in stored:
            since.append(f"op {op.id} {KIND_OF[type(op)]}")
    words = {0: ", as late as allowed", IN_ORDER: ", all in order"}.get(run.schedule, "")
    pending = f"; since the last fence: {', '.join(since[-_SHOWN_MOST:])}" if since else ""
    return f"  schedule {run.schedule}{words}{pending}"


def _stores(op: ByteOp) -> bool:
    return type(op) in _STORES and (type(op) is not Allocate or op.zero)


def stored_last(run: Run, wrong: Wrong) -> str:
    """What the model did last where the first wrong byte is, or in the first wrong row's slot.

    Returns:
        "write", "zero", "copy", "offload" or "restore"; empty: nothing, or it is no place.
    """
    writers = _writers(run, wrong)
    for op in reversed(run.applied):
        if op.id in writers and type(op) in _STORES:
            return _STORES[type(op)]
    return ""


def _writers(run: Run, wrong: Wrong) -> set[int]:
    """Ids of the ops that stored these bytes last."""
    want, got = wrong.want, wrong.got
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return set()
    model = Writers.after(run.model.plan, run.applied)
    first = int(np.argwhere(want != got)[0][0])
    if wrong.outcome == "mismatch":
        return {int(model.writers[wrong.area][first])}
    group = int(wrong.name.partition(".")[0])
    slot = _slots(run, wrong.op, group)[first]
    if slot is None:
        return set()
    block, token = np.array([block_id(slot.block)]), np.array([slot.token])
    places: npt.NDArray[np.intp] = run.model.layout(group).of_slots(block, token)
    return set(model.writers["pool"][places].reshape(-1).tolist())


def _slots(run: Run, op: Op | None, group: int) -> tuple[Slot | None, ...]:
    """The slots that an op read from a group, row by row."""
    if isinstance(op, Attend):
        return run.serve.state.seen(op)[group]
    assert isinstance(op, Read | ReadValues)
    return op.slots
