"""Addresses that are held are those that the layout finds, and never too many."""

import numpy as np

from kvexact.refmodel import held
from kvexact.refmodel.address import Addresses
from kvexact.refmodel.held import Held


def test_no_more_is_held_than_there_is_room_for() -> None:
    """Names are let go, all at once, and found again."""
    found: list[int] = []

    def find(block: int) -> Addresses:
        found.append(block)
        return np.array([block], np.intp)

    table = Held(find, held._MOST // 2)
    assert [table[block].tolist() for block in (3, 4, 3, 5, 5, 3)] == [[3], [4], [3], [5], [5], [3]]
    assert found == [3, 4, 5, 3]
    assert sorted(table) == [3, 5]


def test_one_name_is_held_however_large() -> None:
    table = Held(lambda block: np.array([block], np.intp), 2 * held._MOST)
    assert table[1] is table[1]
