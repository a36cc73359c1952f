"""What a target is given to store."""

import numpy as np

from kvexact.impl.target import Rows
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import WriteTokens, WriteValues
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
        unseen = np.zeros((len(op.slots), model.layout(op.group).row_bytes), np.uint8)
        return model.split_rows(op, unseen)
    if refused is None:
        return tuple(of_set.copy() for of_set in model.values(op))
    shapes = [values_shape(layers, op.value_type) for layers in groups[op.group].layer_sets]
    return tuple(np.zeros((len(op.slots), *shape), np.uint8) for shape in shapes)


def values_shape(layers: LayerSet, value_type: str) -> tuple[int, int, int]:
    """Layers, heads and bytes of the values of one slot."""
    width = 4 if value_type == "fp32" else 2
    return layers.layers, layers.kv_heads, (layers.head_size_k + layers.head_size_v) * width
