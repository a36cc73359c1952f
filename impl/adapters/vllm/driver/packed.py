"""Rows that hold a token and what scales it: the fields of a cell, in order.

Both processes read this: it needs neither torch nor vLLM.
"""

#: Rows of one latent vector.
LATENTS = {
    "fp8_ds_mla": {"latent": 512, "scale": 16, "rope": 128},
    "nvfp4_ds_mla": {"latent": 256, "rope": 64, "scale": 32},
}
#: Rows of a vector that stands for several tokens: in a page all of them, then their scales.
COMPRESSED = "deepseek_v4"
#: Keys and values in one row: bits of their elements.
TURBOQUANT = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
#: Keys of an indexer: in a page all of them, then their scales.
INDEX_KEYS = "indexer_fp8"


def packed_fields(page_format: str, head_size_k: int, head_size_v: int) -> dict[str, int] | None:
    """Bytes of each field; None: a cell of this format is no such row."""
    if page_format == INDEX_KEYS:
        return {"latent": 128, "scale": 4}
    if page_format == COMPRESSED:
        return {"latent": 448, "rope": 128, "scale": 8}
    if page_format not in TURBOQUANT:
        return LATENTS.get(page_format)
    key, value = TURBOQUANT[page_format]
    norm = {} if key == 8 else {"k_norm": 2}  # of keys that are indices
    scaled = {"v": head_size_v * value // 8, "v_scale": 2, "v_zero": 2}
    return {"k": head_size_k * key // 8, **norm, **scaled}
