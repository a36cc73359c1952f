"""Families: named generators of geometries and op weights.

A family is the unit of test items, budgets and vacuity counts. Most dimensions are drawn small,
coprime and colliding ones alike; at times one of them is large; then everything else shrinks to the
byte budget.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kvexact.fuzz.budget import BUDGET_BYTES, LARGE_BUDGET_BYTES, fit
from kvexact.fuzz.choose import Chooser, chance, pick, weighted
from kvexact.fuzz.dimensions import VALUES, Draft, GroupDraft, LayerSetDraft, build
from kvexact.refmodel.spec import ORDERS, Geometry

#: How often a family draws for a target before it gives up.
_DRAWS_MOST = 200

_LAYERS = (1, 2, 3)
_HEADS = (1, 2, 3, 4)
_HEAD_SIZES = (4, 8, 12, 16, 20, 32)
_KERNEL_BLOCKS = (1, 2, 3, 4, 5, 8)
_BLOCKS = (4, 5, 7, 9, 13, 17)
_FORMATS = VALUES["page_format"]
_PAD = (4, 8, 12, 16, 32, 64, 256)

#: How often each op is drawn, in a hundred or so.
WEIGHTS: Mapping[str, int] = {
    "allocate": 15,
    "free": 9,
    "write_tokens": 20,
    "zero": 7,
    "copy_blocks": 9,
    "offload": 13,
    "restore": 13,
    "read": 7,
    "evict": 5,
    "reset": 1,
}


@dataclass(frozen=True, slots=True)
class Family:
    """A named generator.

    Attributes:
        draw: draws a geometry.
        weights: how often each op is drawn; empty for a family that only plans.
        illegal_percent: how often an op is drawn to be refused.
        batch_percent: how often a transfer is so large that fast paths for batches may begin.
        summary: what this family is there to meet.
    """

    name: str
    draw: Callable[[Chooser], Geometry]
    summary: str
    weights: Mapping[str, int] = field(default_factory=lambda: WEIGHTS)
    illegal_percent: int = 4
    batch_percent: int = 5

    @property
    def plans_only(self) -> bool:
        return not self.weights

    def draw_fitting(self, chooser: Chooser, fits: Callable[[Geometry], bool]) -> Geometry:
        """The first of many geometries that fits a target, or one that does not."""
        for _ in range(_DRAWS_MOST):
            geometry = self.draw(chooser)
            if fits(geometry):
                break
        return geometry


def _draw_set(chooser: Chooser) -> LayerSetDraft:
    head_size = pick(chooser, _HEAD_SIZES)
    unequal = chance(chooser, 25)
    return LayerSetDraft(
        pick(chooser, _LAYERS),
        pick(chooser, _HEADS),
        head_size,
        pick(chooser, (0, *_HEAD_SIZES)) if unequal else head_size,
        pick(chooser, _FORMATS),
    )


def _draw_group(chooser: Chooser, sets: int = 1) -> GroupDraft:
    return GroupDraft(
        pick(chooser, _KERNEL_BLOCKS),
        layer_sets=tuple(_draw_set(chooser) for _ in range(sets)),
    )


def _draw_pool(chooser: Chooser, *groups: GroupDraft) -> Draft:
    return Draft(
        groups,
        pick(chooser, _BLOCKS),
        pick(chooser, ORDERS),
        kv_split=chance(chooser, 30),
        tail_alignment=pick(chooser, (1, 1, 256, 4096)),
        host_rows=pick(chooser, (2, 3, 4, 5, 8)),
        host_spare_bytes=pick(chooser, (0, 0, 1)),
    )


def one_group(chooser: Chooser) -> Geometry:
    """One group of one shape, dense, in any order."""
    draft = _draw_pool(chooser, _draw_group(chooser))
    return fit(chooser, draft)


def padded(chooser: Chooser) -> Geometry:
    """Pages with padding, views with a base offset, pools with a tail."""
    group = _draw_group(chooser)
    draft = _draw_pool(chooser, group)
    if chance(chooser, 80):
        layers = replace(group.layer_sets[0], padding_bytes=pick(chooser, _PAD))
        draft = replace(draft, groups=(replace(group, layer_sets=(layers,)),))
        if layers.kv_heads > 1 and draft.order in ("LHBNC", "BHLNC"):
            draft = replace(draft, order=pick(chooser, ("LBHNC", "LBNHC", "BLHNC", "BLNHC")))
    draft = replace(
        draft,
        base_offset_bytes=pick(chooser, (0, 4, 256, 576, 8640)),
        physical_excess_bytes=pick(chooser, (None, None, 0, 1, 32, 2816, 4095)),
        logical_excess_bytes=pick(chooser, (None, None, 0)),
    )
    return fit(chooser, draft)


def mixed(chooser: Chooser) -> Geometry:
    """Several layer sets of other shapes in one group: unequal pages in one block."""
    group = _draw_group(chooser, sets=2 + chooser.below(2))
    draft = _draw_pool(chooser, group)
    return fit(chooser, draft)


def overlay(chooser: Chooser) -> Geometry:
    """Several groups with other block and page sizes over the same bytes."""
    groups = [_draw_group(chooser, sets=1 + chooser.below(2)) for _ in range(2 + chooser.below(2))]
    draft = _draw_pool(chooser, *groups)
    if draft.order[0] == "L":
        if chance(chooser, 50):
            draft = replace(draft, order=pick(chooser, ("BLHNC", "BLNHC", "BHLNC")))
        else:
            draft = _equal_pages(chooser, draft)
    return fit(chooser, draft)


def kernel_split(chooser: Chooser) -> Geometry:
    """Manager blocks of several kernel blocks, where kernel blocks have one stride."""
    parts = pick(chooser, (2, 3, 4, 33))
    size = pick(chooser, (1, 2, 3, 4) if parts < 33 else (1, 2))
    group = replace(_draw_group(chooser), kernel_block_size=size, kernel_parts=parts)
    draft = replace(_draw_pool(chooser, group), order=pick(chooser, ("LBHNC", "LBNHC", "LHBNC")))
    if chance(chooser, 25):
        single = replace(group.layer_sets[0], layers=1)
        order = pick(chooser, ("BLHNC", "BLNHC", "BHLNC"))
        draft = replace(draft, groups=(replace(group, layer_sets=(single,)),), order=order)
    elif chance(chooser, 25):
        other = replace(group, kernel_block_size=size * parts, kernel_parts=1)
        draft = replace(draft, groups=(group, other))
    return fit(chooser, draft)


def chunked(chooser: Chooser) -> Geometry:
    """Host chunks of several blocks, aligned rows."""
    groups = [_draw_group(chooser, sets=1 + chooser.below(2)) for _ in range(1 + chooser.below(2))]
    draft = replace(
        _draw_pool(chooser, *groups),
        chunk_blocks=pick(chooser, (2, 3, 4, 8, 33)),
        row_alignment=pick(chooser, (1, 64, 512, 4096)),
        host_rows=pick(chooser, (1, 2, 3, 5)),
        host_spare_bytes=pick(chooser, (0, 1, 4095)),
    )
    if len(groups) > 1 and draft.order[0] == "L":
        draft = replace(draft, order=pick(chooser, ("BLHNC", "BLNHC", "BHLNC")))
    return fit(chooser, draft)


def batch(chooser: Chooser) -> Geometry:
    """Transfers of 15, 16, 17 and more descriptors, runs on both sides of fast paths' gates."""
    near_gate = chance(chooser, 4)
    head_size = pick(chooser, (3576, 3584, 3592)) if near_gate else pick(chooser, (3, 4, 5, 8, 12))
    layers = LayerSetDraft(
        pick(chooser, (1, 2)),
        1 if near_gate else pick(chooser, (1, 2)),
        head_size,
        head_size,
        "fp8_e4m3" if near_gate else pick(chooser, _FORMATS),
    )
    group = GroupDraft(4 if near_gate else pick(chooser, (1, 2, 3)), layer_sets=(layers,))
    draft = replace(
        _draw_pool(chooser, group),
        blocks=pick(chooser, (17, 18, 24)),
        host_rows=18,
        chunk_blocks=pick(chooser, (1, 1, 2)),
    )
    return fit(chooser, draft, budget_bytes=LARGE_BUDGET_BYTES if near_gate else BUDGET_BYTES)


def refusals(chooser: Chooser) -> Geometry:
    """Small geometries on which many ops are illegal."""
    kind = pick(chooser, (one_group, overlay, chunked))
    return kind(chooser)


def planning(chooser: Chooser) -> Geometry:
    """Any values together, at real sizes, on paper; about half of them refused."""
    groups = []
    for _ in range(1 + weighted(chooser, (6, 3, 1))):
        sets = tuple(_any_set(chooser) for _ in range(1 + weighted(chooser, (6, 3, 1))))
        groups.append(
            GroupDraft(
                pick(chooser, VALUES["kernel_block_size"]),
                pick(chooser, VALUES["kernel_parts"]) if chance(chooser, 30) else 1,
                pick(chooser, VALUES["ragged_tokens"]) if chance(chooser, 3) else 0,
                sets,
            )
        )
    draft = Draft(
        tuple(groups),
        pick(chooser, (*VALUES["blocks"], 42072, 89067, 2**31 // 4096)),
        pick(chooser, ORDERS),
        kv_split=chance(chooser, 30),
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
        draft = _equal_pages(chooser, draft)
    return build(draft)


def _any_set(chooser: Chooser) -> LayerSetDraft:
    head_size = pick(chooser, VALUES["head_size_k"])
    return LayerSetDraft(
        pick(chooser, VALUES["layers"]),
        pick(chooser, VALUES["kv_heads"]),
        head_size,
        pick(chooser, VALUES["head_size_v"]) if chance(chooser, 30) else head_size,
        pick(chooser, _FORMATS),
        pick(chooser, VALUES["padding_bytes"]) if chance(chooser, 20) else 0,
    )


def _sometimes(chooser: Chooser, name: str) -> int | None:
    value: int | None = pick(chooser, VALUES[name]) if chance(chooser, 15) else None
    return value


def _equal_pages(chooser: Chooser, draft: Draft) -> Draft:
    """Groups that agree about their pages: heads and tokens may trade places, layers may differ."""
    first = draft.groups[0]
    layers = first.layer_sets[0]
    groups = [replace(first, layer_sets=(layers,))]
    for _ in draft.groups[1:]:
        tokens, heads = first.kernel_block_size, layers.kv_heads
        if draft.order != "LHBNC" and chance(chooser, 60):
            tokens, heads = heads, tokens
        shape = replace(layers, kv_heads=heads, layers=pick(chooser, _LAYERS))
        groups.append(replace(first, kernel_block_size=tokens, layer_sets=(shape,)))
    return replace(draft, groups=tuple(groups))


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("one_group", one_group, "one group of one shape, every order and format"),
        Family("padded", padded, "page padding, base offsets, pool tails"),
        Family("mixed", mixed, "unequal pages in one block"),
        Family("overlay", overlay, "groups over the same bytes"),
        Family("kernel_split", kernel_split, "several kernel blocks in a manager block"),
        Family("chunked", chunked, "several blocks in a host chunk"),
        Family(
            "batch",
            batch,
            "many descriptors, both sides of the fast path's gates",
            batch_percent=40,
        ),
        Family("refusals", refusals, "illegal ops", illegal_percent=45),
        Family("planning", planning, "facts and refusals at real sizes", weights={}),
    )
}
