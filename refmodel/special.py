"""Values on which writers go wrong: zeros, infinities, NaN, ends of ranges, ties.

A row, which is a head's key or value, keeps its random elements in some shape, or takes all of them
from a table of awkward ones.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.codecs.elements import E2M1, E4M3, E4M3FNUZ, Element, Floats, Single

#: Bits of elements: uint16 or uint32.
Bits = npt.NDArray[Any]
ValueType = Element | Single

#: What a row is, drawn from 34 numbers: plain below these, and from the last one on a table.
_CONSTANT, _ONE_HOT, _ONE_HUGE, _SPRINKLED, _TABLES = 7, 8, 9, 10, 11
_KINDS = 34
_ZERO, _LARGE, _SPECIAL = 0, 4, 5
_COLUMNS = 1024
_STANDS, _STANDS_EVERY = 2, 16
_PLACE_AT = np.uint64(8)
#: By kind: the table from which elements are drawn,
_TABLE_OF = np.maximum(np.arange(_KINDS) - _TABLES, 0)
_TABLE_OF[[_ONE_HOT, _ONE_HUGE, _SPRINKLED]] = _ZERO, _LARGE, _SPECIAL
#: and which are: of [kind, whether it is the one at a drawn place, whether it is one of a few].
_DRAWN = np.zeros((_KINDS, 2, 2), np.bool_)
_DRAWN[_ONE_HOT, 0] = _DRAWN[_ONE_HUGE, 1] = _DRAWN[_SPRINKLED, :, 1] = _DRAWN[_TABLES:] = True


def plain(value_type: ValueType, random: Bits) -> Bits:
    """Random bits as finite numbers from 1/8 to 32: of an exponent three bits are kept."""
    at, sign = value_type.fraction_bits, 8 * value_type.size_bytes - 1
    kept = 1 << sign | (1 << at + 3) - 1
    return (random & kept) + (value_type.bias - 3 << at)


def special_rows(
    value_type: ValueType, values: Bits, random: Bits, choice: npt.NDArray[np.uint64]
) -> Bits:
    """Rows as they are, or made special.

    Args:
        value_type: of the elements.
        values: plain rows [..., size]; at least one element.
        random: the bits from which they were made.
        choice: a random word for each row [..., 1]: what is special about it, and where.

    Returns:
        Rows [..., size].
    """
    size = values.shape[-1]
    kind = (choice % _KINDS).astype(np.intp)
    place = (choice >> _PLACE_AT) % np.uint64(size)
    distance = np.arange(size, dtype=np.uint64) - place
    column = random % _COLUMNS
    # two columns stand in every 16 elements, so that each block has its greatest element there
    nth = distance % _STANDS_EVERY
    column = np.where((nth < _STANDS) & (kind >= _TABLES), nth, column)
    drawn = _tables(value_type)[_TABLE_OF[kind], column.astype(np.intp)]

    few = (random >> 13 & 7) == 0
    is_drawn = _DRAWN.take(4 * kind + 2 * (distance == 0) + few)
    rows = np.where(kind == _CONSTANT, values[..., :1], values)
    return np.where(is_drawn, drawn, rows)


def _midpoints(element: Element) -> Floats:
    """Halfway between the non-negative numbers of a type."""
    numbers = element.decode(np.arange(element.largest + 1))
    return (numbers[:-1] + numbers[1:]) / np.float32(2)


#: Elements that round to even or away, with the greatest and the least that scale a row so.
_TIES = (
    ((127, -127), np.arange(127) + 0.5),
    ((448, -448), _midpoints(E4M3)),
    ((224, -224), _midpoints(E4M3FNUZ)),
    ((6, -6), _midpoints(E2M1)),
    ((15, 0), np.arange(31) / 2),
)
#: Greatest elements of which the one has a smaller power of two for its scale, and the next one up
#: the larger: 0.156 of them is just below sqrt(2), and just above.
_TURNS = (9.065470695495605, 9.065471649169922)
_TIE_SCALES = (1.0, 2.0**-5, 2.0**6)
_TINY_NUMBERS = (1e-4, 9e-5, 4.48e-4, 1.27e-4, 1e-6, 1e-8, *np.ldexp(1.0, np.arange(-20, -5)))
_LARGE_NUMBERS = (448, 449, 464, 465, 480, 240, 248, 224, 57344, 61440, 65504, 1e30, 3e38)
_ROUND_NUMBERS = (6, 127, 224, 240, 448, 57344, 1, 0.5)


@cache
def _tables(value_type: ValueType) -> Bits:
    """Bits of awkward elements, [tables, columns]."""
    sign = 1 << (8 * value_type.size_bytes - 1)

    def signed(codes: Bits) -> Bits:
        return np.append(codes, codes | sign)

    def numbers(*values: float) -> Bits:
        return value_type.encode(np.array(values, np.float32))

    zero = numbers(0)
    normal = 1 << value_type.fraction_bits  # bits of the least normal number
    infinity = value_type.largest + 1
    subnormal = [1, 2, 3, normal // 2, normal - 1, normal]
    ends = [value_type.largest, infinity, infinity + 1, infinity | normal // 2, sign - 1]
    tables = [
        zero,
        signed(zero),
        signed(np.array(subnormal, zero.dtype)),
        signed(numbers(*_TINY_NUMBERS)),
        signed(numbers(*_LARGE_NUMBERS)),
        signed(np.append(np.array(ends, zero.dtype), numbers(0, *_ROUND_NUMBERS))),
    ]
    tables += [signed(numbers(turn, -turn, 0, turn / 2)) for turn in _TURNS]
    for scale in _TIE_SCALES:
        for stand, ties in _TIES:
            exact = numbers(*(ties * scale))
            near = np.concatenate([exact, exact + 1, np.maximum(exact, 1) - 1])
            near = signed(near) if stand[1] else near
            tables.append(np.append(numbers(*(scale * x for x in stand)), near))
    return np.stack([np.resize(table, _COLUMNS) for table in tables])
