"""Which layers a release's backends publish, so that no others are asked about."""

from dataclasses import replace
from typing import Any

from kvexact.refmodel.spec import LayerSet

#: Formats whose name in vLLM is that of the model's type.
_MODEL_TYPES = ("bf16", "fp16", "fp32")
STATES = ("state_bf16_fp32", "state_bf16", "state_fp32")
#: What the backend that publishes specs here takes: blocks of so many tokens, heads of this size.
BLOCK_MULTIPLE, _HEAD_LEAST = 16, 32


def takes(shape: LayerSet, traits: dict[str, Any]) -> bool:
    """Whether a backend publishes such layers."""
    if shape.side:
        return False
    if shape.page_format in STATES:
        return shape.kv_heads == 1
    sizes = {shape.head_size_k, shape.head_size_v}
    if len(sizes) > 1 or shape.head_size_k < _HEAD_LEAST:
        return False
    if shape.page_format == "int4_per_token_head" and shape.head_size_k & (shape.head_size_k - 1):
        return False
    return shape.page_format in (*_MODEL_TYPES, *traits["formats"])


def differ(sets: tuple[LayerSet, ...]) -> bool:
    """Whether no two layer sets are of one shape: a release would put their layers together."""
    return len({replace(shape, layers=1) for shape in sets}) == len(sets)


def cell_bytes(shape: LayerSet) -> int:
    """Bytes of a cell, to know how long a row is."""
    name, sizes = shape.page_format, (shape.head_size_k, shape.head_size_v)
    if name in STATES:
        conv, ssm = {"state_bf16_fp32": (2, 4), "state_bf16": (2, 2), "state_fp32": (4, 4)}[name]
        return sizes[0] * conv + sizes[1] * ssm
    bits = {"fp32": 32, "fp16": 16, "bf16": 16, "int4_per_token_head": 4}.get(name, 8)
    return sum(size * bits // 8 for size in sizes) + 8 * name.endswith("_per_token_head")
