"""Every page format in the engine's layout: sizes and places as worked by hand, bytes of a page."""

from collections.abc import Callable
from itertools import product, starmap

import numpy as np
import pytest

from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.engine.planner import Planner
from kvexact.impl.engine.plans import GroupPlan, Plan
from kvexact.impl.engine.views import Strip, Views
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS, Geometry, Group, Host, LayerSet, Refused

HOST = Host(1 << 24)

#: Formats whose row is that of one head, by its elements.
ROWS = {
    "fp8_ds_mla": 576,
    "nvfp4_ds_mla": 576,
    "deepseek_v4": 512,
    "deepseek_v41_mxfp8": 512,
    "deepseek_v41_nvfp4": 512,
    "indexer_fp8": 128,
    "indexer_fp8_ue8m0": 128,
}
HEAD_SIZE = {"nvfp4_swizzled": 128, "bf16_rocm": 24, "turboquant_k8v4": 27, "bf16_cpu_vec": 6}
HEAD_SIZE |= {"fp32_cpu_vec": 5, "fp8_e5m2_cpu_vec": 7, "fp8_e4m3_rocm": 48}


def layer_set(page_format: str, heads: int = 2, layers: int = 2, side: bool = False) -> LayerSet:
    """A small layer set that meets its format's demands; key and value differ where they may."""
    if page_format in ROWS:
        return LayerSet(layers, 1, ROWS[page_format], 0, page_format, side=side)
    if page_format.startswith("state_"):
        return LayerSet(layers, 1, 6, 3, page_format, side=side)
    size = HEAD_SIZE.get(page_format, 64 if page_format.startswith(("nv", "ultra")) else 32)
    value = {"fp32": 5, "fp8_e5m2": 0, "turboquant_k8v4": 8, "int8_per_token_head": 0}
    return LayerSet(layers, heads, size, value.get(page_format, size), page_format, side=side)


def plan_of(
    one: LayerSet, slots: int, order: str = "LBHNC", *, parts: int = 1, **more: object
) -> Plan:
    group = Group(slots, slots // parts, (one,))
    return Planner().plan(Geometry((group,), 3, HOST, order, **more))


def facts_of(one: LayerSet, slots: int, order: str = "LBHNC", blocks: int = 3) -> dict:
    """Facts without their prefix, of one layer set in one group."""
    facts = CpuEngine().plan(Geometry((Group(slots, slots, (one,)),), blocks, HOST, order))
    return {name.removeprefix("g0.s0."): value for name, value in facts.items()}


# Pages as worked by hand.

PAGES = [
    # format, heads, slots, key, value, bytes of a cell, bytes of a page
    ("bf16", 8, 16, 128, 128, 512, 65536),
    ("fp8_e4m3_truncated", 8, 16, 128, 128, 256, 32768),
    ("fp32", 8, 16, 128, 128, 1024, 131072),
    ("fp8_fnuz_per_token_head", 8, 16, 128, 128, 264, 33792),
    ("int4_per_token_head", 8, 16, 128, 128, 136, 17408),
    ("nvfp4", 8, 16, 128, 128, 144, 18432),
    ("bf16", 1, 16, 80, 80, 320, 5120),
    ("int8_per_token_head", 1, 16, 80, 80, 168, 2688),
    ("int4_per_token_head", 1, 16, 80, 80, 88, 1408),
    ("nvfp4", 1, 16, 80, 80, 90, 1440),
    ("bf16", 3, 32, 96, 96, 384, 36864),
    ("fp8_per_token_head", 3, 32, 96, 96, 200, 19200),
    ("int4_per_token_head", 3, 32, 96, 96, 104, 9984),
    ("nvfp4", 3, 32, 96, 96, 108, 10368),
    ("bf16", 5, 16, 112, 112, 448, 35840),
    ("int8_per_token_head", 5, 16, 112, 112, 232, 18560),
    ("int4_per_token_head", 5, 16, 112, 112, 120, 9600),
    ("nvfp4_per_head", 5, 16, 112, 112, 126, 10080),
    ("bf16", 2, 64, 192, 192, 768, 98304),
    ("int8_per_token_head", 2, 64, 192, 192, 392, 50176),
    ("int4_per_token_head", 2, 64, 192, 192, 200, 25600),
    ("nvfp4_swizzled", 2, 64, 192, 192, 216, 27648),
    ("bf16", 4, 16, 192, 128, 640, 40960),
    ("int8_per_token_head", 4, 16, 192, 128, 328, 20992),
    ("int8_per_token_head", 4, 16, 80, 64, 152, 9728),
    ("bf16", 1, 64, 576, 0, 1152, 73728),
    ("fp8_e5m2", 1, 64, 576, 0, 576, 36864),
    ("fp8_ds_mla", 1, 64, 576, 0, 656, 41984),
    ("nvfp4_ds_mla", 1, 64, 576, 0, 352, 22528),
    ("deepseek_v4", 1, 64, 512, 0, 584, 37376),
    ("deepseek_v41_mxfp8", 1, 128, 512, 0, 528, 67584),
    ("deepseek_v41_nvfp4", 1, 128, 512, 0, 288, 36864),
    ("indexer_fp8", 1, 64, 128, 0, 132, 8448),
    ("indexer_fp8_ue8m0", 1, 64, 128, 0, 132, 8448),
    ("state_bf16_fp32", 1, 16, 3 * 4352, 64 * 64 * 128, 2123264, 2123264),
    ("state_bf16_fp32", 1, 16, 3 * 8192, 32 * 128 * 128, 2146304, 2146304),
    ("state_fp32", 1, 8, 1024, 0, 4096, 4096),
    ("state_bf16", 1, 8, 1024, 3, 2054, 2054),
    ("turboquant_k8v4", 1, 1, 80, 80, 124, 124),
    ("turboquant_k8v4", 1, 1, 27, 8, 36, 36),
    ("turboquant_4bit_nc", 1, 1, 80, 80, 86, 86),
    ("turboquant_k3v4_nc", 1, 1, 80, 80, 76, 76),
    ("turboquant_3bit_nc", 1, 1, 80, 80, 66, 66),
    ("turboquant_k8v4", 2, 16, 256, 256, 388, 12416),
    ("turboquant_4bit_nc", 2, 16, 256, 256, 262, 8384),
    ("turboquant_k3v4_nc", 2, 16, 256, 256, 230, 7360),
    ("turboquant_3bit_nc", 2, 16, 256, 256, 198, 6336),
    ("turboquant_k8v4_planes", 2, 16, 64, 64, 100, 3200),
    ("ultraquant_4bit", 2, 64, 64, 64, 68, 8704),
    ("ultraquant_4bit", 2, 64, 128, 128, 136, 17408),
    ("ultraquant_4bit", 2, 64, 256, 256, 272, 34816),
    ("turboquant_4bit_nc_planes", 2, 16, 64, 64, 70, 2240),
    ("turboquant_k3v4_nc_planes", 2, 16, 80, 80, 76, 2432),
    ("turboquant_3bit_nc_planes", 2, 16, 128, 128, 102, 3264),
    ("fp32_cpu_vec", 3, 32, 96, 96, 768, 73728),
    ("fp8_e4m3_cpu_vec", 3, 32, 96, 96, 192, 18432),
    ("fp8_e5m2_cpu_vec", 3, 32, 96, 96, 192, 18432),
    ("fp8_e4m3_cpu_amx", 3, 32, 96, 96, 192, 18432),
    ("fp8_e5m2_cpu_amx", 3, 32, 96, 96, 192, 18432),
    ("fp8_e4m3_rocm", 3, 32, 96, 96, 192, 18432),
    ("fp8_e4m3fnuz_rocm", 3, 32, 96, 96, 192, 18432),
    ("fp8_e4m3_aiter", 3, 32, 96, 96, 192, 18432),
    ("fp8_e4m3fnuz_aiter", 3, 32, 96, 96, 192, 18432),
    ("bf16_cpu_vec", 3, 32, 96, 96, 384, 36864),
    ("bf16_cpu_amx", 3, 32, 96, 96, 384, 36864),
    ("bf16_rocm", 3, 32, 96, 96, 384, 36864),
    ("bf16_aiter", 3, 32, 96, 96, 384, 36864),
]


@pytest.mark.parametrize(("name", "heads", "slots", "k", "v", "cell", "page"), PAGES)
def test_page_bytes(
    name: str, heads: int, slots: int, k: int, v: int, cell: int, page: int
) -> None:
    one = LayerSet(1, heads, k, v, name)
    shape = plan_of(one, slots).groups[0].sets[0].shape
    assert (shape.cell_bytes, shape.content_bytes, shape.page_bytes) == (cell, page, page)


def test_every_format_has_a_worked_page() -> None:
    missing = set(PAGE_FORMATS) - {name for name, *_ in PAGES}
    assert missing == {"fp16", "fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2_truncated"}


@pytest.mark.parametrize(
    ("one", "slots", "order", "views"),
    [
        (
            LayerSet(1, 2, 64, 64, "nvfp4"),
            16,
            "LBHNC",
            {
                "k": (0, 0, 2304, 512, 32),
                "k_scale": (1024, 0, 2304, 64, 4),
                "v": (1152, 0, 2304, 512, 32),
                "v_scale": (2176, 0, 2304, 64, 4),
            },
        ),
        (
            LayerSet(1, 2, 64, 64, "nvfp4"),
            16,
            "LBNHC",
            {
                "k": (0, 0, 2304, 32, 64),
                "k_scale": (1024, 0, 2304, 4, 8),
                "v": (1152, 0, 2304, 32, 64),
                "v_scale": (2176, 0, 2304, 4, 8),
            },
        ),
        (
            LayerSet(1, 2, 128, 128, "nvfp4_swizzled"),
            16,
            "LBNHC",
            {"v_scale": (2304 + 2048, 0, 4608, 8, 1)},
        ),
        (
            LayerSet(1, 2, 128, 128, "nvfp4_per_head"),
            128,
            "LBHNC",
            {
                "k": (0, 0, 36864, 18432, 64),
                "k_scale": (8192, 0, 36864, 18432, 8),
                "v": (9216, 0, 36864, 18432, 64),
                "v_scale": (17408, 0, 36864, 18432, 8),
            },
        ),
        (
            LayerSet(1, 1, 512, 0, "deepseek_v4", 37440),
            64,
            "BLHNC",
            {
                "latent": (0, 0, 37440, 0, 576),
                "rope": (448, 0, 37440, 0, 576),
                "scale": (36864, 0, 37440, 0, 8),
            },
        ),
        (
            LayerSet(1, 1, 128, 0, "indexer_fp8", 8640),
            64,
            "BLHNC",
            {"latent": (0, 0, 8640, 0, 128), "scale": (8192, 0, 8640, 0, 4)},
        ),
        (
            LayerSet(1, 1, 576, 0, "fp8_ds_mla"),
            64,
            "LBNHC",
            {
                "latent": (0, 0, 41984, 0, 656),
                "scale": (512, 0, 41984, 0, 656),
                "rope": (528, 0, 41984, 0, 656),
            },
        ),
        (
            LayerSet(1, 1, 576, 0, "nvfp4_ds_mla"),
            64,
            "LBNHC",
            {
                "latent": (0, 0, 22528, 0, 352),
                "rope": (256, 0, 22528, 0, 352),
                "scale": (320, 0, 22528, 0, 352),
            },
        ),
        (
            LayerSet(1, 2, 16, 16, "int8_per_token_head"),
            16,
            "LBHNC",
            {"k_scale": (16, 0, 1280, 640, 40), "v_scale": (36, 0, 1280, 640, 40)},
        ),
        (
            LayerSet(1, 2, 16, 16, "int8_per_token_head"),
            16,
            "LBNHC",
            {"k_scale": (16, 0, 1280, 40, 80), "v_scale": (36, 0, 1280, 40, 80)},
        ),
        (
            LayerSet(1, 2, 64, 64, "turboquant_k8v4_planes"),
            16,
            "LBHNC",
            {
                "k": (0, 0, 3200, 1536, 96),
                "v": (64, 0, 3200, 1536, 96),
                "v_scale": (3072, 0, 3200, 64, 2),
                "v_zero": (3104, 0, 3200, 64, 2),
            },
        ),
        (
            LayerSet(1, 2, 64, 64, "turboquant_k8v4_planes"),
            16,
            "LBNHC",
            {
                "k": (0, 0, 3200, 96, 192),
                "v": (64, 0, 3200, 96, 192),
                "v_scale": (3072, 0, 3200, 64, 2),
                "v_zero": (3104, 0, 3200, 64, 2),
            },
        ),
        (
            LayerSet(1, 2, 32, 32, "bf16_cpu_amx"),
            32,
            "LBHNC",
            {"k": (0, 0, 8192, 4096, 4), "v": (2048, 0, 8192, 4096, 2)},
        ),
        (
            LayerSet(1, 2, 32, 32, "bf16_cpu_vec"),
            32,
            "LBHNC",
            {"k": (0, 0, 8192, 4096, 2), "v": (2048, 0, 8192, 4096, 64)},
        ),
        (
            LayerSet(1, 2, 32, 32, "bf16_rocm"),
            16,
            "LBHNC",
            {"k": (0, 0, 4096, 1024, 16), "v": (2048, 0, 4096, 1024, 2)},
        ),
        (
            LayerSet(1, 2, 32, 32, "bf16_aiter"),
            16,
            "LBHNC",
            {"k": (0, 0, 4096, 1024, 16), "v": (2048, 0, 4096, 1024, 2)},
        ),
    ],
    ids=lambda value: value.page_format if isinstance(value, LayerSet) else None,
)
def test_places_of_fields(one: LayerSet, slots: int, order: str, views: dict) -> None:
    facts = facts_of(one, slots, order)
    assert {name: facts[f"{name}.view"] for name in views} == views


# Bytes of a page, element by element as docs/formats.md says.


def swizzled(slots: int, size: int) -> dict[tuple[int, int], int]:
    found = {}
    for t, s in product(range(slots), range(size)):
        slot, byte = 4 * (t // 4) + s // (size // 4), s % (size // 4) * 4 + t % 4
        found[t, s] = slot * size + byte
    return found


def elements(size: int, place) -> Callable[[int, int], dict[tuple[int, int], int]]:
    """The place of byte ``size d + i`` of each slot, of elements of ``size`` bytes.

    Args:
        size: bytes of an element.
        place: of slot t and element d of D, in elements, of N slots: place(t, d, N, D).
    """
    return lambda slots, width: {
        (t, size * d + i): size * place(t, d, slots, width // size) + i
        for t, d, i in product(range(slots), range(width // size), range(size))
    }


def columns(t: int, d: int, n: int, _: int) -> int:
    return d * n + t


def amx_keys(t: int, d: int, _: int, size: int) -> int:
    return (t // 16 * 16 * (size // 2) + d // 2 * 16 + t % 16) * 2 + d % 2


def amx_values(t: int, d: int, n: int, _: int) -> int:
    return d // 16 * n * 16 + t // 2 * 32 + d % 16 * 2 + t % 2


SCATTERED = {("nvfp4_swizzled", "v_scale"): swizzled}
for kind, size, x in (("bf16", 2, 8), ("fp8_e4m3", 1, 16), ("fp8_e4m3fnuz", 1, 16)):
    pieces = elements(size, lambda t, d, n, _, x=x: d // x * n * x + t * x + d % x)
    tiles = elements(size, lambda t, d, _, size, x=x: t // x * size * x + d * x + t % x)
    SCATTERED[f"{kind}_rocm", "k"] = SCATTERED[f"{kind}_aiter", "k"] = pieces
    SCATTERED[f"{kind}_rocm", "v"] = elements(size, columns)
    SCATTERED[f"{kind}_aiter", "v"] = tiles
for kind, size in (("bf16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)):
    SCATTERED[f"{kind}_cpu_vec", "k"] = elements(size, columns)
    SCATTERED[f"{kind}_cpu_amx", "k"] = elements(size, amx_keys)
    SCATTERED[f"{kind}_cpu_amx", "v"] = elements(size, amx_values)
SCATTERED["fp32_cpu_vec", "k"] = elements(4, columns)


def strips_of(plan: Plan, group: int = 0, consumer: str = "write") -> list[Strip]:
    views = Views(plan, None)  # type: ignore[arg-type]
    planned = plan.groups[group]
    return list(starmap(Strip, views.field_strips(planned, views.group_views(planned, consumer))))


def place(group: GroupPlan, strip: Strip, slot):  # an int, or an array of them
    """Where a strip's piece of a slot lies; as kernels.cu has it, but without its short cut."""
    block, token = slot // group.kernel_slots, slot % group.kernel_slots
    inside = token // strip.tile * strip.tile_stride + token % strip.tile * strip.token_stride
    return strip.offset + block * strip.block_stride + inside


@pytest.mark.parametrize(("page_format", "name"), SCATTERED)
def test_scattered_fields(page_format: str, name: str) -> None:
    slots = 64
    plan = plan_of(layer_set(page_format, heads=1, layers=1), slots)
    group, (one,) = plan.groups[0], plan.groups[0].sets
    view = next(view for view in one.views if view.field.name == name)
    field = view.field
    found = {}
    for strip in strips_of(plan):
        first = strip.row_offset - field.cell_offset
        if 0 <= first < field.bytes:
            for t, i in product(range(slots), range(strip.bytes)):
                found[t, first + i] = place(group, strip, t) + i - view.offset
    assert found == SCATTERED[page_format, name](slots, field.bytes)


def test_worked_swizzle() -> None:
    found = swizzled(8, 8)
    worked = {(0, 1): (0, 4), (0, 2): (1, 0), (1, 0): (0, 1), (1, 7): (3, 5)}
    assert {key: divmod(found[key], 8) for key in worked} == worked


def test_every_scattered_field_has_its_places() -> None:
    scattered = {
        (name, view.field.name)
        for name in PAGE_FORMATS
        for view in plan_of(layer_set(name, 1, 1), 64).groups[0].sets[0].views
        if view.scatter.piece < view.field.bytes
    }
    assert scattered == set(SCATTERED)


#: Slots of a kernel block are a multiple of these.
TILES = {"nvfp4_swizzled": 4, "bf16_aiter": 8, "fp8_e4m3_aiter": 16, "fp8_e4m3fnuz_aiter": 16}
TILES |= {"bf16_cpu_amx": 32, "fp8_e4m3_cpu_amx": 32, "fp8_e5m2_cpu_amx": 32}


def fitting_slots(page_format: str) -> list[int]:
    if page_format.startswith("state_"):
        return [1]
    multiple = TILES.get(page_format)
    return [multiple, 2 * multiple] if multiple else [1, 2, 3, 16]


@pytest.mark.parametrize("page_format", PAGE_FORMATS)
def test_strips_cover_each_byte_of_a_page_once(page_format: str) -> None:
    """In every order, with and without halves, for all slots and heads, and in kernel blocks."""
    tried = 0
    for order, split, slots, heads, parts in product(
        ORDERS, (False, True), fitting_slots(page_format), (1, 2, 3), (1, 2, 3)
    ):
        layers = 1 if parts > 1 else 2
        one = layer_set(page_format, heads, layers)
        group = Group(slots * parts, slots, (one,))
        geometry = Geometry((group,), 3, HOST, order, split, 4)
        try:
            facts = CpuEngine().plan(geometry)
        except Refused:
            continue
        tried += 1
        check_coverage(Planner().plan(geometry), facts["regions"])
    assert tried >= 12


def check_coverage(plan: Plan, regions: tuple[tuple[int, int, int, int], ...]) -> None:
    """Each content byte belongs to one piece of one slot, and each byte of a row to one strip."""
    content = np.zeros(plan.physical_bytes, np.uint8)
    for base, count, stride, length in regions:
        for block in range(count):
            content[base + block * stride :][:length] = 1
    group = plan.groups[0]
    (one,) = group.sets
    row = np.zeros(one.shape.layers * one.shape.heads * one.shape.cell_bytes, np.uint8)
    slots = np.arange(plan.geometry.blocks * group.slots)
    places = []
    for strip in strips_of(plan):
        row[strip.row_offset : strip.row_offset + strip.bytes] += 1
        places.append((place(group, strip, slots)[:, None] + np.arange(strip.bytes)).ravel())
    assert (row == 1).all()
    assert (np.bincount(np.concatenate(places), minlength=plan.physical_bytes) == content).all()


def test_encoded_writes_leave_the_pad_alone() -> None:
    plan = plan_of(LayerSet(2, 2, 27, 8, "turboquant_k8v4"), 4)
    fields = plan.groups[0].sets[0].shape.fields
    assert [field.name for field in fields] == ["k", "v", "v_scale", "v_zero", "pad"]
    every, encoded = strips_of(plan), strips_of(plan, consumer="write_values")
    assert len(every) == len(strips_of(plan, consumer="read")) == 20
    assert encoded == [strip for strip in every if strip.row_offset % 36 != 35]


# Slots, states and side buffers.


def test_tokens_that_share_a_slot() -> None:
    one = LayerSet(1, 1, 512, 0, "deepseek_v4", 37440)
    for shared, page in ((4, 37440), (1, 149760), (128, 1728)):
        padded = LayerSet(1, 1, 512, 0, "deepseek_v4", page)
        group = Group(256, 256, (padded,), shared)
        facts = CpuEngine().plan(Geometry((group,), 3, HOST, "BLHNC"))
        assert facts["g0.s0.content_bytes"] == 584 * (256 // shared)
        assert facts["g0.s0.scale.view"][0] == 576 * (256 // shared)
        assert facts["pool.bytes_per_block"] == page
    # Ten tokens in slots of four are two slots.
    ten = Group(10, 10, (LayerSet(1, 1, 8, 8, "bf16"),), 4)
    assert CpuEngine().plan(Geometry((ten,), 3, HOST))["g0.s0.content_bytes"] == 64
    with pytest.raises(Refused, match=r"page: 3 tokens in a block .* use 4"):
        CpuEngine().plan(Geometry((Group(3, 3, (one,), 4),), 3, HOST))
    split = Group(16, 8, (LayerSet(1, 1, 8, 8, "bf16"),), 4)
    assert CpuEngine().plan(Geometry((split,), 3, HOST))["g0.s0.k.view"] == (0, 0, 64, 0, 32)


def test_a_state_is_one_slot() -> None:
    one = LayerSet(1, 1, 4, 6, "state_bf16_fp32")
    facts = CpuEngine().plan(Geometry((Group(48, 48, (one,), 4),), 3, HOST, kv_split=True))
    assert facts["g0.s0.content_bytes"] == 32
    assert facts["g0.s0.conv.view"] == (0, 0, 32, 0, 0)
    assert facts["g0.s0.ssm.view"] == (8, 0, 32, 0, 0)


def side_geometry(order: str, blocks: int = 3) -> Geometry:
    """Keys of 64 bytes a token with index keys behind the blocks, and a group without them."""
    main = LayerSet(2, 1, 16, 16, "bf16")
    index = LayerSet(2, 1, 128, 0, "indexer_fp8", side=True)
    groups = Group(4, 4, (index, main)), Group(4, 4, (main, main))
    return Geometry(groups, blocks, HOST, order, base_offset_bytes=4)


@pytest.mark.parametrize(
    ("order", "main", "index"),
    [("LBHNC", (768, 256), (1584, 528)), ("BLHNC", (256, 1024), (528, 1056))],
)
def test_side_buffers_lie_behind_the_blocks(
    order: str, main: tuple[int, int], index: tuple[int, int]
) -> None:
    facts = CpuEngine().plan(side_geometry(order))
    # The second group has most in the blocks: four layers of 256 bytes; the first alone has more.
    assert facts["pool.bytes_per_block"] == 1024 + 1056
    assert facts["pool.logical_bytes"] == 3 * 2080
    start = 4 + 3 * 1024
    assert facts["g0.s0.latent.view"] == (start, *index, 0, 128)
    assert facts["g0.s0.scale.view"] == (start + 512, *index, 0, 4)
    assert facts["g0.s1.k.view"] == facts["g1.s0.k.view"] == (4, *main, 0, 64)
    assert facts["host.row_bytes"] == 2 * 256 + 2 * 528
    assert (start, 3, index[1], 528) in facts["regions"]
    assert len(facts["regions"]) == 6


# Refusals.


def reason(one: LayerSet, slots: int = 32, order: str = "LBHNC", **more: object) -> str | None:
    group = Group(slots, more.pop("kernel", slots), (one,), more.pop("shared", 1))
    try:
        CpuEngine().plan(Geometry((group,), 3, HOST, order, **more))
    except Refused as refused:
        return refused.reason
    return None


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("int4_per_token_head", [(1, 2), (2, 1), (1024, 2), (2, 2048)]),
        ("turboquant_k8v4", [(1, 1)]),
        ("turboquant_k8v4_planes", [(2, 3)]),
        ("turboquant_4bit_nc", [(3, 2), (2, 3)]),
        ("turboquant_k3v4_nc", [(4, 2), (8, 1)]),
        ("turboquant_3bit_nc", [(4, 8), (8, 4)]),
        ("ultraquant_4bit", [(16, 16), (96, 96), (32, 64), (32, 0)]),
        ("nvfp4", [(8, 8), (24, 24), (16, 32), (16, 0)]),
        ("nvfp4_swizzled", [(16, 16), (96, 96), (64, 128)]),
        ("nvfp4_per_head", [(8, 8), (16, 32)]),
        ("bf16_cpu_vec", [(2, 4), (2, 0)]),
        ("bf16_cpu_amx", [(16, 16), (48, 48), (32, 64)]),
        ("bf16_rocm", [(4, 4), (12, 12), (8, 16)]),
        ("bf16_aiter", [(4, 4), (8, 16)]),
        ("turboquant_4bit_nc_planes", [(3, 2), (2, 3)]),
        ("turboquant_k3v4_nc_planes", [(4, 2), (8, 1)]),
        ("turboquant_3bit_nc_planes", [(4, 8), (8, 4)]),
        ("fp32_cpu_vec", [(2, 4), (2, 0)]),
        ("fp8_e4m3_cpu_vec", [(2, 4)]),
        ("fp8_e5m2_cpu_vec", [(2, 0)]),
        ("fp8_e4m3_cpu_amx", [(16, 16), (48, 48), (32, 64)]),
        ("fp8_e5m2_cpu_amx", [(16, 16), (48, 48), (32, 64)]),
        ("fp8_e4m3_rocm", [(8, 8), (24, 24), (16, 32)]),
        ("fp8_e4m3fnuz_rocm", [(8, 8), (16, 32)]),
        ("fp8_e4m3_aiter", [(8, 8), (16, 32)]),
        ("fp8_e4m3fnuz_aiter", [(8, 8), (16, 32)]),
        ("fp8_ds_mla", [(512, 0), (576, 1)]),
        ("nvfp4_ds_mla", [(512, 0), (576, 576)]),
        ("deepseek_v4", [(576, 0), (512, 64)]),
        ("deepseek_v41_mxfp8", [(576, 0)]),
        ("deepseek_v41_nvfp4", [(576, 0)]),
        ("indexer_fp8", [(64, 0), (128, 128)]),
        ("indexer_fp8_ue8m0", [(64, 0)]),
    ],
)
def test_sizes_that_a_format_does_not_have(name: str, bad: list[tuple[int, int]]) -> None:
    assert {reason(LayerSet(1, 1, *sizes, name)) for sizes in bad} == {"cell"}
    assert reason(layer_set(name, heads=1)) is None


@pytest.mark.parametrize("name", [*ROWS, "state_bf16", "state_fp32", "state_bf16_fp32"])
def test_formats_of_one_head(name: str) -> None:
    one = layer_set(name)
    two = LayerSet(1, 2, one.head_size_k, one.head_size_v, name)
    assert reason(two) == "cell"


def test_sizes_that_are_not_refused() -> None:
    for sizes in ((8, 0), (512, 1536), (80, 8)):
        assert reason(LayerSet(1, 1, *sizes, "int4_per_token_head")) is None
    assert reason(LayerSet(1, 1, 16, 0, "turboquant_3bit_nc")) is None
    assert reason(LayerSet(1, 1, 1, 1, "bf16_cpu_vec")) is None


#: Formats of which each head's keys, or each field of a head, are an array over the slots.
ARRAYS = ("nvfp4_per_head", *[name for name, _ in SCATTERED if name != "nvfp4_swizzled"])
IN_REGIONS = (*ARRAYS, "nvfp4", "nvfp4_swizzled", *[n for n in PAGE_FORMATS if "_planes" in n])
SPLIT = [
    name
    for name in PAGE_FORMATS
    if name.startswith(("fp", "bf16", "int", "state"))
    and name not in ARRAYS
    and not name.startswith("fp8_ds")
]


@pytest.mark.parametrize("name", PAGE_FORMATS)
def test_formats_that_can_be_split(name: str) -> None:
    expected = None if name in SPLIT else "layout"
    assert reason(layer_set(name), kv_split=True) == expected


@pytest.mark.parametrize("name", PAGE_FORMATS)
@pytest.mark.parametrize("order", ORDERS)
def test_orders_that_hold_a_format(name: str, order: str) -> None:
    one = layer_set(name)
    refused = one.kv_heads > 1 and (
        (name in IN_REGIONS and order in ("LHBNC", "BHLNC"))
        or (name in ARRAYS and order in ("LBNHC", "BLNHC"))
    )
    assert reason(one, order=order) == ("layout" if refused else None)
    single = layer_set(name, heads=1)
    assert reason(single, order=order) is None
    # With one slot it does not matter whether slots or heads are outside.
    if name in ARRAYS and name not in TILES and order == "LBNHC":
        assert reason(one, 1, order) is None
        assert reason(one, 4, order, kernel=1) is None


@pytest.mark.parametrize(("name", "multiple"), TILES.items())
def test_slots_in_tiles(name: str, multiple: int) -> None:
    one = layer_set(name, layers=1)
    assert reason(one, 2 * multiple) is None
    assert reason(one, 2 * multiple, kernel=multiple) is None
    assert reason(one, 2 * multiple, kernel=multiple // 2) == "layout"
    assert reason(one, 2 * multiple, shared=4) == "layout"
    assert reason(one, multiple + 2) == "layout"


@pytest.mark.parametrize(
    ("one", "more", "text"),
    [
        (LayerSet(1, 2, 576, 0, "fp8_ds_mla"), {}, "one head of 576 and 0 elements, not 2 of 576"),
        (LayerSet(1, 2, 4, 4, "state_fp32"), {}, "one head for its one state, not 2"),
        (LayerSet(1, 1, 16, 32, "nvfp4"), {}, "keys and values of one size, not 16 and 32"),
        (LayerSet(1, 1, 3, 2, "int4_per_token_head"), {}, "a multiple of 2 elements .*, not 3"),
        (LayerSet(1, 1, 2048, 2, "int4_per_token_head"), {}, "no power of two above 512 .* 2048"),
        (LayerSet(1, 1, 96, 96, "ultraquant_4bit"), {}, "a power of two .*, not 96"),
        (LayerSet(1, 1, 16, 16, "nvfp4"), {"kv_split": True}, "no key half .*; use kv_split False"),
        (LayerSet(1, 2, 16, 16, "nvfp4"), {"order": "LHBNC"}, "LHBNC .* 2 heads; use an order"),
        (LayerSet(1, 2, 2, 2, "bf16_cpu_vec"), {"order": "BLNHC"}, "8 slots .* BLNHC .*; use"),
        (LayerSet(1, 1, 8, 8, "bf16_aiter"), {"kernel": 4}, "a multiple of 8 slots .*, not 4"),
        (LayerSet(1, 2, 8, 8, "bf16", 511), {}, "page_bytes is 511, but needs 512 or more"),
        (LayerSet(1, 2, 8, 8, "bf16", 513), {"order": "BHLNC"}, "BHLNC has 2 heads .*; leave"),
        (LayerSet(1, 1, 8, 8, "bf16"), {"kernel": 3}, "3 tokens do not divide 8; a kernel block"),
        (LayerSet(1, 1, 8, 8, "bf16"), {"kernel": 2, "shared": 4}, "4 tokens share .* divide 2;"),
        (LayerSet(1, 1, 8, 8, "state_bf16"), {"kernel": 2}, "use 8 tokens in it, not 2"),
        (LayerSet(1, 1, 8, 8, "bf16", 300), {"kernel": 2}, "stride 300 is not the 256 .*; use one"),
        (
            LayerSet(1, 1, 8, 8, "bf16"),
            {"base_offset_bytes": 1},
            "at 1 .* multiples of 2; change",
        ),
        (LayerSet(1, 1, 8, 8, "bf16"), {"logical_bytes": 9}, "is 9, but blocks have 768; declare"),
        (LayerSet(1, 1, 8, 8, "bf16"), {"physical_bytes": 9}, "is 9, but needs 768 or more"),
        (LayerSet(1, 1, 8, 8, "bf16"), {"host": Host(9)}, "is 9, but one row needs 256; raise"),
    ],
)
def test_refusals_name_value_rule_and_fix(one: LayerSet, more: dict, text: str) -> None:
    group = Group(8, more.pop("kernel", 8), (one,), more.pop("shared", 1))
    with pytest.raises(Refused, match=text):
        CpuEngine().plan(Geometry((group,), 3, **{"host": HOST} | more))


def test_refusals_of_overlays_name_both_groups() -> None:
    groups = [Group(size, size, (LayerSet(2, 1, 8, 8, "bf16"),)) for size in (4, 8)]
    with pytest.raises(Refused, match=r"\(256, 2\).* group 1 .*\(128, 2\).*; use equal pages"):
        CpuEngine().plan(Geometry(tuple(groups), 3, HOST))


def test_refusals_of_slots_and_groups() -> None:
    bf16, state = LayerSet(1, 1, 8, 8, "bf16"), LayerSet(1, 1, 8, 8, "state_bf16")
    mixed = Geometry((Group(4, 4, (bf16, state)),), 3, HOST)
    with pytest.raises(Refused, match="layout: one group has bf16, state_bf16"):
        CpuEngine().plan(mixed)
    apart = Geometry((Group(4, 4, (bf16,)), Group(4, 4, (state,))), 3, HOST, "BLHNC")
    CpuEngine().plan(apart)
    assert reason(bf16, 4, kernel=2, shared=2) is None
    assert reason(bf16, 4, kernel=2, shared=4) == "kernel_split"
    assert reason(bf16, 6, kernel=3, shared=2) == "kernel_split"
    assert reason(bf16, 6, kernel=6, shared=4) is None
    assert reason(bf16, 3, shared=4) == "page"
    assert reason(state, 4, kernel=4, shared=8) is None
    assert reason(state, 4, kernel=2) == "kernel_split"
    assert reason(state, 4, kernel=3) == "kernel_split"


def test_side_buffers_overlay_on_their_own() -> None:
    bf16 = LayerSet(2, 1, 8, 8, "bf16")
    small = LayerSet(2, 1, 128, 0, "indexer_fp8", side=True)
    large = LayerSet(2, 1, 128, 0, "indexer_fp8", 1024, side=True)

    def refused(*sets: tuple[LayerSet, ...], order: str = "LBHNC") -> str | None:
        groups = tuple([Group(4, 4, one) for one in sets])
        try:
            CpuEngine().plan(Geometry(groups, 3, HOST, order))
        except Refused as found:
            return found.reason
        return None

    assert refused((bf16, small), (small, bf16)) is None
    assert refused((bf16, small), (bf16,), (small,)) is None
    assert refused((bf16, small), (bf16, large)) == "overlay"
    assert refused((bf16, small), (bf16, large), order="BLHNC") is None
    assert refused((small,), (bf16,)) is None


def test_layout_comes_after_cell_and_before_page() -> None:
    short = LayerSet(1, 2, 64, 64, "nvfp4", 1)
    odd = LayerSet(1, 2, 8, 8, "nvfp4", 1)

    def first(*sets: LayerSet) -> str:
        with pytest.raises(Refused) as caught:
            CpuEngine().plan(Geometry((Group(4, 4, sets),), 3, HOST, kv_split=True))
        return caught.value.reason

    assert first(short, odd) == "cell"
    assert first(short) == "layout"
    assert first(LayerSet(1, 1, 8, 8, "bf16", 1)) == "page"
