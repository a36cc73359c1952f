"""What an isolated target and its parent say to each other: calls, answers, and shared bytes.

All of it lies in memory that both map: calls, answers, rows, areas. The memory has no name, so
nothing is left of it, however either process ends. A bell, which is an eventfd, says that a message
is there, how long it is and what it is: nothing wakes a process on the same core for less.
"""

import mmap
import os
import select
import sys
from collections.abc import Callable
from dataclasses import replace
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

#: Each is shared memory of its own: messages, rows of a write, rows of a read, and the areas.
SEGMENTS = ("calls", "answers", "rows", "read", "pool", "host")

#: What a bell says: 256 times the bytes of a message, and what it is. That is the number of an op's
#: type, with a mark where the op holds numbers of more than 64 bits; or one of these: a call or an
#: answer; `DONE`, which needs no bytes.
_WITH_LONG, _MESSAGE, _DONE = 128, 254, 255

#: Exit status of a process whose end is of no more use: it was written to, or closed.
DAMAGED = 113


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


class OddParts(msgspec.Struct, frozen=True, array_like=True, tag="odd parts"):
    """Stands for an answer to an op on requests of which some parts are nothing that it may hold.

    Attributes:
        plain: the answer with the other parts.
        odd: how these show themselves, by their names.
    """

    plain: Decided
    odd: dict[str, str]

    def answer(self) -> Decided:
        """The answer, with an `Odd` for each of these parts."""
        parts: dict[str, Any] = {name: Odd(text) for name, text in self.odd.items()}
        return replace(self.plain, **parts)


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
    told: bool | Decided | Odd | OddParts | None = None
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
        self._size = -1  # not even nothing is mapped

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self.descriptor, _room(size))
        self._bytes: Bytes = np.frombuffer(self._memory, np.uint8)
        self._size = _room(size)

    def grow(self, size: int) -> None:
        """Make it no smaller. Who only reads does not: what is said to lie there has its room."""
        if os.fstat(self.descriptor).st_size < _room(size):
            os.ftruncate(self.descriptor, _room(size))

    def _make_room(self, size: int) -> None:
        """Before so many bytes are put there."""
        if size > self._size:
            self.grow(size)
            self._map(size)

    def write(self, data: bytes) -> None:
        """Put a message there."""
        size = len(data)
        self._make_room(size)
        self._memory[:size] = data

    def put(self, arrays: tuple[Bytes, ...]) -> Shapes:
        """Copy arrays there, one after the other."""
        self._make_room(sum([array.size for array in arrays]))
        end = 0
        for array in arrays:
            start, end = end, end + array.size
            self._memory[start:end] = np.ascontiguousarray(array)  # type: ignore[call-overload]
        return tuple([array.shape for array in arrays])

    def read(self, size: int) -> bytes:
        """The message of so many bytes that lies there. Raises `ValueError` where fewer do."""
        if size > self._size:
            self._map(size)
        return self._memory[:size]

    def take(self, size: int) -> Bytes:
        """The first bytes of it. Raises `ValueError` where it has fewer."""
        if size > self._size:
            self._map(size)
        return self._bytes[:size]

    def arrays(self, shapes: Shapes) -> tuple[Bytes, ...]:
        """The arrays that lie there."""
        sizes = [prod(shape) for shape in shapes]
        whole = self.take(sum(sizes))
        found, end = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            start, end = end, end + size
            found.append(whole[start:end].reshape(shape))
        return tuple(found)


def _room(size: int) -> int:
    """How large a segment is, at least, that holds so many bytes."""
    return 1 << max(12, (size - 1).bit_length())


class Channel:
    """An end of two bells, and the shared memory. Each end waits for an answer before it goes on.

    Args:
        bell: rings when a message has come.
        other_bell: that of the other end.
        descriptors: of the shared memory, in the order of `SEGMENTS`.
        life: of the end that calls, a descriptor that is readable as soon as the process at the
            other end has ended; None: this end answers.

    Attributes:
        segments: by their names, `SEGMENTS`.
    """

    def __init__(
        self, bell: int, other_bell: int, descriptors: list[int], life: int | None = None
    ) -> None:
        self._bell = bell
        self._other_bell = other_bell
        pairs = zip(SEGMENTS, descriptors, strict=True)
        self.segments = {name: Segment(descriptor) for name, descriptor in pairs}
        ways = ("calls", "answers") if life is None else ("answers", "calls")
        self._from_there, self._to_there = [self.segments[name] for name in ways]
        self._poll = select.poll()
        for descriptor in (bell,) if life is None else (bell, life):
            self._poll.register(descriptor, select.POLLIN)

    def send(self, message: Call | Answer) -> None:
        """Send a message; whether anybody reads it shows when its answer is due."""
        if message is DONE:
            os.eventfd_write(self._other_bell, _DONE)
        else:
            self._send(_encode(message), _MESSAGE)

    def send_op(self, op: Op, shapes: Shapes | None) -> None:
        """Send an op, and the shapes of its rows."""
        what = _NUMBERS[type(op)]
        try:
            data = _encode_op((shapes, op))
        except OverflowError:
            data, what = _encode((shapes, op)), what | _WITH_LONG
        self._send(data, what)

    def _send(self, data: bytes, what: int) -> None:
        self._to_there.write(data)
        os.eventfd_write(self._other_bell, len(data) << 8 | what)

    def call(self) -> Call | Apply:
        """The next call."""
        # As `os.eventfd_read`, which a signal that is handled here would end.
        rung = int.from_bytes(os.read(self._bell, 8), sys.byteorder)
        found: Call | Apply = _DECODE[rung & 255](self._from_there.read(rung >> 8))
        return found

    def answer(self, seconds: float) -> Answer | None:
        """The next answer; None: the process at the other end has ended.

        Raises:
            TimeoutError: none came in time.
            OSError, OverflowError, ValueError: it is damaged, or names bytes that are not there.
        """
        try:
            # On one core, who is woken up mostly runs at once: the answer has come by now.
            rung = os.eventfd_read(self._bell)
        except BlockingIOError:
            if not self._comes(seconds):
                return None
            rung = os.eventfd_read(self._bell)
        if rung == _DONE:
            return DONE
        answer = _decode_answer(self._from_there.read(rung >> 8))
        for area, size in answer.sizes.items():
            self.segments[area].take(size)
        if answer.read is not None:
            self.segments["read"].arrays(answer.read)
        return answer

    def _comes(self, seconds: float) -> bool:
        """Wait for an answer; False: none comes, as the process at the other end has ended.

        Raises:
            TimeoutError: none came in time.
        """
        ready = self._poll.poll(seconds * 1000)
        if not ready:
            raise TimeoutError
        # What is ready comes in the order in which it was registered. If the process has ended,
        # there may be an answer after all: it may have come between two looks.
        return ready[0][0] == self._bell or self._bell in dict(self._poll.poll(0))

    def close(self) -> None:
        """Close the bells and the shared memory; what is mapped stays mapped."""
        for descriptor in (self._bell, self._other_bell):
            os.close(descriptor)
        for segment in self.segments.values():
            os.close(segment.descriptor)


#: The answer to an op that acted, and has nothing to say about it.
DONE = Answer()
_NUMBERS = {op_type: number for number, op_type in enumerate(OPS.values())}
# An op goes as MessagePack, which takes half the time of JSON, but has no long numbers.
_encode, _encode_op = msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.json.Decoder(Answer).decode
_DECODE: dict[int, Callable[[bytes], Any]] = {_MESSAGE: msgspec.json.Decoder(Call).decode}
for _op_type, _number in _NUMBERS.items():
    _applied: Any = tuple[Shapes | None, _op_type]  # type: ignore[valid-type]
    _DECODE[_number] = msgspec.msgpack.Decoder(_applied).decode
    _DECODE[_number | _WITH_LONG] = msgspec.json.Decoder(_applied).decode
