"""What the engine derives from a geometry: worked numbers, properties of bytes, refusals."""

import random
from dataclasses import replace

import numpy as np
import pytest
from test_engine_formats import layer_set, place, strips_of

from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.engine.planner import Planner
from kvexact.impl.engine.plans import Plan
from kvexact.impl.engine.regions import Registrar
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS, Geometry, Group, Host, LayerSet, Refused

HOST = Host(1 << 20)


def one_group(*sets: LayerSet, block: int = 16, kernel: int | None = None) -> tuple[Group, ...]:
    return (Group(block, kernel or block, sets),)


def bf16(layers: int = 3, heads: int = 2, page_bytes: int | None = None) -> LayerSet:
    return LayerSet(layers, heads, 8, 8, "bf16", page_bytes)


def reason(geometry: Geometry) -> str:
    with pytest.raises(Refused) as caught:
        CpuEngine().plan(geometry)
    return caught.value.reason


# bf16, block size 16, 2 heads of 8, 3 layers, 10 blocks: cells of 32 bytes, pages of 1,024.
STRIDES = {
    "LBHNC": (10240, 1024, 512, 32, 12896),
    "LBNHC": (10240, 1024, 32, 64, 12512),
    "LHBNC": (10240, 512, 5120, 32, 16480),
    "BLHNC": (1024, 3072, 512, 32, 7776),
    "BLNHC": (1024, 3072, 32, 64, 7392),
    "BHLNC": (512, 3072, 1536, 32, 8288),
}


@pytest.mark.parametrize("order", ORDERS)
def test_strides_of_each_order(order: str) -> None:
    facts = CpuEngine().plan(Geometry(one_group(bf16()), 10, HOST, order))
    *strides, place = STRIDES[order]
    assert facts["g0.s0.k.view"] == (0, *strides)
    assert facts["g0.s0.v.view"] == (16, *strides)
    assert strides[0] + 2 * strides[1] + strides[2] + 3 * strides[3] == place


@pytest.mark.parametrize(
    ("cell", "heads", "block", "k", "v", "content"),
    [
        ("bf16", 8, 16, 128, 128, 65536),
        ("fp8_e4m3", 8, 16, 128, 128, 32768),
        ("fp32", 8, 16, 128, 128, 131072),
        ("int8_per_token_head", 8, 16, 128, 128, 33792),
        ("fp8_per_token_head", 8, 16, 128, 128, 33792),
        ("int4_per_token_head", 8, 16, 128, 128, 17408),
        ("int8_per_token_head", 1, 16, 80, 80, 2688),
        ("int4_per_token_head", 3, 32, 96, 96, 9984),
        ("int8_per_token_head", 4, 16, 192, 128, 20992),
        ("fp16", 1, 64, 576, 0, 73728),
    ],
)
def test_page_bytes(cell: str, heads: int, block: int, k: int, v: int, content: int) -> None:
    sets = (LayerSet(1, heads, k, v, cell), LayerSet(1, heads, k, v, cell, content + 65536))
    facts = CpuEngine().plan(Geometry(one_group(*sets, block=block), 2, Host(1 << 24), "BLHNC"))
    assert facts["g0.s0.content_bytes"] == facts["g0.s1.content_bytes"] == content
    assert facts["g0.s0.page_bytes"] == content
    assert facts["g0.s1.page_bytes"] == content + 65536


@pytest.mark.parametrize(
    ("order", "offsets", "layer", "block"),
    [
        ("LBNHC", (0, 10240, 30720), (0, 0, 0), (1024, 2048, 1024)),
        ("BLNHC", (0, 1024, 3072), (0, 0, 0), (4096, 4096, 4096)),
    ],
)
def test_mixed_pages_in_one_group(
    order: str, offsets: tuple[int, ...], layer: tuple[int, ...], block: tuple[int, ...]
) -> None:
    sets = (bf16(1), bf16(1, heads=4), bf16(1))
    facts = CpuEngine().plan(Geometry(one_group(*sets), 10, HOST, order))
    assert facts["pool.logical_bytes"] == 40960
    for s, placed in enumerate(zip(offsets, layer, block, strict=True)):
        assert facts[f"g0.s{s}.k.view"][:3] == placed


@pytest.mark.parametrize(("order", "strides"), [("LBHNC", (12800, 1280)), ("BLHNC", (1280, 2560))])
def test_padded_pages(order: str, strides: tuple[int, int]) -> None:
    facts = CpuEngine().plan(Geometry(one_group(bf16(2, page_bytes=1280)), 10, HOST, order))
    assert facts["pool.physical_bytes"] == 25600
    assert facts["g0.s0.k.view"][1:3] == strides
    assert {region[3] for region in facts["regions"]} == {1024}


def test_kernel_blocks_of_a_block() -> None:
    facts = CpuEngine().plan(Geometry(one_group(bf16(), block=64, kernel=16), 10, HOST))
    assert facts["g0.s0.k.view"] == (0, 40960, 1024, 512, 32)
    assert facts["regions"][0] == (0, 10, 4096, 4096)


def test_split_page_has_keys_before_values() -> None:
    layer_set = LayerSet(1, 2, 8, 4, "int8_per_token_head")
    geometry = Geometry(one_group(layer_set, block=4), 3, HOST, kv_split=True)
    facts = CpuEngine().plan(geometry)
    # Key cells of 12 bytes, value cells of 8; 2 heads of 4 tokens each.
    assert facts["g0.s0.k.view"] == (0, 0, 160, 48, 12)
    assert facts["g0.s0.k_scale.view"] == (8, 0, 160, 48, 12)
    assert facts["g0.s0.v.view"] == (96, 0, 160, 32, 8)
    assert facts["g0.s0.v_scale.view"] == (100, 0, 160, 32, 8)


def test_host_rows() -> None:
    layer_set = LayerSet(1, 1, 80, 80, "int8_per_token_head")
    facts = CpuEngine().plan(Geometry(one_group(layer_set), 4, Host(1 << 20, 3, 4096)))
    assert facts["host.row_bytes"] == 8192
    assert facts["host.scheduler_slots"] == facts["host.worker_slots"] == 128


# Regions and sizes of a pool whose storage has a tail.


def test_tail_of_a_real_pool_is_in_no_region() -> None:
    # The numbers of vllm#54021: 2,816 bytes of tail.
    page = 33_626_154_240 // 10
    layer_set = LayerSet(1, 1, 8, 8, "fp8_e4m3", page)
    geometry = Geometry(one_group(layer_set), 10, HOST, tail_alignment=4096)
    facts = CpuEngine().plan(geometry)
    assert facts["pool.logical_bytes"] == 33_626_154_240
    assert facts["pool.physical_bytes"] == 33_626_157_056
    assert facts["regions"] == ((0, 10, page, 256),)


@pytest.mark.parametrize("tail", [0, 1, 7, 31, 32, 128, 300, 4096 - 128])
def test_regions_cover_the_logical_pool(tail: int) -> None:
    layer_set = LayerSet(1, 1, 4, 4, "fp8_e4m3")
    geometry = Geometry(one_group(layer_set, block=4), 4, HOST, physical_bytes=128 + tail)
    facts = CpuEngine().plan(geometry)
    assert facts["pool.logical_bytes"] == 128
    assert facts["regions"] == ((0, 4, 32, 32),)
    assert facts["host.worker_slots"] == facts["host.scheduler_slots"]


def plan_of(geometry: Geometry) -> Plan:
    return Planner().plan(geometry)


@pytest.mark.parametrize("logical", [None, 0, 31, 127, 129, 4096 - 1, 4097])
def test_missing_or_wrong_logical_size_is_refused(logical: int | None) -> None:
    plan = plan_of(Geometry(one_group(LayerSet(1, 1, 4, 4, "fp8_e4m3"), block=4), 4, HOST))
    with pytest.raises(Refused) as caught:
        Registrar().register(plan, 4096, logical)
    assert caught.value.reason == "pool_size"
    assert len(Registrar().register(plan, 4096, 128).groups[0]) == 1


def test_overlaid_layers_are_registered_once() -> None:
    groups = one_group(bf16(2)) + one_group(bf16(1))
    facts = CpuEngine().plan(Geometry(groups, 10, HOST))
    assert facts["pool.logical_bytes"] == 20480
    assert facts["regions"] == ((0, 10, 1024, 1024), (10240, 10, 1024, 1024))


# Refusals.


def test_refusals() -> None:
    int4 = LayerSet(1, 1, 3, 4, "int4_per_token_head")
    whole = Geometry(one_group(bf16()), 10, HOST)
    assert reason(replace(whole, groups=one_group(int4))) == "cell"
    assert reason(replace(whole, groups=one_group(bf16(page_bytes=1023)))) == "page"
    padded = replace(whole, groups=one_group(bf16(page_bytes=1280)))
    assert reason(replace(padded, order="LHBNC")) == "padding"
    assert reason(replace(padded, order="BHLNC")) == "padding"
    mixed = replace(whole, groups=one_group(bf16()) + one_group(bf16(heads=1)))
    assert reason(mixed) == "overlay"
    assert reason(replace(whole, groups=one_group(bf16(), kernel=5))) == "kernel_split"
    assert reason(replace(whole, groups=one_group(bf16(), kernel=32))) == "kernel_split"
    assert reason(replace(padded, groups=one_group(bf16(1, page_bytes=1280), kernel=8))) == (
        "kernel_split"
    )
    split = replace(whole, groups=one_group(bf16(), kernel=8))
    assert reason(replace(split, order="BLHNC")) == "kernel_split"
    assert reason(replace(whole, base_offset_bytes=1)) == "alignment"
    assert reason(replace(whole, groups=one_group(bf16(page_bytes=1025)))) == "alignment"
    assert reason(replace(whole, logical_bytes=30719)) == "pool_size"
    assert reason(replace(whole, physical_bytes=30719)) == "pool_size"
    assert reason(replace(whole, host=Host(3071))) == "host"
    CpuEngine().plan(replace(whole, logical_bytes=30720, physical_bytes=30720, host=Host(3072)))


def test_first_reason_wins_over_all_groups() -> None:
    bad_page = one_group(bf16(page_bytes=1))
    bad_cell = one_group(LayerSet(1, 1, 3, 4, "int4_per_token_head"))
    broken = Geometry(bad_page + bad_cell, 10, Host(0), base_offset_bytes=1, physical_bytes=1)
    assert reason(broken) == "cell"
    assert reason(replace(broken, groups=bad_page)) == "page"


def test_what_is_not_refused() -> None:
    plan = CpuEngine().plan
    one_head = one_group(bf16(heads=1, page_bytes=1280))
    for order in ORDERS:
        plan(Geometry(one_head, 10, HOST, order))
        plan(Geometry(one_group(bf16(1), kernel=4), 10, HOST, order))
    # Groups of different pages may overlay if there is one block, or if it lies outermost.
    mixed = one_group(bf16()) + one_group(bf16(heads=1))
    plan(Geometry(mixed, 1, HOST))
    plan(Geometry(mixed, 10, HOST, "BLHNC"))
    # One list is the other one's beginning.
    plan(Geometry(one_group(bf16(1), bf16(2)) + one_group(bf16(2)), 10, HOST))
    # An axis of one layer, block, head or token needs no aligned stride.
    plan(Geometry(one_group(bf16(1, page_bytes=1025)), 1, HOST))


# Bytes, in random small geometries.


def random_geometry(draw: random.Random) -> Geometry:
    def any_set() -> LayerSet:
        one = layer_set(draw.choice(PAGE_FORMATS), draw.randint(1, 3), draw.randint(1, 3))
        page = draw.choice([None, None, 65536])
        return replace(one, page_bytes=page, side=draw.random() < 0.3)

    groups = []
    for _ in range(draw.randint(1, 2)):
        kernel = draw.choice([1, 2, 3, 8, 32])
        sets = tuple(any_set() for _ in range(draw.randint(1, 2)))
        shared = draw.choice([1, 1, 1, 2])
        groups.append(Group(kernel * draw.choice([1, 1, 2, 3]), kernel, sets, shared))
    return Geometry(
        tuple(groups),
        draw.randint(1, 4),
        Host(1 << 24, draw.randint(1, 3), draw.choice([1, 7, 64])),
        draw.choice(ORDERS),
        draw.random() < 0.3,
        draw.choice([0, 4, 8]),
        draw.choice([1, 4096]),
    )


def accepted(count: int) -> list[Geometry]:
    draw = random.Random(20)
    found: list[Geometry] = []
    while len(found) < count:
        geometry = random_geometry(draw)
        try:
            CpuEngine().plan(geometry)
        except Refused:
            continue
        found.append(geometry)
    return found


def mark(plan: Plan, g: int) -> np.ndarray:
    """How many pieces of group ``g``'s slots lie on each byte of the storage."""
    group = plan.groups[g]
    slots = np.arange(plan.geometry.blocks * group.slots)
    places = [
        (place(group, strip, slots)[:, None] + np.arange(strip.bytes)).ravel()
        for strip in strips_of(plan, g)
    ]
    return np.bincount(np.concatenate(places), minlength=plan.physical_bytes)


def test_every_content_byte_is_one_slots_and_in_one_region() -> None:
    for geometry in accepted(150):
        facts = CpuEngine().plan(geometry)
        regions = np.zeros(facts["pool.physical_bytes"], np.uint8)
        for base, count, stride, length in facts["regions"]:
            for block in range(count):
                regions[base + block * stride :][:length] = 1
        union = np.zeros_like(regions)
        plan = plan_of(geometry)
        for g, group in enumerate(geometry.groups):
            marks = mark(plan, g)
            assert marks.max() == 1
            content = sum(
                one.layers * facts[f"g{g}.s{s}.content_bytes"]
                for s, one in enumerate(group.layer_sets)
            )
            assert int(marks.sum()) == content * geometry.blocks
            union |= marks.astype(np.uint8)
        assert (union == regions).all()
        start = geometry.base_offset_bytes
        assert not regions[:start].any()
        assert not regions[start + facts["pool.logical_bytes"] :].any()


def test_planning_real_sizes_does_not_grow_with_the_blocks() -> None:
    layer_set = LayerSet(80, 8, 128, 128, "int8_per_token_head")
    geometry = Geometry(one_group(layer_set), 50_000, Host(1 << 37, 4, 4096))
    engine = CpuEngine()
    facts = engine.plan(geometry)
    assert facts["pool.logical_bytes"] == 50_000 * 80 * 33792
    regions = facts["regions"]
    assert isinstance(regions, tuple)
    assert len(regions) == 80  # one a layer: nothing grows with the blocks
