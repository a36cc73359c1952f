"""Geometries on paper, at real sizes: any values together, about half of them refused."""

from dataclasses import replace

from kvexact.fuzz.choose import Chooser, chance, pick, weighted
from kvexact.fuzz.demands import fitted_group, orders_of, splits
from kvexact.fuzz.dimensions import VALUES, Draft, GroupDraft, LayerSetDraft, build
from kvexact.fuzz.drawing import equal_pages
from kvexact.refmodel.spec import ORDERS, Geometry

#: Sizes of key and value that meet all but one demand of a format, which no multiple mends.
_BEYOND = (
    (1024, 8, "int4_per_token_head"),
    (8, 1024, "int4_per_token_head"),
    (1536, 1536, "int4_per_token_head"),
    (96, 96, "ultraquant_4bit"),
    (32, 64, "nvfp4"),
    (576, 64, "fp8_ds_mla"),
    (512, 512, "deepseek_v4"),
)


def planning(chooser: Chooser) -> Geometry:
    """Any values together; in most geometries each format's sizes are those that it takes."""
    fits = chance(chooser, 85)
    groups = []
    for _ in range(1 + weighted(chooser, (6, 3, 1))):
        group = _any_group(chooser)
        groups.append(fitted_group(group) if fits else group)
    orders = orders_of(groups) if fits and chance(chooser, 80) else ORDERS
    draft = Draft(
        tuple(groups),
        pick(chooser, (*VALUES["blocks"], 42072, 89067, 2**31 // 4096)),
        pick(chooser, orders or ORDERS),
        kv_split=chance(chooser, 30) and (splits(groups) or not fits),
        base_offset_bytes=pick(chooser, VALUES["base_offset_bytes"]) if chance(chooser, 20) else 0,
        tail_alignment=pick(chooser, VALUES["tail_alignment"]),
        logical_excess_bytes=_sometimes(chooser, "logical_excess_bytes"),
        physical_excess_bytes=_sometimes(chooser, "physical_excess_bytes"),
        host_rows=pick(chooser, (*VALUES["host_rows"], 1000)),
        host_spare_bytes=pick(chooser, VALUES["host_spare_bytes"]),
        chunk_blocks=pick(chooser, VALUES["chunk_blocks"]),
        row_alignment=pick(chooser, VALUES["row_alignment"]),
    )
    if len(groups) > 1 and draft.order[0] == "L" and chance(chooser, 60):
        draft = equal_pages(chooser, draft)
    return build(draft)


def _any_group(chooser: Chooser) -> GroupDraft:
    return GroupDraft(
        pick(chooser, VALUES["kernel_block_size"]),
        pick(chooser, VALUES["kernel_parts"]) if chance(chooser, 20) else 1,
        pick(chooser, VALUES["ragged_tokens"]) if chance(chooser, 3) else 0,
        tuple(_any_set(chooser) for _ in range(1 + weighted(chooser, (6, 3, 1)))),
        pick(chooser, VALUES["tokens_per_state"]) if chance(chooser, 15) else 1,
    )


def _any_set(chooser: Chooser) -> LayerSetDraft:
    if chance(chooser, 8):
        return LayerSetDraft(1, 1, *pick(chooser, _BEYOND))
    head_size = pick(chooser, VALUES["head_size_k"])
    drawn = LayerSetDraft(
        pick(chooser, VALUES["layers"]),
        pick(chooser, VALUES["kv_heads"]),
        head_size,
        pick(chooser, VALUES["head_size_v"]) if chance(chooser, 30) else head_size,
        pick(chooser, VALUES["page_format"]),
        pick(chooser, VALUES["padding_bytes"]) if chance(chooser, 20) else 0,
    )
    if chance(chooser, 10):
        drawn = replace(drawn, side=True)
    if chance(chooser, 5):
        scales = pick(chooser, VALUES["k_scale"]), pick(chooser, VALUES["v_scale"])
        drawn = replace(drawn, k_scale=scales[0], v_scale=scales[1])
    return drawn


def _sometimes(chooser: Chooser, name: str) -> int | None:
    value: int | None = pick(chooser, VALUES[name]) if chance(chooser, 15) else None
    return value
