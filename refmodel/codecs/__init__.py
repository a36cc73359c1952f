"""How real keys and values become the bytes of a cell, and what these bytes mean as fp32.

docs/formats.md is the definition. One module a family of formats; each format is one rule for keys
and one for values. All arithmetic is elementwise numpy in the written order: no sum, no product of
matrices, no logarithm, since these differ from machine to machine.
"""

from typing import NamedTuple

import numpy as np

from kvexact.refmodel.codecs.blocks import Nvfp4, UltraQuant
from kvexact.refmodel.codecs.elements import (
    BF16,
    E2M1,
    E4M3,
    E4M3FNUZ,
    E5M2,
    FP16,
    FP32,
    UE8M0,
    VALUE_TYPES,
    Bytes,
)
from kvexact.refmodel.codecs.latent import (
    Latent,
    e4m3_near,
    e4m3_up,
    fp32_scale,
    index_scale,
    power_of_two,
)
from kvexact.refmodel.codecs.pack import loaded, to_bytes
from kvexact.refmodel.codecs.rule import Rule
from kvexact.refmodel.codecs.tensor import Plain, Scaled, Truncated
from kvexact.refmodel.codecs.token_head import (
    Fp8TokenHead,
    Int4TokenHead,
    Int8TokenHead,
    TurboValue,
)
from kvexact.refmodel.spec import LayerSet


class Codec(NamedTuple):
    """The rules of a format.

    Attributes:
        key: of a head's key, or of a page's first state.
        value: of a head's value, or of a page's second state.
        even: whether a byte of padding makes the cell even.
    """

    key: Rule
    value: Rule
    even: bool = False


def _both(rule: Rule) -> Codec:
    return Codec(rule, rule)


def _keys(rule: Rule) -> Codec:
    """A format whose rows have no value."""
    return Codec(rule, Plain(E4M3))


_BF16 = _both(Plain(BF16))
_NVFP4 = _both(Nvfp4())
_PERMUTED = tuple(8 * (b & 3) + (b >> 2) for b in range(32))

CODECS = {
    "fp32": _both(Plain(FP32)),
    "fp16": _both(Plain(FP16)),
    "bf16": _BF16,
    "fp8_e4m3": _both(Scaled(E4M3)),
    "fp8_e5m2": _both(Scaled(E5M2)),
    "fp8_e4m3fnuz": _both(Scaled(E4M3FNUZ)),
    "fp8_e4m3_truncated": _both(Truncated(E4M3)),
    "fp8_e5m2_truncated": _both(Truncated(E5M2)),
    "int8_per_token_head": _both(Int8TokenHead()),
    "fp8_per_token_head": _both(Fp8TokenHead(E4M3, 448)),
    "fp8_fnuz_per_token_head": _both(Fp8TokenHead(E4M3FNUZ, 224)),
    "int4_per_token_head": _both(Int4TokenHead()),
    "turboquant_k8v4": Codec(Plain(E4M3), TurboValue(), even=True),
    "turboquant_k8v4_planes": Codec(Plain(E4M3), TurboValue()),
    "ultraquant_4bit": Codec(UltraQuant(rotated=True), UltraQuant(rotated=False)),
    "nvfp4": _NVFP4,
    "nvfp4_swizzled": _NVFP4,
    "nvfp4_per_head": _NVFP4,
    "fp8_ds_mla": _keys(Latent(128, E4M3, fp32_scale, FP32, tuple(range(4)), 4, BF16)),
    "nvfp4_ds_mla": _keys(Latent(16, E2M1, e4m3_up, E4M3, _PERMUTED, 32, E4M3, rope_first=True)),
    "deepseek_v4": _keys(
        Latent(64, E4M3, power_of_two, UE8M0, tuple(range(7)), 8, BF16, rope_first=True)
    ),
    "deepseek_v41_mxfp8": _keys(Latent(32, E4M3, power_of_two, UE8M0, tuple(range(16)), 16)),
    "deepseek_v41_nvfp4": _keys(Latent(16, E2M1, e4m3_near, E4M3, tuple(range(32)), 32)),
    "indexer_fp8": _keys(Latent(128, E4M3, index_scale, FP32, (0,), 1)),
    "indexer_fp8_ue8m0": _keys(Latent(128, E4M3, power_of_two, FP32, (0,), 1)),
    "state_bf16_fp32": Codec(Plain(BF16), Plain(FP32)),
    "state_bf16": _BF16,
    "state_fp32": _both(Plain(FP32)),
    "fp32_cpu_vec": _both(Plain(FP32)),
    "bf16_cpu_vec": _BF16,
    "fp8_e4m3_cpu_vec": _both(Truncated(E4M3)),
    "fp8_e5m2_cpu_vec": _both(Truncated(E5M2)),
    "bf16_cpu_amx": _BF16,
    "fp8_e4m3_cpu_amx": _both(Truncated(E4M3)),
    "fp8_e5m2_cpu_amx": _both(Truncated(E5M2)),
    "bf16_rocm": _BF16,
    "fp8_e4m3_rocm": _both(Scaled(E4M3)),
    "fp8_e4m3fnuz_rocm": _both(Scaled(E4M3FNUZ)),
    "bf16_aiter": _BF16,
    "fp8_e4m3_aiter": _both(Scaled(E4M3)),
    "fp8_e4m3fnuz_aiter": _both(Scaled(E4M3FNUZ)),
}


def encode(layers: LayerSet, value_type: str, values: Bytes) -> Bytes:
    """What a format stores for keys and values.

    Args:
        layers: the format, the sizes and the scales.
        value_type: one of `kvexact.refmodel.ops.VALUE_TYPES`.
        values: [..., bytes]: the elements of a head's key, then those of its value.

    Returns:
        Cells [..., cell bytes], fields in logical order; a byte of padding is 0.

    Raises:
        KeyError: a format that takes raw writes only.
    """
    codec = CODECS[layers.page_format]
    x = loaded(VALUE_TYPES[value_type], values)
    size = layers.head_size_k
    with np.errstate(all="ignore"):
        parts = [codec.key.encode(x[..., :size], np.float32(layers.k_scale), value_type)]
        if codec.value.width_bytes(layers.head_size_v):
            scale = np.float32(layers.v_scale)
            parts.append(codec.value.encode(x[..., size:], scale, value_type))
    if codec.even and sum(part.shape[-1] for part in parts) % 2:
        parts.append(np.zeros((*x.shape[:-1], 1), np.uint8))
    return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def decode(layers: LayerSet, cells: Bytes) -> Bytes:
    """What cells mean.

    Args:
        layers: the format, the sizes and the scales.
        cells: [..., cell bytes], fields in logical order.

    Returns:
        fp32 [..., bytes]: the elements of a head's key, then those of its value; every NaN is
        7fc00000.

    Raises:
        KeyError: a format that takes raw writes only.
    """
    codec = CODECS[layers.page_format]
    at = codec.key.width_bytes(layers.head_size_k)
    end = at + codec.value.width_bytes(layers.head_size_v)
    with np.errstate(all="ignore"):
        x = codec.key.decode(cells[..., :at], np.float32(layers.k_scale))
        if end > at:
            value = codec.value.decode(cells[..., at:end], np.float32(layers.v_scale))
            x = np.concatenate([x, value], axis=-1)
    return to_bytes(np.where(np.isnan(x), np.float32(np.nan), x))
