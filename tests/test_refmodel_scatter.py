"""Scattered fields: some places by hand, and that elements only change places."""

import numpy as np
import pytest

from kvexact.refmodel.formats import FORMATS
from kvexact.refmodel.scatter import SCATTERED

SLOTS, ELEMENTS = 32, 32


@pytest.mark.parametrize(("page_format", "field"), SCATTERED)
def test_every_element_has_a_place_of_its_own(page_format: str, field: str) -> None:
    """And places lie in the field's own array."""
    slots, elements = np.divmod(np.arange(SLOTS * ELEMENTS), ELEMENTS)
    places = SCATTERED[page_format, field](elements, slots, SLOTS, ELEMENTS)
    assert sorted(places.tolist()) == [*range(SLOTS * ELEMENTS)]
    assert page_format in FORMATS


@pytest.mark.parametrize(
    ("page_format", "field", "element", "slot", "place"),
    [
        ("nvfp4_swizzled", "v_scale", 9, 6, 5 * 32 + 6),  # quarter 1 of tile 1: 1 * 4 + 2
        ("bf16_cpu_vec", "k", 3, 5, 3 * 32 + 5),
        ("bf16_cpu_amx", "k", 5, 17, (16 * 16 + 2 * 16 + 1) * 2 + 1),
        ("bf16_cpu_amx", "v", 17, 5, 32 * 16 + 2 * 32 + 1 * 2 + 1),
        ("bf16_rocm", "k", 9, 2, 32 * 8 + 2 * 8 + 1),
        ("fp8_e4m3_rocm", "k", 17, 2, 32 * 16 + 2 * 16 + 1),
        ("bf16_aiter", "v", 3, 9, 32 * 8 + 3 * 8 + 1),
        ("fp8_e4m3_aiter", "v", 3, 17, 32 * 16 + 3 * 16 + 1),
    ],
)
def test_places(page_format: str, field: str, element: int, slot: int, place: int) -> None:
    """Of 32 elements of 32 slots, as docs/formats.md says."""
    assert SCATTERED[page_format, field](element, slot, SLOTS, ELEMENTS) == place
