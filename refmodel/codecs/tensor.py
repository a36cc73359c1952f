"""Elements alone: plain casts, and 8-bit floats whose one scale lies outside the cache."""

from dataclasses import dataclass

import numpy as np

from kvexact.refmodel.codecs.arithmetic import clamp
from kvexact.refmodel.codecs.elements import (
    Bytes,
    Element,
    Floats,
    Single,
    bits_of,
)
from kvexact.refmodel.codecs.pack import loaded, stored

_SIGN_BIT = np.uint32(0x80)
_SIGN_SHIFT = np.uint32(24)


@dataclass(frozen=True)
class Plain:
    """Elements, cast."""

    element: Element | Single

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size * self.element.size_bytes

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        return stored(self.element, x)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:  # noqa: ARG002
        """Bytes as rows."""
        return loaded(self.element, data)


@dataclass(frozen=True)
class Scaled:
    """Elements, divided by the tensor's scale and cast."""

    element: Element

    def width_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` elements."""
        return size

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        return stored(self.element, x / scale)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:
        """Bytes as rows."""
        return loaded(self.element, data) * scale


@dataclass(frozen=True)
class Truncated(Scaled):
    """The same type, but the fp32 bits are shifted into place: what does not fit is cut off."""

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        return truncate(self.element, x * (np.float32(1) / scale))


def truncate(element: Element, v: Floats) -> Bytes:
    """Codes of numbers by the rule of the CPU writer: NaN is the largest, zero has no sign."""
    greatest = element.greatest
    v = clamp(np.where(v == v, v, np.float32(greatest)), -greatest, greatest)
    # the exponent of fp32, less the difference of the biases, is that of the element
    moved = np.abs(v) * np.ldexp(np.float32(1), element.bias - 127)
    payload = bits_of(moved) >> np.uint32(23 - element.fraction_bits)
    payload = np.minimum(payload, np.uint32(element.largest))
    sign = (bits_of(v) >> _SIGN_SHIFT) & _SIGN_BIT
    return np.where(v == 0, np.uint32(0), payload | sign).astype(np.uint8)
