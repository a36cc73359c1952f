"""Keys and values of a write: named by their place, moderate when plain, awkward when special."""

import numpy as np
import pytest

from kvexact.refmodel.codecs.elements import VALUE_TYPES, Floats
from kvexact.refmodel.content import slot_rows, slot_values

SLOTS = range(-1, 400)
SHAPE = (2, 3, 32, 16)


def numbers(value_type: str, style: str, shape: tuple[int, int, int, int] = SHAPE) -> Floats:
    element = VALUE_TYPES[value_type]
    values = slot_values(3, 1, 0, SLOTS, shape, value_type, style)
    return element.decode(values.view(f"<u{element.size_bytes}"))


@pytest.mark.parametrize("style", ["plain", "special"])
@pytest.mark.parametrize("value_type", VALUE_TYPES)
def test_values_depend_on_their_slot_alone(value_type: str, style: str) -> None:
    element = VALUE_TYPES[value_type]
    values = slot_values(3, 1, 0, SLOTS, SHAPE, value_type, style)
    assert values.shape == (len(SLOTS), 2, 3, 48 * element.size_bytes)
    assert values.dtype == np.uint8
    alone = slot_values(3, 1, 0, [7, -1, 7], SHAPE, value_type, style)
    assert alone.tobytes() == values[[8, 0, 8]].tobytes()
    assert slot_values(3, 1, 0, [], SHAPE, value_type, style).shape == (0, *values.shape[1:])


@pytest.mark.parametrize("value_type", VALUE_TYPES)
def test_no_two_rows_of_plain_values_are_equal(value_type: str) -> None:
    """Of any tags, groups, layer sets, slots, layers, heads; no raw content is like them either."""
    rows: list[bytes] = []
    for tag, group, layer_set in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2**31, 7, 7)]:
        values = slot_values(tag, group, layer_set, SLOTS, SHAPE, value_type, "plain")
        rows += [row.tobytes() for row in values.reshape(-1, values.shape[-1])]
        if not layer_set:
            raw = slot_rows(tag, group, SLOTS, values.shape[-1])
            rows += [row.tobytes() for row in raw]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("value_type", VALUE_TYPES)
def test_plain_values_are_moderate(value_type: str) -> None:
    """All magnitudes from 1/8 to 32, both signs, every bit of the fraction in use."""
    x = numbers(value_type, "plain")
    assert (np.abs(x) >= 1 / 8).all()
    assert (np.abs(x) < 32).all()
    assert 0.45 < np.signbit(x).mean() < 0.55
    exponents = np.unique(np.frexp(np.abs(x))[1])
    assert exponents.tolist() == list(range(-2, 6))
    element = VALUE_TYPES[value_type]
    codes = element.encode(x)
    for bit in range(element.fraction_bits):
        assert 0.4 < (codes >> bit & 1).mean() < 0.6


@pytest.mark.parametrize("value_type", VALUE_TYPES)
def test_special_values_have_all_that_is_awkward(value_type: str) -> None:
    element = VALUE_TYPES[value_type]
    x = numbers(value_type, "special")
    plain = numbers(value_type, "plain")
    for keys in (x[..., :32].reshape(-1, 32), x[..., 32:].reshape(-1, 16)):
        zeros = keys == 0
        assert (zeros.all(axis=-1) & ~np.signbit(keys).any(axis=-1)).any()
        assert (zeros.all(axis=-1) & np.signbit(keys).any(axis=-1)).any()
        assert (zeros.sum(axis=-1) == keys.shape[-1] - 1).any()
        assert ((keys == keys[:, :1]).all(axis=-1) & ~zeros.any(axis=-1)).any()
        assert np.isposinf(keys).any()
        assert np.isneginf(keys).any()
        ends = np.array([element.largest, 1], f"<u{element.size_bytes}")
        most, least = element.decode(ends)
        for number in (most, -most, least, -least, 448, 57344, 240, -6, 127, 2.5, 126.5, 0.75):
            assert (keys == number).any(), number
    values = slot_values(3, 1, 0, SLOTS, SHAPE, value_type, "special")
    codes = values.view(f"<u{element.size_bytes}")
    payloads = np.unique(codes[np.isnan(x)])
    assert len(payloads) == 6
    as_plain = (x == plain).all(axis=-1).mean()
    assert 0.01 < as_plain < 0.3  # both halves
    assert np.isnan(x).any(axis=-1).mean() < 0.3


def test_a_value_may_have_no_elements() -> None:
    for style in ("plain", "special"):
        assert numbers("bf16", style, (1, 1, 5, 0)).shape == (len(SLOTS), 1, 1, 5)
