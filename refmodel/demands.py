"""What a page format demands of sizes, order and slots: refusals "cell" and "layout"."""

from kvexact.refmodel.formats import FORMATS, cell_fields, is_state, kernel_slots
from kvexact.refmodel.spec import Geometry, Group, LayerSet, Refused

_EQUAL_SIZES = frozenset(
    {
        *("nvfp4", "nvfp4_swizzled", "nvfp4_per_head", "ultraquant_4bit"),
        *("fp32_cpu_vec", "bf16_cpu_vec", "fp8_e4m3_cpu_vec", "fp8_e5m2_cpu_vec"),
        *("bf16_cpu_amx", "fp8_e4m3_cpu_amx", "fp8_e5m2_cpu_amx"),
        *("bf16_rocm", "fp8_e4m3_rocm", "fp8_e4m3fnuz_rocm"),
        *("bf16_aiter", "fp8_e4m3_aiter", "fp8_e4m3fnuz_aiter"),
    }
)
_SIZE_MULTIPLES = {
    "nvfp4": 16,
    "nvfp4_swizzled": 64,
    "nvfp4_per_head": 16,
    "ultraquant_4bit": 32,
    "bf16_cpu_amx": 32,
    "fp8_e4m3_cpu_amx": 32,
    "fp8_e5m2_cpu_amx": 32,
    "bf16_rocm": 8,
    "fp8_e4m3_rocm": 16,
    "fp8_e4m3fnuz_rocm": 16,
    "bf16_aiter": 8,
    "fp8_e4m3_aiter": 16,
    "fp8_e4m3fnuz_aiter": 16,
}
#: The one shape of these: (heads, key size, value size).
_SHAPES = {
    "fp8_ds_mla": (1, 576, 0),
    "nvfp4_ds_mla": (1, 576, 0),
    "deepseek_v4": (1, 512, 0),
    "deepseek_v41_mxfp8": (1, 512, 0),
    "deepseek_v41_nvfp4": (1, 512, 0),
    "indexer_fp8": (1, 128, 0),
    "indexer_fp8_ue8m0": (1, 128, 0),
}
_SLOT_MULTIPLES = {
    "nvfp4_swizzled": 4,
    "bf16_cpu_amx": 32,
    "fp8_e4m3_cpu_amx": 32,
    "fp8_e5m2_cpu_amx": 32,
    "bf16_aiter": 8,
    "fp8_e4m3_aiter": 16,
    "fp8_e4m3fnuz_aiter": 16,
}
_LARGEST_ROTATION = 512


def check_cell(layers: LayerSet) -> None:
    """Raise `Refused` with reason "cell" where the sizes do not fit the format."""
    cell_fields(layers)
    name, key, value = layers.page_format, layers.head_size_k, layers.head_size_v
    heads = layers.kv_heads
    multiple = _SIZE_MULTIPLES.get(name, 1)
    shape = _SHAPES.get(name, (heads, key, value))
    if name in _EQUAL_SIZES and key != value:
        _refuse_cell(f"{name} has a key size of {key} and a value size of {value}", "equal sizes")
    if key % multiple:
        _refuse_cell(f"{name} has a head size of {key}", f"a multiple of {multiple}")
    if name == "ultraquant_4bit" and key & (key - 1):
        _refuse_cell(f"{name} rotates a head of {key}", "a power of two")
    for size in (key, value):
        if name == "int4_per_token_head" and size and size % (2 * _LARGEST_ROTATION) == 0:
            _refuse_cell(
                f"{name} would rotate a head of {size} in blocks of more than {_LARGEST_ROTATION}",
                f"a size that is no multiple of {2 * _LARGEST_ROTATION}",
            )
    if (heads, key, value) != shape:
        _refuse_cell(
            f"{name} has {heads} heads, a key size of {key} and a value size of {value}",
            f"{shape[0]} head, {shape[1]} and {shape[2]}",
        )
    if is_state(name) and heads > 1:
        _refuse_cell(f"a page of {name} is one state, but has {heads} heads", "one head")


def _refuse_cell(what: str, fix: str) -> None:
    raise Refused("cell", f"{what}; use {fix}")


def heads_outside(order: str) -> bool:
    """Whether heads lie outside the inner one of layers and blocks, so that pages are spread."""
    return order.index("H") < max(order.index("L"), order.index("B"))


def check_layout(geometry: Geometry, group: Group, layers: LayerSet) -> None:
    """Raise `Refused` with reason "layout" where order, split, slots or group cannot hold this."""
    name, heads, order = layers.page_format, layers.kv_heads, geometry.order
    found = FORMATS[name]
    slots = kernel_slots(group, layers)
    multiple = _SLOT_MULTIPLES.get(name, 1)
    others = [other.page_format for other in group.layer_sets]
    mixed = [other for other in others if is_state(other) != is_state(name)]
    if mixed:
        _refuse_layout(f"a group has pages of {name} and of {mixed[0]}", "a group for the states")
    if geometry.kv_split and not found.halves:
        _refuse_layout(f"{name} has no key half and value half", "kv_split False")
    if not found.is_row and heads > 1 and heads_outside(order):
        _refuse_layout(
            f"{order} spreads the {heads} heads of a page, but {name} has regions in it",
            "an order with heads inside layers and blocks",
        )
    slots_outside = order.index("N") < order.index("H")
    all_per_head = len(found.per_head) == len(found.regions)
    if all_per_head and heads > 1 and slots > 1 and slots_outside:
        _refuse_layout(
            f"{order} has slots outside heads, but {name} keeps the {slots} slots of each of "
            f"{heads} heads together",
            "an order with heads outside slots",
        )
    if slots % multiple:
        _refuse_layout(
            f"{name} tiles {multiple} slots, but a kernel block has {slots}",
            f"a multiple of {multiple}",
        )


def _refuse_layout(what: str, fix: str) -> None:
    raise Refused("layout", f"{what}; use {fix}")
