"""What tests of the codecs share: formats with sizes that they take, and vectors as bytes."""

from typing import Any

import numpy as np

from kvexact.refmodel.codecs import CODECS
from kvexact.refmodel.codecs.elements import Bytes, Floats
from kvexact.refmodel.spec import LayerSet

_SIZES = {
    "fp8_ds_mla": (576, 0),
    "nvfp4_ds_mla": (576, 0),
    "deepseek_v4": (512, 0),
    "deepseek_v41_mxfp8": (512, 0),
    "deepseek_v41_nvfp4": (512, 0),
    "indexer_fp8": (128, 0),
    "indexer_fp8_ue8m0": (128, 0),
    "int4_per_token_head": (80, 64),
    "turboquant_k8v4": (47, 64),
}

#: A layer set of every format that takes values, with scales that are no powers of two.
LAYERS = {
    name: LayerSet(1, 1, *_SIZES.get(name, (64, 64)), name, k_scale=0.75, v_scale=1.625)
    for name in CODECS
}


def floats(values: list[Any]) -> Floats:
    """Numbers of a vector; "0 x8" is eight of them."""
    numbers: list[float] = []
    for value in values:
        number, _, times = str(value).partition(" x")
        numbers += [float(number)] * int(times or 1)
    return np.array(numbers, np.float32)


def hexadecimal(text: str) -> Bytes:
    """Bytes of a vector; "00ffx8" is these two, eight times."""
    parts = [part.partition("x") for part in text.split()]
    return np.frombuffer(
        b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in parts), np.uint8
    )
