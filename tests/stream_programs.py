"""Small stream programs as data, each with the outcomes that CUDA's documents allow.

Areas are single letters whose kind is their name: d e f lie on the device, p q r are pinned and m h
pageable host memory. Their bytes are letters too. A place is an area or some of its bytes: "d",
"d[1]". Streams: 0 is the legacy default one, s t block, n o do not. The host calls one op after the
other and at the end waits for the device.

An outcome is what the host sees, in program order (letters read, T or F of queries), and then the
bytes that `shows` names, joined with blanks. `allowed` is written by hand, from the rules of
docs/time.md that `why` names; None where it is left to the brute force of happens_before.py.
"""

from dataclasses import dataclass, field
from typing import Literal

BLOCKING, NON_BLOCKING, LEGACY = "st", "no", "0"
DEVICE, PINNED, PAGEABLE = "def", "pqr", "mh"

Access = Literal["stream", "during", "any"]
Move = tuple[str, str]


def place(text: str) -> tuple[str, int, int | None]:
    """Area, first byte and byte behind the last (None: to the end) of a place."""
    if len(text) == 1:
        return text, 0, None
    at = int(text[2:-1])
    return text[0], at, at + 1


@dataclass(frozen=True)
class Copy:
    stream: str
    target: str
    source: str


@dataclass(frozen=True)
class Fill:
    stream: str
    target: str
    byte: str


@dataclass(frozen=True)
class Batch:
    stream: str
    moves: tuple[Move, ...]
    access: Access = "stream"


@dataclass(frozen=True)
class Launch:
    """A kernel whose tasks each move bytes."""

    stream: str
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Host:
    """A host function in a stream, which moves bytes."""

    stream: str
    target: str
    source: str


@dataclass(frozen=True)
class Record:
    event: str
    stream: str


@dataclass(frozen=True)
class Wait:
    stream: str
    event: str


@dataclass(frozen=True)
class Query:
    event: str


@dataclass(frozen=True)
class QueryStream:
    stream: str


@dataclass(frozen=True)
class Until:
    """Query an event until the answer is yes."""

    event: str


@dataclass(frozen=True)
class SyncEvent:
    event: str


@dataclass(frozen=True)
class Sync:
    stream: str


@dataclass(frozen=True)
class SyncDevice:
    pass


@dataclass(frozen=True)
class Set:
    """The host writes."""

    target: str
    text: str


@dataclass(frozen=True)
class Get:
    """The host reads and notes what it sees."""

    source: str


Work = Copy | Fill | Batch | Launch | Host
StreamOp = Work | Record | Wait
Op = StreamOp | Query | QueryStream | Until | SyncEvent | Sync | SyncDevice | Set | Get


@dataclass(frozen=True)
class Program:
    name: str
    ops: tuple[Op, ...]
    shows: str = ""
    allowed: frozenset[str] | None = None
    why: str = ""
    memory: dict[str, str] = field(default_factory=lambda: dict(_ONE))


#: One byte in each area, and two.
_ONE = {name: name for name in DEVICE + PINNED + PAGEABLE}
_TWO = {name: 2 * name for name in _ONE}


def _program(
    name: str, *ops: Op, shows: str = "", allowed: str | None = None, why: str = "", two: str = ""
) -> Program:
    """`allowed` has outcomes with commas between them; areas in `two` have two bytes."""
    used = {letter for op in ops for letter in _areas(op)} | set(shows)
    memory = {area: (_TWO if area in two else _ONE)[area] for area in sorted(used)}
    known = None if allowed is None else frozenset(one.strip() for one in allowed.split(","))
    return Program(name, ops, shows, known, why, memory)


def _areas(op: Op) -> str:
    if isinstance(op, Batch | Launch):
        return "".join(move[0][0] + move[1][0] for move in op.moves)
    return "".join(getattr(op, name)[0] for name in ("target", "source") if hasattr(op, name))


PROGRAMS = [
    # Streams.
    _program(
        "one stream is in order",
        Fill("n", "d", "x"),
        Copy("n", "e", "d"),
        shows="de",
        allowed="x x",
        why="S1",
    ),
    _program(
        "two streams have no order",
        Fill("n", "d", "x"),
        Copy("o", "e", "d"),
        shows="de",
        allowed="x d, x x",
        why="S2: the copy may run before or after the fill",
    ),
    _program(
        "two blocking streams have no order",
        Fill("s", "d", "x"),
        Copy("t", "e", "d"),
        shows="de",
        allowed="x d, x x",
        why="S2; they wait for the legacy stream, not for each other",
    ),
    _program(
        "two streams write one byte",
        Fill("n", "d", "x"),
        Fill("o", "d", "y"),
        shows="d",
        allowed="x, y",
        why="S2: either may be last",
    ),
    _program(
        "two streams write two bytes",
        Copy("n", "d", "p"),
        Fill("o", "d", "0"),
        shows="d",
        allowed="00, 0p, p0, pp",
        why="S2, C1: bytes have no order among themselves, so each has its own last writer",
        two="dp",
    ),
    _program(
        "half a copy is copied on",
        Copy("n", "d", "p"),
        Copy("o", "e", "d"),
        shows="e",
        allowed="dd, dp, pd, pp",
        why="S2, C1: each byte is read before or after it is written",
        two="dpe",
    ),
    _program(
        "two copies swap",
        Copy("n", "e", "d"),
        Copy("o", "d", "e"),
        shows="de",
        allowed="e d, d d, e e",
        why="S2, C1: both may read before either writes; or one runs first, and both bytes agree",
    ),
    _program(
        "two copies swap two bytes",
        Copy("n", "e", "d"),
        Copy("o", "d", "e"),
        shows="de",
        two="de",
    ),
    # Events.
    _program(
        "an event orders streams",
        Fill("n", "d", "x"),
        Record("E", "n"),
        Wait("o", "E"),
        Copy("o", "e", "d"),
        shows="e",
        allowed="x",
        why="E1, E2",
    ),
    _program(
        "two waits in a row",
        Fill("n", "d", "x"),
        Record("E", "n"),
        Fill("s", "f", "y"),
        Record("F", "s"),
        Wait("o", "E"),
        Wait("o", "F"),
        Copy("o", "e", "d"),
        Copy("o", "d", "f"),
        shows="ed",
        allowed="x y",
        why="E1, E2, for each of them",
    ),
    _program(
        "an event recorded too early",
        Record("E", "n"),
        Fill("n", "d", "x"),
        Wait("o", "E"),
        Copy("o", "e", "d"),
        shows="e",
        allowed="d, x",
        why="E1: it captures what was in the stream before, which is nothing",
    ),
    _program(
        "a wait for what was never recorded",
        Wait("o", "E"),
        Fill("n", "d", "x"),
        Record("E", "n"),
        Copy("o", "e", "d"),
        shows="e",
        allowed="d, x",
        why="E3: the event holds no work at the time of the wait",
    ),
    _program(
        "work queued before the wait",
        Copy("o", "e", "d"),
        Fill("n", "d", "x"),
        Record("E", "n"),
        Wait("o", "E"),
        shows="e",
        allowed="d, x",
        why="E2: only later work waits",
    ),
    _program(
        "recorded again after the wait",
        Fill("n", "d", "x"),
        Record("E", "n"),
        Wait("o", "E"),
        Fill("n", "d", "y"),
        Record("E", "n"),
        Copy("o", "e", "d"),
        shows="de",
        allowed="y x, y y",
        why="E2: the wait is for the first record only",
    ),
    _program(
        "recorded again before the wait",
        Fill("n", "d", "x"),
        Record("E", "n"),
        Fill("n", "d", "y"),
        Record("E", "n"),
        Wait("o", "E"),
        Copy("o", "e", "d"),
        shows="e",
        allowed="y",
        why="E1: the latest record counts",
    ),
    _program(
        "recorded again in another stream",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Record("E", "o"),
        SyncEvent("E"),
        Get("p"),
        allowed="p, d",
        why="E1: the second record forgets the first, and captures nothing",
    ),
    _program(
        "a chain of events",
        Fill("n", "d", "x"),
        Record("E", "n"),
        Wait("o", "E"),
        Record("G", "o"),
        Wait("s", "G"),
        Copy("s", "e", "d"),
        shows="e",
        allowed="x",
        why="E1, E2: a record captures the waits before it",
    ),
    _program(
        "the host synchronises behind a wait",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Wait("o", "E"),
        Sync("o"),
        Get("p"),
        allowed="d",
        why="E2, S4: the wait is part of what is in the stream",
    ),
    # The host looks and waits.
    _program(
        "nobody waits",
        Copy("n", "p", "d"),
        Get("p"),
        shows="p",
        allowed="p d, d d",
        why="C2: the call may return before or after the copy is complete",
    ),
    _program(
        "the host sees half a copy",
        Copy("n", "p", "d"),
        Get("p"),
        allowed="pp, pd, dp, dd",
        why="C1, C2",
        two="pd",
    ),
    _program(
        "synchronise the stream",
        Copy("n", "p", "d"),
        Sync("n"),
        Get("p"),
        allowed="d",
        why="S4",
    ),
    _program(
        "synchronise another stream",
        Copy("n", "p", "d"),
        Sync("o"),
        Get("p"),
        allowed="p, d",
        why="S4",
    ),
    _program(
        "synchronise the device",
        Copy("n", "p", "d"),
        Copy("s", "q", "e"),
        SyncDevice(),
        Get("p"),
        Get("q"),
        allowed="d e",
        why="S5",
    ),
    _program(
        "synchronise an event before later work",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Copy("n", "q", "e"),
        SyncEvent("E"),
        Get("p"),
        Get("q"),
        allowed="d q, d e",
        why="E4: later uses of the stream do not change the event",
    ),
    _program(
        "a query tells no lies",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Query("E"),
        Get("p"),
        allowed="F p, F d, T d",
        why="E4: yes means complete; bytes may be there before the answer is yes",
    ),
    _program(
        "a query of what was never recorded",
        Copy("n", "p", "d"),
        Query("E"),
        allowed="T",
        why="E3",
    ),
    _program(
        "a query stays true",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Query("E"),
        Query("E"),
        Get("p"),
        allowed="F F p, F F d, F T d, T T d",
        why="E4",
    ),
    _program(
        "bytes arrive before the answer",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Get("p"),
        Query("E"),
        allowed="p F, p T, d F, d T",
        why="E4: that bytes are there does not mean that the copy is complete",
    ),
    _program(
        "a query of a stream",
        Copy("n", "p", "d"),
        QueryStream("n"),
        Get("p"),
        allowed="F p, F d, T d",
        why="S4",
    ),
    _program(
        "bytes arrive before the stream is idle",
        Copy("n", "p", "d"),
        Get("p"),
        QueryStream("n"),
        allowed="p F, p T, d F, d T",
        why="S4: that bytes are there does not mean that the copy is complete",
    ),
    _program(
        "a copy on the host waits for its stream",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Copy("n", "q", "p"),
        Query("E"),
        Get("q"),
        allowed="T d",
        why="C4: the second copy is from host to host, so its call returns after both",
    ),
    _program(
        "a loop of queries",
        Copy("n", "p", "d"),
        Record("E", "n"),
        Until("E"),
        Get("p"),
        allowed="d",
        why="E4",
    ),
    # Sources on the host.
    _program(
        "a pinned source is changed too early",
        Copy("n", "d", "p"),
        Set("p", "x"),
        shows="d",
        allowed="p, x",
        why="C2: the source may be read after the call",
    ),
    _program(
        "half a pinned source is changed too early",
        Copy("n", "d", "p"),
        Set("p", "xy"),
        shows="d",
        allowed="pp, py, xp, xy",
        why="C1, C2",
        two="dp",
    ),
    _program(
        "a pinned source is changed after its event",
        Copy("n", "d", "p"),
        Record("E", "n"),
        SyncEvent("E"),
        Set("p", "x"),
        shows="d",
        allowed="p",
        why="E4",
    ),
    _program(
        "a pageable source is changed",
        Copy("n", "d", "m"),
        Set("m", "x"),
        shows="d",
        allowed="m, x",
        why="C3: the copy might be synchronous or staged, and might be neither",
    ),
    _program(
        "a pageable target is read",
        Copy("n", "m", "d"),
        Get("m"),
        allowed="m, d",
        why="C3",
    ),
    _program(
        "a pageable source in stream order",
        Copy("n", "p", "d"),
        Copy("n", "e", "m"),
        Set("m", "x"),
        Sync("n"),
        Get("p"),
        shows="e",
        allowed="d m, d x",
        why="S1, C3",
    ),
    _program(
        "from host to host",
        Copy("n", "q", "p"),
        Get("q"),
        Set("p", "x"),
        shows="q",
        allowed="p p",
        why="C4: fully synchronous",
    ),
    _program(
        "from pageable to pageable",
        Copy("n", "h", "m"),
        Get("h"),
        allowed="m",
        why="C4",
    ),
    _program(
        "from host to host behind other work",
        Copy("n", "p", "d"),
        Copy("n", "q", "p"),
        Get("q"),
        allowed="d",
        why="S1, C4",
    ),
    _program(
        "a fill of pinned memory",
        Fill("n", "p", "x"),
        Get("p"),
        allowed="p, x",
        why="M1: asynchronous, also on the host",
    ),
    # The legacy default stream.
    _program(
        "the legacy stream waits for blocking ones",
        Fill("s", "d", "x"),
        Copy("0", "e", "d"),
        shows="e",
        allowed="x",
        why="S3",
    ),
    _program(
        "blocking streams wait for the legacy one",
        Fill("0", "d", "x"),
        Copy("s", "e", "d"),
        shows="e",
        allowed="x",
        why="S3",
    ),
    _program(
        "the legacy stream between two others",
        Fill("s", "d", "x"),
        Fill("0", "f", "y"),
        Copy("t", "e", "d"),
        shows="e",
        allowed="x",
        why="S3, twice",
    ),
    _program(
        "the legacy stream does not wait for non-blocking ones",
        Fill("n", "d", "x"),
        Copy("0", "e", "d"),
        shows="e",
        allowed="d, x",
        why="S3",
    ),
    _program(
        "non-blocking streams do not wait for the legacy one",
        Fill("0", "d", "x"),
        Copy("n", "e", "d"),
        shows="e",
        allowed="d, x",
        why="S3",
    ),
    _program(
        "a record in the legacy stream between two others",
        Fill("s", "d", "x"),
        Record("E", "0"),
        Copy("t", "e", "d"),
        shows="e",
        allowed="x",
        why="S3 (reading): the record waits for one, and the other for the record",
    ),
    _program(
        "a wait in the legacy stream",
        Fill("n", "d", "x"),
        Record("E", "n"),
        Wait("0", "E"),
        Copy("s", "e", "d"),
        shows="e",
        allowed="x",
        why="S3 names the wait as an action of the legacy stream",
    ),
    _program(
        "an event of the legacy stream",
        Copy("s", "p", "d"),
        Copy("n", "q", "e"),
        Record("E", "0"),
        SyncEvent("E"),
        Get("p"),
        Get("q"),
        allowed="d q, d e",
        why="S3, E1: the record waits for blocking streams, and for no others",
    ),
    _program(
        "synchronise the legacy stream",
        Copy("s", "p", "d"),
        Copy("n", "q", "e"),
        Sync("0"),
        Get("p"),
        Get("q"),
        allowed="d q, d e",
        why="S4 with S3",
    ),
    _program(
        "a query of a blocking stream behind the legacy one",
        Copy("0", "p", "d"),
        QueryStream("s"),
        Get("p"),
        allowed="F p, F d, T d",
        why="S4 with S3: an event recorded there would wait for the legacy stream",
    ),
    # Batches.
    _program(
        "copies of a batch have no order",
        Batch("n", (("p", "d"), ("q", "e"))),
        Get("p"),
        Get("q"),
        allowed="p q, p e, d q, d e",
        why="B1",
    ),
    _program(
        "the last copy of a batch is seen first",
        Batch("n", (("p", "d"), ("q", "e"))),
        Get("q"),
        Get("p"),
        allowed="q p, q d, e p, e d",
        why="B1: e p needs the second copy to run before the first",
    ),
    _program(
        "a batch in stream order",
        Fill("n", "d", "x"),
        Batch("n", (("e", "d"), ("f", "p"))),
        Copy("n", "q", "f"),
        shows="efq",
        allowed="x p p",
        why="B1, B2: as a whole it is in stream order",
    ),
    _program(
        "any order reads before earlier work",
        Fill("n", "d", "x"),
        Batch("n", (("e", "d"),), "any"),
        shows="e",
        allowed="d, x",
        why="B4",
    ),
    _program(
        "any order reads after the call",
        Batch("n", (("d", "p"),), "any"),
        Set("p", "x"),
        shows="d",
        allowed="p, x",
        why="B4",
    ),
    _program(
        "any order writes in stream order",
        Copy("n", "e", "d"),
        Batch("n", (("d", "p"),), "any"),
        shows="de",
        allowed="p d",
        why="B5: the target is written in stream order, whatever the sources' order",
    ),
    _program(
        "any order reads two bytes at two times",
        Copy("n", "d", "e"),
        Batch("n", (("f", "d"),), "any"),
        shows="f",
        allowed="dd, de, ed, ee",
        why="B4, C1",
        two="def",
    ),
    _program(
        "sources read during the call",
        Batch("n", (("d", "p"), ("e", "q")), "during"),
        Set("p", "x"),
        Set("q", "y"),
        shows="de",
        allowed="p q",
        why="B3: all reads are complete before the call returns",
    ),
    _program(
        "during the call reads before earlier work",
        Copy("n", "p", "d"),
        Batch("n", (("e", "p"),), "during"),
        shows="e",
        allowed="p, d",
        why="B3: out of stream order",
    ),
    _program(
        "during the call writes later",
        Batch("n", (("p", "d"),), "during"),
        Get("p"),
        allowed="p, d",
        why="B3, B5: only the reads are done",
    ),
    _program(
        "a stream-ordered source is changed",
        Batch("n", (("d", "p"), ("e", "q"))),
        Set("p", "x"),
        Sync("n"),
        shows="de",
        allowed="p q, x q",
        why="B2: it is read after the call",
    ),
    # Kernels and host functions.
    _program(
        "tasks of a kernel have no order",
        Launch("n", (("e", "d"), ("f", "e"))),
        shows="ef",
        allowed="d e, d d",
        why="K1",
    ),
    _program(
        "tasks of a kernel swap",
        Launch("n", (("e", "d"), ("d", "e"))),
        shows="de",
        allowed="e d, d d, e e",
        why="K1",
    ),
    _program(
        "kernels of one stream are in order",
        Launch("n", (("e", "d"), ("d", "p"))),
        Launch("n", (("f", "e"), ("q", "d"))),
        shows="fq",
        allowed="d p, p p",
        why="K1, S1: e is d or p, as the first kernel's tasks happen to run",
    ),
    _program(
        "a kernel on a source that is still copied",
        Copy("n", "d", "p"),
        Launch("o", (("e", "d"),)),
        Set("p", "xy"),
        shows="e",
        two="dpe",
    ),
    _program(
        "a host function between copies",
        Copy("n", "p", "d"),
        Host("n", "q", "p"),
        Copy("n", "e", "q"),
        shows="e",
        allowed="d",
        why="H1",
    ),
    _program(
        "a host function elsewhere",
        Copy("n", "p", "d"),
        Host("o", "q", "p"),
        shows="q",
        allowed="p, d",
        why="H1, S2",
    ),
    _program(
        "an event behind a host function",
        Host("n", "q", "p"),
        Record("E", "n"),
        Query("E"),
        Get("q"),
        allowed="F q, F p, T p",
        why="H1, E4",
    ),
    # Shapes of faults that reach production.
    _program(
        "a store that does not wait for the writer",
        Fill("s", "d", "x"),
        Copy("n", "p", "d"),
        Record("E", "n"),
        SyncEvent("E"),
        Get("p"),
        allowed="d, x",
        why="S2: the event says that the store is done, not that it read new bytes",
    ),
    _program(
        "zero and load of one block",
        Fill("s", "d", "0"),
        Copy("n", "d", "p"),
        Record("E", "n"),
        Wait("s", "E"),
        Copy("s", "e", "d"),
        shows="e",
        allowed="p, 0",
        why="S2: only the reader waits for both",
    ),
    _program(
        "a staging buffer taken back by a query",
        Copy("n", "d", "p"),
        Record("E", "n"),
        Query("E"),
        Set("p", "x"),
        shows="d",
        allowed="F p, F x, T p",
        why="C2, E4: safe only where the answer is yes",
    ),
]
