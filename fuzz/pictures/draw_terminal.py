"""A geometry in the terminal: sizes, pages, pool and host row, 60 to 120 columns wide.

Letters and patterns say the same as colours do, so that plain text is enough.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvexact.fuzz.pictures.maps import HostRun, PoolMap, Run, host_runs, pool_map
from kvexact.fuzz.pictures.page import CellField, PageMap, PageRow, page_map
from kvexact.fuzz.pictures.palette import DARK_FIELDS, FIELD_FILLS, FIELD_LETTERS, group_fill
from kvexact.fuzz.pictures.scale import Scale, kept, left_out, spans_of
from kvexact.fuzz.pictures.terminal_strip import EDGE, GAP, LABEL, Mark, line, strip, ticks
from kvexact.fuzz.pictures.text import (
    FIELD_COLUMNS,
    band_name,
    band_word,
    counted,
    field_rows,
    host_name,
    item_name,
    piece_name,
    set_name,
    set_shape,
    set_sizes,
    size,
    summary,
)
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry

_LEAST_COLUMNS, _MOST_COLUMNS = 60, 120
_ROWS, _CELLS, _BANDS, _GROUPS, _SETS = 7, 6, 6, 4, 4

_FILLS = {
    "padding": ("\u2591", "dim"),
    "unused": ("\u00b7", "dim"),
    "base": ("\u2592", "dim"),
    "tail": ("\u2592", "dim"),
}


def draw_terminal(console: Console, geometry: Geometry) -> None:
    """Draw sizes, pages, pool and host row of a geometry. Needs no memory.

    Raises:
        Refused: the geometry cannot be.
    """
    pool = pool_map(plan(geometry))
    width = min(max(console.width, _LEAST_COLUMNS), _MOST_COLUMNS)
    for name, value in summary(pool.planned):
        console.print(Text.assemble((f"{name:{LABEL}}", "dim"), value))
    sets = [
        (g, s) for g, of_group in enumerate(pool.planned.placements) for s in range(len(of_group))
    ]
    for group, layer_set in sets[:_SETS]:
        _print_set(console, pool, group, layer_set, width)
    if len(sets) > _SETS:
        console.print(Text(f"\n\u22ef {counted(len(sets) - _SETS, 'more layer set')}", "dim"))
    _print_pool(console, pool, width)
    _print_host(console, pool, width)


def _print_set(console: Console, pool: PoolMap, group: int, layer_set: int, width: int) -> None:
    """A layer set: its fields, its cell enlarged, its page."""
    placement = pool.planned.placements[group][layer_set]
    console.print()
    console.print(Text(set_name(pool.planned, group, layer_set), "bold"))
    console.print(Text(set_shape(pool.planned, group, layer_set), "dim"))
    console.print(Text(set_sizes(placement)))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("", *FIELD_COLUMNS):
        table.add_column(column, justify="left" if column in ("", "field") else "right")
    for row in field_rows(placement):
        swatch = Text(f" {FIELD_LETTERS[row.name]} ", _field_style(row.name))
        table.add_row(swatch, row.name, *(f"{n:,}" for n in row.numbers))
    console.print(table)
    page = page_map(pool.planned.geometry, placement)
    for shown in (*_cells(page, width), *_page(page, width)):
        console.print(shown)


def _cells(page: PageMap, width: int) -> Iterator[Text]:
    """The first cell of each kind of row over the whole width, with the bytes of its edges."""
    kinds = page.kinds()
    per_byte = (width - LABEL) / max(row.cell_bytes for row in kinds)
    for row in kinds:
        half = next((f" {index} half" for word, index in row.where if word == "half"), "")
        scale = Scale(((0, row.cell_bytes),), per_byte, 0)
        marks = [
            _field_mark(field, field.offset, f"{EDGE}{field.name} {field.width_bytes} ")
            for field in row.fields
        ]
        yield line(f"cell{half}", strip(scale, marks))
        yield line("", ticks(scale, [field.offset for field in row.fields]))


def _page(page: PageMap, width: int) -> Iterator[Text]:
    """The page of layer 0 in block 0, row by row, to one scale; ticks count from its start."""
    ranges = kept(len(page), _ROWS)
    rows = {number: page.row(number) for some in ranges for number in some}
    spans = {
        n: spans_of(kept(row.cells, _CELLS), range(0, row.length, row.cell_bytes), row.length)
        for n, row in rows.items()
    }
    per_byte = min(Scale.fit(one, width - LABEL, GAP).per_byte for one in spans.values())
    yield Text(f"page of layer 0 in block 0, from byte {page.placement.start:,}", "dim")
    for some, gap in zip(ranges, [*left_out(ranges), 0], strict=True):
        for number in some:
            row = rows[number]
            scale = Scale(tuple(spans[number]), per_byte, GAP)
            gaps = left_out(kept(row.cells, _CELLS))
            yield line(row.label or f"{row.axis}s", strip(scale, _field_marks(row, scale), gaps))
            edges = (cell * row.cell_bytes for some in kept(row.cells, _CELLS) for cell in some)
            yield line("", ticks(scale, edges, row.start))
        if gap:
            yield line("", Text(f"\u22ef {counted(gap, 'more row')}", "dim"))
    start, end = page.placement.content_bytes, page.placement.page_bytes
    if start < end:
        room = width - LABEL
        scale = Scale.fit([(start, end)], min(max((end - start) * per_byte, 1), room), 0)
        yield line("padding", strip(scale, [Mark(start, end, "", *_FILLS["padding"])]))
        yield line("", Text(f"+{start:,} to +{end:,}: {end - start:,} bytes", "dim"))


def _field_marks(row: PageRow, scale: Scale) -> Iterator[Mark]:
    for first, last in scale.spans:
        for start in range(first, last, row.cell_bytes):
            for field in row.fields:
                yield _field_mark(field, start + field.offset, "" if field.offset else EDGE)


def _field_mark(field: CellField, start: int, name: str) -> Mark:
    letter, style = FIELD_LETTERS[field.name], _field_style(field.name)
    return Mark(start, start + field.width_bytes, name, letter, style)


def _field_style(name: str) -> str:
    ink = "white" if name in DARK_FIELDS else "black"
    return f"{ink} on {FIELD_FILLS[name]}"


def _print_pool(console: Console, pool: PoolMap, width: int) -> None:
    """Bands of the pool, one line for each group, the middle ones left out where they are many."""
    groups = range(min(pool.groups, _GROUPS))
    console.print()
    console.print(Text.assemble(("pool", "bold"), f"  a band for each {band_word(pool)}"))
    for legend in _legend(pool):
        console.print(legend)
    _print_frame(console, pool.base)
    ranges = kept(pool.bands, _BANDS if len(groups) == 1 else _BANDS - 2)
    for some, gap in zip(ranges, [*left_out(ranges), 0], strict=True):
        for band in some:
            _print_band(console, pool, band, groups, width)
        if gap:
            first, last = pool.extent(some.stop)[0], pool.extent(some.stop + gap - 1)[1]
            text = f"\u22ef {counted(gap, 'more band')}, {size(last - first)}"
            console.print(line("", Text(text, "dim")))
    _print_frame(console, pool.tail)


def _print_band(console: Console, pool: PoolMap, band: int, groups: range, width: int) -> None:
    starts = pool.starts(band)
    stretch, _ = pool.place(band)
    pieces = stretch.pieces[stretch.lead]
    last = f"b{len(starts) - 1}" if pool.by_layer else piece_name(pool, pieces[-1])
    ranges = kept(len(starts), _most_items(last, width))
    spans = spans_of(ranges, starts, pool.extent(band)[1])
    scale = Scale.fit(spans, width - LABEL, GAP)
    for group in groups:
        runs = (run for low, high in spans for run in pool.runs(group, band, low, high))
        marks = [_run_mark(pool, run) for run in runs]
        name = band_name(pool, band, group)
        if pool.groups > 1:
            name = f"g{group} {name if pool.by_layer or stretch.side else f'b{band}'}"
        console.print(line(name, strip(scale, marks, left_out(ranges))))
    edges = (starts[item] for some in ranges for item in some)
    console.print(line("", ticks(scale, edges)))


def _print_frame(console: Console, run: Run) -> None:
    if run.length:
        fill, style = _FILLS[run.kind]
        text = f"{fill * 3} bytes {run.start:,} to {run.end - 1:,}: {size(run.length)}"
        console.print(line(run.kind, Text(text, style)))


def _run_mark(pool: PoolMap, run: Run) -> Mark:
    if run.kind != "content" or run.piece is None or run.block is None:
        return Mark(run.start, run.end, "", *_FILLS[run.kind])
    item = run.block if pool.by_layer else run.piece.layer + run.piece.head
    style = f"black on {group_fill(run.piece.group, run.piece.layer_set, item)}"
    return Mark(run.start, run.end, EDGE + item_name(pool, run), " ", style)


def _legend(pool: PoolMap) -> Iterator[Text]:
    yield Text("L layer  b block  h head  s layer set  p part of a chunk  g group", "dim")
    marks = "\u2591 padding  \u00b7 not used by this group  \u22ef number of those left out"
    if pool.groups > _GROUPS:
        marks += f"  (the first {_GROUPS} groups)"
    yield Text(marks, "dim")


def _most_items(longest_name: str, width: int) -> int:
    """How many items of a strip have room for their names."""
    return max((width - LABEL) // (len(longest_name) + 2), 4)


def _print_host(console: Console, pool: PoolMap, width: int) -> None:
    """A row of the host tier as each group fills it."""
    groups = range(min(pool.groups, _GROUPS))
    of_groups = [list(host_runs(pool.planned, group)) for group in groups]
    lead = max(groups, key=lambda group: len(of_groups[group]))
    starts = [run.start for run in of_groups[lead]]
    content = [run for run in of_groups[lead] if run.kind == "content"]
    ranges = kept(len(starts), _most_items(host_name(pool.planned, lead, content[-1]), width))
    spans = spans_of(ranges, starts, pool.planned.row_bytes)
    scale = Scale.fit(spans, width - LABEL, GAP)
    console.print()
    console.print(
        Text.assemble(("host row", "bold"), "  content alone: layer by layer, part by part")
    )
    for group, runs in zip(groups, of_groups, strict=True):
        marks = [_host_mark(pool, group, run) for run in runs]
        console.print(
            line(
                f"g{group}" if len(groups) > 1 else "any row", strip(scale, marks, left_out(ranges))
            )
        )
    console.print(line("", ticks(scale, (starts[item] for some in ranges for item in some))))


def _host_mark(pool: PoolMap, group: int, run: HostRun) -> Mark:
    if run.kind == "unused":
        return Mark(run.start, run.end, "", *_FILLS["unused"])
    style = f"black on {group_fill(group, run.layer_set, run.layer + run.part)}"
    return Mark(run.start, run.end, EDGE + host_name(pool.planned, group, run), " ", style)
