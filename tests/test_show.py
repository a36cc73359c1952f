"""Pictures tell the truth: every byte once, every name right, of any size."""

import random
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.console import Console

from kvexact.fuzz.choose import Prng
from kvexact.fuzz.demands import fitted, fitted_group
from kvexact.fuzz.dimensions import Draft, GroupDraft, LayerSetDraft, build
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.pictures.maps import PoolMap, host_runs, pool_map
from kvexact.fuzz.pictures.page import PageMap, page_map
from kvexact.fuzz.pictures.scale import Scale, kept, left_out, spans_of
from kvexact.fuzz.pictures.show import WrongBytes, draw_svg, draw_terminal
from kvexact.fuzz.pictures.wrong import find
from kvexact.refmodel.layout import group_layout
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS, Geometry, Group, Host, LayerSet, Refused

INT8 = "int8_per_token_head"
FP8 = "fp8_e4m3"
SVG = "{http://www.w3.org/2000/svg}"


def one_set(layers: LayerSet, blocks: int, tokens: int = 4, chunk: int = 1, **more) -> Geometry:
    kernel = more.pop("kernel", tokens)
    host = Host(10**12, chunk)
    return Geometry((Group(tokens, kernel, (layers,)),), blocks, host, **more)


SMALL = one_set(LayerSet(3, 2, 32, 32, INT8), 16)
PADDED = one_set(LayerSet(3, 2, 32, 32, "bf16", 1152), 6, order="BLNHC", base_offset_bytes=64,
                 tail_alignment=4096)  # fmt: skip
SPREAD = one_set(LayerSet(2, 3, 16, 16, INT8), 7, order="LHBNC")
SPLIT = one_set(LayerSet(2, 2, 32, 16, INT8), 5, kernel=2, kv_split=True, chunk=2)
OVERLAY = Geometry(
    (
        Group(4, 4, (LayerSet(3, 2, 32, 32, INT8),)),
        Group(8, 8, (LayerSet(2, 1, 64, 0, "bf16"), LayerSet(1, 1, 24, 16, INT8, 512))),
    ),
    11,
    Host(50_000, 3, 256),
    order="BLHNC",
    base_offset_bytes=128,
    tail_alignment=1024,
)
LATENT = one_set(LayerSet(61, 1, 576, 0, "bf16"), 7411, tokens=64, chunk=4)
NAMED = {
    "small": SMALL, "padded": PADDED, "spread": SPREAD, "split": SPLIT, "overlay": OVERLAY,
    "heads outside layers": one_set(LayerSet(3, 2, 16, 16, FP8), 5, order="BHLNC"),
    "a tail of many blocks": one_set(LayerSet(1, 1, 8, 0, "fp16"), 2, physical_bytes=4096),
    "one block, pages differ": Geometry(
        (Group(2, 2, (LayerSet(2, 1, 8, 8, FP8),)), Group(3, 3, (LayerSet(1, 2, 4, 4, FP8),))),
        1, Host(1000),
    ),
    "a group that ends early": Geometry(
        (Group(2, 2, (LayerSet(1, 1, 8, 8, FP8),)), Group(2, 2, (LayerSet(3, 1, 8, 8, FP8),))),
        4, Host(1000),
    ),
}  # fmt: skip


def random_geometry(rng: random.Random) -> Geometry:
    def layer_set() -> LayerSet:
        cell = rng.choice(PAGE_FORMATS)
        size_k, size_v = rng.choice((1, 2, 4, 8)), rng.choice((0, 2, 4, 8))
        page = rng.choice((None, None, 512, 1024))
        return LayerSet(rng.randint(1, 3), rng.randint(1, 3), size_k, size_v, cell, page)

    def group() -> Group:
        block = rng.choice((1, 2, 4, 6))
        sets = tuple(layer_set() for _ in range(rng.randint(1, 2)))
        return Group(block, rng.choice((block, 1, 2)), sets)

    return Geometry(
        tuple(group() for _ in range(rng.choice((1, 1, 2, 3)))), rng.randint(1, 5),
        Host(20_000, rng.randint(1, 3), rng.choice((1, 16))), rng.choice(ORDERS),
        rng.random() < 0.3, rng.choice((0, 0, 4, 64)), rng.choice((1, 256)),
    )  # fmt: skip


def planned_at_random(count: int) -> Iterator[Geometry]:
    rng = random.Random(7)
    while count:
        geometry = random_geometry(rng)
        try:
            plan(geometry)
        except Refused:
            continue
        count -= 1
        yield geometry


def of_every_format() -> Iterator[Geometry]:
    """Each format at its least sizes, in padded pages and in others."""
    for number, page_format in enumerate(PAGE_FORMATS):
        layers = fitted(LayerSetDraft(2, 2, 8, 8, page_format, padding_bytes=number % 2 * 64))
        group = fitted_group(GroupDraft(3, layer_sets=(layers,)))
        yield build(Draft((group,), blocks=2, order=("LBHNC", "BLHNC")[number % 2]))


def of_families() -> Iterator[Geometry]:
    """What the families of values draw: side buffers, states, shared slots."""
    for name in ("values", "latent", "hybrid"):
        for seed in range(4):
            yield FAMILIES[name].draw(Prng(seed))


def able(geometries: Iterator[Geometry]) -> Iterator[Geometry]:
    """Those that are not refused, and small."""
    for geometry in geometries:
        try:
            if plan(geometry).logical_bytes < 30_000:
                yield geometry
        except Refused:
            continue


MANY = [*NAMED.values(), *planned_at_random(80), *of_every_format(), *able(of_families())]


def svg_tree(text: str) -> ET.Element:
    return ET.fromstring(text)


def texts(text: str) -> list[str]:
    return [element.text or "" for element in svg_tree(text).iter(f"{SVG}text")]


def terminal(geometry: Geometry, width: int = 100) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        draw_terminal(console, geometry)
    return captured.get()


def wrong_at(positions: list[int], area: str = "pool", group: int | None = None) -> WrongBytes:
    want = np.arange(len(positions), dtype=np.uint8)
    return WrongBytes(area, np.array(positions, np.intp), want, want ^ np.uint8(255), group)


def all_runs(pool: PoolMap, group: int) -> list:
    bands = [run for band in range(pool.bands) for run in pool.runs(group, band)]
    return [run for run in (pool.base, *bands, pool.tail) if run.length]


@pytest.mark.parametrize("geometry", MANY)
def test_runs_cover_every_byte_once_and_in_order(geometry):
    planned = plan(geometry)
    pool = pool_map(planned)
    for group in range(len(geometry.groups)):
        at = 0
        for run in all_runs(pool, group):
            assert run.start == at
            at = run.end
        assert at == planned.physical_bytes


@pytest.mark.parametrize("geometry", MANY)
def test_content_runs_are_the_models_pages(geometry):
    """Owner, layer and block of each content byte, marked one by one from the model's addresses."""
    planned = plan(geometry)
    pool = pool_map(planned)
    for group, placements in enumerate(planned.placements):
        owner = np.full((planned.physical_bytes, 3), -1)
        for s, placement in enumerate(placements):
            cells = placement.cells_of_block_0()
            for block in range(geometry.blocks):
                for layer in range(placement.extents["L"]):
                    places = cells[:, layer] + block * placement.grid["B"]
                    owner[places.reshape(-1)] = s, layer, block
        drawn = np.full_like(owner, -1)
        for run in all_runs(pool, group):
            if run.kind == "content":
                assert run.piece.group == group
                drawn[run.start : run.end] = run.piece.layer_set, run.piece.layer, run.block
        assert (drawn == owner).all()


@pytest.mark.parametrize("geometry", MANY)
def test_page_rows_name_every_content_byte(geometry):
    planned = plan(geometry)
    for placements in planned.placements:
        for placement in placements:
            page = page_map(geometry, placement)
            cells = placement.cells_of_block_0()[:, 0] - placement.start
            names = [p.field.name for p in placement.places for _ in range(p.field.width_bytes)]
            in_order = sorted(cells.reshape(-1).tolist())
            rank = {address: number for number, address in enumerate(in_order)}
            for (token, head, byte), address in [*np.ndenumerate(cells)][:: 1 + cells.size // 2000]:
                spot = page.spot(int(address))
                assert page.spot_of_content(rank[address]) == spot
                assert spot.field.name == names[byte]
                assert where(page, spot) == (token, head, byte - names.index(names[byte]))


def where(page: PageMap, spot) -> tuple[int, int, int]:
    """Slot of the block, head, and byte of the field, as a picture's words say them."""
    said = dict(re.findall(r"(kernel block|head|token|byte) (\d+)", page.words(spot)))
    part = int(said.get("kernel block", 0))
    slot = part * page.placement.extents["N"] + int(said["token"])
    return slot, int(said["head"]), int(said["byte"])


@pytest.mark.parametrize("geometry", MANY)
def test_host_runs_are_the_models_rows(geometry):
    planned = plan(geometry)
    for group in range(len(geometry.groups)):
        runs = list(host_runs(planned, group))
        assert [run.start for run in runs] == [0, *(run.end for run in runs[:-1])]
        assert runs[-1].end == planned.row_bytes
        layout = group_layout(planned, group).host
        for part in range(geometry.host.chunk_blocks):
            own = [r for r in runs if r.kind == "content" and r.part == part]
            places = np.concatenate([np.arange(r.start, r.end) for r in own])
            assert (places == layout[part]).all()


def test_a_window_of_a_band_is_cut_out_of_it():
    pool = pool_map(plan(OVERLAY))
    start, end = pool.extent(3)
    for group in (0, 1):
        whole = [run for run in pool.runs(group, 3) for _ in range(run.length)]
        for low, high in ((start + 100, start + 101), (start + 1, end - 1), (end - 3, end + 9)):
            cut = [run for run in pool.runs(group, 3, low, high) for _ in range(run.length)]
            owners = [(run.kind, run.piece) for run in whole[low - start : high - start]]
            assert [(run.kind, run.piece) for run in cut] == owners


@pytest.mark.parametrize("geometry", MANY)
def test_every_geometry_is_drawn(geometry):
    svg_tree(draw_svg(geometry))
    for width in (80, 120):
        lines = terminal(geometry, width).splitlines()
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("geometry", MANY[::7])
@pytest.mark.parametrize("area", ["pool", "host"])
def test_any_byte_may_be_wrong(geometry, area):
    planned = plan(geometry)
    size = (
        planned.physical_bytes if area == "pool" else planned.row_bytes * min(planned.host_slots, 4)
    )
    rng = random.Random(size)
    for _ in range(5):
        positions = sorted(rng.sample(range(size), min(size, 9)))
        tree = svg_tree(draw_svg(geometry, wrong_at(positions, area)))
        assert any("wrong" in (element.text or "") for element in tree.iter(f"{SVG}text"))
    svg_tree(draw_svg(geometry, wrong_at(list(range(size)), area)))


def test_no_wrong_bytes_are_no_failure():
    assert draw_svg(SMALL, wrong_at([])) == draw_svg(SMALL)


def test_a_picture_stands_alone():
    text = draw_svg(OVERLAY, wrong_at([200]))
    assert "href" not in text
    assert "<script" not in text
    assert text.count("http") == 1  # the name space


def test_text_is_escaped_and_printable():
    caption = 'a < b & c > "d" \x00 \ud800\n  indented'
    shown = texts(draw_svg(SMALL, caption=caption))
    assert 'a < b & c > "d" \ufffd \ufffd' in shown
    assert "  indented" in shown


def test_the_same_picture_twice():
    assert draw_svg(OVERLAY) == draw_svg(OVERLAY)


def test_wrong_bytes_are_named_marked_and_shown():
    positions = [24_804 + i for i in range(8)]
    text = draw_svg(SMALL, wrong_at(positions), "op 7 restore")
    shown = texts(text)
    assert "8 wrong bytes in the pool, first at byte 24,804, last at 24,811" in shown
    assert "first: layer 2 block 11 head 0 token 0 field v byte 0" in shown
    assert "one page, layer 2 in block 11, from byte 24,768" in shown
    assert {"00", "07", "ff", "f8"} <= set(shown)
    marks = [
        e for e in svg_tree(text).iter(f"{SVG}rect") if e.findtext(f"{SVG}title") == "wrong bytes"
    ]
    assert len(marks) == 3  # storage, band and page
    assert not [
        e for e in svg_tree(draw_svg(SMALL)).iter(f"{SVG}rect") if e.get("fill") == "#e5182b"
    ]


def test_wrong_bytes_outside_of_content():
    assert "first: tail" in texts(draw_svg(PADDED, wrong_at([24_000])))
    assert "first: base" in texts(draw_svg(PADDED, wrong_at([3])))
    padding = 64 + 1024 + 5
    assert "first: layer 0 block 0 padding" in texts(draw_svg(PADDED, wrong_at([padding])))
    last = plan(OVERLAY).row_bytes - 1
    said = "first: slot 0 unused (as group 0 reads it)"
    assert said in texts(draw_svg(OVERLAY, wrong_at([last], "host", 0)))


def test_the_owner_decides_how_overlaid_bytes_are_read():
    pool = pool_map(plan(OVERLAY))
    byte = 128 + 2176 - 128 + 30  # group 1's second layer set; unused by group 0
    assert find(pool, wrong_at([byte]), byte).group == 1
    assert find(pool, wrong_at([byte], group=0), byte).kind == "unused"
    assert find(pool, wrong_at([200], group=1), 200).group == 1


def test_wrong_bytes_that_are_left_out_are_counted():
    shown = texts(draw_svg(LATENT, wrong_at([layer * 546_398_208 for layer in range(30)])))
    assert any("wrong bytes among them" in line for line in shown)


def test_large_pools_make_small_pictures():
    text = draw_svg(LATENT)
    lines = terminal(LATENT)
    assert len(text) < 300_000
    assert len(lines.splitlines()) < 60
    for number in ("546,398,208", "73,728", "33,330,290,688"):
        assert any(number in line for line in texts(text))
        assert number in lines
    assert any("more bands" in line for line in texts(text))


def test_many_bands_are_one_in_the_strip_of_the_storage():
    by_block = one_set(LayerSet(61, 1, 576, 0, "bf16"), 7411, tokens=64, order="BLHNC")
    assert "7,411 bands" in texts(draw_svg(by_block))


def test_a_large_page_leaves_rows_out_and_draws_its_padding():
    tokens, page = 1056, 1056 * 4 * 264 + 100
    geometry = one_set(LayerSet(2, 4, 128, 128, INT8, page), 3, tokens=tokens, order="LBNHC")
    shown = texts(draw_svg(geometry))
    assert "\u22ef 1,047 more rows" in shown
    assert "100 bytes" in shown
    many = [token * 4 * 264 for token in range(tokens)]
    assert "\u22ef 1,050 more rows, with wrong bytes" in texts(draw_svg(geometry, wrong_at(many)))


def test_names_that_find_no_room_are_left_out():
    shown = texts(draw_svg(one_set(LayerSet(1, 1, 4, 512, INT8), 2, tokens=16)))
    assert "k 4" in shown
    assert {"0", "4", "8", "520", "524"} <= set(shown)


def test_many_groups_and_layer_sets_are_left_out_aloud():
    sets = tuple(LayerSet(1, 1, 8, 8, FP8) for _ in range(9))
    geometry = Geometry(tuple(Group(2, 2, sets) for _ in range(6)), 3, Host(1000), order="BLHNC")
    text = draw_svg(geometry)
    assert any("48 more layer sets" in line for line in texts(text))
    assert any("of the first 4" in line for line in texts(text))
    assert "50 more layer sets" in terminal(geometry)
    assert "the first 4 groups" in terminal(geometry)


def test_the_terminal_holds_the_numbers():
    text = terminal(SMALL)
    for number in ("27,648", "1,728", "576", "288", "9,216", "72"):
        assert number in text
    assert "\u258fk 32 k" in text
    padded = terminal(PADDED, 80)
    assert "\u2591" in padded
    assert "tail" in padded
    assert "3,776 bytes" in padded
    assert "kb1 v h1" in terminal(SPLIT)


def test_a_refused_geometry_is_not_drawn():
    refused = one_set(LayerSet(1, 1, 8, 8, FP8, 8), 2)
    with pytest.raises(Refused, match="page"):
        draw_svg(refused)
    with pytest.raises(Refused, match="page"):
        draw_terminal(Console(), refused)


@pytest.mark.parametrize("count", [1, 5, 20, 21, 23, 1000])
@pytest.mark.parametrize("focus", [(), (0,), (500,), (7, 400, 401, 999)])
def test_kept_items_have_both_ends_and_the_focus(count, focus):
    focus = [item for item in focus if item < count]
    ranges = kept(count, 20, focus)
    items = [item for some in ranges for item in some]
    assert items == sorted(set(items))
    assert {0, count - 1, *focus[:3]} <= set(items)
    assert sum(left_out(ranges)) + len(items) == count
    assert all(gap > 1 for gap in left_out(ranges))
    assert len(items) <= 26


def test_a_scale_keeps_lengths_and_order():
    spans = spans_of([range(2), range(8, 10)], range(0, 100, 10), 100)
    assert spans == [(0, 20), (80, 100)]
    scale = Scale.fit(spans, 50, 10)
    assert list(scale.clip(0, 100)) == [(0, 20), (30, 50)]
    assert list(scale.clip(15, 85)) == [(15, 20), (30, 35)]
    assert list(scale.gaps()) == [20]
    assert scale.width == 50
