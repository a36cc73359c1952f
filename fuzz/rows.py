"""Rows: what a target is given to store, and what it must return from a read."""

from collections.abc import Sequence

import numpy as np

from kvexact.fuzz.shown import is_bytes
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Bytes, Result, Rows
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import Read, ReadValues, WriteTokens, WriteValues
from kvexact.refmodel.serving_ops import Attend
from kvexact.refmodel.spec import LayerSet


def rows_for(model: Cache, op: WriteTokens | WriteValues, refused: str | None) -> Rows | None:
    """Rows of a write, the target's to keep; where it is refused, rows whose bytes do not matter.

    None where the group does not exist.
    """
    groups = model.plan.geometry.groups
    if not 0 <= op.group < len(groups):
        return None
    if isinstance(op, WriteTokens):
        if refused is None:
            return model.split_rows(op, model.payload(op))
        unseen = np.zeros((len(op.slots), model.row_bytes(op.group)), np.uint8)
        return model.split_rows(op, unseen)
    if refused is None:
        return tuple(of_set.copy() for of_set in model.values(op))
    shapes = [values_shape(layers, op.value_type) for layers in groups[op.group].layer_sets]
    return tuple(np.zeros((len(op.slots), *shape), np.uint8) for shape in shapes)


def values_shape(layers: LayerSet, value_type: str) -> tuple[int, int, int]:
    """Layers, heads and bytes of the values of one slot."""
    width = 4 if value_type == "fp32" else 2
    return layers.layers, layers.kv_heads, (layers.head_size_k + layers.head_size_v) * width


def compare_rows(model: Cache, op: Read | ReadValues, rows: Bytes, read: Result) -> None:
    """Compare what a read returned.

    Args:
        rows: what the model's read returned.

    Raises:
        Wrong: these are other bytes, or nothing of this form.
    """
    if type(op) is ReadValues:
        want = model.split_values(op, rows)
    else:
        assert type(op) is Read
        want = model.split_rows(op, rows)
    compare_arrays(op, want, [(op.group, number) for number in range(len(want))], read)


def compare_arrays(
    op: Read | ReadValues | Attend, want: Rows, places: Sequence[tuple[int, int]], read: Result
) -> None:
    """Compare the arrays that a read returned.

    Args:
        places: group and layer set of each of them.

    Raises:
        Wrong: as of `compare_rows`.
    """
    got = read if isinstance(read, tuple) and all(map(is_bytes, read)) else ()
    if [item.shape for item in want] != [item.shape for item in got]:
        shapes = [item.shape for item in want]
        text = f"a read must return a tuple of uint8 arrays of shapes {shapes}"
        raise Wrong("rows", op, text, want, read)
    for (group, layer_set), one, other in zip(places, want, got, strict=True):
        if not np.array_equal(one, other):
            of_group = f"group {group} " if isinstance(op, Attend) else ""
            text = f"a read of {of_group}layer set {layer_set} returned other bytes"
            raise Wrong("rows", op, text, one, np.array(other), name=f"{group}.{layer_set}")
