"""A scale for every few elements: 4-bit floats whose scales are 8-bit floats or powers of two."""

from dataclasses import dataclass

import numpy as np

from kvexact.refmodel.codecs.arithmetic import amax, exponent
from kvexact.refmodel.codecs.elements import (
    E2M1,
    E4M3,
    UE8M0,
    Bytes,
    Floats,
    bits_of,
)
from kvexact.refmodel.codecs.pack import blocks, nibble_codes, nibbles, rows
from kvexact.refmodel.codecs.rotate import rotate_whole

_NVFP4_BLOCK, _ULTRA_BLOCK = 16, 32
_LEAST_NORMAL = np.float32(2.0**-126)
_ROOT_TWO = np.uint32(0x3504F4)
_FRACTION = np.uint32(0x7FFFFF)


class Nvfp4:
    """e2m1 with an e4m3 scale for every 16 elements, below the scale of the tensor."""

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size // 2 + size // _NVFP4_BLOCK

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        x = blocks(x, _NVFP4_BLOCK)
        h = E4M3.encode(amax(x) / (np.float32(6) * scale))
        f = E4M3.decode(h)
        r = np.where(f == 0, np.float32(0), np.float32(1) / (f * scale))
        return np.concatenate([nibbles(rows(E2M1.encode(x * r))), rows(h)], axis=-1)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:
        """Bytes as rows."""
        codes, h = split(data, _NVFP4_BLOCK)
        return rows((E2M1.decode(codes) * E4M3.decode(h)) * scale)


@dataclass(frozen=True)
class UltraQuant:
    """e2m1 with a power of two for every 32 elements; keys are rotated first."""

    rotated: bool

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size // 2 + size // _ULTRA_BLOCK

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        x = blocks(rotate_whole(x) if self.rotated else x, _ULTRA_BLOCK)
        byte = ultra_scale(amax(x))
        codes = np.where(amax(x) == 0, np.uint8(0), ultra_codes(x / UE8M0.decode(byte)))
        return np.concatenate([nibbles(rows(codes)), rows(byte)], axis=-1)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:  # noqa: ARG002
        """Bytes as rows, those of keys rotated."""
        codes, byte = split(data, _ULTRA_BLOCK)
        return rows(E2M1.decode(codes) * UE8M0.decode(byte))


def split(data: Bytes, block: int) -> tuple[Bytes, Bytes]:
    """Codes [..., blocks, block] and scale bytes [..., blocks, 1] of rows of 4-bit codes."""
    count = data.shape[-1] // (block // 2 + 1)
    at = data.shape[-1] - count
    return blocks(nibble_codes(data[..., :at]), block), blocks(data[..., at:], 1)


def ultra_scale(a: Floats) -> Bytes:
    """Scale bytes of blocks whose greatest magnitude is ``a``."""
    w = np.float32(0.156) * a
    e = exponent(w) + ((bits_of(w) & _FRACTION) >= _ROOT_TWO)
    e = np.where(w < _LEAST_NORMAL, -127, np.where(w == np.inf, 127, np.minimum(e, 127)))
    return np.where(a == 0, 0, e + 127).astype(np.uint8)


_CODES: Bytes = np.append(np.arange(15, 8, -1), np.arange(8)).astype(np.uint8)  # from -6 to 6
_NUMBERS = E2M1.decode(_CODES)
_MIDPOINTS = (_NUMBERS[:-1] + _NUMBERS[1:]) / np.float32(2)


def ultra_codes(u: Floats) -> Bytes:
    """e2m1 codes by counting the midpoints below; NaN counts none, so that it is -6."""
    below = np.count_nonzero(u[..., None] > _MIDPOINTS, axis=-1)
    codes: Bytes = _CODES[below]
    return codes
