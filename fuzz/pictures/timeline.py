"""What ran when, as spans of streams: from notes to what a picture of time shows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvexact.impl.notes import Note

#: What moves no byte is drawn as a mark, or not at all.
_WAIT, _RECORD = "wait", "record"


class Span(NamedTuple):
    """An action from when it was queued to its end. Moments count what happened.

    Attributes:
        read: moments at which a part of it was read.
        written: moments at which a part was written.
        after: of a wait, the ops whose work it waits for.
    """

    op: int
    what: str
    stream: str
    queued: int
    read: tuple[int, ...]
    written: tuple[int, ...]
    ended: int
    after: tuple[int, ...]

    @property
    def is_wait(self) -> bool:
        """Whether it moves nothing but lets its stream wait."""
        return self.what == _WAIT

    @property
    def begun(self) -> int:
        """The moment of its first step."""
        return min((*self.read, *self.written, self.ended))

    @property
    def label(self) -> str:
        """What it is, for people."""
        return f"#{self.op} {self.what.removeprefix('memcpy ').replace('memcpy', 'copy')}"

    @property
    def text(self) -> str:
        """What it is and what became of it, in one line."""
        after = "".join(f", for #{op}" for op in self.after)
        pending = f", pending until moment {self.begun}" if self.begun > self.queued + 1 else ""
        when = f"queued at moment {self.queued}{pending}, ended at {self.ended}"
        return f"{self.label}{after}: {when}"


class Timeline(NamedTuple):
    """A run in time.

    Attributes:
        streams: their names, in the order of their first use.
        ops: moment and name of each op that the host began.
        spans: in the order in which they were queued.
        moments: how many there are.
    """

    streams: tuple[str, ...]
    ops: tuple[tuple[int, str], ...]
    spans: tuple[Span, ...]
    moments: int


def timeline(notes: Sequence[Note], names: Mapping[int, str]) -> Timeline:
    """Spans of the notes of a run; what never ended ends with the run.

    Args:
        names: of ops, by id; others are what the harness adds at the end.
    """
    kept = [note for note in notes if note.what != _RECORD and not _is_idle_wait(note)]
    found: dict[tuple[int, int], list[tuple[int, Note]]] = {}
    for moment, note in enumerate(kept):
        if note.did != "begun":
            found.setdefault((note.op, note.ordinal), []).append((moment, note))
    spans = [_span(events, len(kept)) for events in found.values() if events[0][1].did == "queued"]
    ops = [
        (moment, names.get(note.op, "end"))
        for moment, note in enumerate(kept)
        if note.did == "begun"
    ]
    streams = dict.fromkeys(span.stream for span in spans)
    return Timeline(tuple(streams), tuple(ops), tuple(spans), len(kept))


def _is_idle_wait(note: Note) -> bool:
    """Steps of waits tell nothing: what they waited for has a span of its own."""
    return note.what == _WAIT and not (note.did == "queued" and note.after)


def _span(events: list[tuple[int, Note]], end: int) -> Span:
    def moments(did: str) -> tuple[int, ...]:
        return tuple([moment for moment, note in events if note.did == did])

    queued, first = events[0]
    ended = (*moments("ended"), queued if first.what == _WAIT else end)[0]
    return Span(
        first.op,
        first.what,
        first.stream,
        queued,
        moments("read"),
        moments("written"),
        ended,
        first.after,
    )
