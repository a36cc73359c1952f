"""A disagreement as a person reads it, and the signature by which two of them are the same."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvexact.fuzz.pending import OF_PENDING, PENDING, pending_line, stored_last
from kvexact.fuzz.run import Run
from kvexact.fuzz.timed import END
from kvexact.fuzz.wrong import Wrong
from kvexact.refmodel.content import Bytes
from kvexact.refmodel.explain import CLAIM_BYTES, Explanation, Origin, Write, explain
from kvexact.refmodel.facts import FactValue, facts, view
from kvexact.refmodel.locate import in_words
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
from kvexact.refmodel.positions import ByteOp
from kvexact.refmodel.serving_ops import Admit, Compute, Lookup, OnRequest
from kvexact.refmodel.timed_ops import Fence, Poll, Step

_NOBODY = {
    "base": "before the pool's first block",
    "tail": "in the tail, behind the pool's last block",
    "unowned": "in a block that nobody owns, or in no page of its owner",
    "host": "in a host row that holds nothing, or in its unused end",
}

#: A fact may list thousands of regions.
_FACT_CHARS = 400


class Signature(NamedTuple):
    """What makes two failures the same finding.

    Attributes:
        outcome: how it showed, e.g. "mismatch".
        op: the op kind, "open" or "close"; "pending": any op that was pending.
        difference: e.g. "lost", "shifted", "fact"; of what was pending, what stored these bytes
            last, e.g. "offload".
        field: the field, area, fact, reason or exception concerned.
    """

    outcome: str
    op: str
    difference: str
    field: str

    def __str__(self) -> str:
        return " / ".join(part for part in self if part)


@dataclass(frozen=True, slots=True)
class Failure:
    """A disagreement, explained.

    Attributes:
        lines: the message, without the line that says how to see it again.
        wrong_at: positions of wrong bytes in ``area``, with the bytes expected and found there.
        group: the owner of the first of them, where it has one.
        facts: (name, believed, expected) of the facts that differ and of the layer set concerned.
    """

    signature: Signature
    lines: tuple[str, ...]
    area: str = ""
    wrong_at: tuple[int, ...] = ()
    want: bytes = b""
    got: bytes = b""
    group: int | None = None
    facts: tuple[tuple[str, str, str], ...] = ()


def explain_failure(run: Run, wrong: Wrong) -> Failure:
    """Explain the disagreement at which a run ended."""
    failure = _explained(run, wrong)
    if wrong.op is None or not run.target.is_async:
        return failure
    lines = (*failure.lines, pending_line(run))
    return replace(failure, signature=_in_time(run, wrong, failure), lines=lines)


def _in_time(run: Run, wrong: Wrong, failure: Failure) -> Signature:
    """The signature of an asynchronous target's failure: any pending op may be at fault."""
    outcome, _, difference, field = failure.signature
    if wrong.outcome not in OF_PENDING:
        return failure.signature
    if difference not in ("frame", "shape") and wrong.outcome in ("mismatch", "rows"):
        difference = stored_last(run, wrong) or difference
        field = wrong.area or "pool"
    return Signature(outcome, PENDING, difference, field)


def _explained(run: Run, wrong: Wrong) -> Failure:
    kind = wrong.during if wrong.op is None else KIND_OF[type(wrong.op)]
    headline = f"{kind if wrong.op is None else _op_words(wrong.op)}: {wrong.text}"
    if wrong.outcome == "mismatch":
        return _mismatch(run, wrong, kind)
    if wrong.outcome == "fact":
        name = wrong.name.split(".", 2)[-1] if wrong.name.startswith("g") else wrong.name
        detail = (f"  believed {wrong.got}", f"  expected {wrong.want}")
        signature = Signature("fact", kind, "fact", name)
        return Failure(signature, (headline, *detail), facts=_believed(run))
    if wrong.outcome == "refusal":
        reasons = f"{wrong.want or 'accepted'} as {wrong.got or 'accepted'}"
        return Failure(Signature("refusal", kind, "refusal", reasons), (headline,))
    if wrong.outcome == "poll":
        return Failure(Signature("poll", kind, "poll", wrong.name), (headline,))
    if wrong.outcome == "inadmissible":
        signature = Signature("inadmissible", kind, str(wrong.want), str(wrong.got))
        return Failure(signature, (headline,))
    if wrong.outcome == "rows":
        return _rows(run, wrong, kind, headline)
    difference = wrong.outcome.replace("_", " ")
    return Failure(Signature(wrong.outcome, kind, difference, wrong.name), (headline,))


def _mismatch(run: Run, wrong: Wrong, kind: str) -> Failure:
    assert run.plan is not None
    assert isinstance(wrong.want, np.ndarray)
    assert isinstance(wrong.got, np.ndarray)
    ops = _acted(run, wrong.op)
    in_time = run.target.is_async
    found = explain(run.plan, ops, wrong.area, wrong.want, wrong.got, in_time=in_time)
    field = found.owner.field if found.owner else found.place
    if found.kind == "frame" and field not in ("padding", "base", "tail"):
        field = "neighbour"
    signature = Signature("mismatch", kind, found.kind, field)
    wrong_at = np.flatnonzero(wrong.want != wrong.got)
    return Failure(
        signature,
        tuple(_mismatch_lines(run, wrong, found, ops)),
        wrong.area,
        tuple(wrong_at.tolist()),
        wrong.want[wrong_at].tobytes(),
        wrong.got[wrong_at].tobytes(),
        found.owner.group if found.owner else None,
        _believed(run, f"g{found.owner.group}.s{found.owner.layer_set}." if found.owner else None),
    )


def _mismatch_lines(run: Run, wrong: Wrong, found: Explanation, ops: Sequence[ByteOp]) -> list[str]:
    where = f"{found.wrong_bytes:,} bytes of the {wrong.area} differ ({found.kind})"
    lines = [f"{_op_words(wrong.op)}: {where}, first at {wrong.area} byte {found.first:,}"]
    if found.owner:
        undefined = found.place == "content" and not found.defined
        lines.append(f"  {in_words(found.owner)}" + undefined * "  (undefined until written)")
    else:
        lines.append(f"  {_NOBODY[found.place]}")
    assert isinstance(wrong.want, np.ndarray)
    assert isinstance(wrong.got, np.ndarray)
    lines.append(f"  want  {_hex(wrong.want, found)}  {_origin_words(found.want, found, ops)}")
    got = f"  got   {_hex(wrong.got, found)}  {_origin_words(found.got, found, ops)}"
    lines.append(got + _shift_words(found))
    if found.owner and found.place == "content":
        owner = found.owner
        lines.append(_view_line(run, owner.group, owner.layer_set, owner.field))
    writer = "nothing (poison)" if found.last_writer is None else _op_name(run, found.last_writer)
    lines.append(
        f"  last written by {writer}; {wrong.want.size:,} bytes compared, "
        f"{found.changed_bytes:,} had to change"
    )
    return lines


def _origin_words(origin: Origin | None, found: Explanation, ops: Sequence[ByteOp]) -> str:
    if origin is None and found.run_bytes < CLAIM_BYTES:
        return "too few bytes to say whose"
    if origin is None:
        return "bytes of nowhere"
    if origin.area == "pad":
        return f"a pad row of write #{origin.op}, which belongs nowhere"
    if origin.owner is None:
        return f"never written, {origin.area} byte {origin.position:,} at birth"
    write = next(op for op in ops if op.id == origin.op and isinstance(op, Write))
    tag = f" (tag {write.tag})" if isinstance(write, WriteTokens | WriteValues) else ""
    return f"write #{origin.op}{tag} of {in_words(origin.owner)}"


def _shift_words(found: Explanation) -> str:
    """How far right bytes lie from where they belong, where both are known."""
    if found.kind != "shifted" or found.want is None or found.got is None:
        return ""
    return f", shifted by {found.got.position - found.want.position:+,}"


def _view_line(run: Run, group: int, layer_set: int, field: str) -> str:
    """The believed view of a field beside the expected one."""
    assert run.plan is not None
    name = f"g{group}.s{layer_set}.{field}.view"
    placement = run.plan.placements[group][layer_set]
    item = next(item for item in placement.places if item.field.name == field)
    believed = _view_words(run.facts[name]) if name in run.facts else "not told"
    return f"  view  believed {believed}    expected {_view_words(view(placement, item))}"


def _view_words(value: FactValue) -> str:
    """Strides over layer, kernel block, head and token, then the offset."""
    assert isinstance(value, tuple)
    offset, *strides = value
    return f"strides ({', '.join(map(str, strides))}) + {offset:,}"


def _rows(run: Run, wrong: Wrong, kind: str, headline: str) -> Failure:
    """A read that returned other bytes: which row, layer, head and byte."""
    want, got = wrong.want, wrong.got
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return Failure(Signature("rows", kind, "shape", ""), (headline,))
    group, layer_set = map(int, wrong.name.split("."))
    if type(wrong.op) is ReadValues:
        return _values(run, wrong.op, layer_set, want, got)
    row, layer, head, byte = (int(part[0]) for part in np.nonzero(want != got))
    assert run.plan is not None
    placement = run.plan.placements[group][layer_set]
    field, start = "", byte
    for item in placement.places:
        if start < item.field.width_bytes:
            field = item.field.name
            break
        start -= item.field.width_bytes
    lines = (
        f"{headline}: {np.count_nonzero(want != got):,} of {want.size:,} bytes",
        f"  row {row}  layer {layer}  head {head}  field {field}  byte {start}",
        f"  want  {want[row, layer, head, byte : byte + 16].tobytes().hex(' ')}",
        f"  got   {got[row, layer, head, byte : byte + 16].tobytes().hex(' ')}",
        _view_line(run, group, layer_set, field),
    )
    concerned = _believed(run, f"g{group}.s{layer_set}.")
    return Failure(Signature("rows", kind, "read", field), lines, facts=concerned)


def _believed(run: Run, concerned: str | None = None) -> tuple[tuple[str, str, str], ...]:
    """Facts that differ, and those whose name starts like this: believed beside expected."""
    assert run.plan is not None
    rows = []
    for name, want in facts(run.plan).items():
        got: object = run.facts.get(name, "not told")
        if (name in run.facts and got != want) or (concerned and name.startswith(concerned)):
            rows.append((name, f"{got!s:.{_FACT_CHARS}}", f"{want!s:.{_FACT_CHARS}}"))
    return tuple(rows)


def _values(run: Run, op: ReadValues, layer_set: int, want: Bytes, got: Bytes) -> Failure:
    """Values that were decoded to others: which row, layer, head and element."""
    wanted, found = want.view("<f4"), got.view("<f4")
    unlike = want.view("<u4") != got.view("<u4")
    row, layer, head, element = (int(part[0]) for part in np.nonzero(unlike))
    keys = run.geometry.groups[op.group].layer_sets[layer_set].head_size_k
    part = "key" if element < keys else "value"
    how_many = f"{np.count_nonzero(unlike):,} of {unlike.size:,}"
    lines = (
        f"{_op_words(op)}: layer set {layer_set} was decoded to other values: {how_many}",
        f"  row {row}  layer {layer}  head {head}  {part} element {element % keys}",
        f"  want  {_numbers(wanted[row, layer, head, element:])}",
        f"  got   {_numbers(found[row, layer, head, element:])}",
    )
    concerned = _believed(run, f"g{op.group}.s{layer_set}.")
    return Failure(Signature("rows", "read_values", "read", part), lines, facts=concerned)


def _numbers(values: npt.NDArray[np.float32]) -> str:
    """The first few values, with the digits that tell them apart, and the bits of the first."""
    bits = values[:1].view(np.uint32)[0]
    return "  ".join([*(f"{value:.9g}" for value in values[:4]), f"({bits:08x} …)"])


def _acted(run: Run, last: Op | None) -> list[ByteOp]:
    """Ops in bytes that the model did, and the one at fault, which may have been refused."""
    if last is None or (run.applied and run.applied[-1].id == last.id):
        return run.applied
    return [*run.applied, last]


def _op_name(run: Run, op_id: int) -> str:
    return next(f"op {op.id} {KIND_OF[type(op)]}" for op in run.done if op.id == op_id)


def _op_words(op: Op | None) -> str:
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


def _hex(data: Bytes, found: Explanation) -> str:
    """The wrong run's bytes."""
    return data[found.first : found.first + found.run_bytes].tobytes().hex(" ")
