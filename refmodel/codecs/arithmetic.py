"""The named operations of docs/formats.md, "Arithmetic", on arrays of fp32.

Rows lie in the last axis. Each is the fold that the text states, written so that the platform has
no say: what a library does with NaN, with zeros of both signs or with numbers that fit no integer
never shows.
"""

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.codecs.elements import Floats

Whole = npt.NDArray[np.int32]

_HALF = np.float32(0.5)


def greater(a: Floats, b: float) -> Floats:
    """max(a, b): b where a is NaN."""
    return np.where(a > b, a, np.float32(b))


def amax(x: Floats) -> Floats:
    """The greatest magnitude of each row, NaN apart, with an axis of length 1; 0 where none is."""
    # Not fmax: of a signalling NaN and a number it makes NaN.
    numbers = np.where(np.isnan(x), np.float32(0), np.abs(x))
    most: Floats = numbers.max(axis=-1, initial=np.float32(0), keepdims=True)
    return most


def low(x: Floats) -> Floats:
    """The first least element of each row, NaN apart, with an axis of length 1; inf where none is.

    "First" tells zeros of different sign apart.
    """
    top = np.full((*x.shape[:-1], 1), np.inf, np.float32)
    row = np.concatenate([top, np.where(x < np.inf, x, np.float32(np.inf))], axis=-1)
    return np.take_along_axis(row, np.argmin(row, axis=-1, keepdims=True), axis=-1)


def high(x: Floats) -> Floats:
    """The first greatest element of each row, as `low`; -inf where none is."""
    return -low(-x)


def clamp(v: Floats, least: float, most: float) -> Floats:
    """``v`` limited to a range; NaN stays."""
    limited = np.where(v < least, np.float32(least), v)
    return np.where(v > most, np.float32(most), limited)


def whole(v: Floats, least: int, most: int) -> Whole:
    """int(v, a, b): truncated and limited to a range; NaN gives 0."""
    return np.where(v == v, clamp(v, least, most), np.float32(0)).astype(np.int32)


def near(v: Floats, least: int, most: int) -> Whole:
    """The nearest whole number, half away from zero, limited to a range; NaN gives 0."""
    return whole(np.where(v >= 0, v + _HALF, v - _HALF), least, most)


def exponent(v: Floats) -> Whole:
    """floor(log2 v) of positive numbers; of no use where ``v`` is not finite."""
    return np.frexp(v)[1] - 1
