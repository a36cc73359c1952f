"""An op, in words of a report."""

from kvexact.fuzz.timed import END
from kvexact.refmodel.ops import (
    KIND_OF,
    Allocate,
    CopyBlocks,
    Offload,
    Op,
    Read,
    ReadValues,
    Restore,
    WriteTokens,
    WriteValues,
)
from kvexact.refmodel.serving_ops import Admit, Compute, Lookup, OnRequest
from kvexact.refmodel.timed_ops import Fence, Poll, Step


def op_words(op: Op | None) -> str:
    """An op with what it moves, short enough for one line."""
    if op is None:
        return "open"
    name = f"op {op.id} {KIND_OF[type(op)]}"
    if op.id == END:
        name = f"the {KIND_OF[type(op)]} at the end"
    if isinstance(op, OnRequest):
        return f"{name}(a{op.request}{_computed_words(op) if isinstance(op, Compute) else ''})"
    match op:
        case Offload(jobs=jobs) | Restore(jobs=jobs):
            arrow = "{0.block} -> host {0.host_slot}.{0.part}"
            if type(op) is Restore:
                arrow = "host {0.host_slot}.{0.part} -> block {0.block}"
            moves = [arrow.format(move) for job in jobs for move in job.moves]
        case CopyBlocks(pairs=pairs):
            moves = [f"{pair.source} -> {pair.target}" for pair in pairs]
        case Fence() | Step():
            return name
        case Poll(job=job):
            moves = [f"op {job}"]
        case WriteTokens() | WriteValues() | Read() | ReadValues():
            slots = op.slots
            moves = ["pad" if slot is None else f"{slot.block}:{slot.token}" for slot in slots]
        case Admit(tokens=tokens) | Lookup(tokens=tokens):
            return f"{name}({len(tokens)} tokens: {', '.join(map(str, tokens))})"
        case _:
            moves = [str(item) for item in getattr(op, "blocks", getattr(op, "host_slots", ()))]
    shown = ", ".join(moves[:3]) + (f", … {len(moves)} in all" if len(moves) > 3 else "")
    match op:
        case WriteValues(value_type=value_type, style=style):
            shown += f"; {value_type}, {style}"
        case Allocate(zero=True):
            shown += "; zero"
    return f"{name}({shown})"


def _computed_words(op: Compute) -> str:
    drafts = f", {len(op.drafts)} drafts, {op.accepted} accepted" if op.drafts else ""
    return f"; {op.count} known{drafts}" + ("" if op.sampled is None else ", 1 sampled")
