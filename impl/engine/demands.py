"""What a format demands of the sizes of a layer set, and where it can lie; docs/formats.md."""

from kvexact.refmodel.spec import LayerSet

#: Formats with a key half and a value half.
SPLIT = frozenset(
    {
        "fp32",
        "fp16",
        "bf16",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_e4m3fnuz",
        "fp8_e4m3_truncated",
        "fp8_e5m2_truncated",
        "int8_per_token_head",
        "fp8_per_token_head",
        "fp8_fnuz_per_token_head",
        "int4_per_token_head",
        "state_bf16_fp32",
        "state_bf16",
        "state_fp32",
    }
)

#: The slots of a kernel block are a multiple of this.
SLOTS_IN_TILE = {
    "nvfp4_swizzled": 4,
    "bf16_cpu_amx": 32,
    "fp8_e4m3_cpu_amx": 32,
    "fp8_e5m2_cpu_amx": 32,
    "bf16_aiter": 8,
    "fp8_e4m3_aiter": 16,
    "fp8_e4m3fnuz_aiter": 16,
}

#: Multiples of these are the key's and the value's size.
_MULTIPLES = {
    "int4_per_token_head": (2, 2),
    "turboquant_k8v4": (1, 2),
    "turboquant_4bit_nc": (2, 2),
    "turboquant_k3v4_nc": (8, 2),
    "turboquant_3bit_nc": (8, 8),
    "turboquant_k8v4_planes": (1, 2),
    "turboquant_4bit_nc_planes": (2, 2),
    "turboquant_k3v4_nc_planes": (8, 2),
    "turboquant_3bit_nc_planes": (8, 8),
    "ultraquant_4bit": (32, 32),
    "nvfp4": (16, 16),
    "nvfp4_swizzled": (64, 64),
    "nvfp4_per_head": (16, 16),
    "bf16_cpu_amx": (32, 32),
    "fp8_e4m3_cpu_amx": (32, 32),
    "fp8_e5m2_cpu_amx": (32, 32),
    "bf16_rocm": (8, 8),
    "fp8_e4m3_rocm": (16, 16),
    "fp8_e4m3fnuz_rocm": (16, 16),
    "bf16_aiter": (8, 8),
    "fp8_e4m3_aiter": (16, 16),
    "fp8_e4m3fnuz_aiter": (16, 16),
}

#: Key and value are of one size.
_EQUAL = frozenset(
    {
        "nvfp4",
        "nvfp4_swizzled",
        "nvfp4_per_head",
        "ultraquant_4bit",
        "fp32_cpu_vec",
        "bf16_cpu_vec",
        "fp8_e4m3_cpu_vec",
        "fp8_e5m2_cpu_vec",
        "bf16_cpu_amx",
        "fp8_e4m3_cpu_amx",
        "fp8_e5m2_cpu_amx",
        "bf16_rocm",
        "fp8_e4m3_rocm",
        "fp8_e4m3fnuz_rocm",
        "bf16_aiter",
        "fp8_e4m3_aiter",
        "fp8_e4m3fnuz_aiter",
    }
)

#: One row for all heads: its size in elements, without a value.
_ROWS = {
    "fp8_ds_mla": 576,
    "nvfp4_ds_mla": 576,
    "deepseek_v4": 512,
    "deepseek_v41_mxfp8": 512,
    "deepseek_v41_nvfp4": 512,
    "indexer_fp8": 128,
    "indexer_fp8_ue8m0": 128,
}

#: The rotation of int4 has blocks of up to this many elements.
_MOST_ROTATED = 512


def demand(one: LayerSet) -> str | None:
    """What a layer set's format demands in vain, or None."""
    name, k, v = one.page_format, one.head_size_k, one.head_size_v
    if name in _ROWS and (one.kv_heads, k, v) != (1, _ROWS[name], 0):
        return f"needs one head of {_ROWS[name]} and 0 elements, not {one.kv_heads} of {k} and {v}"
    if name.startswith("state_") and one.kv_heads != 1:
        return f"needs one head for its one state, not {one.kv_heads}"
    if name in _EQUAL and k != v:
        return f"needs keys and values of one size, not {k} and {v} elements"
    for size, multiple in zip((k, v), _MULTIPLES.get(name, (1, 1)), strict=True):
        if size % multiple:
            return f"needs a multiple of {multiple} elements in a head, not {size}"
        if name == "int4_per_token_head" and size & -size > _MOST_ROTATED:
            return f"needs a head that no power of two above {_MOST_ROTATED} divides, not {size}"
    if name == "ultraquant_4bit" and k & (k - 1):
        return f"needs a power of two of elements in a head, not {k}"
    return None
