"""Bytes, and what leaves registered memory."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class OutOfBounds(Exception):
    """An access outside registered memory, caught before it was made."""
