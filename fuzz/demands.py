"""What page formats ask of sizes and orders, so that most of what is drawn can be.

A mistake here draws too little or too much that is refused; verdicts are the model's and the
target's.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvexact.fuzz.dimensions import GroupDraft, LayerSetDraft
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS


@dataclass(frozen=True, slots=True)
class Demand:
    """Sizes that a format takes.

    Attributes:
        key, value: their sizes are multiples of these; units of scales count.
        equal: key and value have one size, a power of two where ``power``.
        fixed: the only sizes of key and value.
        slots: slots of a kernel block are a multiple of this.
        one_head: a layer has one head.
        whole_page: heads must not lie outside of a page.
        heads_first: nor slots outside of heads.
        splits: keys and values may lie in halves.
    """

    key: int = 1
    value: int = 1
    equal: bool = False
    power: bool = False
    fixed: tuple[int, int] | None = None
    slots: int = 1
    one_head: bool = False
    whole_page: bool = False
    heads_first: bool = False
    splits: bool = False


_PLAIN = Demand(splits=True)
_LATENT = Demand(one_head=True, fixed=(512, 0), whole_page=True)
_STATE = Demand(key=2, one_head=True, splits=True)
_NVFP4 = Demand(16, 16, equal=True, whole_page=True)
_ARRAYS = Demand(equal=True, whole_page=True, heads_first=True)
_AMX = replace(_ARRAYS, key=32, value=32, slots=32)
_PLANES = replace(_ARRAYS, key=8, value=8)
_FP8_PLANES = replace(_ARRAYS, key=16, value=16)

DEMANDS: dict[str, Demand] = {
    **dict.fromkeys(("fp32", "fp16", "bf16"), _PLAIN),
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz"), _PLAIN),
    **dict.fromkeys(("fp8_e4m3_truncated", "fp8_e5m2_truncated"), _PLAIN),
    "int8_per_token_head": Demand(4, 4, splits=True),
    "fp8_per_token_head": Demand(4, 4, splits=True),
    "fp8_fnuz_per_token_head": Demand(4, 4, splits=True),
    "int4_per_token_head": Demand(8, 8, splits=True),
    "turboquant_k8v4": Demand(1, 2),
    "turboquant_4bit_nc": Demand(2, 2),
    "turboquant_k3v4_nc": Demand(8, 2),
    "turboquant_3bit_nc": Demand(8, 8),
    "turboquant_k8v4_planes": Demand(2, 4, whole_page=True),
    "turboquant_4bit_nc_planes": Demand(4, 4, whole_page=True),
    "turboquant_k3v4_nc_planes": Demand(16, 4, whole_page=True),
    "turboquant_3bit_nc_planes": Demand(16, 16, whole_page=True),
    "ultraquant_4bit": Demand(32, 32, equal=True, power=True),
    "nvfp4": _NVFP4,
    "nvfp4_swizzled": replace(_NVFP4, key=64, value=64, slots=4),
    "nvfp4_per_head": replace(_NVFP4, heads_first=True),
    "fp8_ds_mla": Demand(one_head=True, fixed=(576, 0)),
    "nvfp4_ds_mla": Demand(one_head=True, fixed=(576, 0)),
    "deepseek_v4": _LATENT,
    "deepseek_v41_mxfp8": _LATENT,
    "deepseek_v41_nvfp4": _LATENT,
    "indexer_fp8": replace(_LATENT, fixed=(128, 0)),
    "indexer_fp8_ue8m0": replace(_LATENT, fixed=(128, 0)),
    **dict.fromkeys(("state_bf16_fp32", "state_bf16", "state_fp32"), _STATE),
    **dict.fromkeys(("fp32_cpu_vec", "bf16_cpu_vec"), _ARRAYS),
    **dict.fromkeys(("fp8_e4m3_cpu_vec", "fp8_e5m2_cpu_vec"), _ARRAYS),
    **dict.fromkeys(("bf16_cpu_amx", "fp8_e4m3_cpu_amx", "fp8_e5m2_cpu_amx"), _AMX),
    "bf16_rocm": _PLANES,
    **dict.fromkeys(("fp8_e4m3_rocm", "fp8_e4m3fnuz_rocm"), _FP8_PLANES),
    "bf16_aiter": replace(_PLANES, slots=8),
    **dict.fromkeys(("fp8_e4m3_aiter", "fp8_e4m3fnuz_aiter"), replace(_FP8_PLANES, slots=16)),
}

STATES = tuple(name for name in PAGE_FORMATS if name.startswith("state_"))
LATENTS = tuple(name for name, demand in DEMANDS.items() if demand.fixed)
#: Formats of raw writes only.
RAW_ONLY = tuple(name for name in PAGE_FORMATS if "_nc" in name)


def fitted(layers: LayerSetDraft) -> LayerSetDraft:
    """The same layer set with the nearest sizes that its format takes."""
    demand = DEMANDS[layers.page_format]
    heads = 1 if demand.one_head else layers.kv_heads
    if demand.fixed:
        key, value = demand.fixed
    else:
        key = _multiple(layers.head_size_k, demand.key)
        if demand.power:
            key = 1 << (key.bit_length() - 1)
        value = layers.head_size_v and _multiple(layers.head_size_v, demand.value)
        if demand.equal:
            value = key
    return replace(layers, kv_heads=heads, head_size_k=key, head_size_v=value)


def fitted_group(group: GroupDraft) -> GroupDraft:
    """The same group with sizes that its formats take, and at least one slot in a kernel block."""
    tokens = slot_tokens(group)
    size = group.kernel_block_size
    whole = max(tokens, size - size % tokens)
    sets = tuple(map(fitted, group.layer_sets))
    return replace(group, kernel_block_size=whole, layer_sets=sets)


def slot_tokens(group: GroupDraft) -> int:
    """Tokens of which a kernel block has a multiple."""
    slots = max(DEMANDS[layers.page_format].slots for layers in group.layer_sets)
    return slots * group.tokens_per_state if group.tokens_per_state > 1 or slots > 1 else 1


def orders_of(groups: Iterable[GroupDraft]) -> tuple[str, ...]:
    """Physical orders that can hold what these groups store, padding too."""
    orders = list(ORDERS)
    for group in groups:
        for layers in group.layer_sets:
            demand = DEMANDS[layers.page_format]
            if layers.kv_heads == 1:
                continue
            if demand.whole_page or layers.padding_bytes > 0:
                orders = [order for order in orders if order not in ("LHBNC", "BHLNC")]
            if demand.heads_first and group.kernel_block_size > 1:
                orders = [order for order in orders if not order.endswith("NHC")]
    return tuple(orders)


def splits(groups: Iterable[GroupDraft]) -> bool:
    """Whether pages of these groups may hold keys before values."""
    sets = [layers for group in groups for layers in group.layer_sets]
    return all(DEMANDS[layers.page_format].splits for layers in sets)


def is_state(layers: LayerSetDraft) -> bool:
    """Whether its pages hold one state each."""
    return layers.page_format in STATES


def _multiple(size: int, of: int) -> int:
    return max(of, size - size % of)
