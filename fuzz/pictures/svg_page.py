"""One page in an SVG: its cell enlarged, its field table, and its rows to scale."""

from typing import NamedTuple

import numpy as np

from kvexact.fuzz.pictures.page import CellField, PageMap, PageRow
from kvexact.fuzz.pictures.palette import DARK_FIELDS, FIELD_FILLS
from kvexact.fuzz.pictures.scale import Scale, Span, kept, left_out, spans_of
from kvexact.fuzz.pictures.svg import Canvas, text_width
from kvexact.fuzz.pictures.svg_strips import (
    GAP,
    LEFT,
    MARGIN,
    PATTERN_FILLS,
    STRIP,
    draw_gaps,
    draw_marks,
    draw_run,
    draw_tick,
)
from kvexact.fuzz.pictures.text import FIELD_COLUMNS, counted, field_rows
from kvexact.fuzz.pictures.wrong import Positions

_ROWS, _CELLS = 9, 16
_TABLE_X = (MARGIN, 150, 230, 380, 530, 680, 790)


def draw_field_table(canvas: Canvas, page: PageMap) -> None:
    """Width, first byte and strides of every field."""
    canvas.y += 14
    for x, column in zip(_TABLE_X, FIELD_COLUMNS, strict=True):
        canvas.text(x, canvas.y, column, "tick")
    canvas.text(_TABLE_X[-1] + 70, canvas.y, "strides in bytes; 0: an axis of one", "tick")
    for row in field_rows(page.placement):
        canvas.y += 15
        canvas.rect(MARGIN, canvas.y - 9, 10, 10, FIELD_FILLS[row.name])
        canvas.text(MARGIN + 16, canvas.y, row.name)
        for x, number in zip(_TABLE_X[1:], row.numbers, strict=True):
            canvas.text(x, canvas.y, f"{number:,}")
    canvas.y += 12


def draw_cell(canvas: Canvas, page: PageMap) -> None:
    """The first cell of each kind of row, enlarged to one scale, with its field boundaries."""
    kinds = page.kinds()
    per_byte = STRIP / max(row.cell_bytes for row in kinds)
    for row in kinds:
        scale = Scale(((0, row.cell_bytes),), per_byte, 0)
        canvas.y += 14
        half = next((f", {index} half" for word, index in row.where if word == "half"), "")
        canvas.text(MARGIN, canvas.y + 14, f"one cell{half}")
        _field_names_above(canvas, scale, row.fields)
        _draw_fields(canvas, scale, row, 0, names=True)
        canvas.y += 20
        _draw_edges(canvas, scale, [*(field.offset for field in row.fields), row.cell_bytes])
    canvas.y += 6


def _draw_edges(canvas: Canvas, scale: Scale, edges: list[int]) -> None:
    """A tick label for every edge: beside its tick, on the side that has room, or below."""
    free, lowest = 0.0, 0
    for edge, after in zip(edges, [*edges[1:], None], strict=True):
        x, width = edge * scale.per_byte, text_width(f"{edge:,}", 9) + 6
        row, anchor = 0, "start"
        if after is None:
            row, anchor = int(x - width < free), "end"
        elif x + width > after * scale.per_byte:
            row, anchor = (0, "end") if x - width >= free else (1, "start")
        draw_tick(canvas, x, edge, row, anchor)
        free, lowest = x + (width if anchor == "start" else 0), max(lowest, row)
    canvas.y += 12 + 10 * lowest


def draw_rows(canvas: Canvas, page: PageMap, wrong: Positions, *, in_host: bool) -> None:
    """The page, row by row.

    Args:
        wrong: positions of wrong bytes, counted from the page's first byte.
        in_host: True where the page is shown as a host row has it, content alone.
    """
    lengths = np.array([row.length for row in page.rows()])
    starts = np.array([row.start for row in page.rows()])
    if in_host:
        starts = np.cumsum(lengths) - lengths
    hit = np.searchsorted(starts, wrong, side="right") - 1
    hit = np.unique(hit[wrong < starts[hit] + lengths[hit]])
    ranges = kept(len(page), _ROWS, hit.tolist())
    lines = {n: _line(page, n, int(starts[n]), wrong) for some in ranges for n in some}
    per_byte = min(Scale.fit(line.spans, STRIP, GAP).per_byte for line in lines.values())
    above = None
    for some, gap in zip(ranges, [*left_out(ranges), 0], strict=True):
        for number in some:
            line = lines[number]
            _draw_line(canvas, line, Scale(tuple(line.spans), per_byte, GAP), above)
            above = line
        if gap:
            hidden = np.isin(hit, range(some.stop, some.stop + gap)).any()
            text = f"\u22ef {counted(gap, 'more row')}{', with wrong bytes' if hidden else ''}"
            canvas.text(LEFT, canvas.y + 10, text, "dim wrong" if hidden else "dim")
            canvas.y += 17
    if not in_host:
        _draw_padding(canvas, page, wrong, per_byte)


class _Line(NamedTuple):
    """A row of a page as it is drawn: some of its cells, and wrong bytes counted from its start."""

    row: PageRow
    start: int
    cells: list[range]
    spans: list[Span]
    wrong: Positions


def _line(page: PageMap, number: int, start: int, wrong: Positions) -> _Line:
    row = page.row(number)
    low, high = np.searchsorted(wrong, (start, start + row.length))
    inside = wrong[low:high] - start
    cells = kept(row.cells, _CELLS, np.unique(inside // row.cell_bytes).tolist())
    spans = spans_of(cells, range(0, row.length, row.cell_bytes), row.length)
    return _Line(row, start, cells, spans, inside)


def _draw_line(canvas: Canvas, line: _Line, scale: Scale, above: _Line | None) -> None:
    """Draw a row, under names of its cells where they are not those of the row above."""
    row = line.row
    if above is None or above.spans != line.spans:
        canvas.y += 11
        _name_cells(canvas, scale, line)
    canvas.y += 10 if line.wrong.size else 0
    canvas.text(MARGIN, canvas.y + 13, row.label)
    canvas.text(LEFT - 8, canvas.y + 13, f"+{line.start:,}", "tick", "end")
    for some in line.cells:
        for cell in some:
            _draw_fields(canvas, scale, row, cell, names=False, height=18)
    draw_gaps(canvas, scale, left_out(line.cells), line.wrong, 18)
    draw_marks(canvas, scale, line.wrong, 18)
    canvas.y += 20


def _name_cells(canvas: Canvas, scale: Scale, line: _Line) -> None:
    """Number the cells of a row, in words where there is room for all of them."""
    row = line.row
    room = row.cell_bytes * scale.per_byte - 4
    word = row.axis if text_width(f"{row.axis} {row.cells - 1}", 9) < room else row.axis[0]
    if text_width(f"{row.axis[0]}{row.cells - 1}", 9) >= room:
        return
    for some in line.cells:
        for cell in some:
            for x0, x1 in scale.clip(cell * row.cell_bytes, (cell + 1) * row.cell_bytes):
                name = f"{word} {cell}" if word == row.axis else f"{word}{cell}"
                canvas.text(LEFT + (x0 + x1) / 2, canvas.y - 2, name, "tick", "middle")


def _draw_fields(
    canvas: Canvas, scale: Scale, row: PageRow, cell: int, *, names: bool, height: float = 20
) -> None:
    start = cell * row.cell_bytes
    for field in row.fields:
        first = start + field.offset
        label = f"{row.label} {row.axis} {cell} {field.name}".strip()
        title = f"{label}: bytes +{row.start + first:,} ({field.width_bytes})"
        kind = "light" if field.name in DARK_FIELDS else "in"
        name = _field_name(field) if names else ""
        end = first + field.width_bytes
        draw_run(canvas, scale, first, end, FIELD_FILLS[field.name], title, name, kind, height)


def _field_names_above(canvas: Canvas, scale: Scale, fields: tuple[CellField, ...]) -> None:
    """Names of the fields that are too narrow to hold their own, above the strip."""
    for field in fields:
        for x0, x1 in scale.clip(field.offset, field.offset + field.width_bytes):
            if text_width(_field_name(field), 10) + 4 > x1 - x0:
                last = field is fields[-1]
                x, anchor = (x1, "end") if last else ((x0 + x1) / 2, "middle")
                canvas.text(LEFT + x, canvas.y - 3, _field_name(field), "tick", anchor)


def _field_name(field: CellField) -> str:
    return f"{field.name} {field.width_bytes}"


def _draw_padding(canvas: Canvas, page: PageMap, wrong: Positions, per_byte: float) -> None:
    """The end of a padded page, cut where it is longer than the strip."""
    start, end = page.placement.content_bytes, page.placement.page_bytes
    if start == end:
        return
    width = min((end - start) * per_byte, STRIP)
    shown = f"{end - start:,} bytes" + (", not to scale" if width == STRIP else "")
    scale = Scale.fit([(start, end)], width, 0)
    low, high = np.searchsorted(wrong, (start, end))
    canvas.y += 10 if low < high else 0
    canvas.text(MARGIN, canvas.y + 13, "padding")
    canvas.text(LEFT - 8, canvas.y + 13, f"+{start:,}", "tick", "end")
    name = shown if text_width(shown, 10) + 4 <= width else ""
    fill = PATTERN_FILLS["padding"]
    draw_run(canvas, scale, start, end, fill, f"padding, {shown}", height=18)
    if name:
        wide = text_width(name, 10) + 10
        canvas.rect(LEFT + (width - wide) / 2, canvas.y + 2, wide, 14, "#ffffff")
        canvas.text(LEFT + width / 2, canvas.y + 12.5, name, "in", "middle")
    else:
        canvas.text(LEFT + width + 6, canvas.y + 13, shown, "dim")
    draw_marks(canvas, scale, wrong[low:high], 18)
    canvas.y += 20
