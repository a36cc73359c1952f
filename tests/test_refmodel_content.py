"""Content tells where it belongs: 8 bytes of it name one tag and one position."""

import numpy as np
import pytest

from kvexact.refmodel.content import Bytes, _mix, poison, slot_rows

SLOTS = 40


def rows_of(tag: int, group: int, row_bytes: int) -> Bytes:
    return slot_rows(tag, group, range(SLOTS), row_bytes)


def windows(data: Bytes) -> list[bytes]:
    """All runs of 8 bytes, at every offset, of each row."""
    return [
        bytes(row[i : i + 8]) for row in np.atleast_2d(data) for i in range(row.shape[0] - 8 + 1)
    ]


@pytest.mark.parametrize("row_bytes", [8, 24, 37, 264])
def test_windows_of_8_bytes_are_unique(row_bytes: int) -> None:
    """No 8-byte window of any write equals another one: other tag, group, slot or offset."""
    seen: list[bytes] = []
    for tag in (0, 1, 2, 7, 1000, 2**31):
        for group in (0, 1, 2):
            seen += windows(rows_of(tag, group, row_bytes))
    for area in (0, 1):
        seen += windows(poison(area, 4096))
    assert len(set(seen)) == len(seen)
    assert len(seen) > 8000


def test_content_is_the_same_on_every_call() -> None:
    """Content depends on nothing but its arguments."""
    assert rows_of(3, 1, 40).tolist() == rows_of(3, 1, 40).tolist()
    assert poison(1, 99).tolist() == poison(1, 99).tolist()


def test_a_row_depends_on_its_slot_alone() -> None:
    """The order of the slots and the other slots of the call do not matter."""
    rows = slot_rows(3, 0, [5, -1, 2, 5], 13)
    alone = rows_of(3, 0, 13)
    assert rows.shape == (4, 13)
    assert rows[0].tolist() == rows[3].tolist() == alone[5].tolist()
    assert rows[2].tolist() == alone[2].tolist()


def test_pad_rows_are_like_no_slot() -> None:
    """A pad row holds bytes that an implementation would be caught storing anywhere."""
    pad = slot_rows(3, 0, [-1], 24)
    assert pad.any()
    assert not set(windows(pad)) & set(windows(rows_of(3, 0, 24)))


def test_no_slots() -> None:
    """A write of no slots has a payload of no rows."""
    assert slot_rows(0, 0, [], 13).shape == (0, 13)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4097])
def test_poison_sizes(size: int) -> None:
    """Poison is as long as asked for, and a longer one starts with the shorter one."""
    assert poison(0, size).shape == (size,)
    assert poison(0, 5000)[:size].tolist() == poison(0, size).tolist()


def test_poison_is_hardly_ever_zero() -> None:
    """Zeros in a poisoned pool are rare, and no eight of them lie together."""
    data = poison(0, 1 << 16)
    zeros = data.size - np.count_nonzero(data)
    assert zeros < data.size / 128
    assert bytes(8) not in bytes(data)
    values = np.bincount(data, minlength=256)
    assert values.min() > 0.7 * data.size / 256
    assert values.max() < 1.3 * data.size / 256


def test_poison_is_like_no_write() -> None:
    """Neither area's poison holds a window of the other's or of a write's."""
    pool, host = set(windows(poison(0, 4096))), set(windows(poison(1, 4096)))
    written = {window for tag in range(8) for window in windows(rows_of(tag, 0, 64))}
    assert not pool & host
    assert not (pool | host) & written


def test_mixing_spreads_every_bit() -> None:
    """Flipping any input bit flips each output bit about half of the time: no structure stays."""
    words = np.arange(2000, dtype=np.uint64) * np.uint64(7919)
    for bit in range(64):
        flips = _mix(words.copy()) ^ _mix(words ^ np.uint64(1 << bit))
        shares = np.unpackbits(flips.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert 0.4 < shares.min() <= shares.max() < 0.6, bit


def test_mixing_is_one_to_one() -> None:
    """Neighbouring words stay distinct."""
    mixed = _mix(np.arange(1 << 16, dtype=np.uint64))
    assert np.unique(mixed).size == 1 << 16
