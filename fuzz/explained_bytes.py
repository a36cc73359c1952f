"""Bytes of an area that are wrong after an op, explained."""

from collections.abc import Sequence

import numpy as np

from kvexact.fuzz.beliefs import believed_facts, view_line
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.op_words import op_words
from kvexact.fuzz.run import Run
from kvexact.fuzz.wrong import Wrong
from kvexact.refmodel.content import Bytes
from kvexact.refmodel.explain import CLAIM_BYTES, Explanation, Origin, Write, explain
from kvexact.refmodel.locate import in_words
from kvexact.refmodel.ops import KIND_OF, Op, WriteTokens, WriteValues
from kvexact.refmodel.positions import ByteOp

_NOBODY = {
    "base": "before the pool's first block",
    "tail": "in the tail, behind the pool's last block",
    "unowned": "in a block that nobody owns, or in no page of its owner",
    "host": "in a host row that holds nothing, or in its unused end",
}


def explain_bytes(run: Run, wrong: Wrong, kind: str) -> Failure:
    """Bytes that differ: whose they are, whose they should be, and who wrote there last."""
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
        believed_facts(
            run, f"g{found.owner.group}.s{found.owner.layer_set}." if found.owner else None
        ),
    )


def _mismatch_lines(run: Run, wrong: Wrong, found: Explanation, ops: Sequence[ByteOp]) -> list[str]:
    where = f"{found.wrong_bytes:,} bytes of the {wrong.area} differ ({found.kind})"
    lines = [f"{op_words(wrong.op)}: {where}, first at {wrong.area} byte {found.first:,}"]
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
        lines.append(view_line(run, owner.group, owner.layer_set, owner.field))
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


def _acted(run: Run, last: Op | None) -> list[ByteOp]:
    """Ops in bytes that the model did, and the one at fault, which may have been refused."""
    if last is None or (run.applied and run.applied[-1].id == last.id):
        return run.applied
    return [*run.applied, last]


def _op_name(run: Run, op_id: int) -> str:
    return next(f"op {op.id} {KIND_OF[type(op)]}" for op in run.done if op.id == op_id)


def _hex(data: Bytes, found: Explanation) -> str:
    """The wrong run's bytes."""
    return data[found.first : found.first + found.run_bytes].tobytes().hex(" ")
