"""A timeline in an SVG: time goes right, each stream has a lane; long ones go on below."""

from collections.abc import Callable

from kvexact.fuzz.pictures.svg import Canvas, text_width
from kvexact.fuzz.pictures.svg_strips import MARGIN, WIDTH
from kvexact.fuzz.pictures.timeline import Span, Timeline

#: Where a moment is, from left to right.
Place = Callable[[int], float]

_LANE_PX = 26
_BAR_PX = 16
_NAMES_PX = 66
#: Moments side by side; a run that has more goes on in a row below.
_ROW_MOMENTS = 64
_PENDING_FILL, _RUNNING_FILL, _WAIT_FILL = "#d0d7de", "#dbe9f7", "#656d76"
_READ_FILL, _WRITTEN_FILL = "#8abdf0", "#f2a65f"


def draw_timeline(canvas: Canvas, timeline: Timeline) -> None:
    """Draw a run from where the canvas is."""
    canvas.y += 16
    legend = "grey: pending   blue: reads   orange: writes   |: waits for another stream"
    canvas.text(MARGIN, canvas.y, legend, "dim")
    for first in range(0, timeline.moments, _ROW_MOMENTS):
        _draw_row(canvas, timeline, first, min(first + _ROW_MOMENTS, timeline.moments))


def _draw_row(canvas: Canvas, timeline: Timeline, first: int, end: int) -> None:
    moment_px = (WIDTH - 2 * MARGIN - _NAMES_PX) / min(_ROW_MOMENTS, max(timeline.moments, 24))

    def place(moment: int) -> float:
        return MARGIN + _NAMES_PX + (moment - first) * moment_px

    canvas.y += 26
    _draw_ops(canvas, timeline, place, (first, end))
    canvas.y += 12
    for stream in timeline.streams:
        canvas.text(MARGIN, canvas.y + 20, stream, "dim")
        spans = [
            span
            for span in timeline.spans
            if span.stream == stream and span.queued < end and span.ended >= first
        ]
        _draw_lane(canvas, spans, place, (first, end))
        canvas.y += _LANE_PX


def _draw_ops(canvas: Canvas, timeline: Timeline, place: Place, row: tuple[int, int]) -> None:
    """A line where the host begins an op; names in two rows, where there is room for them."""
    canvas.text(MARGIN, canvas.y, "host", "dim")
    free_from = [0.0, 0.0]
    height = _LANE_PX * len(timeline.streams) + 20
    for moment, name in timeline.ops:
        if not row[0] <= moment < row[1]:
            continue
        x = place(moment)
        canvas.line(x, canvas.y - 8, height)
        for level in range(2):
            if x >= free_from[level]:
                canvas.text(x + 3, canvas.y + 12 * level, name)
                free_from[level] = x + text_width(name) + 8
                break


def _draw_lane(canvas: Canvas, spans: list[Span], place: Place, row: tuple[int, int]) -> None:
    """What is pending, what runs, and its name, over each other in this order."""
    top = canvas.y + 8

    def bar(span: Span, start: int, stop: int, fill: str, height: float) -> None:
        left, right = place(max(start, row[0])), place(min(stop, row[1]))
        if right > left:
            y = top + (_BAR_PX - height) / 2
            canvas.rect(left, y, right - left, height, fill, span.text)

    moving = [span for span in spans if not span.is_wait]
    for span in moving:
        bar(span, span.queued, span.begun, _PENDING_FILL, 4)
    for span in moving:
        bar(span, span.begun, span.ended + 1, _RUNNING_FILL, _BAR_PX)
        for moments, fill in ((span.read, _READ_FILL), (span.written, _WRITTEN_FILL)):
            for moment in moments:
                bar(span, moment, moment + 1, fill, _BAR_PX)
    for span in moving:
        left, right = place(max(span.begun, row[0])), place(min(span.ended + 1, row[1]))
        if right - left > text_width(span.label, 10) + 4:
            canvas.text(left + 3, top + 12, span.label, "in")
    for span in spans:
        if span.is_wait and row[0] <= span.queued < row[1]:
            canvas.rect(place(span.queued), top, 3, _BAR_PX, _WAIT_FILL, span.text)
