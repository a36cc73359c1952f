"""Element types against a slow definition, for every fp16 and bf16 number and many of fp32.

Here a cast is a search: of all numbers of the type the nearest, and of two the one with the even
code; in float64, which has them all, and what lies halfway between two of them, exactly.
"""

import numpy as np
import pytest

from kvexact.refmodel.codecs.arithmetic import (
    amax,
    clamp,
    exponent,
    greater,
    high,
    low,
    near,
    whole,
)
from kvexact.refmodel.codecs.elements import (
    BF16,
    E2M1,
    E4M3,
    E4M3FNUZ,
    E5M2,
    FP16,
    FP32,
    UE8M0,
    Element,
    Floats,
    floats_of,
)
from kvexact.refmodel.codecs.latent import e4m3_up
from kvexact.refmodel.codecs.tensor import truncate

#: Name: type, bits of exponent and fraction, bias, largest number, code of NaN and of -NaN.
TYPES = {
    "fp16": (FP16, 5, 10, 15, 65504.0, 0x7E00, 0xFE00),
    "bf16": (BF16, 8, 7, 127, (2 - 2.0**-7) * 2.0**127, 0x7FC0, 0xFFC0),
    "e4m3": (E4M3, 4, 3, 7, 448.0, 0x7F, 0x7F),
    "e5m2": (E5M2, 5, 2, 15, 57344.0, 0x7F, 0x7F),
    "e4m3fnuz": (E4M3FNUZ, 4, 3, 8, 240.0, 0x80, 0x80),
    "e2m1": (E2M1, 2, 1, 1, 6.0, 0x0, 0x0),
}
EVERY_16 = np.arange(1 << 16, dtype=np.uint32)
HALVES = np.concatenate(
    [
        EVERY_16.astype(np.uint16).view(np.float16).astype(np.float32),
        floats_of(EVERY_16 << np.uint32(16)),
    ]
)
MANY = floats_of(np.random.default_rng(1).integers(0, 1 << 32, 300_000, np.uint32))


def numbers(name: str) -> np.ndarray:
    """The non-negative numbers of a type by code, up to the largest, as float64."""
    _, exponents, fractions, bias, largest, *_ = TYPES[name]
    found = []
    for code in range(1 << (exponents + fractions)):
        e, f = divmod(code, 1 << fractions)
        number = (f / (1 << fractions) + (e > 0)) * 2.0 ** (max(e, 1) - bias)
        if number > largest:
            break
        found.append(number)
    assert found[-1] == largest
    return np.array(found)


def exactly(x: Floats) -> np.ndarray:
    """Magnitudes in float64."""
    with np.errstate(invalid="ignore"):  # a NaN that signals
        return np.abs(x).astype(np.float64)


def searched(name: str, x: Floats) -> np.ndarray:
    """Codes by definition."""
    _, exponents, fractions, _, _, nan, minus_nan = TYPES[name]
    table = numbers(name)
    if name in ("fp16", "bf16"):  # infinity stands where the next number would be
        table = np.append(table, 2 * table[-1] - table[-2])
    ties = (table[:-1] + table[1:]) / 2
    down = np.searchsorted(ties, exactly(x), side="left")  # a tie goes to the lower
    up = np.searchsorted(ties, exactly(x), side="right")  # a tie goes to the higher
    code = np.where(down % 2 == 0, down, up)
    sign = np.signbit(x) & ~((name == "e4m3fnuz") & (code == 0))
    code = code | sign.astype(np.int64) << (exponents + fractions)
    return np.where(np.isnan(x), np.where(np.signbit(x), minus_nan, nan), code)


@pytest.mark.parametrize("batch", [HALVES, MANY], ids=["every fp16 and bf16", "many fp32"])
@pytest.mark.parametrize("name", TYPES)
def test_casts_are_to_the_nearest(name: str, batch: Floats) -> None:
    codes = TYPES[name][0].encode(batch)
    assert codes.dtype == (np.uint16 if name in ("fp16", "bf16") else np.uint8)
    wrong = codes != searched(name, batch)
    assert not wrong.any(), batch[wrong][:5]


@pytest.mark.parametrize("name", TYPES)
def test_every_code_has_its_number(name: str) -> None:
    """What lies above the largest is infinity where the type has one, else NaN."""
    element: Element = TYPES[name][0]
    table = numbers(name)
    half = 1 << (element.size_bits - 1)
    read = element.decode(np.arange(2 * half))
    assert read.dtype == np.float32
    positive, negative = read[:half], read[half:]
    assert positive[: len(table)].tolist() == table.tolist()
    beyond = positive[len(table) :]
    infinite = beyond[: name in ("fp16", "bf16", "e5m2")]
    assert np.isposinf(infinite).all()
    assert np.isnan(beyond[len(infinite) :]).all()
    first = name == "e4m3fnuz"  # the code of minus zero
    assert np.isnan(negative[:first]).all()
    assert negative[first:].tobytes() == (-positive[first:]).tobytes()
    assert element.encode(read).tolist()[: len(table)] == list(range(len(table)))


def test_special_codes() -> None:
    """Codes that docs/formats.md names."""
    nan = {
        "e4m3": (E4M3, [0x7F, 0xFF]),
        "e5m2": (E5M2, [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]),
        "e4m3fnuz": (E4M3FNUZ, [0x80]),
    }
    for element, codes in nan.values():
        assert np.flatnonzero(np.isnan(element.decode(np.arange(256)))).tolist() == codes
    assert E5M2.decode(np.array([0x7C, 0xFC])).tolist() == [np.inf, -np.inf]
    assert not np.isnan(E2M1.decode(np.arange(16))).any()
    powers = UE8M0.decode(np.arange(256))
    assert powers[:255].tolist() == [2.0**e for e in range(-127, 128)]
    assert np.isnan(powers[255])
    assert UE8M0.encode(powers[:255]).tolist() == list(range(255))


def test_ties_of_e2m1() -> None:
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    assert E2M1.encode(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert E2M1.encode(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]
    assert E2M1.encode(np.nextafter(ties, np.float32(9))).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_fp32_keeps_all_but_nan() -> None:
    bits = np.array([0, 1 << 31, 1, 0x7F800000, 0x7F800001, 0xFF812345, 0x7FFFFFFF], np.uint32)
    kept = FP32.encode(floats_of(bits)).tolist()
    assert kept == [0, 1 << 31, 1, 0x7F800000, 0x7FC00000, 0xFFC00000, 0x7FC00000]


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_cutting_off(name: str) -> None:
    """Toward zero; below the least normal number fp32 rounds to its own last bit before."""
    element, _, _, bias, largest, *_ = TYPES[name]
    table = numbers(name)
    small = np.random.default_rng(2).uniform(0, 2.0 ** (2 - bias), 100_000).astype(np.float32)
    for x in (HALVES, MANY, small, -small):
        magnitude = np.minimum(exactly(np.where(np.isnan(x), largest, x)), largest)
        last = 2.0 ** (-149 + 127 - bias)
        rounded = np.rint(magnitude / last) * last
        cut = np.where(magnitude < 2.0 ** (1 - bias), rounded, magnitude)
        code = np.searchsorted(table, cut, side="right") - 1
        minus = np.signbit(x) & (x != 0) & ~np.isnan(x)
        with np.errstate(invalid="ignore"):
            assert truncate(element, x).tolist() == (code | minus.astype(int) << 7).tolist()


def test_e4m3_rounded_up() -> None:
    """The least number not below, for every positive fp16 and bf16 number."""
    table = numbers("e4m3")
    with np.errstate(invalid="ignore"):
        x = HALVES[HALVES > 0]
    least = np.maximum(x / np.float32(6), np.float32(2**-9)).astype(np.float64)
    expected = table[np.minimum(np.searchsorted(table, least, side="left"), len(table) - 1)]
    assert e4m3_up(x).tolist() == expected.tolist()


def rows_with_zeros_and_nan(size: int) -> Floats:
    """Rows of few different numbers, so that ties of zeros with other signs abound."""
    few = np.array([0.0, -0.0, 1.0, -1.0, np.nan, 0, np.inf, -np.inf], np.float32)
    few.view(np.uint32)[5] = 0xFF800001  # a NaN that signals
    random = np.random.default_rng(size)
    return few[random.integers(0, random.choice([2, 3, 4, 5, 6, 8], (60, 1)), (60, size))]


def fold(row: Floats, name: str) -> np.float32:
    """The definitions, element by element."""
    m = {"amax": np.float32(0), "low": np.float32(np.inf), "high": np.float32(-np.inf)}[name]
    for x in row:
        x = np.abs(x) if name == "amax" else x
        if (x < m) if name == "low" else (x > m):
            m = x
    return m


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 31, 64, 100, 512])
def test_folds(size: int) -> None:
    """Also the sign of a zero, and rows of NaN alone or of nothing."""
    rows = rows_with_zeros_and_nan(size)
    with np.errstate(invalid="ignore"):
        for function in (amax, low, high):
            expected = np.array([fold(row, function.__name__) for row in rows], np.float32)
            assert function(rows)[:, 0].tobytes() == expected.tobytes(), function.__name__


def test_numbers_made_whole() -> None:
    nan, inf = np.nan, np.inf
    v = np.array([nan, inf, -inf, 3e9, -3e9, 2.5, -2.5, 0.49, -0.5, 7.99, -0.0], np.float32)
    assert whole(v, -8, 7).tolist() == [0, 7, -8, 7, -8, 2, -2, 0, 0, 7, 0]
    assert near(v, -8, 7).tolist() == [0, 7, -8, 7, -8, 3, -3, 0, -1, 7, 0]
    assert clamp(v, -1, 1).tolist()[1:] == [1, -1, 1, -1, 1, -1, np.float32(0.49), -0.5, 1, 0]
    assert np.isnan(clamp(v, -1, 1)[0])
    assert greater(v, 1)[:4].tolist() == [1, inf, 1, 3e9]


def test_exponents() -> None:
    """Of every power of two, and of the number just below the next one."""
    powers = np.ldexp(np.float32(1), np.arange(-149, 128))
    assert exponent(powers).tolist() == list(range(-149, 128))
    below = np.nextafter(powers[1:], np.float32(0))
    assert exponent(below).tolist() == list(range(-149, 127))
