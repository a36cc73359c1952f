"""Rows of numbers as bytes and as blocks, and back."""

from typing import Any

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.codecs.elements import Bytes, Element, Floats, Power, Single

Numbers = npt.NDArray[Any]


def to_bytes(numbers: Numbers) -> Bytes:
    """Numbers [..., n] as bytes [..., n x size], little endian."""
    little = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8)


def numbers_of(data: Bytes, kind: str) -> Numbers:
    """Bytes [..., n x size] as numbers [..., n] of a numpy dtype such as "<u2"."""
    return np.ascontiguousarray(data).view(kind)


def stored(element: Element | Single | Power, x: Floats) -> Bytes:
    """Numbers [..., n], cast to elements of whole bytes, as bytes."""
    return to_bytes(element.encode(x))


def loaded(element: Element | Single | Power, data: Bytes) -> Floats:
    """The numbers [..., n] of such bytes."""
    return element.decode(numbers_of(data, f"<u{element.size_bytes}"))


def nibbles(codes: Numbers) -> Bytes:
    """4-bit codes [..., n] as bytes [..., n / 2], the even code in the low half."""
    packed = codes.astype(np.uint8)
    return packed[..., ::2] | packed[..., 1::2] << np.uint8(4)


def nibble_codes(data: Bytes) -> Bytes:
    """The opposite of `nibbles`."""
    halves = np.stack([data & np.uint8(15), data >> np.uint8(4)], axis=-1)
    return halves.reshape(*data.shape[:-1], 2 * data.shape[-1])


def blocks(x: Numbers, size: int) -> Numbers:
    """Rows [..., n] as [..., n / size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def rows(x: Numbers) -> Numbers:
    """The opposite of `blocks`."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
