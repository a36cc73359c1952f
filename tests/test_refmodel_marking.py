"""The reference model against marked bytes: every byte of many small pools has one meaning."""

from collections import Counter
from dataclasses import replace
from itertools import product
from operator import mul

import numpy as np
import pytest
from bruteforce import (
    PADDING,
    area_bytes,
    block_bytes,
    content_of,
    group_bytes,
    is_state,
    misaligned,
    overlapping,
    page_of,
    pages,
    parts_of,
    reason,
    runs,
    slots_of,
    splittable,
    walk,
)
from small_geometries import CASES, accepted, cases

from kvexact.refmodel.facts import facts
from kvexact.refmodel.formats import FORMATS
from kvexact.refmodel.layout import group_layout
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import (
    GEOMETRY_REASONS,
    ORDERS,
    PAGE_FORMATS,
    Geometry,
    Group,
    Host,
    LayerSet,
)

HALVES = {name for name, row in FORMATS.items() if row.halves}
ONE_HEAD = ("fp8_ds", "nvfp4_ds", "deepseek", "indexer", "state_")


def kernel_slots(group: Group) -> int:
    """Slots of a kernel block."""
    return slots_of(replace(group, block_size=group.kernel_block_size), group.layer_sets[0])


def spans_by_slot(
    geometry: Geometry,
) -> dict[tuple[int, int, int], list[tuple[tuple[int, ...], range]]]:
    """Per (group, block, slot) what the walk found, with its rank in a row."""
    found: dict[tuple[int, int, int], list[tuple[tuple[int, ...], range]]] = {}
    for note in walk(geometry):
        if note.field != PADDING:
            shape = geometry.groups[note.group].layer_sets[note.layer_set]
            field = [part.name for part in parts_of(shape)].index(note.field)
            rank = (note.layer_set, note.layer, note.head, field, note.at)
            slot = (note.group, note.block, note.token)
            found.setdefault(slot, []).append((rank, note.span))
    return found


def test_verdicts_are_those_of_the_bytes() -> None:
    """A geometry is refused where its bytes forbid it, for the first reason that applies."""
    for case in cases():
        assert case.reason == reason(case.geometry), case


def test_the_draw_meets_every_verdict_and_feature() -> None:
    """Nothing here passes because a kind of geometry was never drawn."""
    verdicts = Counter(case.reason for case in cases())
    assert set(verdicts) == {None, *GEOMETRY_REASONS}
    assert min(verdicts.values()) >= 5, verdicts
    assert verdicts[None] >= 0.3 * CASES, verdicts

    features: Counter[object] = Counter()
    for _, geometry, _ in accepted():
        groups = geometry.groups
        shapes = [shape for group in groups for shape in group.layer_sets]
        split = any(group.kernel_block_size < group.block_size for group in groups)
        padded = any(page_of(g, s) > content_of(g, s) for g in groups for s in g.layer_sets)
        heads = any(shape.kv_heads > 1 for shape in shapes)
        mixed = any(len({page_of(g, s) for s in g.layer_sets}) > 1 for g in groups)
        sides = {shape.side for shape in shapes}
        features.update(
            [
                (geometry.order, "halves" if geometry.kv_split else "cells"),
                (geometry.order, "groups" if len(groups) > 1 else "group"),
                (geometry.order, "heads" if heads else "head"),
                (geometry.order, "kernel blocks" if split else "whole blocks"),
                (geometry.order, "padded" if padded else "dense"),
                *((geometry.order, "side" if side else "no side") for side in sides),
                ("side", geometry.blocks > 1, sides == {True}),
                ("base offset", geometry.base_offset_bytes > 0),
                ("mixed pages", mixed),
                *(("shared slots", group.tokens_per_state > 1) for group in groups),
                *(("ragged slot", g.block_size % g.tokens_per_state > 0) for g in groups),
                *(("no value", shape.head_size_v == 0) for shape in shapes),
                *(("blocks", geometry.blocks > 1) for shape in shapes),
                *((shape.page_format, geometry.order) for shape in shapes),
                *((shape.page_format, "split", geometry.kv_split) for shape in shapes),
                *((shape.page_format, "heads", shape.kv_heads) for shape in shapes),
                *(
                    (shape.page_format, "kernel blocks")
                    for group in groups
                    for shape in group.layer_sets
                    if group.kernel_block_size < group.block_size
                ),
                *(
                    (shape.page_format, "slots")
                    for group in groups
                    for shape in group.layer_sets
                    if slots_of(group, shape) > 1
                ),
            ]
        )
    kinds = ["halves", "cells", "groups", "group", "heads", "head", "padded", "dense", "side"]
    wanted: set[object] = {*product(ORDERS, [*kinds, "kernel blocks", "whole blocks"])}
    wanted |= {*product(["base offset", "mixed pages", "no value", "blocks"], [True, False])}
    wanted |= {*product(["shared slots", "ragged slot"], [True, False])}
    wanted |= {*product(["side"], [True, False], [True, False])}
    wanted |= {*product(PAGE_FORMATS, ORDERS), *product(HALVES, ["split"], [True])}
    several = {name for name in PAGE_FORMATS if not name.startswith(ONE_HEAD)}
    wanted |= {*product(several, ["heads"], [1, 2, 3])}
    slotted = [name for name in PAGE_FORMATS if not name.startswith("state_")]
    wanted |= {(fmt, "slots") for fmt in slotted}
    wanted |= {(fmt, "kernel blocks") for fmt in slotted if not fmt.endswith("_cpu_amx")}
    missing = wanted - set(features)
    assert not missing, missing


def test_sizes() -> None:
    """Content, page, block, pool: each size of the facts is what counting gives."""
    for seed, geometry, planned in accepted():
        found = facts(planned)
        logical = geometry.blocks * block_bytes(geometry)
        needed = geometry.base_offset_bytes + logical
        physical = geometry.physical_bytes
        if physical is None:
            physical = next(
                n for n in range(needed, needed + 4096) if n % geometry.tail_alignment == 0
            )
        assert found["pool.bytes_per_block"] == block_bytes(geometry), seed
        assert found["pool.logical_bytes"] == logical, seed
        assert found["pool.physical_bytes"] == physical, seed
        for g, group in enumerate(geometry.groups):
            for s, shape in enumerate(group.layer_sets):
                assert found[f"g{g}.s{s}.content_bytes"] == content_of(group, shape), seed
                assert found[f"g{g}.s{s}.page_bytes"] == page_of(group, shape), seed


def test_views_reproduce_every_address() -> None:
    """Offset and strides of a view lead to every cell of every layer, block, head and slot.

    Of a scattered field they lead to the first byte of slots 0 and 1.
    """
    for seed, geometry, planned in accepted():
        found = facts(planned)
        expected_views = {
            f"g{g}.s{s}.{part.name}.view"
            for g, group in enumerate(geometry.groups)
            for s, shape in enumerate(group.layer_sets)
            for part in parts_of(shape)
        }
        assert {name for name in found if name.endswith(".view")} == expected_views, seed
        scattered = {(note.group, note.layer_set, note.field) for note in walk(geometry) if note.at}
        ratios = [group.block_size // group.kernel_block_size for group in geometry.groups]
        slots = [kernel_slots(group) for group in geometry.groups]
        for note in walk(geometry):
            if note.field == PADDING:
                continue
            part, slot = divmod(note.token, slots[note.group])
            kernel_block = note.block * ratios[note.group] + part
            view = found[f"g{note.group}.s{note.layer_set}.{note.field}.view"]
            assert isinstance(view, tuple)
            at = (1, note.layer, kernel_block, note.head, slot)
            pieces = (note.group, note.layer_set, note.field) in scattered
            if not pieces or (note.at == 0 and slot < 2):
                assert sum(map(mul, view, at)) == note.start, (seed, note)


def test_axes_of_extent_1_have_stride_0() -> None:
    """A stride that nobody can use is 0, so that two implementations can agree about it."""
    for seed, geometry, planned in accepted():
        found = facts(planned)
        for g, group in enumerate(geometry.groups):
            for s, shape in enumerate(group.layer_sets):
                ratio = group.block_size // group.kernel_block_size
                kernel_blocks = geometry.blocks * ratio
                extents = (shape.layers, kernel_blocks, shape.kv_heads, kernel_slots(group))
                for part in parts_of(shape):
                    view = found[f"g{g}.s{s}.{part.name}.view"]
                    assert isinstance(view, tuple)
                    used = [stride != 0 for stride in view[1:]]
                    assert used == [extent > 1 for extent in extents], seed


def test_row_addresses() -> None:
    """A token's row is its cells by layer set, layer and head, each in logical field order."""
    for seed, geometry, planned in accepted():
        cells = spans_by_slot(geometry)
        for g, group in enumerate(geometry.groups):
            layout = group_layout(planned, g)
            assert layout.slots == slots_of(group, group.layer_sets[0]), seed
            blocks, tokens = np.divmod(np.arange(geometry.blocks * layout.slots), layout.slots)
            rows = layout.of_slots(blocks, tokens)
            assert layout.row_bytes == rows.shape[1]
            sizes, data = [], []
            for shape in group.layer_sets:
                sizes.append(
                    (shape.layers, shape.kv_heads, sum(part.width for part in parts_of(shape)))
                )
                for part in parts_of(shape) * (shape.layers * shape.kv_heads):
                    data += [part.name != "pad"] * int(part.width)
            assert list(layout.shapes) == sizes, seed
            assert layout.data.tolist() == data, seed
            for row, block, token in zip(rows, blocks, tokens, strict=True):
                ordered = sorted(cells[g, int(block), int(token)], key=lambda item: item[0])
                assert row.tolist() == [a for _, span in ordered for a in span], seed


def test_owners_share_no_byte() -> None:
    """In a group every content byte has one meaning; between groups a page keeps to its block."""
    for seed, geometry, planned in accepted():
        start = geometry.base_offset_bytes
        end = start + planned.logical_bytes
        for g in range(len(geometry.groups)):
            passed = [a for note in walk(geometry) if note.group == g for a in note.span]
            assert len(set(passed)) == len(passed), seed
            assert min(passed) >= start, seed
            assert max(passed) < end, seed
        assert not overlapping(geometry), seed


def test_overlay_refusals_are_real() -> None:
    """What is refused as `overlay` really lays one block over another."""
    refused = [case for case in cases() if case.reason == "overlay"]
    assert len(refused) >= 20
    for case in refused:
        assert overlapping(case.geometry), case
        assert not overlapping(replace(case.geometry, blocks=1)), case
        for group in case.geometry.groups:
            assert not overlapping(replace(case.geometry, groups=(group,))), case


def test_every_byte_has_a_meaning() -> None:
    """Between base and tail every byte is content or padding of the largest group, once."""
    for seed, geometry, planned in accepted():
        meaning = ["tail"] * planned.physical_bytes
        meaning[: geometry.base_offset_bytes] = ["base"] * geometry.base_offset_bytes
        for side in (False, True):
            sizes = [group_bytes(group, side=side) for group in geometry.groups]
            for note in walk(geometry):
                shape = geometry.groups[note.group].layer_sets[note.layer_set]
                if note.group == sizes.index(max(sizes)) and shape.side == side:
                    for address in note.span:
                        assert meaning[address] == "tail", seed
                        meaning[address] = "padding" if note.field == PADDING else "content"
        middle = meaning[geometry.base_offset_bytes :][: planned.logical_bytes]
        assert set(middle) <= {"content", "padding"}, seed
        rest = meaning[geometry.base_offset_bytes + planned.logical_bytes :]
        assert set(rest) <= {"tail"}, seed
        assert len(meaning) == planned.physical_bytes, seed


def test_side_buffers_lie_behind_the_blocks() -> None:
    """No byte of a side buffer lies before the last byte of any other layer set."""
    seen = 0
    for seed, geometry, _ in accepted():
        border = geometry.base_offset_bytes + geometry.blocks * area_bytes(geometry, side=False)
        for note in walk(geometry):
            side = geometry.groups[note.group].layer_sets[note.layer_set].side
            assert (note.start >= border) == side, seed
            seen += side
    assert seen > 1000


def test_regions_are_the_content() -> None:
    """Regions are the maximal content runs of every page, each repeated over all blocks, once."""
    for seed, geometry, planned in accepted():
        expected = set()
        images = pages(geometry)
        for g, s, layer, block in images:
            if block:
                continue
            steps = [images[g, s, layer, b][0] for b in range(geometry.blocks)]
            stride = steps[1] - steps[0] if len(steps) > 1 else 0
            for begin, length in runs(images[g, s, layer, 0]):
                expected.add((begin, geometry.blocks, stride, length))
            for b, first in enumerate(steps):
                assert first == steps[0] + b * stride, seed
                moved = [(begin + b * stride, n) for begin, n in runs(images[g, s, layer, 0])]
                assert runs(images[g, s, layer, b]) == moved, seed
        assert facts(planned)["regions"] == tuple(sorted(expected)), seed


def test_regions_come_one_a_page_or_one_a_head() -> None:
    """A page is one run, or, where heads lie outside the page grid, one run a head."""
    for seed, geometry, _ in accepted():
        for (g, s, _, _), image in pages(geometry).items():
            shape = geometry.groups[g].layer_sets[s]
            assert len(runs(image)) in {1, shape.kv_heads}, seed


def test_block_images() -> None:
    """The image of a block is, layer by layer, the sorted addresses of its page."""
    for seed, geometry, planned in accepted():
        for g in range(len(geometry.groups)):
            layout = group_layout(planned, g)
            for block in range(geometry.blocks):
                mine = {key: page for key, page in pages(geometry).items() if key[0] == g}
                ordered = [mine[key] for key in sorted(mine) if key[3] == block]
                assert layout.of_block(block).tolist() == [a for page in ordered for a in page], (
                    seed
                )


def test_host_rows() -> None:
    """A host row holds set by set, layer by layer, part by part; nothing twice, no gap."""
    for seed, geometry, planned in accepted():
        chunk = geometry.host.chunk_blocks
        used = []
        for g, group in enumerate(geometry.groups):
            cursor, expected = 0, np.full((chunk, 0), 0)
            for shape in group.layer_sets:
                for _ in range(shape.layers):
                    pieces = []
                    for _ in range(chunk):
                        pieces.append(range(cursor, cursor + content_of(group, shape)))
                        cursor += content_of(group, shape)
                    expected = np.concatenate([expected, np.array(pieces)], axis=1)
            host = group_layout(planned, g).host
            assert host.tolist() == expected.tolist(), seed
            assert sorted(host.reshape(-1).tolist()) == list(range(cursor)), seed
            used.append(cursor)
        row = planned.row_bytes
        assert max(used) <= row < max(used) + geometry.host.row_alignment, seed
        assert row % geometry.host.row_alignment == 0, seed
        slots = geometry.host.capacity_bytes // row
        found = facts(planned)
        assert found["host.row_bytes"] == row, seed
        assert found["host.scheduler_slots"] == found["host.worker_slots"] == slots, seed
        assert slots > 0, seed


def test_alignment() -> None:
    """Accepted: every field of every cell starts on its unit. Refused: some field does not."""
    for _, geometry, _ in accepted():
        assert not misaligned(geometry)
    refused = [case for case in cases() if case.reason == "alignment"]
    for case in refused:
        assert misaligned(case.geometry), case


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fmt", ["fp32", "fp16", "bf16", "fp8_e4m3", "state_fp32"])
def test_unscaled_dense_pools_are_always_aligned(order: str, fmt: str) -> None:
    """Without scales and paddings nothing can lie off its unit, whatever the sizes."""
    shape = LayerSet(2, 1 if fmt.startswith("state_") else 3, 5, 3, fmt)
    geometry = Geometry((Group(3, 3, (shape,)),), 2, Host(9999), order=order)
    assert not misaligned(geometry)
    plan(geometry)


def test_kernel_blocks_have_one_stride() -> None:
    """Where blocks are split, all kernel blocks of a layer and head lie at one distance."""
    split = 0
    for seed, geometry, _ in accepted():
        for g, group in enumerate(geometry.groups):
            if group.kernel_block_size == group.block_size:
                continue
            split += 1
            slots = kernel_slots(group)
            assert splittable(geometry, g), seed
            starts: dict[tuple[object, ...], list[int]] = {}
            for note in walk(geometry):
                if note.group == g and note.field != PADDING:
                    slot = note.token % slots
                    key = (note.layer_set, note.layer, note.head, slot, note.field, note.at)
                    starts.setdefault(key, []).append(note.start)
            for addresses in starts.values():
                assert len(set(np.diff(sorted(addresses)).tolist())) == 1, seed
    assert split >= 20


def test_kernel_split_refusals_are_real() -> None:
    """What is refused as `kernel_split` is ragged, cuts a slot or a state, or leaves gaps."""
    seen: Counter[str] = Counter()
    for case in cases():
        if case.reason == "kernel_split":
            why = {why_not(case.geometry, g) for g in range(len(case.geometry.groups))}
            assert why != {None}, case
            seen.update(found for found in why if found)
    assert set(seen) == {"ragged", "state", "slot", "gaps"}
    assert min(seen.values()) >= 2, seen


def why_not(geometry: Geometry, g: int) -> str | None:
    """Why a group cannot be seen as kernel blocks."""
    group = geometry.groups[g]
    if group.block_size % group.kernel_block_size:
        return "ragged"
    if group.kernel_block_size == group.block_size:
        return None
    if is_state(group.layer_sets[0]):
        return "state"
    if group.kernel_block_size % group.tokens_per_state:
        return "slot"
    return None if splittable(geometry, g) else "gaps"
