"""A timeline in the terminal: time goes down, each stream has a column."""

from rich.table import Table

from kvexact.fuzz.console import Output
from kvexact.fuzz.pictures.timeline import Span, Timeline

_PENDING, _READ, _WRITTEN, _ENDED = "·", "reads", "writes", "ends"


def draw_timeline(console: Output, timeline: Timeline) -> None:
    """Print a row for each moment at which something happened."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("at", "host", *timeline.streams):
        table.add_column(name, no_wrap=True)
    begun = dict(timeline.ops)
    for moment in range(timeline.moments):
        cells = [_cell(timeline, stream, moment) for stream in timeline.streams]
        table.add_row(str(moment), begun.get(moment, ""), *cells)
    console.print(table)


def _cell(timeline: Timeline, stream: str, moment: int) -> str:
    """What happened in a stream; a dot where something is pending there."""
    pending = ""
    for span in timeline.spans:
        if span.stream == stream and span.queued <= moment <= span.ended:
            happened = _happened(span, moment)
            if happened:
                return happened
            pending = _PENDING
    return pending


def _happened(span: Span, moment: int) -> str:
    if moment == span.queued:
        after = ", ".join(f"#{op}" for op in span.after)
        return f"wait for {after}" if span.is_wait else f"{span.label} queued"
    for moments, does in ((span.read, _READ), (span.written, _WRITTEN)):
        if moment in moments:
            part = f" {moments.index(moment) + 1}/{len(moments)}" if len(moments) > 1 else ""
            return f"{span.label} {does}{part}"
    return f"{span.label} {_ENDED}" if moment == span.ended else ""
