"""How an isolated target and its parent talk: messages in memory that both map, and bells.

Calls, answers, rows, areas: all of it lies there. The memory has no name, so nothing is left of it,
however either process ends. A bell, which is an eventfd, says that a message is there, how long it
is and what it is: nothing wakes a process on the same core for less.
"""

import os
import select
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from kvexact.fuzz.messages import DONE, Answer, Apply, Call
from kvexact.fuzz.segment import Segment, Shapes
from kvexact.refmodel.ops import OPS, Op

#: Each is shared memory of its own: messages, rows of a write, rows of a read, and the areas.
SEGMENTS = ("calls", "answers", "rows", "read", "pool", "host")

#: What a bell says: 256 times the bytes of a message, and what it is. That is the number of an op's
#: type, with a mark where the op holds numbers of more than 64 bits; or one of these: a call or an
#: answer; `DONE`, which needs no bytes.
_WITH_LONG, _MESSAGE, _DONE = 128, 254, 255

#: Exit status of a process whose end is of no more use: it was written to, or closed.
DAMAGED = 113


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


_NUMBERS = {op_type: number for number, op_type in enumerate(OPS.values())}
# An op goes as MessagePack, which takes half the time of JSON, but has no long numbers.
_encode, _encode_op = msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.json.Decoder(Answer).decode
_DECODE: dict[int, Callable[[bytes], Any]] = {_MESSAGE: msgspec.json.Decoder(Call).decode}
for _op_type, _number in _NUMBERS.items():
    _applied: Any = tuple[Shapes | None, _op_type]  # type: ignore[valid-type]
    _DECODE[_number] = msgspec.msgpack.Decoder(_applied).decode
    _DECODE[_number | _WITH_LONG] = msgspec.json.Decoder(_applied).decode
