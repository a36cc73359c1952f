"""A failure in an SVG: where the wrong bytes are, and the first of them in hexadecimal."""

import numpy as np

from kvexact.fuzz.pictures.maps import PoolMap
from kvexact.fuzz.pictures.palette import DARK_FIELDS, FIELD_FILLS
from kvexact.fuzz.pictures.svg import Canvas
from kvexact.fuzz.pictures.svg_strips import LEFT, MARGIN, PATTERN_FILLS, WRONG_FILL
from kvexact.fuzz.pictures.text import counted
from kvexact.fuzz.pictures.wrong import Finding, WrongBytes, find, page_of

_LINE_BYTES, _LINES, _BYTE_PX = 16, 6, 30


def draw_findings(canvas: Canvas, pool: PoolMap, wrong: WrongBytes) -> None:
    """Say how many bytes are wrong and what the first one is; then a hex dump."""
    first, last = int(wrong.positions[0]), int(wrong.positions[-1])
    finding = find(pool, wrong, first)
    where = f"first at byte {first:,}, last at {last:,}"
    if first == last:
        where = f"at byte {first:,}"
    area = "host tier" if wrong.area == "host" else "pool"
    text = f"{counted(wrong.positions.size, 'wrong byte')} in the {area}, {where}"
    canvas.y += 30
    canvas.text(MARGIN, canvas.y, text, "head wrong")
    reading = f" (as group {finding.group} reads it)" if pool.groups > 1 else ""
    canvas.y += 18
    canvas.text(MARGIN, canvas.y, f"first: {finding.words(page_of(pool, finding))}{reading}")
    canvas.y += 8
    _draw_dump(canvas, pool, wrong)


def _draw_dump(canvas: Canvas, pool: PoolMap, wrong: WrongBytes) -> None:
    """Lines of 16 bytes that hold a wrong one, each with what is wanted above what is there."""
    lines = np.unique(wrong.positions // _LINE_BYTES)
    before = None
    for line in lines[:_LINES].tolist():
        if before is not None and line > before + 1:
            canvas.text(LEFT, canvas.y + 9, "\u22ef", "dim")
            canvas.y += 10
        _draw_line(canvas, pool, wrong, line * _LINE_BYTES)
        before = line
    rest = lines.size - _LINES
    if rest > 0:
        canvas.y += 12
        canvas.text(LEFT, canvas.y, f"\u22ef {counted(rest, 'more line')} with wrong bytes", "dim")
        canvas.y += 4


def _draw_line(canvas: Canvas, pool: PoolMap, wrong: WrongBytes, start: int) -> None:
    canvas.y += 6
    canvas.text(LEFT - 50, canvas.y + 13, f"{start:,}", "tick", "end")
    canvas.text(LEFT - 8, canvas.y + 13, "want", "dim", "end")
    canvas.text(LEFT - 8, canvas.y + 29, "got", "dim", "end")
    low, high = np.searchsorted(wrong.positions, (start, start + _LINE_BYTES))
    at = {int(wrong.positions[i]) - start: i for i in range(low, high)}
    for byte in range(_LINE_BYTES):
        x = LEFT + byte * _BYTE_PX
        i = at.get(byte)
        if i is None:
            canvas.text(x + _BYTE_PX / 2, canvas.y + 13, "\u00b7\u00b7", "dim", "middle")
            canvas.text(x + _BYTE_PX / 2, canvas.y + 29, "\u00b7\u00b7", "dim", "middle")
            continue
        finding = find(pool, wrong, start + byte)
        title = f"byte {start + byte:,}: {finding.words(page_of(pool, finding))}"
        canvas.rect(x, canvas.y, _BYTE_PX, 17, f"{_fill(finding)}", title)
        canvas.rect(x, canvas.y + 17, _BYTE_PX, 16, "#ffebe9", title)
        canvas.rect(x, canvas.y + 32, _BYTE_PX, 2, WRONG_FILL)
        dark = "light" if finding.spot and finding.spot.field.name in DARK_FIELDS else ""
        canvas.text(x + _BYTE_PX / 2, canvas.y + 13, f"{wrong.want[i]:02x}", dark, "middle")
        canvas.text(x + _BYTE_PX / 2, canvas.y + 29, f"{wrong.got[i]:02x}", "wrong", "middle")
    finding = find(pool, wrong, start + min(at))
    words = finding.words(page_of(pool, finding))
    canvas.text(LEFT + _LINE_BYTES * _BYTE_PX + 10, canvas.y + 13, words, "tick")
    canvas.y += 36


def _fill(finding: Finding) -> str:
    if finding.spot:
        return FIELD_FILLS[finding.spot.field.name]
    return PATTERN_FILLS.get(finding.kind, "#ffffff")
