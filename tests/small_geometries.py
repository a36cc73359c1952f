"""Small geometries drawn from fixed seeds, with the model's verdict on each.

Every format meets every order, split pages and one to three heads; the rest is drawn.
"""

import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from bruteforce import ROWS, block_bytes, content_of, page_of

from kvexact.refmodel.plan import Plan, plan
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS, Geometry, Group, Host, LayerSet, Refused

#: The slots of a kernel block are a multiple of these.
TILES = {
    "nvfp4_swizzled": 4,
    "bf16_cpu_amx": 32,
    "fp8_e4m3_cpu_amx": 32,
    "fp8_e5m2_cpu_amx": 32,
    "bf16_aiter": 8,
    "fp8_e4m3_aiter": 16,
    "fp8_e4m3fnuz_aiter": 16,
}

#: Formats in tiles are seldom drawn as they can be, so they are drawn once more.
GRID = (
    *product(PAGE_FORMATS, ORDERS, (False, True), (1, 2, 3)),
    *product(TILES, ORDERS, (False,), (1, 2, 3)),
)
CASES = len(GRID)

#: Sizes that fit: (keys, values); None: as the key.
SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "int4_per_token_head": ((8, 16, 2), (0, 8, 16, 6)),
    "turboquant_k8v4": ((4, 6, 3), (0, 4, 4, 2)),
    "turboquant_k8v4_planes": ((4, 6, 3), (0, 4, 4, 2)),
    "turboquant_4bit_nc": ((4, 8, 2), (0, 4, 4, 2)),
    "turboquant_k3v4_nc": ((16, 16, 8), (0, 4, 4, 2)),
    "turboquant_3bit_nc": ((16, 16, 8), (0, 16, 16, 8)),
    "ultraquant_4bit": ((32, 32, 64), None),
    "nvfp4": ((16, 32), None),
    "nvfp4_swizzled": ((64,), None),
    "nvfp4_per_head": ((16, 32), None),
    "turboquant_4bit_nc_planes": ((4, 8, 2), (0, 4, 4, 2)),
    "turboquant_k3v4_nc_planes": ((16, 16, 8), (0, 4, 4, 2)),
    "turboquant_3bit_nc_planes": ((16, 16, 8), (0, 16, 16, 8)),
    "bf16_rocm": ((8, 16), None),
    "bf16_aiter": ((8, 16), None),
    **{
        f"fp8_{kind}_{form}": ((16, 32), None)
        for kind in ("e4m3", "e4m3fnuz")
        for form in ("rocm", "aiter")
    },
    **dict.fromkeys(
        ("fp32_cpu_vec", "bf16_cpu_vec", "fp8_e4m3_cpu_vec", "fp8_e5m2_cpu_vec"),
        ((1, 2, 3, 8), None),
    ),
    **dict.fromkeys(("bf16_cpu_amx", "fp8_e4m3_cpu_amx", "fp8_e5m2_cpu_amx"), ((32,), None)),
} | {
    name: ((size,), (0,))
    for name, size in {
        "fp8_ds_mla": 576,
        "nvfp4_ds_mla": 576,
        "deepseek_v4": 512,
        "deepseek_v41_mxfp8": 512,
        "deepseek_v41_nvfp4": 512,
        "indexer_fp8": 128,
        "indexer_fp8_ue8m0": 128,
    }.items()
}
SCALED = ((4, 8, 12, 4, 8, 3), (0, 4, 8, 4, 8, 5))
PLAIN = ((1, 2, 3, 4), (0, 1, 2, 3))
ONE_HEAD = ("_mla", "deepseek", "indexer", "state_")


def draw_shape(rng: random.Random, fmt: str, heads: int, *, side: bool) -> LayerSet:
    """A small layer set; sizes collide and are coprime in turn."""
    keys, values = SIZES.get(fmt, SCALED if "per_token_head" in fmt else PLAIN)
    key = rng.choice(keys)
    value = key if values is None else rng.choice(values)
    if rng.random() < 0.03:
        key, value = rng.randint(1, 9), rng.choice((0, 3, 1024))
    if any(part in fmt for part in ONE_HEAD) and rng.random() < 0.95:
        heads = 1
    layers = rng.choice((1, 1, 2, 3)) if fmt not in SIZES else rng.choice((1, 1, 2))
    if fmt.endswith("_cpu_amx"):
        layers = 1
    return LayerSet(layers, heads, key, value, fmt, side=side)


def draw_group(rng: random.Random, fmts: list[str], heads: int) -> Group:
    """A group; its sizes fit its formats more often than not."""
    tile = max(TILES.get(fmt, 1) for fmt in fmts)
    if tile == 1:
        kernel_slots = rng.choice((1, 2, 2, 3, 4))
    else:
        kernel_slots = tile * rng.choice((1, 1, 2) if tile < 16 else (1,))
    shared = rng.choice((1, 1, 1, 2, 3))
    parts = rng.choice((2, 3)) if rng.random() < 0.3 and tile < 32 else 1
    kernel = kernel_slots * shared
    if any(fmt.startswith("state_") for fmt in fmts) and rng.random() < 0.9:
        parts = 1
    elif parts == 1:
        kernel += rng.choice((0, 0, shared - 1))
    block_size = kernel * parts
    if rng.random() < 0.03:
        kernel = rng.randint(1, 7)
    if rng.random() < 0.02:
        shared = rng.randint(1, 7)
    sides = [rng.random() < (0.5 if i else 0.1) for i in range(len(fmts))]
    shapes = [
        draw_shape(rng, fmt, heads if i == 0 else rng.choice((1, heads)), side=side)
        for i, (fmt, side) in enumerate(zip(fmts, sides, strict=True))
    ]
    return Group(block_size, kernel, tuple(shapes), shared)


def partner(rng: random.Random, fmt: str) -> str:
    """Another format for the same group: of states for states, mostly."""
    states = [other for other in PAGE_FORMATS if other.startswith("state_")]
    others = [other for other in PAGE_FORMATS if other not in states]
    if rng.random() < 0.05:
        return rng.choice(PAGE_FORMATS)
    return rng.choice(states if fmt in states else others)


def plainest(group: Group, order: str) -> Group:
    """One layer set of a group, with sizes of whole words, where its format can be."""
    shape, kernel = group.layer_sets[0], group.kernel_block_size
    fmt = shape.page_format
    keys, values = SIZES.get(fmt, SCALED)
    arrays = ROWS[fmt].kind == "per head" or fmt.endswith(("_rocm", "_aiter", "_planes"))
    spread = ROWS[fmt].kind != "row" and order in ("LHBNC", "BHLNC")
    one_head = spread or (arrays and order.endswith("NHC")) or any(p in fmt for p in ONE_HEAD)
    shape = replace(
        shape,
        layers=1 if kernel < group.block_size else shape.layers,
        kv_heads=1 if one_head else shape.kv_heads,
        head_size_k=keys[0],
        head_size_v=keys[0] if values is None else values[1 % len(values)],
    )
    return Group(
        kernel * max(group.block_size // kernel, 1), kernel, (shape,), group.tokens_per_state
    )


def pad(rng: random.Random, group: Group, page: int) -> Group:
    """Raise pages to ``page``, where they fit; else by a few bytes."""
    shapes = []
    for shape in group.layer_sets:
        content = content_of(group, shape)
        raised = page if content <= page else content + rng.choice((0, 1, 4, 8, -content % 4))
        shapes.append(replace(shape, page_bytes=max(raised, 1)))
    return replace(group, layer_sets=tuple(shapes))


def draw(number: int) -> Geometry:
    """A small geometry around one point of the grid, legal more often than not."""
    rng = random.Random(f"number {number}")
    fmt, order, kv_split, heads = GRID[number]
    if ROWS[fmt].kind != "row" and order in ("LHBNC", "BHLNC") and rng.random() < 0.9:
        heads = 1
    if fmt in SIZES and fmt != "int4_per_token_head" and rng.random() < 0.9:
        kv_split = False
    groups = []
    for g in range(rng.choice((1, 1, 2, 2, 3))):
        first = fmt if g == 0 or rng.random() < 0.6 else rng.choice(PAGE_FORMATS)
        fmts = [first]
        if rng.random() < 0.3:
            fmts.append(first if rng.random() < 0.4 else partner(rng, first))
        groups.append(draw_group(rng, fmts, heads))
    how = rng.random()
    if number % 2:  # one layer set with the simplest sizes
        groups, how = [plainest(groups[0], order)], 1.0
        kv_split = kv_split and (fmt not in SIZES or fmt == "int4_per_token_head")
    if how < 0.35:  # groups of one shape, of other depths
        first_group = groups[0]
        for i, group in enumerate(groups):
            layers = group.layer_sets[0].layers
            same = (replace(first_group.layer_sets[0], layers=layers), *first_group.layer_sets[1:])
            sets = same if len(same) == 1 else first_group.layer_sets
            groups[i] = replace(first_group, layer_sets=sets)
    elif how < 0.65:  # padded to one page
        pages = [page_of(group, shape) for group in groups for shape in group.layer_sets]
        page = -(-max(pages) // 4) * 4 + rng.choice((0, 0, 4, 8, 8, 1))
        groups = [pad(rng, group, page) for group in groups]
    if rng.random() < 0.03:
        shapes = pad(rng, groups[0], 0).layer_sets
        too_small = replace(shapes[0], page_bytes=max(content_of(groups[0], shapes[0]) - 1, 1))
        groups[0] = replace(groups[0], layer_sets=(too_small, *shapes[1:]))
    chunk_blocks, rows = rng.choice((1, 2, 3)), rng.choice((1, 2, 2, 3, 4, 5))
    geometry = Geometry(
        tuple(groups),
        blocks=rng.choice((1, 2, 3, 4)),
        host=Host(0, chunk_blocks, row_alignment=rng.choice((1, 7, 64))),
        order=order,
        kv_split=kv_split,
        base_offset_bytes=rng.choice((0, 0, 0, 8, 40) if number % 2 else (0, 8, 40, 3)),
        tail_alignment=rng.choice((1, 64, 4096)),
    )
    if block_bytes(geometry) > 3000:
        geometry = replace(geometry, blocks=min(geometry.blocks, 2))
    row_bytes = chunk_blocks * max(host_bytes(group) for group in groups) + 63
    capacity = rows * row_bytes if rng.random() < 0.9 else row_bytes // 2
    geometry = replace(geometry, host=replace(geometry.host, capacity_bytes=capacity))
    logical = geometry.blocks * block_bytes(geometry)
    if rng.random() < 0.1:
        geometry = replace(geometry, logical_bytes=max(logical + rng.choice((0, 0, -1, 1)), 0))
    if rng.random() < 0.2:
        physical = geometry.base_offset_bytes + logical + rng.choice((0, 1, 77, -1))
        geometry = replace(geometry, physical_bytes=max(physical, 0))
    return geometry


def host_bytes(group: Group) -> int:
    """Content bytes of a block of a group."""
    return sum(content_of(group, shape) * shape.layers for shape in group.layer_sets)


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
