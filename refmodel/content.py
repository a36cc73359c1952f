"""Bytes and values that tell where they belong: keyed functions of (tag, position).

Equal bytes of two tags or of two positions meet only by chance, so bytes that were shifted,
swapped, lost or left over are recognised.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.codecs.elements import VALUE_TYPES
from kvexact.refmodel.special import plain, special_rows

Bytes = npt.NDArray[np.uint8]

_WORD_BYTES = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_GROUP_STRIDE = 1 << 48
_SET_STRIDE = 1 << 40
# Arrays of one element, as numpy takes longer over scalars.
_SHIFT = np.array(32, np.uint64)
_FACTOR = np.array(0xD6E8FEB86659FD93, np.uint64)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64-bit words whose every output bit depends on every input bit."""
    words ^= words >> _SHIFT
    words *= _FACTOR
    words ^= words >> _SHIFT
    words *= _FACTOR
    words ^= words >> _SHIFT
    return words


def _key(tag: int) -> int:
    return (2 * tag + 1) * _GOLDEN


@lru_cache
def _numbers(count: int) -> npt.NDArray[np.uint64]:
    """Numbers from 0; not to be changed."""
    return np.arange(count, dtype=np.uint64)


def _rows(tag: int, first: int, slots: Sequence[int], words_per_row: int) -> npt.NDArray[np.uint64]:
    """Words [slots, words per row], those of slot 0 at position ``first``."""
    first += _key(tag)
    starts = [(first + slot * words_per_row) & _MASK for slot in slots]
    return _mix(np.array(starts, np.uint64)[:, None] + _numbers(words_per_row))


def slot_rows(tag: int, group: int, slots: Sequence[int], row_bytes: int) -> Bytes:
    """Raw content of token slots.

    Args:
        tag: which write this is; 0 and above.
        slots: slot numbers in the group's pool, block x block size + token; -1 for a pad row.
        row_bytes: bytes that a group stores for one token, over all its layers.

    Returns:
        Bytes [slots, row bytes].
    """
    words = _rows(tag, group * _GROUP_STRIDE, slots, -(-row_bytes // _WORD_BYTES))
    return words.view(np.uint8)[:, :row_bytes]


def slot_values(
    tag: int,
    group: int,
    layer_set: int,
    slots: Sequence[int],
    shape: tuple[int, int, int, int],
    value_type: str,
    style: str,
) -> Bytes:
    """Keys and values of token slots.

    Args:
        tag: which write this is; 0 and above.
        layer_set: number of the layer set in its group.
        slots: as of `slot_rows`.
        shape: layers, KV heads, elements of a head's key and of its value.
        value_type: one of `kvexact.refmodel.ops.VALUE_TYPES`.
        style: "plain": random signs and fractions, magnitudes from 1/8 to 32; "special": rows of
            `kvexact.refmodel.special` among them.

    Returns:
        Bytes [slots, layers, heads, (key + value) x element size].
    """
    layers, heads, size_k, size_v = shape
    element = VALUE_TYPES[value_type]
    elements = layers * heads * (size_k + size_v)
    data_words = -(-elements * element.size_bytes // _WORD_BYTES)
    choices = 2 * layers * heads  # a word a row: what is special about it
    first = group * _GROUP_STRIDE + (layer_set + 1) * _SET_STRIDE
    words = _rows(tag, first, slots, data_words + choices)
    random = words[:, :data_words].copy().view(f"<u{element.size_bytes}")[:, :elements]
    random = random.reshape(-1, layers, heads, size_k + size_v)
    values = plain(element, random)
    if style == "special":
        choice = words[:, data_words:].reshape(-1, layers, heads, 2)
        parts = [slice(size_k), slice(size_k, None)]
        for half, part in enumerate(parts if size_v else parts[:1]):
            values[..., part] = special_rows(
                element, values[..., part], random[..., part], choice[..., half : half + 1]
            )
    return values.view(np.uint8)


def prefixes(tokens: Sequence[int]) -> npt.NDArray[np.uint64]:
    """For each token a hash of it and of all tokens before it, in their order.

    h(p) = mix(h(p - 1) + (2 t(p) + 1) x golden), modulo 2^64, with `_mix` and h(-1) = golden.
    """
    found, last = [], _GOLDEN
    for token in tokens:
        last = (last + (2 * token + 1) * _GOLDEN) & _MASK
        for _ in range(2):
            last = ((last ^ (last >> 32)) * int(_FACTOR)) & _MASK
        last ^= last >> 32
        found.append(last)
    return np.array(found, np.uint64)


def prefix_rows(group: int, hashes: npt.NDArray[np.uint64], row_bytes: int) -> Bytes:
    """Raw content of positions of requests: a function of the group and of all tokens up to each.

    Args:
        hashes: of `prefixes`, one a position.
        row_bytes: bytes that a group stores for one token, over all its layers.

    Returns:
        Bytes [positions, row bytes].
    """
    words = _numbers(-(-row_bytes // _WORD_BYTES)) + np.uint64(group * _GROUP_STRIDE)
    return _mix(hashes[:, None] + words).view(np.uint8)[:, :row_bytes]


def poison(area: int, size_bytes: int) -> Bytes:
    """What area number ``area`` holds at birth: position-unique, and hardly ever zero."""
    words = np.arange(-(-size_bytes // _WORD_BYTES), dtype=np.uint64)
    words += np.uint64(_key(_MASK - area) & _MASK)
    return _mix(words).view(np.uint8)[:size_bytes]
