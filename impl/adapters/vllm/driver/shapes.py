"""What a page format is to vLLM, and the bytes of its fields in a cell."""

from dataclasses import dataclass
from typing import Any

import torch

from kvexact.impl.adapters.vllm.driver.packed import (
    COMPRESSED,
    INDEX_KEYS,
    TURBOQUANT,
    packed_fields,
)

_BITS = {"fp32": 32, "fp16": 16, "bf16": 16}
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_STATES = {
    "state_bf16_fp32": (torch.bfloat16, torch.float32),
    "state_bf16": (torch.bfloat16, torch.bfloat16),
    "state_fp32": (torch.float32, torch.float32),
}


@dataclass(frozen=True)
class Shape:
    """A layer set as the parent sent it.

    Attributes:
        page_bytes: bytes of a padded page, or 0.
    """

    layers: int
    kv_heads: int
    head_size_k: int
    head_size_v: int
    page_format: str
    page_bytes: int = 0

    @property
    def is_state(self) -> bool:
        return self.page_format in _STATES

    @property
    def is_packed(self) -> bool:
        """Whether keys, values and what scales them lie in one row."""
        return self.page_format in TURBOQUANT

    @property
    def is_row(self) -> bool:
        """Whether a head keeps one row a token, whatever is in it."""
        return self.is_latent or self.is_packed

    @property
    def is_latent(self) -> bool:
        """Whether it keeps one vector a token, and no value beside it."""
        return self.head_size_v == 0 and not self.is_state

    @property
    def scaled(self) -> bool:
        """Whether a scale follows each token's data."""
        return self.page_format.endswith("_per_token_head")

    @property
    def cache_dtype(self) -> str:
        """What a user writes as the cache's type."""
        if self.page_format == COMPRESSED:
            return "fp8_ds_mla"
        is_auto = self.page_format in _DTYPES or self.page_format == INDEX_KEYS
        return "auto" if is_auto else self.page_format

    @property
    def model_dtype(self) -> torch.dtype | None:
        """The type of elements, where the cache's type leaves it to the model."""
        return _DTYPES.get(self.page_format)

    def fields(self) -> dict[str, int]:
        """Bytes of each field of a cell, in logical order; fields of no bytes are left out."""
        packed = packed_fields(self.page_format, self.head_size_k, self.head_size_v)
        if packed is not None:
            return packed
        if self.is_state:
            conv, ssm = (torch.empty(0, dtype=d).element_size() for d in _STATES[self.page_format])
            widths = {"conv": self.head_size_k * conv, "ssm": self.head_size_v * ssm}
        else:
            bits = 4 if self.page_format.startswith("int4") else _BITS.get(self.page_format, 8)
            scale = 4 * self.scaled
            widths = {
                "k": self.head_size_k * bits // 8,
                "k_scale": scale,
                "v": self.head_size_v * bits // 8,
                "v_scale": scale,
            }
        return {name: width for name, width in widths.items() if width}

    def states(self) -> tuple[tuple[tuple[int, ...], ...], tuple[torch.dtype, ...]]:
        """Shapes and types of a page's states."""
        sizes = (self.head_size_k, self.head_size_v)
        pairs = [(n, d) for n, d in zip(sizes, _STATES[self.page_format], strict=True) if n]
        return tuple((n,) for n, _ in pairs), tuple(d for _, d in pairs)


def read_shapes(group: dict[str, Any]) -> list[Shape]:
    """The layer sets of a group."""
    return [_read_shape(one) for one in group["layer_sets"]]


def _read_shape(one: dict[str, Any]) -> Shape:
    return Shape(
        one["layers"],
        one["kv_heads"],
        one["head_size_k"],
        one["head_size_v"],
        one["page_format"],
        one["page_bytes"] or 0,
    )
