"""What formats store: vectors of real writers, error bounds, and what comes back."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codec_cases import LAYERS, floats, hexadecimal

from kvexact.refmodel.codecs import CODECS, decode, encode
from kvexact.refmodel.codecs.blocks import ultra_scale
from kvexact.refmodel.codecs.elements import UE8M0, VALUE_TYPES, Floats
from kvexact.refmodel.codecs.latent import power_of_two
from kvexact.refmodel.codecs.rotate import rotate_signed, rotate_whole
from kvexact.refmodel.codecs.token_head import steps
from kvexact.refmodel.content import slot_values
from kvexact.refmodel.ops import VALUE_STYLES
from kvexact.refmodel.spec import PAGE_FORMATS, LayerSet

VECTORS = json.loads((Path(__file__).parent / "vectors" / "codecs.json").read_text())
ROW = floats([0.5, -1, 0.25, 2, -2, 0, 1.5, -0.75])
SIGNS = (  # of the rotation of int4
    "b09acea68dac010136bc22651c2afed681d125528223f5d51219d04c05c2045f"
    "cc3876b2d3e395155bb8a9d89acdc019769e1c0c700464b36e2405939d35b951"
)
SLOTS = range(300)
ROTATED = {
    "int4_per_token_head": (rotate_signed, rotate_signed),
    "ultraquant_4bit": (rotate_whole,),
}


def values_of(layers: LayerSet, value_type: str, style: str) -> np.ndarray:
    """A batch [300, 1, 1, bytes]."""
    shape = (1, 1, layers.head_size_k, layers.head_size_v)
    return slot_values(5, 0, 0, SLOTS, shape, value_type, style)


def halves(layers: LayerSet, x: Floats) -> list[Floats]:
    """Keys and values of rows; those without elements are left out."""
    return [half for half in np.split(x, [layers.head_size_k], axis=-1) if half.shape[-1]]


def test_every_format_has_its_codec_but_those_for_raw_writes() -> None:
    raw = {f"turboquant_{preset}_nc" for preset in ("4bit", "k3v4", "3bit")}
    assert set(PAGE_FORMATS) - set(CODECS) == raw | {f"{name}_planes" for name in raw}


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_vectors(vector: dict[str, Any]) -> None:
    """Cells as real writers store them."""
    values = floats(vector["values"]).view(np.uint8)
    cell = encode(LayerSet(1, 1, **vector["layers"]), "fp32", values)
    assert cell.tobytes().hex() == hexadecimal(vector["cell"]).tobytes().hex()


def test_int4_steps_of_a_row_that_is_not_rotated() -> None:
    codes, word = steps(ROW)
    assert codes.tolist() == [9, 3, 8, 15, 0, 7, 13, 4]
    assert word.tobytes().hex() == "8788883e"


def test_rotations_by_hand() -> None:
    assert rotate_signed(ROW).tolist() == [5, -2.5, 2, 5.5, 2.5, -2, -3.5, -3]
    sums = floats([4, 2]) * np.float32(0.70710678)
    assert rotate_whole(floats([3, 1])).tolist() == sums.tolist()


@pytest.mark.parametrize("size", [2, 6, 8, 80, 96, 512, 1536])
def test_rotating_is_a_product_with_signs_and_bits(size: int) -> None:
    """Element i of a rotated block is the sum of sign_j x_j (-1)^(bits that i and j share)."""
    block = next(b for b in (512, 256, 128, 64, 32, 16, 8, 4, 2) if size % b == 0)
    i, j = np.indices((block, block))
    hadamard = 1 - 2 * (np.bitwise_count(i & j).astype(np.int64) & 1)
    digits = f"{int(SIGNS, 16):b}"
    signs = [1 if digit == "1" else -1 for digit in digits[:block]]
    x = np.random.default_rng(size).integers(-99, 100, (3, size))
    expected = ((x.reshape(3, -1, 1, block) * signs * hadamard).sum(axis=-1)).reshape(3, size)
    assert rotate_signed(x.astype(np.float32)).tolist() == expected.tolist()


def test_scale_bytes_of_ultraquant() -> None:
    """Greatest magnitudes 0, 1, 6.4, 10 by the writer; then ends of the range."""
    a = floats([0, 1, 6.4, 10, 1e-45, 7e-38, 8e-38, 3.4e38, "inf"])
    assert ultra_scale(a).tolist() == [0, 124, 127, 128, 0, 0, 1, 252, 254]


def test_powers_of_two_of_scales() -> None:
    """Every 448 x 2^k is exact, and what is a little more takes the next one."""
    a = np.ldexp(np.float32(448), np.arange(-20, 119))
    assert power_of_two(a).tolist() == np.ldexp(1.0, np.arange(-20, 119)).tolist()
    beyond = power_of_two(np.nextafter(a, np.float32(np.inf)))
    assert beyond.tolist() == np.ldexp(1.0, np.arange(-19, 120)).tolist()
    assert UE8M0.encode(power_of_two(floats([0, 1e-4, "inf"]))).tolist() == [105, 105, 254]


CPU_FP8 = tuple(product(("e4m3", "e5m2"), ("vec", "amx")))
ROCM_FP8 = tuple(product(("e4m3", "e4m3fnuz"), ("rocm", "aiter")))

#: What a plain row loses at most: by an element's magnitude, and by its row's greatest.
BOUNDS = {
    "fp32": (0, 0),
    "fp16": (2**-11, 2**-25),
    "bf16": (2**-8, 0),
    "state_bf16_fp32": (2**-8, 0),
    "state_bf16": (2**-8, 0),
    "state_fp32": (0, 0),
    "fp8_e4m3": (2**-4, 2**-10),
    "fp8_e4m3fnuz": (2**-4, 2**-10),
    "fp8_e5m2": (2**-3, 2**-16),
    "fp8_e4m3_truncated": (2**-3, 2**-9),
    "fp8_e5m2_truncated": (2**-2, 2**-16),
    "int8_per_token_head": (0, 0.501 / 127),
    "fp8_per_token_head": (2**-4, 2**-18),
    "fp8_fnuz_per_token_head": (2**-4, 2**-17),
    "int4_per_token_head": (2**-8, 1.01 / 15),
    "turboquant_k8v4": (2**-4, 1.02 / 15),
    "turboquant_k8v4_planes": (2**-4, 1.02 / 15),
    "ultraquant_4bit": (0, 0.35),
    "nvfp4": (0, 0.18),
    "nvfp4_swizzled": (0, 0.18),
    "nvfp4_per_head": (0, 0.18),
    "fp8_ds_mla": (2**-4, 2**-18),
    "nvfp4_ds_mla": (2**-4, 0.19),
    "deepseek_v4": (2**-4, 2**-17),
    "deepseek_v41_mxfp8": (2**-4, 2**-17),
    "deepseek_v41_nvfp4": (0, 0.18),
    "indexer_fp8": (2**-4, 2**-18),
    "indexer_fp8_ue8m0": (2**-4, 2**-17),
    "fp32_cpu_vec": (0, 0),
}
BOUNDS |= {f"fp8_{kind}_cpu_{form}": BOUNDS[f"fp8_{kind}_truncated"] for kind, form in CPU_FP8}
BOUNDS |= {f"fp8_{kind}_{form}": BOUNDS[f"fp8_{kind}"] for kind, form in ROCM_FP8}


@pytest.mark.parametrize("value_type", VALUE_TYPES)
@pytest.mark.parametrize("name", CODECS)
def test_what_is_read_is_close_to_what_was_written(name: str, value_type: str) -> None:
    """Within the bound of the format, and of fp32 not all of it exact where the format loses."""
    layers, element = LAYERS[name], VALUE_TYPES[value_type]
    relative, greatest = BOUNDS.get(name, (2**-8, 0))
    values = values_of(layers, value_type, "plain")
    read = decode(layers, encode(layers, value_type, values)).view(np.float32)
    written = element.decode(values.view(f"<u{element.size_bytes}"))
    turns = ROTATED.get(name, ())
    loses = value_type == "fp32" and (relative or greatest)
    lost = False
    for nth, (x, back) in enumerate(
        zip(halves(layers, written), halves(layers, read), strict=True)
    ):
        x = turns[nth](x) if nth < len(turns) else x
        far = np.abs(back.astype(np.float64) - x)
        most = np.abs(x).max(axis=-1, keepdims=True)
        assert (far <= 1.0001 * (relative * np.abs(x) + greatest * most)).all()
        lost = lost or bool(far.any())
    assert lost or not loses


@pytest.mark.parametrize(
    "name",
    [
        *("fp32", "fp16", "bf16", "state_bf16_fp32", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz"),
        *("fp8_e4m3_truncated", "fp8_e5m2_truncated"),
        *("deepseek_v4", "deepseek_v41_mxfp8", "indexer_fp8_ue8m0"),
    ],
)
@pytest.mark.parametrize("style", VALUE_STYLES)
def test_what_was_read_is_stored_without_loss(name: str, style: str) -> None:
    """Formats without a scale, or with a power of two as scale, hold what they gave."""
    k, v = LAYERS[name].head_size_k, LAYERS[name].head_size_v
    layers = LayerSet(1, 1, k, v, name, k_scale=0.25, v_scale=2.0)
    read = decode(layers, encode(layers, "fp32", values_of(layers, "fp32", style)))
    if "truncated" in name:  # NaN becomes the largest; what is nearly 0 keeps a sign, 0 has none
        x = read.view(np.float32)
        x[x == 0] = 0
    again = encode(layers, "fp32", read)
    assert decode(layers, again).tobytes() == read.tobytes()
    assert encode(layers, "fp32", decode(layers, again)).tobytes() == again.tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_any_cell_has_a_meaning(name: str) -> None:
    """Bytes of raw writes decode as well; no NaN is another than 7fc00000."""
    layers = LAYERS[name]
    width = encode(layers, "fp32", values_of(layers, "fp32", "plain")[:1]).shape[-1]
    cells = np.random.default_rng(0).integers(0, 256, (400, 2, width), np.uint8)
    read = decode(layers, cells)
    assert read.shape == (400, 2, 4 * (layers.head_size_k + layers.head_size_v))
    x = read.view(np.float32)
    assert set(read.view(np.uint32)[np.isnan(x)].tolist()) <= {0x7FC00000}
    assert np.isfinite(x).mean() > 0.9


@pytest.mark.parametrize("style", VALUE_STYLES)
@pytest.mark.parametrize("name", CODECS)
def test_a_row_is_stored_by_itself(name: str, style: str) -> None:
    """What else is in the batch, and its shape, changes nothing."""
    layers = LAYERS[name]
    values = values_of(layers, "bf16", style)
    cells = encode(layers, "bf16", values)
    assert encode(layers, "bf16", values[7, 0, 0]).tobytes() == cells[7].tobytes()
    folded = encode(layers, "bf16", values[::3].reshape(2, 50, -1))
    assert folded.tobytes() == cells[::3].tobytes()
    read = decode(layers, cells)
    assert decode(layers, cells[7, 0, 0]).tobytes() == read[7].tobytes()
    none = encode(layers, "bf16", values[:0])
    assert decode(layers, none).shape == (0, 1, 1, read.shape[-1])


@pytest.mark.parametrize(
    "name", [name for name in CODECS if LAYERS[name].head_size_v and "4bit" not in name]
)
def test_rows_without_values(name: str) -> None:
    """A value of no elements stores its scales at most."""
    layers = LayerSet(1, 1, 64, 0, name)
    cell = encode(layers, "fp32", np.full(256, 1, np.uint8))
    assert decode(layers, cell).shape == (256,)


def test_formats_for_raw_writes() -> None:
    layers = LayerSet(1, 1, 64, 64, "turboquant_4bit_nc")
    with pytest.raises(KeyError, match="turboquant_4bit_nc"):
        encode(layers, "fp32", np.zeros(512, np.uint8))
    with pytest.raises(KeyError, match="turboquant_4bit_nc"):
        decode(layers, np.zeros(134, np.uint8))
