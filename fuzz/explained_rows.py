"""A read that returned other rows or values, explained."""

import numpy as np
import numpy.typing as npt

from kvexact.fuzz.beliefs import believed_facts, view_line
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.op_words import op_words
from kvexact.fuzz.run import Run
from kvexact.fuzz.wrong import Wrong
from kvexact.refmodel.content import Bytes
from kvexact.refmodel.ops import ReadValues


def explain_rows(run: Run, wrong: Wrong, kind: str, headline: str) -> Failure:
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
        view_line(run, group, layer_set, field),
    )
    concerned = believed_facts(run, f"g{group}.s{layer_set}.")
    return Failure(Signature("rows", kind, "read", field), lines, facts=concerned)


def _values(run: Run, op: ReadValues, layer_set: int, want: Bytes, got: Bytes) -> Failure:
    """Values that were decoded to others: which row, layer, head and element."""
    wanted, found = want.view("<f4"), got.view("<f4")
    unlike = want.view("<u4") != got.view("<u4")
    row, layer, head, element = (int(part[0]) for part in np.nonzero(unlike))
    keys = run.geometry.groups[op.group].layer_sets[layer_set].head_size_k
    part = "key" if element < keys else "value"
    how_many = f"{np.count_nonzero(unlike):,} of {unlike.size:,}"
    lines = (
        f"{op_words(op)}: layer set {layer_set} was decoded to other values: {how_many}",
        f"  row {row}  layer {layer}  head {head}  {part} element {element % keys}",
        f"  want  {_numbers(wanted[row, layer, head, element:])}",
        f"  got   {_numbers(found[row, layer, head, element:])}",
    )
    concerned = believed_facts(run, f"g{op.group}.s{layer_set}.")
    return Failure(Signature("rows", "read_values", "read", part), lines, facts=concerned)


def _numbers(values: npt.NDArray[np.float32]) -> str:
    """The first few values, with the digits that tell them apart, and the bits of the first."""
    bits = values[:1].view(np.uint32)[0]
    return "  ".join([*(f"{value:.9g}" for value in values[:4]), f"({bits:08x} …)"])
