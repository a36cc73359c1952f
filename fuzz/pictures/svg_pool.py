"""The pool and the host row in an SVG: one strip of the whole storage, then band by band."""

from bisect import bisect_right

import numpy as np

from kvexact.fuzz.pictures.maps import HostRun, PoolMap, Run, host_runs
from kvexact.fuzz.pictures.palette import group_fill
from kvexact.fuzz.pictures.scale import Scale, kept, left_out, spans_of
from kvexact.fuzz.pictures.svg import Canvas
from kvexact.fuzz.pictures.svg_strips import (
    GAP,
    LANE,
    LEFT,
    MARGIN,
    PATTERN_FILLS,
    STRIP,
    draw_gaps,
    draw_marks,
    draw_run,
    draw_tick,
    draw_ticks,
)
from kvexact.fuzz.pictures.text import (
    band_name,
    counted,
    host_name,
    host_title,
    item_name,
    run_title,
    size,
)
from kvexact.fuzz.pictures.wrong import Positions

#: At most about so many groups, bands and items of a band are drawn.
GROUPS, _BANDS, _ITEMS = 4, 8, 20
_WHOLE_BANDS = 150


def draw_storage(canvas: Canvas, pool: PoolMap, wrong: Positions) -> None:
    """The whole storage to scale: base offset, bands, tail."""
    end = pool.planned.physical_bytes
    scale = Scale.fit([(0, end)], STRIP, 0)
    canvas.text(MARGIN, canvas.y + 13, "whole storage")
    start, stop = pool.base.end, pool.tail.start
    if pool.bands <= _WHOLE_BANDS:
        for band in range(pool.bands):
            first, last = pool.extent(band)
            lead = pool.place(band)[0].lead
            name = band_name(pool, band, lead)
            title = f"{name}: bytes {first:,} to {last - 1:,}"
            draw_run(canvas, scale, first, last, group_fill(lead, 0, band), title, name)
    else:
        name = counted(pool.bands, "band")
        title = f"{name}: bytes {start:,} to {stop - 1:,}"
        draw_run(canvas, scale, start, stop, group_fill(0, 0, 0), title, name)
    for run in (pool.base, pool.tail):
        if run.length:
            draw_run(canvas, scale, run.start, run.end, PATTERN_FILLS[run.kind],
                     run_title(pool, run), run.kind)  # fmt: skip
    draw_marks(canvas, scale, wrong)
    canvas.y += LANE
    if start:
        draw_tick(canvas, 0, 0, anchor="end")
    draw_tick(canvas, start * scale.per_byte, start)
    draw_tick(canvas, stop * scale.per_byte, stop, anchor="end")
    if stop < end:
        draw_tick(canvas, STRIP, end, row=1, anchor="end")
        canvas.y += 10
    canvas.y += 12


def draw_bands(canvas: Canvas, pool: PoolMap, wrong: Positions) -> None:
    """Bands of the pool, the middle ones left out where they are many."""
    groups = min(pool.groups, GROUPS)
    low, high = np.searchsorted(wrong, (pool.base.end, pool.tail.start))
    hit = (pool.band_of(int(byte)) for byte in _samples(wrong[low:high]))
    focus = [band for band in hit if band is not None]
    ranges = kept(pool.bands, _BANDS if groups == 1 else _BANDS - 2, focus)
    shown = [band for some in ranges for band in some]
    items = {band: _items(pool, band, wrong) for band in shown}
    spans = {band: spans_of(items[band], pool.starts(band), pool.extent(band)[1]) for band in shown}
    per_byte = min(Scale.fit(spans[band], STRIP, GAP).per_byte for band in shown)
    for some, gap in zip(ranges, [*left_out(ranges), 0], strict=True):
        for band in some:
            scale = Scale(tuple(spans[band]), per_byte, GAP)
            _draw_band(canvas, pool, band, items[band], scale, wrong)
        if gap:
            first, last = pool.extent(some.stop)[0], pool.extent(some.stop + gap - 1)[1]
            low, high = np.searchsorted(wrong, (first, last))
            text = f"\u22ef {counted(gap, 'more band')}, {size(last - first)}"
            text += f", {counted(high - low, 'wrong byte')} among them" if low < high else ""
            canvas.text(LEFT, canvas.y + 10, text, "dim wrong" if low < high else "dim")
            canvas.y += 20
    canvas.y += 2


def _samples(wrong: Positions) -> Positions:
    """A few of many positions, the first one among them."""
    return wrong[:: max(wrong.size // 64, 1)]


def _items(pool: PoolMap, band: int, wrong: Positions) -> list[range]:
    """The items of a band that are drawn."""
    starts = pool.starts(band)
    low, high = np.searchsorted(wrong, pool.extent(band))
    focus = [bisect_right(starts, int(byte)) - 1 for byte in _samples(wrong[low:high])]
    return kept(len(starts), _ITEMS, focus)


def _draw_band(
    canvas: Canvas, pool: PoolMap, band: int, items: list[range], scale: Scale, wrong: Positions
) -> None:
    low, high = np.searchsorted(wrong, pool.extent(band))
    canvas.y += 8 if low < high else 0
    for group in range(min(pool.groups, GROUPS)):
        name = band_name(pool, band, group)
        if pool.groups > 1:
            same = not pool.by_layer and group
            name = f"g{group}" if same else f"{name}  g{group}"
        canvas.text(LEFT - 8, canvas.y + 14, name, "", "end")
        for first, last in scale.spans:
            for run in pool.runs(group, band, first, last):
                _draw_pool_run(canvas, pool, scale, run)
        draw_gaps(canvas, scale, left_out(items), wrong)
        draw_marks(canvas, scale, wrong, arrow=not group)
        canvas.y += LANE
    starts = pool.starts(band)
    draw_ticks(canvas, scale, [starts[item] for some in items for item in some])
    canvas.y += 5


def _draw_pool_run(canvas: Canvas, pool: PoolMap, scale: Scale, run: Run) -> None:
    if run.kind != "content" or run.piece is None or run.block is None:
        draw_run(canvas, scale, run.start, run.end, PATTERN_FILLS[run.kind], run_title(pool, run))
        return
    item = run.block if pool.by_layer else run.piece.layer + run.piece.head
    fill = group_fill(run.piece.group, run.piece.layer_set, item)
    draw_run(canvas, scale, run.start, run.end, fill, run_title(pool, run), item_name(pool, run))


def draw_host(canvas: Canvas, pool: PoolMap, slot: int | None, wrong: Positions) -> None:
    """One row of the host tier, as each group fills it.

    Args:
        slot: the row whose wrong bytes are marked, or None.
        wrong: their positions, counted from the row's start.
    """
    groups = range(min(pool.groups, GROUPS))
    lead = max(groups, key=lambda group: sum(1 for _ in host_runs(pool.planned, group)))
    starts = [run.start for run in host_runs(pool.planned, lead)]
    focus = [bisect_right(starts, int(byte)) - 1 for byte in _samples(wrong)]
    ranges = kept(len(starts), _ITEMS, focus)
    spans = spans_of(ranges, starts, pool.planned.row_bytes)
    scale = Scale.fit(spans, STRIP, GAP)
    canvas.y += 8 if wrong.size else 0
    canvas.text(MARGIN, canvas.y + 14, "any row" if slot is None else f"row {slot}")
    for group in groups:
        if pool.groups > 1:
            canvas.text(LEFT - 8, canvas.y + 14, f"g{group}", "", "end")
        for run in host_runs(pool.planned, group):
            _draw_host_run(canvas, pool, scale, group, run)
        draw_gaps(canvas, scale, left_out(ranges), wrong)
        draw_marks(canvas, scale, wrong, arrow=not group)
        canvas.y += LANE
    draw_ticks(canvas, scale, starts)
    canvas.y += 4


def _draw_host_run(canvas: Canvas, pool: PoolMap, scale: Scale, group: int, run: HostRun) -> None:
    fill, name = PATTERN_FILLS["unused"], ""
    if run.kind == "content":
        fill = group_fill(group, run.layer_set, run.layer + run.part)
        name = host_name(pool.planned, group, run)
    title = host_title(pool.planned, group, run)
    draw_run(canvas, scale, run.start, run.end, fill, title, name)
