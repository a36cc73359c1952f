"""Geometries of raw writes: every layout, with any format's pages in it.

Most dimensions are drawn small; at times one of them is large; then everything else shrinks to the
byte budget.
"""

from dataclasses import replace
from functools import partial

from kvexact.fuzz.budget import BUDGET_BYTES, LARGE_BUDGET_BYTES, fit
from kvexact.fuzz.choose import Chooser, chance, pick, weighted
from kvexact.fuzz.demands import RAW_ONLY, fitted, fitted_group
from kvexact.fuzz.dimensions import Draft, GroupDraft, LayerSetDraft
from kvexact.fuzz.drawing import (
    draw_format,
    draw_group,
    draw_pool,
    draw_set,
    equal_pages,
    padded_to,
)
from kvexact.refmodel.spec import Geometry

_PAD = (4, 8, 12, 16, 32, 64, 256)
_B_ORDERS = ("BLHNC", "BLNHC", "BHLNC")


def one_group(chooser: Chooser) -> Geometry:
    """One group of one shape, dense, in any order."""
    return fit(chooser, draw_pool(chooser, draw_group(chooser)))


def padded(chooser: Chooser) -> Geometry:
    """Pages with padding, views with a base offset, pools with a tail."""
    group = draw_group(chooser)
    if chance(chooser, 80):
        layers = replace(group.layer_sets[0], padding_bytes=pick(chooser, _PAD))
        group = replace(group, layer_sets=(layers,))
    draft = replace(
        draw_pool(chooser, group),
        base_offset_bytes=pick(chooser, (0, 4, 256, 576, 8640)),
        physical_excess_bytes=pick(chooser, (None, None, 0, 1, 32, 2816, 4095)),
        logical_excess_bytes=pick(chooser, (None, None, 0)),
    )
    return fit(chooser, draft)


def mixed(chooser: Chooser) -> Geometry:
    """Several layer sets of other shapes in one group: unequal pages in one block."""
    draft = draw_pool(chooser, draw_group(chooser, sets=2 + chooser.below(2)))
    return _fit_aligned(chooser, draft)


def _fit_aligned(chooser: Chooser, draft: Draft) -> Geometry:
    """Mostly with pages that leave the next one aligned, as a last resort by padding."""
    finish = partial(padded_to, multiple=4)
    return fit(chooser, draft, finish=finish) if chance(chooser, 70) else fit(chooser, draft)


def overlay(chooser: Chooser) -> Geometry:
    """Several groups with other block and page sizes over the same bytes."""
    groups = [draw_group(chooser, sets=1 + chooser.below(2)) for _ in range(2 + chooser.below(2))]
    draft = draw_pool(chooser, *groups)
    if draft.order[0] != "L":
        return _fit_aligned(chooser, draft)
    if chance(chooser, 50):
        return _fit_aligned(chooser, draw_pool(chooser, *groups, orders=_B_ORDERS))
    return fit(chooser, equal_pages(chooser, draft))


def kernel_split(chooser: Chooser) -> Geometry:
    """Manager blocks of several kernel blocks, where kernel blocks have one stride."""
    parts = pick(chooser, (2, 3, 4, 33))
    size = pick(chooser, (1, 2, 3, 4) if parts < 33 else (1, 2))
    drawn = draw_group(chooser, states=False)
    group = fitted_group(replace(drawn, kernel_block_size=size, kernel_parts=parts))
    draft = draw_pool(chooser, group, orders=("LBHNC", "LBNHC", "LHBNC"))
    if chance(chooser, 25):
        single = replace(group.layer_sets[0], layers=1)
        group = replace(group, layer_sets=(single,))
        draft = draw_pool(chooser, group, orders=_B_ORDERS)
    elif chance(chooser, 25):
        size = group.kernel_block_size * parts
        other = replace(group, kernel_block_size=size, kernel_parts=1)
        draft = replace(draft, groups=(group, other))
    return fit(chooser, draft)


def chunked(chooser: Chooser) -> Geometry:
    """Host chunks of several blocks, aligned rows."""
    groups = [draw_group(chooser, sets=1 + chooser.below(2)) for _ in range(1 + chooser.below(2))]
    draft = draw_pool(chooser, *groups)
    if len(groups) > 1 and draft.order[0] == "L":
        draft = draw_pool(chooser, *groups, orders=_B_ORDERS)
    draft = replace(
        draft,
        chunk_blocks=pick(chooser, (2, 3, 4, 8, 33)),
        row_alignment=pick(chooser, (1, 64, 512, 4096)),
        host_rows=pick(chooser, (1, 2, 3, 5)),
        host_spare_bytes=pick(chooser, (0, 1, 4095)),
    )
    return _fit_aligned(chooser, draft)


def batch(chooser: Chooser) -> Geometry:
    """Transfers of 15, 16, 17 and more descriptors, runs on both sides of fast paths' gates."""
    if chance(chooser, 4):
        near, far = (3576, 3584, 3592), (8184, 8192, 8200)
        head_size = pick(chooser, near if chance(chooser, 75) else far)
        layers = LayerSetDraft(pick(chooser, (1, 2)), 1, head_size, head_size)
        group, budget = GroupDraft(4, layer_sets=(layers,)), LARGE_BUDGET_BYTES
    elif chance(chooser, 4):  # pages shorter than any wide access
        layers = LayerSetDraft(pick(chooser, (1, 2)), 1, 1, pick(chooser, (1, 2)))
        group, budget = GroupDraft(1, layer_sets=(layers,)), BUDGET_BYTES
    else:
        drawn = draw_set(chooser, draw_format(chooser))
        small = pick(chooser, (3, 4, 5, 8, 12))
        layers = replace(
            drawn,
            layers=pick(chooser, (1, 2)),
            kv_heads=pick(chooser, (1, 2)),
            head_size_k=small,
            head_size_v=small,
        )
        group = GroupDraft(pick(chooser, (1, 2, 3)), layer_sets=(fitted(layers),))
        group, budget = fitted_group(group), BUDGET_BYTES
    draft = replace(
        draw_pool(chooser, group),
        blocks=pick(chooser, (17, 18, 24)),
        base_offset_bytes=pick(chooser, (0,) * 14 + (1, 4)),
        host_rows=18,
        chunk_blocks=pick(chooser, (1, 1, 2)),
    )
    return fit(chooser, draft, budget_bytes=budget)


def refusals(chooser: Chooser) -> Geometry:
    """Small geometries on which many ops are illegal, raw-only formats among them."""
    if chance(chooser, 20):
        sets = [draw_set(chooser, pick(chooser, RAW_ONLY))]
        if chance(chooser, 40):
            sets.insert(0, draw_set(chooser, draw_format(chooser)))
        raw = fitted_group(replace(draw_group(chooser), layer_sets=tuple(sets)))
        groups = (raw, draw_group(chooser))[: 1 + weighted(chooser, (1, 1))]
        return _fit_aligned(chooser, draw_pool(chooser, *groups, orders=_B_ORDERS))
    return pick(chooser, (one_group, overlay, chunked))(chooser)
