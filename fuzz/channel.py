"""What an isolated target and its parent say to each other: calls, answers, and shared bytes.

Calls and answers are short messages over pipes, which are the cheapest way to wake a process on the
same core; bytes of areas and rows lie in memory that both map. The memory has no name, so nothing
is left of it, however either process ends.
"""

import mmap
import os
import select
import struct
from math import prod
from typing import Any

import msgspec
import numpy as np

from kvexact.impl.target import Area, Bytes
from kvexact.refmodel.answer import Answer as Decided
from kvexact.refmodel.ops import OPS, Op
from kvexact.refmodel.spec import Geometry

#: Shapes of the arrays that lie one after the other in shared memory.
Shapes = tuple[tuple[int, ...], ...]

#: Each is shared memory of its own: rows of a write, rows of a read, and the areas.
SEGMENTS = ("rows", "read", "pool", "host")

#: Bytes that follow, and what they are: a call, or an op, by its number among the op types.
_HEAD = struct.Struct("=IB")
_CALL = 255
_AT_ONCE = 16 * 1024


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """``open`` or ``plan`` a geometry, on a new instance of the target where ``anew``.

    Attributes:
        schedule: of an asynchronous target.
    """

    what: str
    geometry: Geometry
    anew: bool
    schedule: int | None = None


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Overwrite an area with the bytes that lie in shared memory, where rows do."""

    area: Area
    shapes: Shapes


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Call ``probe``, ``launches`` or ``close``."""

    what: str


Call = Prepare | Load | Ask
#: An op to run. Where it has rows, they lie in shared memory.
Apply = tuple[Shapes | None, Op]


class Raised(msgspec.Struct, frozen=True, array_like=True):
    """What the target raised, as a `kvexact.fuzz.wrong.Wrong` has it."""

    outcome: str
    text: str
    name: str


class Odd(msgspec.Struct, frozen=True, array_like=True, tag="odd"):
    """Stands for something that is no result, and shows itself as that did."""

    text: str

    def __repr__(self) -> str:
        return self.text


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of a call.

    Attributes:
        value: facts or launches.
        read: shapes of what a read returned; it lies in shared memory.
        told: what a poll found, or the answer to an op on requests.
        refused: reason and text of a refusal.
        raised: the call failed.
        unavailable: the target cannot run any more.
        sizes: bytes of the declared areas, where they are new; they lie in shared memory.
        unseen: areas whose view failed.
        kept: the target took the very memory that `load` was given for its own.
    """

    value: Any = None
    read: Shapes | None = None
    told: bool | Decided | Odd | None = None
    refused: tuple[str, str] | None = None
    raised: Raised | None = None
    unavailable: str | None = None
    sizes: dict[Area, int] = {}
    unseen: dict[Area, Raised] = {}
    kept: bool = False


class Segment:
    """Memory that two processes map; it grows as either of them needs more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes: Bytes = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        """The first bytes of it."""
        if size > self._bytes.size:
            room = self.grow(size)
            self._bytes = np.frombuffer(mmap.mmap(self.descriptor, room), np.uint8)
        return self._bytes[:size]

    def grow(self, size: int) -> int:
        """Make it no smaller; how large it is then, at least."""
        room = 1 << max(12, (size - 1).bit_length())
        if os.fstat(self.descriptor).st_size < room:
            os.ftruncate(self.descriptor, room)
        return room

    def put(self, arrays: tuple[Bytes, ...]) -> Shapes:
        """Copy arrays there, one after the other."""
        whole = self.take(sum([array.size for array in arrays]))
        end = 0
        for array in arrays:
            start, end = end, end + array.size
            whole[start:end] = array.reshape(-1)
        return tuple([array.shape for array in arrays])

    def arrays(self, shapes: Shapes) -> tuple[Bytes, ...]:
        """The arrays that lie there."""
        sizes = [prod(shape) for shape in shapes]
        whole = self.take(sum(sizes))
        found, end = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            start, end = end, end + size
            found.append(whole[start:end].reshape(shape))
        return tuple(found)


class Channel:
    """An end of two pipes, and the shared memory.

    Args:
        patience_s: how long to wait until the other end goes on reading; None: for ever.
        life: a descriptor that is readable as soon as the process at the other end has ended: a
            pipe alone stays open as long as any process that it forked.

    Attributes:
        segments: by their names, `SEGMENTS`.
    """

    def __init__(
        self,
        from_there: int,
        to_there: int,
        descriptors: list[int],
        patience_s: float | None = None,
        life: int | None = None,
    ) -> None:
        self._from_there = from_there
        self._to_there = to_there
        self._patience_s = patience_s
        os.set_blocking(to_there, patience_s is None)
        self._poll = select.poll()
        self._poll.register(from_there, select.POLLIN)
        self._lives = [] if life is None else [life]
        if life is not None:
            self._poll.register(life, select.POLLIN)
        pairs = zip(SEGMENTS, descriptors, strict=True)
        self.segments = {name: Segment(descriptor) for name, descriptor in pairs}

    def send(self, message: Call | Answer) -> None:
        """Send a message whole; whether anybody reads it shows when its answer is due."""
        self._write(_DONE if message is DONE else _with_head(message))

    def send_op(self, op: Op, shapes: Shapes | None) -> None:
        """Send an op whole, and the shapes of its rows."""
        data = _encode((shapes, op))
        self._write(_HEAD.pack(len(data), _NUMBERS[type(op)]) + data)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                try:
                    data = data[os.write(self._to_there, data) :]
                except BlockingIOError:
                    if not select.select(self._lives, [self._to_there], [], self._patience_s)[1]:
                        return
        except BrokenPipeError:
            return

    def call(self) -> Call | Apply | None:
        """The next call; None: the other end is closed."""
        kind, data = self._whole(self._read())
        found: Call | Apply | None
        found = _decode_call(data) if kind == _CALL else _DECODE_OP[kind](data) if data else None
        return found

    def answer(self, seconds: float) -> Answer | None:
        """The next answer; None: the other end is closed.

        Raises:
            TimeoutError: none came in time, or no more of it.
        """
        data = self._read(seconds)
        if data == _DONE:
            return DONE
        _, data = self._whole(data, seconds)
        return _decode_answer(data) if data else None

    def _whole(self, data: bytes, seconds: float | None = None) -> tuple[int, bytes]:
        """What the message is that starts so, and its bytes; none: the other end is closed."""
        if not data:
            return 0, b""
        while len(data) < _HEAD.size:
            data += self._more(seconds)
        size, kind = _HEAD.unpack_from(data)
        while len(data) < _HEAD.size + size:
            data += self._more(seconds)
        return kind, data[_HEAD.size :]

    def _more(self, seconds: float | None) -> bytes:
        more = self._read(seconds)
        if not more:
            raise ConnectionResetError("the other end closed in the middle of a message")
        return more

    def _read(self, seconds: float | None = None) -> bytes:
        if seconds is not None:
            ready = self._poll.poll(seconds * 1000)
            if not ready:
                raise TimeoutError
            # What is ready comes in the order in which it was registered.
            if ready[0][0] != self._from_there and not self._is_readable():
                return b""
        return os.read(self._from_there, _AT_ONCE)

    def _is_readable(self) -> bool:
        """Whether there is something to read after all: it may have come between two looks."""
        return self._from_there in dict(self._poll.poll(0))

    def close(self) -> None:
        """Close the pipes and the shared memory; what is mapped stays mapped."""
        os.close(self._from_there)
        os.close(self._to_there)
        for segment in self.segments.values():
            os.close(segment.descriptor)


_encode = msgspec.json.Encoder().encode


def _with_head(message: Call | Answer) -> bytes:
    data = _encode(message)
    return _HEAD.pack(len(data), _CALL) + data


#: The answer to an op that acted, and has nothing to say about it.
DONE = Answer()
_DONE = _with_head(DONE)
_decode_call = msgspec.json.Decoder(Call).decode
_decode_answer = msgspec.json.Decoder(Answer).decode
_NUMBERS = {op_type: number for number, op_type in enumerate(OPS.values())}
_DECODE_OP = [
    msgspec.json.Decoder(tuple[Shapes | None, op_type]).decode  # type: ignore[valid-type]
    for op_type in OPS.values()
]
