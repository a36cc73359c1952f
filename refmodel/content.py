"""Bytes that tell where they belong: keyed functions of (tag, position).

Equal bytes of two tags or of two positions meet only by chance, so bytes that were shifted,
swapped, lost or left over are recognised.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_WORD_BYTES = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_GROUP_STRIDE = 1 << 48
_SHIFT = np.uint64(32)
_FACTOR = np.uint64(0xD6E8FEB86659FD93)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64-bit words whose every output bit depends on every input bit."""
    words ^= words >> _SHIFT
    words *= _FACTOR
    words ^= words >> _SHIFT
    words *= _FACTOR
    words ^= words >> _SHIFT
    return words


def _key(tag: int) -> np.uint64:
    return np.uint64(((2 * tag + 1) * _GOLDEN) & _MASK)


def slot_rows(tag: int, group: int, slots: npt.NDArray[np.int64], row_bytes: int) -> Bytes:
    """Raw content of token slots.

    Args:
        tag: which write this is; 0 and above.
        slots: slot numbers in the group's pool, block x block size + token; -1 for a pad row.
        row_bytes: bytes that a group stores for one token, over all its layers.

    Returns:
        Bytes [slots, row bytes].
    """
    words_per_row = -(-row_bytes // _WORD_BYTES)
    first = slots.astype(np.uint64) * np.uint64(words_per_row) + np.uint64(group * _GROUP_STRIDE)
    words = np.add.outer(first, np.arange(words_per_row, dtype=np.uint64))
    words += _key(tag)
    return _mix(words).view(np.uint8)[:, :row_bytes]


def poison(area: int, size_bytes: int) -> Bytes:
    """What area number ``area`` holds at birth: position-unique, and hardly ever zero."""
    words = np.arange(-(-size_bytes // _WORD_BYTES), dtype=np.uint64)
    words += _key(_MASK - area)
    return _mix(words).view(np.uint8)[:size_bytes]
