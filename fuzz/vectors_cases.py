"""The default set of vectors: small cases that together have every format, order and refusal."""

from dataclasses import replace
from typing import Any

from kvexact.fuzz.choose import Prng, pick
from kvexact.fuzz.demands import orders_of
from kvexact.fuzz.dimensions import draft_of
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.vectors import Case
from kvexact.fuzz.vectors_script import scripted
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS, Geometry, Group, Host, LayerSet

_BLOCKS = 5
_HOST = Host(8192)

#: (note, geometry) by the name of a case.
Geometries = dict[str, tuple[str, Geometry]]

#: Shapes that a format asks for: heads, key size, value size, slots.
_SHAPES = {
    "int4_per_token_head": (2, 8, 8, 3),
    "turboquant_k8v4_planes": (2, 8, 4, 3),
    "turboquant_4bit_nc_planes": (2, 8, 8, 3),
    "turboquant_k3v4_nc_planes": (2, 16, 8, 3),
    "turboquant_3bit_nc_planes": (2, 16, 16, 3),
    "turboquant_k3v4_nc": (2, 16, 8, 3),
    "turboquant_3bit_nc": (2, 16, 16, 3),
    "ultraquant_4bit": (2, 32, 32, 2),
    "nvfp4": (2, 16, 16, 3),
    "nvfp4_swizzled": (2, 64, 64, 4),
    "nvfp4_per_head": (2, 16, 16, 3),
    "fp8_ds_mla": (1, 576, 0, 2),
    "nvfp4_ds_mla": (1, 576, 0, 2),
    "deepseek_v4": (1, 512, 0, 2),
    "deepseek_v41_mxfp8": (1, 512, 0, 2),
    "deepseek_v41_nvfp4": (1, 512, 0, 2),
    "indexer_fp8": (1, 128, 0, 3),
    "indexer_fp8_ue8m0": (1, 128, 0, 3),
    "state_bf16_fp32": (1, 6, 5, 4),
    "state_bf16": (1, 3, 5, 4),
    "state_fp32": (1, 3, 5, 4),
    "fp32_cpu_vec": (2, 4, 4, 3),
    "bf16_cpu_vec": (2, 4, 4, 3),
    "fp8_e4m3_cpu_vec": (2, 4, 4, 3),
    "fp8_e5m2_cpu_vec": (2, 4, 4, 3),
    "bf16_cpu_amx": (1, 32, 32, 32),
    "fp8_e4m3_cpu_amx": (1, 32, 32, 32),
    "fp8_e5m2_cpu_amx": (1, 32, 32, 32),
    "bf16_rocm": (2, 8, 8, 3),
    "fp8_e4m3_rocm": (2, 16, 16, 3),
    "fp8_e4m3fnuz_rocm": (2, 16, 16, 3),
    "bf16_aiter": (2, 8, 8, 8),
    "fp8_e4m3_aiter": (2, 16, 16, 16),
    "fp8_e4m3fnuz_aiter": (2, 16, 16, 16),
}
_COMMON_SHAPE = (2, 8, 4, 3)
_LARGE = 512

_PLAIN = LayerSet(2, 2, 8, 4, "bf16")
_PADDED = replace(_PLAIN, page_bytes=160)
_INT4 = LayerSet(2, 2, 16, 8, "int4_per_token_head")


def default_cases(seed: int) -> list[Case]:
    """All of the default set; a seed chooses slots, values and orders, never what is covered."""
    found = {**_formats(seed), **_orders(), **_arrangements(), **_refused()}
    return [
        Case(name, note, geometry, scripted(Prng(derive(seed, "vectors", name))))
        for name, (note, geometry) in found.items()
    ]


def _formats(seed: int) -> Geometries:
    found = {}
    for page_format in PAGE_FORMATS:
        heads, key, value, slots = _SHAPES.get(page_format, _COMMON_SHAPE)
        layers = LayerSet(1 if key >= _LARGE else 2, heads, key, value, page_format)
        if page_format.startswith(("fp8_e", "nvfp4")):
            layers = replace(layers, k_scale=0.5, v_scale=1.25)
        pool = _pool(_group(layers, slots=slots))
        orders = orders_of(draft_of(pool).groups)
        order = pick(Prng(derive(seed, "order", page_format)), orders)
        name = f"format-{page_format.replace('_', '-')}"
        found[name] = f"{page_format} in {order}", replace(pool, order=order)
    return found


def _orders() -> Geometries:
    found = {}
    for order in ORDERS:
        both = _group(replace(_PLAIN, kv_heads=3), replace(_PLAIN, page_format="fp32"))
        found[f"order-{order.lower()}"] = f"two layer sets in {order}", _pool(both, order=order)
        split = _pool(_group(_INT4), order=order, kv_split=True)
        found[f"split-{order.lower()}"] = f"key half and value half in {order}", split
    return found


def _arrangements() -> Geometries:
    """Whatever else a geometry has: padding, overlays, kernel blocks, chunks, side buffers."""
    plain, padded = _group(_PLAIN), _group(_PADDED)
    three = _group(_PLAIN, replace(_PLAIN, layers=1, page_format="fp32"))
    per_head = _group(LayerSet(1, 2, 16, 16, "nvfp4_per_head"), slots=4, kernel=2)
    keys = _group(_PLAIN, LayerSet(1, 1, 128, 0, "indexer_fp8", side=True))
    states = _group(LayerSet(2, 1, 6, 5, "state_bf16_fp32", page_bytes=144))
    shared = replace(_group(_PLAIN, slots=10), tokens_per_state=4)
    logical = _BLOCKS * 288
    return {
        "padded-pages": (
            "padding, a base offset and a tail",
            _pool(padded, order="LBNHC", base_offset_bytes=64, tail_alignment=256),
        ),
        "padded-in-blocks": (
            "padding inside the block",
            _pool(_group(_PADDED, _PLAIN), order="BLNHC"),
        ),
        "given-storage": (
            "a storage as its allocator gives it",
            _pool(plain, logical_bytes=logical, physical_bytes=logical + 23),
        ),
        "overlay": (
            "two groups over the same bytes",
            _pool(three, _group(_PADDED, slots=2), order="BLHNC"),
        ),
        "kernel-blocks": (
            "two kernel blocks in a block",
            _pool(_group(_PLAIN, slots=4, kernel=2)),
        ),
        "kernel-blocks-per-head": ("each kernel block a page of its own", _pool(per_head)),
        "host-chunks": (
            "three blocks a host row, rows aligned",
            _pool(plain, host=Host(8192, chunk_blocks=3, row_alignment=64)),
        ),
        "side-buffer": ("index keys behind the blocks", _pool(keys)),
        "side-buffer-in-blocks": ("layers inside blocks", _pool(keys, order="BLHNC")),
        "states-over-tokens": ("padded states over pages of tokens", _pool(plain, states)),
        "tokens-that-share": ("two slots for ten tokens", _pool(shared)),
        "one-block": ("nothing has a block stride", replace(_pool(plain), blocks=1)),
    }


def _refused() -> Geometries:
    """One geometry for each reason."""
    split = _group(replace(_PLAIN, page_bytes=256), slots=4, kernel=2)
    found = {
        "cell": _pool(_group(replace(_INT4, head_size_k=3))),
        "layout": _pool(_group(LayerSet(1, 2, 16, 16, "nvfp4")), order="LHBNC"),
        "page": _pool(_group(replace(_PLAIN, page_bytes=100))),
        "padding": _pool(_group(_PADDED), order="BHLNC"),
        "overlay": _pool(_group(_PLAIN), _group(replace(_PLAIN, page_format="fp32"))),
        "kernel_split": _pool(split),
        "alignment": _pool(_group(_PLAIN), base_offset_bytes=1),
        "pool_size": _pool(_group(_PLAIN), physical_bytes=1),
        "host": _pool(_group(_PLAIN), host=Host(1)),
    }
    return {
        f"refused-{reason.replace('_', '-')}": (f"refused for {reason}", geometry)
        for reason, geometry in found.items()
    }


def _group(*sets: LayerSet, slots: int = 3, kernel: int | None = None) -> Group:
    return Group(slots, kernel or slots, sets)


def _pool(*groups: Group, host: Host = _HOST, **more: Any) -> Geometry:
    return Geometry(groups, _BLOCKS, host, **more)
