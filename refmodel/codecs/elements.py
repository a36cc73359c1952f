"""Element types: how fp32 becomes few bits, and back, by whole numbers on the bits.

docs/formats.md, "Element types", is the definition. No cast here trusts the platform's own, which
differ in NaN, in overflow and in what they round twice.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.unsignedinteger[Any]]

_FRACTION_BITS = np.uint32(23)
_HIDDEN = np.uint32(1 << 23)
_INFINITY = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_QUIET = np.uint32(0x7FC00000)
_SIGN_AT = np.uint32(31)
_BIAS = 127
#: Casts to types with no longer fraction are held, in at most 512 KiB each.
_FRACTION_BITS_HELD = 7
_ONE = np.uint32(1)


def bits_of(x: Floats) -> Words:
    """The bits of fp32 numbers."""
    return np.ascontiguousarray(x).view(np.uint32)


def floats_of(bits: Words) -> Floats:
    """The fp32 numbers that have these bits."""
    return np.ascontiguousarray(bits).view(np.float32)


@dataclass(frozen=True)
class Element:
    """A floating-point type of at most 16 bits: sign, exponent, fraction.

    Attributes:
        size_bits: all its bits.
        fraction_bits: bits of the fraction.
        bias: of the exponent.
        largest: code of the largest finite number.
        nan: code that NaN becomes.
        infinity: code of infinity; None: there is none.
        plain: True where overflow gives infinity and NaN keeps its sign, as a plain cast does; else
            overflow and infinity give the largest number.
        one_zero: True where the code of minus zero is NaN.
    """

    size_bits: int
    fraction_bits: int
    bias: int
    largest: int
    nan: int
    infinity: int | None = None
    plain: bool = False
    one_zero: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of one element; of a 4-bit one, of the byte in which it lies alone."""
        return max(self.size_bits // 8, 1)

    def encode(self, x: Floats) -> Codes:
        """Codes of fp32 numbers, rounded to nearest even: uint8 or uint16 of the shape of ``x``."""
        bits = bits_of(x)
        if self.fraction_bits > _FRACTION_BITS_HELD:
            return self._cast(bits)
        rest_set = (bits & self._rest) != 0
        codes: Codes = self._codes.take(bits >> self._below << _ONE | rest_set)
        return codes

    @cached_property
    def greatest(self) -> float:
        """The largest finite number."""
        return float(self._values[self.largest])

    @cached_property
    def _below(self) -> np.uint32:
        """How many bits are below the first one that a cast takes off: ties lie there."""
        return _FRACTION_BITS - np.uint32(self.fraction_bits) - _ONE

    @cached_property
    def _rest(self) -> np.uint32:
        """Those bits."""
        return (_ONE << self._below) - _ONE

    @cached_property
    def _codes(self) -> Codes:
        """Codes by the bits down to that first one, then whether any below it is set.

        A cast looks at nothing else.
        """
        seen = np.arange(1 << (33 - int(self._below)), dtype=np.uint32)
        return self._cast(seen >> _ONE << self._below | seen & _ONE)

    def _cast(self, bits: Words) -> Codes:
        """Codes of the numbers with these bits."""
        magnitude = bits & _MAGNITUDE
        sign = (bits >> _SIGN_AT) << np.uint32(self.size_bits - 1)
        code = self._rounded(magnitude)
        beyond = self.largest + 1 if self.plain else self.largest
        code = np.where(code > self.largest, np.uint32(beyond), code)
        signed = np.where(code == 0, code, code | sign) if self.one_zero else code | sign
        nan = np.uint32(self.nan) | sign if self.plain else np.uint32(self.nan)
        done = np.where(magnitude > _INFINITY, nan, signed)
        return done.astype(f"uint{8 * self.size_bytes}")

    def decode(self, codes: npt.NDArray[np.integer[Any]]) -> Floats:
        """The exact fp32 numbers of codes; NaN keeps its sign."""
        return np.take(self._values, codes)

    def _rounded(self, magnitude: Words) -> Words:
        """Codes as if exponents had no end: the carry of a fraction goes on into the exponent."""
        least = np.uint32(_BIAS + 1 - self.bias)  # the exponent of the least normal number
        exponent = np.maximum(magnitude >> _FRACTION_BITS, _ONE)
        raised = np.maximum(exponent, least)
        hidden = np.where(magnitude < _HIDDEN, np.uint32(0), _HIDDEN)
        significand = (magnitude & (_HIDDEN - _ONE)) | hidden
        lost = _FRACTION_BITS - np.uint32(self.fraction_bits) + (raised - exponent)
        lost = np.minimum(lost, _FRACTION_BITS + np.uint32(2))  # enough for nothing to be left
        odd = (significand >> lost) & _ONE
        kept = (significand + (_ONE << (lost - _ONE)) - _ONE + odd) >> lost
        code: Words = kept + ((raised - least) << np.uint32(self.fraction_bits))
        return code

    @cached_property
    def _values(self) -> Floats:
        """The value of each code."""
        codes = np.arange(1 << self.size_bits)
        sign = np.where(codes >> (self.size_bits - 1), -1.0, 1.0)
        magnitude = codes & ((1 << (self.size_bits - 1)) - 1)
        exponent = np.maximum(magnitude >> self.fraction_bits, 1)
        significand = magnitude - ((exponent - 1) << self.fraction_bits)
        values = np.ldexp(sign * significand, exponent - self.bias - self.fraction_bits)
        if self.one_zero:
            values[1 << (self.size_bits - 1)] = np.nan
        values = np.where(magnitude > self.largest, np.copysign(np.nan, sign), values)
        if self.infinity is not None:
            values = np.where(magnitude == self.infinity, sign * np.inf, values)
        return values.astype(np.float32)


class Single:
    """fp32 itself, with the methods of `Element`: only NaN changes."""

    size_bytes = 4
    fraction_bits = 23
    bias = _BIAS
    largest = 0x7F7FFFFF

    def encode(self, x: Floats) -> Words:
        """The bits, those of NaN without all but sign and quiet bit."""
        bits = bits_of(x)
        return np.where((bits & _MAGNITUDE) > _INFINITY, bits & _SIGN | _QUIET, bits)

    def decode(self, codes: Words) -> Floats:
        """The numbers that have these bits."""
        return floats_of(codes)


class Power:
    """ue8m0: powers of two from 2^-127 to 2^127, with the methods of `Element`."""

    size_bytes = 1

    def encode(self, x: Floats) -> Codes:
        """The bytes of powers of two."""
        return (bits_of(x) >> _FRACTION_BITS).astype(np.uint8)

    def decode(self, codes: npt.NDArray[np.integer[Any]]) -> Floats:
        """The powers of two of bytes; 255 is NaN."""
        return np.take(_POWERS, codes)


_POWERS: Floats = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32(np.nan))

FP32 = Single()
FP16 = Element(16, 10, 15, largest=0x7BFF, nan=0x7E00, infinity=0x7C00, plain=True)
BF16 = Element(16, 7, 127, largest=0x7F7F, nan=0x7FC0, infinity=0x7F80, plain=True)
E4M3 = Element(8, 3, 7, largest=0x7E, nan=0x7F)
E5M2 = Element(8, 2, 15, largest=0x7B, nan=0x7F, infinity=0x7C)
E4M3FNUZ = Element(8, 3, 8, largest=0x7F, nan=0x80, one_zero=True)
E2M1 = Element(4, 1, 1, largest=0x7, nan=0x0)
UE8M0 = Power()

#: Types of real values, by the names of `kvexact.refmodel.ops.VALUE_TYPES`.
VALUE_TYPES: dict[str, Element | Single] = {"fp32": FP32, "fp16": FP16, "bf16": BF16}
