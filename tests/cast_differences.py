"""The casts of torch, ml_dtypes and numpy beside ours, and where theirs are other casts."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch

from kvexact.refmodel.codecs.elements import (
    BF16,
    E2M1,
    E4M3,
    E4M3FNUZ,
    E5M2,
    FP16,
    Codes,
    Element,
    Floats,
    bits_of,
)

ELEMENTS = {
    "fp16": FP16,
    "bf16": BF16,
    "e4m3": E4M3,
    "e5m2": E5M2,
    "e4m3fnuz": E4M3FNUZ,
    "e2m1": E2M1,
}
TORCH = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
}
NUMPY = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def _by_torch(name: str, x: Floats) -> Codes:
    kind = torch.uint16 if ELEMENTS[name].size_bytes == 2 else torch.uint8
    return torch.from_numpy(x).to(TORCH[name]).view(kind).numpy()


def _by_numpy(name: str, x: Floats) -> Codes:
    with np.errstate(all="ignore"):
        return x.astype(NUMPY[name]).view(f"u{ELEMENTS[name].size_bytes}")


LIBRARIES: dict[str, tuple[Callable[[str, Floats], Codes], dict[str, object]]] = {
    "torch": (_by_torch, TORCH),
    "numpy": (_by_numpy, NUMPY),
}

ANY_NAN = "any NaN"
#: By library and type: what NaN, -NaN and too large a number become elsewhere. Infinity is too
#: large; codes are those of positive numbers, but -NaN's, and 80 of e4m3fnuz has no sign.
DIFFERENT: dict[tuple[str, str], dict[str, set[int] | str]] = {
    ("torch", "fp16"): {"nan": ANY_NAN, "-nan": ANY_NAN},
    ("torch", "bf16"): {"nan": ANY_NAN, "-nan": ANY_NAN},
    ("torch", "e4m3"): {"-nan": {0xFF}, "large": {0x7E, 0x7F}},  # not every release saturates
    ("torch", "e5m2"): {"-nan": {0xFF}, "large": {0x7C}},
    ("torch", "e4m3fnuz"): {"large": {0x80}},
    ("numpy", "fp16"): {"nan": ANY_NAN, "-nan": ANY_NAN},
    ("numpy", "e4m3"): {"-nan": {0xFF}, "large": {0x7F}},
    ("numpy", "e5m2"): {"nan": {0x7E}, "-nan": {0xFE}, "large": {0x7C}},
    ("numpy", "e4m3fnuz"): {"large": {0x80}},
    ("numpy", "e2m1"): {"nan": {0x8}},
}
#: From here on a number rounds to more than the largest.
TOO_LARGE = {
    "fp16": 65520.0,
    "bf16": np.inf,
    "e4m3": 464.0,
    "e5m2": 61440.0,
    "e4m3fnuz": 248.0,
    "e2m1": 7.0,
}
EVEN = {"e4m3"}  # whose largest has an even code: a tie above it goes down


def unexplained(library: str, name: str, x: Floats, ours: Codes) -> Floats:
    """The numbers of which the other cast is neither ours nor what the table says."""
    element, theirs = ELEMENTS[name], LIBRARIES[library][0](name, x)
    apart = np.flatnonzero(ours != theirs)
    x, theirs = x[apart], theirs[apart]
    allowed = DIFFERENT.get((library, name), {})
    minus = bits_of(x) >> np.uint32(31) == 1
    large = np.abs(x) > TOO_LARGE[name] if name in EVEN else np.abs(x) >= TOO_LARGE[name]
    sign = 1 << (element.size_bits - 1)
    explained = _given(element, theirs, allowed.get("nan", set())) & np.isnan(x) & ~minus
    explained |= _given(element, theirs, allowed.get("-nan", set())) & np.isnan(x) & minus
    codes = allowed.get("large", set())
    assert isinstance(codes, set)
    unsigned = np.where(minus & (theirs != 0x80), theirs & ~np.array(sign, theirs.dtype), theirs)
    explained |= np.isin(unsigned, list(codes)) & large
    return x[~explained]


def _given(element: Element, codes: Codes, allowed: set[int] | str) -> np.ndarray:
    if allowed == ANY_NAN:
        return np.isnan(element.decode(codes))
    return np.isin(codes, list(allowed))
