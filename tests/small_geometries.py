"""Small geometries drawn from fixed seeds, with the model's verdict on each."""

import random
from dataclasses import dataclass, replace
from functools import cache

from bruteforce import block_bytes, content_of, group_bytes, page_of

from kvexact.refmodel.plan import Plan, plan
from kvexact.refmodel.spec import PAGE_FORMATS, ORDERS, Geometry, Group, Host, LayerSet, Refused

CASES = 900


def draw_shape(rng: random.Random, fmt: str) -> LayerSet:
    """A small layer set; sizes collide and are coprime in turn."""
    step = 1
    if fmt.endswith("per_token_head") and rng.random() < 0.8:
        step = 8 if fmt.startswith("int4") else 4
    return LayerSet(
        layers=rng.choice((1, 1, 2, 3)),
        kv_heads=rng.choice((1, 1, 2, 3)),
        head_size_k=step * rng.randint(1, 4),
        head_size_v=step * rng.choice((0, 1, 2, 3)),
        page_format=fmt,
    )


def draw_group(rng: random.Random, fmts: list[str]) -> Group:
    block_size = rng.choice((1, 2, 3, 4, 6))
    divisors = [n for n in range(1, block_size) if block_size % n == 0]
    kernel = rng.choice(divisors) if divisors and rng.random() < 0.3 else block_size
    if rng.random() < 0.03:
        kernel = rng.randint(1, 7)
    return Group(block_size, kernel, tuple(draw_shape(rng, fmt) for fmt in fmts))


def pad(rng: random.Random, group: Group, page: int) -> Group:
    """Raise pages to ``page``, where they fit; else by a few bytes."""
    shapes = []
    for shape in group.layer_sets:
        content = content_of(group, shape)
        raised = page if content <= page else content + rng.choice((0, 1, 4, 8))
        shapes.append(replace(shape, page_bytes=max(raised, 1)))
    return replace(group, layer_sets=tuple(shapes))


def draw(seed: int) -> Geometry:
    """A small geometry, legal more often than not."""
    rng = random.Random(f"marking {seed}")
    order = rng.choice(ORDERS)
    fmt = rng.choice(PAGE_FORMATS)
    groups = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        fmts = [fmt if rng.random() < 0.7 else rng.choice(PAGE_FORMATS)]
        fmts *= rng.choice((1, 1, 1, 2))
        groups.append(draw_group(rng, fmts))
    how = rng.random()
    if how < 0.35:  # groups of one shape, of other depths
        first = groups[0]
        for i, group in enumerate(groups):
            layers = group.layer_sets[0].layers
            same = (replace(first.layer_sets[0], layers=layers), *first.layer_sets[1:])
            groups[i] = replace(first, layer_sets=same if len(same) == 1 else first.layer_sets)
    elif how < 0.65:  # padded to one page
        pages = [page_of(group, shape) for group in groups for shape in group.layer_sets]
        page = max(pages) + rng.choice((0, 0, 4, 8, 8, 1))
        groups = [pad(rng, group, page) for group in groups]
    if rng.random() < 0.03:
        groups[0] = pad(rng, groups[0], 0)
        shapes = groups[0].layer_sets
        too_small = replace(shapes[0], page_bytes=max(content_of(groups[0], shapes[0]) - 1, 1))
        groups[0] = replace(groups[0], layer_sets=(too_small, *shapes[1:]))
    chunk_blocks, rows = rng.choice((1, 2, 3)), rng.choice((1, 2, 2, 3, 4, 5))
    row_bytes = chunk_blocks * max(group_bytes(group) for group in groups) + 63
    geometry = Geometry(
        tuple(groups),
        blocks=rng.choice((1, 2, 3, 4)),
        host=Host(
            capacity_bytes=rows * row_bytes if rng.random() < 0.85 else row_bytes // 2,
            chunk_blocks=chunk_blocks,
            row_alignment=rng.choice((1, 7, 64)),
        ),
        order=order,
        kv_split=rng.random() < 0.4,
        base_offset_bytes=rng.choice((0, 0, 0, 8, 40, 3)),
        tail_alignment=rng.choice((1, 64, 4096)),
    )
    logical = geometry.blocks * block_bytes(geometry)
    if rng.random() < 0.1:
        geometry = replace(geometry, logical_bytes=logical + rng.choice((0, 0, -1, 1)))
    if rng.random() < 0.2:
        physical = geometry.base_offset_bytes + logical + rng.choice((0, 1, 77, -1))
        geometry = replace(geometry, physical_bytes=physical)
    return geometry


@dataclass(frozen=True)
class Case:
    """One drawn geometry: its plan, or why the model refuses it."""

    seed: int
    geometry: Geometry
    planned: Plan | None
    reason: str | None


@cache
def cases() -> tuple[Case, ...]:
    """All geometries with the model's verdict."""
    found = []
    for seed in range(CASES):
        geometry = draw(seed)
        try:
            found.append(Case(seed, geometry, plan(geometry), None))
        except Refused as refused:
            found.append(Case(seed, geometry, None, refused.reason))
    return tuple(found)


@cache
def accepted() -> tuple[tuple[int, Geometry, Plan], ...]:
    return tuple((c.seed, c.geometry, c.planned) for c in cases() if c.planned is not None)
