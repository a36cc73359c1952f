"""A geometry, or a failure in it, as one standalone SVG."""

from textwrap import wrap

import numpy as np

from kvexact.fuzz.pictures.maps import PoolMap, pool_map
from kvexact.fuzz.pictures.page import page_map
from kvexact.fuzz.pictures.palette import group_fill
from kvexact.fuzz.pictures.svg import Canvas, text_width
from kvexact.fuzz.pictures.svg_page import draw_cell, draw_field_table, draw_rows
from kvexact.fuzz.pictures.svg_pool import GROUPS, draw_bands, draw_host, draw_storage
from kvexact.fuzz.pictures.svg_strips import MARGIN, PATTERN_FILLS, WIDTH, WRONG_FILL
from kvexact.fuzz.pictures.svg_wrong import draw_findings
from kvexact.fuzz.pictures.text import band_word, counted, set_name, set_shape, set_sizes, summary
from kvexact.fuzz.pictures.timeline import Timeline
from kvexact.fuzz.pictures.timeline_svg import draw_timeline
from kvexact.fuzz.pictures.wrong import Finding, Positions, WrongBytes, find
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry

_NOTHING: Positions = np.empty(0, np.intp)
_PANELS = 6
_LINE_CHARS = 156
_LETTERS = "L layer   b block   h head   s layer set   p part of a chunk   g group"


def draw_svg(
    geometry: Geometry,
    wrong: WrongBytes | None = None,
    caption: str = "",
    run: Timeline | None = None,
) -> str:
    """Draw sizes, pages, pool and host row of a geometry. Needs no memory.

    Args:
        wrong: bytes to mark in red; the page of the first one is drawn, and its bytes in hex. None
            is the same as no positions.
        caption: text below the title, such as a failure message.
        run: what ran when, to be drawn below the caption.

    Raises:
        Refused: the geometry cannot be.
    """
    pool = pool_map(plan(geometry))
    wrong = wrong if wrong and wrong.positions.size else None
    finding = find(pool, wrong, int(wrong.positions[0])) if wrong else None
    canvas = Canvas(WIDTH, 40)
    title = f"{_formats(geometry)} in {geometry.order}"
    canvas.text(MARGIN, canvas.y, title, "big")
    canvas.y += 8
    for line in caption.splitlines():
        for part in wrap(line, _LINE_CHARS, drop_whitespace=False) or [""]:
            canvas.y += 16
            canvas.text(MARGIN, canvas.y, part)
    if wrong:
        draw_findings(canvas, pool, wrong)
    if run:
        _heading(canvas, "Time", f"{run.moments} moments: calls of the host, and steps of the work")
        draw_timeline(canvas, run)
    canvas.y += 10
    for name, value in summary(pool.planned):
        canvas.y += 16
        canvas.text(MARGIN, canvas.y, name, "dim")
        canvas.text(MARGIN + 84, canvas.y, value)
    _draw_panels(canvas, pool, wrong, finding)
    _draw_pool(canvas, pool, wrong, finding)
    canvas.y += 14
    return canvas.render(title)


def _formats(geometry: Geometry) -> str:
    names = [layers.page_format for group in geometry.groups for layers in group.layer_sets]
    return " + ".join(dict.fromkeys(names))


def _heading(canvas: Canvas, text: str, note: str = "") -> None:
    canvas.y += 34
    canvas.text(MARGIN, canvas.y, text, "head")
    if note:
        canvas.text(MARGIN + 9 + len(text) * 8, canvas.y, note, "dim")
    canvas.y += 8


def _draw_panels(
    canvas: Canvas, pool: PoolMap, wrong: WrongBytes | None, finding: Finding | None
) -> None:
    """One panel for each layer set."""
    sets = [
        (g, s) for g, of_group in enumerate(pool.planned.placements) for s in range(len(of_group))
    ]
    if finding and finding.layer_set is not None:
        first = (finding.group, finding.layer_set)
        sets = [first, *(one for one in sets if one != first)]
    for group, layer_set in sets[:_PANELS]:
        here = (
            finding
            if finding and (finding.group, finding.layer_set) == (group, layer_set)
            else None
        )
        _draw_panel(canvas, pool, group, layer_set, wrong if here else None, here)
    if len(sets) > _PANELS:
        canvas.y += 24
        rest = counted(len(sets) - _PANELS, "more layer set")
        canvas.text(MARGIN, canvas.y, f"\u22ef {rest}, not drawn", "dim")


def _draw_panel(
    canvas: Canvas, pool: PoolMap, group: int, layer_set: int,
    wrong: WrongBytes | None, finding: Finding | None,
) -> None:  # fmt: skip
    planned = pool.planned
    placement = planned.placements[group][layer_set]
    page = page_map(planned.geometry, placement)
    _heading(canvas, set_name(planned, group, layer_set), set_shape(planned, group, layer_set))
    canvas.y += 10
    canvas.text(MARGIN, canvas.y, set_sizes(placement))
    canvas.y += 6
    draw_field_table(canvas, page)
    draw_cell(canvas, page)
    start, name = placement.start, "layer 0 in block 0"
    in_host, positions = False, _NOTHING
    if wrong and finding:
        start, in_host = finding.start, finding.slot is not None
        name = f"layer {finding.layer} in " + (
            f"row {finding.slot}, part {finding.part}" if in_host else f"block {finding.block}"
        )
        positions = wrong.within(
            start, planned.physical_bytes if not in_host else start + placement.content_bytes
        )
    canvas.y += 16
    canvas.text(MARGIN, canvas.y, f"one page, {name}, from byte {start:,}", "dim")
    canvas.y += 6
    draw_rows(canvas, page, positions, in_host=in_host)


def _draw_pool(
    canvas: Canvas, pool: PoolMap, wrong: WrongBytes | None, finding: Finding | None
) -> None:
    """Pool, host row and legend."""
    in_pool = wrong.positions if wrong and wrong.area == "pool" else _NOTHING
    groups = pool.groups
    note = f"a band for each {band_word(pool)}"
    if groups > 1:
        note += "; groups lie over the same bytes, one lane for each"
    if groups > GROUPS:
        note += f" of the first {GROUPS}"
    _heading(canvas, "pool", note)
    _draw_legend(canvas, pool, marked=wrong is not None)
    canvas.y += 12
    draw_storage(canvas, pool, in_pool)
    canvas.y += 8
    draw_bands(canvas, pool, in_pool)
    _heading(
        canvas, "host tier", "content alone: layer set by layer set, layer by layer, part by part"
    )
    slot, in_row = None, _NOTHING
    if wrong and finding and finding.slot is not None:
        slot, row = finding.slot, pool.planned.row_bytes
        in_row = wrong.within(slot * row, (slot + 1) * row)
    canvas.y += 8
    draw_host(canvas, pool, slot, in_row)


def _draw_legend(canvas: Canvas, pool: PoolMap, *, marked: bool) -> None:
    """What colours, patterns and letters mean; only those that this pool has."""
    several = pool.groups > 1
    entries = [
        (group_fill(group, 0, 0), f"group {group}" if several else "content")
        for group in range(min(pool.groups, GROUPS))
    ]
    if any(piece.padding_bytes for piece in pool.pieces()):
        entries.append((PATTERN_FILLS["padding"], "padding of a page"))
    if several:
        entries.append((PATTERN_FILLS["unused"], "not used by a group"))
    if pool.base.length or pool.tail.length:
        entries.append((PATTERN_FILLS["base"], "base offset, tail"))
    if marked:
        entries.append((WRONG_FILL, "wrong bytes"))
    x = float(MARGIN)
    canvas.y += 6
    for fill, name in entries:
        canvas.rect(x, canvas.y, 12, 12, fill)
        canvas.text(x + 18, canvas.y + 10, name, "dim")
        x += 40 + text_width(name)
    canvas.text(MARGIN, canvas.y + 28, _LETTERS, "dim")
    canvas.y += 36
