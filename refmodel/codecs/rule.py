"""What a rule is: how one half of a cell, a head's key or its value, becomes bytes."""

from typing import Protocol

import numpy as np

from kvexact.refmodel.codecs.elements import Bytes, Floats


class Rule(Protocol):
    """How a key or a value is written, its scales included, and read."""

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:
        """Rows [..., size] as bytes [..., width].

        Args:
            x: the rows.
            scale: the tensor's scale, which lies outside the cache.
            value_type: as what the rows came.
        """

    def decode(self, data: Bytes, scale: np.float32) -> Floats:
        """Bytes [..., width] as rows [..., size]."""
