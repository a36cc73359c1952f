"""A scale a token and head, right behind the data: of elements, of bytes, of 4-bit steps."""

from dataclasses import dataclass

import numpy as np

from kvexact.refmodel.codecs.arithmetic import Whole, amax, clamp, greater, high, low, near, whole
from kvexact.refmodel.codecs.elements import (
    FP16,
    VALUE_TYPES,
    Bytes,
    Element,
    Floats,
    Words,
    bits_of,
    floats_of,
)
from kvexact.refmodel.codecs.pack import (
    loaded,
    nibble_codes,
    nibbles,
    numbers_of,
    stored,
    to_bytes,
)
from kvexact.refmodel.codecs.rotate import rotate_signed

_LEAST_SCALE = 1e-6
_LEAST_TURBO_SCALE = 1e-8
_ONE = np.float32(1)
_STEPS = np.float32(15)
_SCALE_BYTES = 4
_ZERO_POINT = np.uint32(15)


def _split(data: Bytes) -> tuple[Bytes, Floats]:
    """Data and scale of a row."""
    return data[..., :-_SCALE_BYTES], numbers_of(data[..., -_SCALE_BYTES:], "<f4")


class Int8TokenHead:
    """Whole numbers of 8 bits and one fp32 scale."""

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size + _SCALE_BYTES

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        s = greater(amax(x) / np.float32(127), _LEAST_SCALE)
        q = near(x * (_ONE / s), -128, 127).astype(np.int8)
        return np.concatenate([q.view(np.uint8), to_bytes(s)], axis=-1)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:  # noqa: ARG002
        """Bytes as rows."""
        q, s = _split(data)
        return numbers_of(q, "i1").astype(np.float32) * s


@dataclass(frozen=True)
class Fp8TokenHead:
    """8-bit floats and one fp32 scale, which takes the greatest magnitude to ``most``."""

    element: Element
    most: float

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size + _SCALE_BYTES

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        s = greater(amax(x) / np.float32(self.most), _LEAST_SCALE)
        v = clamp(x * (_ONE / s), -self.most, self.most)
        return np.concatenate([stored(self.element, v), to_bytes(s)], axis=-1)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:  # noqa: ARG002
        """Bytes as rows."""
        q, s = _split(data)
        return loaded(self.element, q) * s


class Int4TokenHead:
    """Rotated, then 4-bit steps from the least element on; the scale's low bits hold the zero."""

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size // 2 + _SCALE_BYTES

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        kind = VALUE_TYPES[value_type]
        q, word = steps(kind.decode(kind.encode(rotate_signed(x))))
        return np.concatenate([nibbles(q), to_bytes(word)], axis=-1)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:  # noqa: ARG002
        """Bytes as *rotated* rows."""
        q, s = _split(data)
        word = bits_of(s)
        z = (word & _ZERO_POINT).astype(np.int32)
        return (nibble_codes(q) - z).astype(np.float32) * floats_of(word & ~_ZERO_POINT)


def steps(y: Floats) -> tuple[Whole, Words]:
    """Codes and scale words of rows as they are."""
    s = greater((high(y) - low(y)) / _STEPS, _LEAST_SCALE)
    z = near(-low(y) / s, 0, 15)
    q = near(y * (_ONE / s) + z.astype(np.float32), 0, 15)
    return q, bits_of(s) & ~_ZERO_POINT | z.astype(np.uint32)


class TurboValue:
    """4-bit steps from the least element on, with scale and least element as fp16."""

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size // 2 + 2 * FP16.size_bytes

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        least = low(x)
        s = greater((high(x) - least) / _STEPS, _LEAST_TURBO_SCALE)
        q = whole((x - least) / s + np.float32(0.5), 0, 15)
        return np.concatenate([nibbles(q), stored(FP16, s), stored(FP16, least)], axis=-1)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:  # noqa: ARG002
        """Bytes as rows."""
        numbers = loaded(FP16, data[..., -2 * FP16.size_bytes :])
        s, least = numbers[..., :1], numbers[..., 1:]
        return nibble_codes(data[..., : -2 * FP16.size_bytes]).astype(np.float32) * s + least
