"""Casts against those of torch, ml_dtypes and numpy, whose differences are named as data."""

import ml_dtypes
import numpy as np
import pytest
import torch
from cast_differences import ANY_NAN, DIFFERENT, ELEMENTS, LIBRARIES, NUMPY, TORCH, unexplained

from kvexact.refmodel.codecs.elements import UE8M0, Floats

BITS = np.arange(1 << 16, dtype=np.uint16)
INPUTS = {
    "every fp16": torch.from_numpy(BITS).view(torch.float16).float().numpy(),
    "every bf16": torch.from_numpy(BITS).view(torch.bfloat16).float().numpy(),
    "many fp32": np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, np.uint32).view(np.float32),
}
PAIRS = [(library, name) for library, (_, kinds) in LIBRARIES.items() for name in kinds]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize(("library", "name"), PAIRS)
def test_casts_are_theirs_but_for_what_is_named(library: str, name: str, inputs: str) -> None:
    x = INPUTS[inputs]
    assert unexplained(library, name, x, ELEMENTS[name].encode(x)).tolist() == []


@pytest.mark.parametrize(("library", "name"), DIFFERENT)
def test_every_difference_is_real(library: str, name: str) -> None:
    """What is named happens: no entry excuses what no library does."""
    for what, codes in DIFFERENT[library, name].items():
        number = {"nan": np.nan, "-nan": -np.nan, "large": np.inf}[what]
        theirs = LIBRARIES[library][0](name, np.array([number], np.float32))
        if codes == ANY_NAN:
            assert np.isnan(ELEMENTS[name].decode(theirs)).all()
        else:
            assert theirs[0] in codes


@pytest.mark.parametrize("name", ELEMENTS)
def test_all_codes_mean_the_same(name: str) -> None:
    element = ELEMENTS[name]
    codes = np.arange(1 << element.size_bits, dtype=f"u{element.size_bytes}")
    theirs: list[Floats] = [codes.view(NUMPY[name]).astype(np.float32)]
    if name in TORCH:
        theirs.append(torch.from_numpy(codes).view(TORCH[name]).float().numpy())
    ours = element.decode(codes)
    for other in theirs:
        assert np.isnan(ours).tolist() == np.isnan(other).tolist()
        numbers = ~np.isnan(ours)
        assert ours[numbers].tobytes() == other[numbers].tobytes()


def test_powers_of_two_mean_the_same() -> None:
    codes = np.arange(256, dtype=np.uint8)
    ours = UE8M0.decode(codes)
    for other in (
        codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32),
        torch.from_numpy(codes).view(torch.float8_e8m0fnu).float().numpy(),
    ):
        assert ours[:255].tobytes() == other[:255].tobytes()
        assert np.isnan([ours[255], other[255]]).all()
