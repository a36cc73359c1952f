"""Rotations: butterflies over blocks of a row, one addition or subtraction a step and element."""

import numpy as np

from kvexact.refmodel.codecs.elements import Floats
from kvexact.refmodel.codecs.pack import blocks, rows

_SIGN_BITS = bytes.fromhex(
    "b09acea68dac010136bc22651c2afed681d125528223f5d51219d04c05c2045f"
    "cc3876b2d3e395155bb8a9d89acdc019769e1c0c700464b36e2405939d35b951"
)
_SIGNS = np.where(np.unpackbits(np.frombuffer(_SIGN_BITS, np.uint8)), 1, -1).astype(np.float32)
_ROOT_HALF = 0.70710678


def butterfly(x: Floats, block: int, factor: float | None = None) -> Floats:
    """Rows [..., n], each block of them rotated.

    A step makes every pair (a, b) into (a + b, a - b), and multiplies both by the factor if any.
    """
    step = 1
    while step < block:
        pairs = x.reshape(*x.shape[:-1], x.shape[-1] // (2 * step), 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        turned = np.stack([a + b, a - b], axis=-2)
        if factor is not None:
            turned *= np.float32(factor)
        x = turned.reshape(x.shape)
        step *= 2
    return x


def rotate_signed(x: Floats) -> Floats:
    """The rotation of int4: signs, then butterflies within blocks."""
    block = max(x.shape[-1] & -x.shape[-1], 1)  # the largest power of two that divides the size
    return butterfly(rows(blocks(x, block) * _SIGNS[:block]), block)


def rotate_whole(x: Floats) -> Floats:
    """The rotation of ultraquant: over the whole row, whose size is a power of two."""
    return butterfly(x, x.shape[-1], _ROOT_HALF)
