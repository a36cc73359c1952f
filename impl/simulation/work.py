"""What an action does to memory, as frozen values: copies, fills, calls and tasks.

A copy may be taken apart into bytes, each of which is read and, some time later, written. A call is
one indivisible step, and so is each of several tasks; what should interleave is given as those, or
as copies.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvexact.impl.simulation.memory import Memory, Range


class Undefined(Exception):
    """A call whose effect CUDA leaves undefined."""


class Copy(NamedTuple):
    """Bytes from address ``source`` to address ``target``."""

    target: int
    source: int
    nbytes: int


class Fill(NamedTuple):
    """``nbytes`` times the byte ``value`` from address ``target`` on."""

    target: int
    value: int
    nbytes: int


class Call(NamedTuple):
    """A function that reads and writes memory by itself.

    Attributes:
        function: what is called, once.
        reads, writes: the bytes that it may touch, checked before it runs; None: not known. It then
            checks its accesses by itself, and no byte counts as settled before it ran.
    """

    function: Callable[[], None]
    reads: tuple[Range, ...] | None = None
    writes: tuple[Range, ...] | None = None


class Tasks(NamedTuple):
    """As many calls without order as ``total`` says, those from one to another run by a function.

    Attributes:
        function: is given the first one and the end.
        reads, writes: as of a `Call`; each task may touch all of it.
    """

    function: Callable[[int, int], None]
    total: int
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


Work = Copy | Fill | Call | Tasks


def size(item: Work) -> int:
    """Into how many single steps it can be taken apart: bytes, tasks, or one call."""
    if isinstance(item, Tasks):
        return item.total
    return 1 if isinstance(item, Call) else item.nbytes


def reads(item: Work, start: int, end: int) -> tuple[Range, ...] | None:
    """What its bytes from ``start`` to ``end`` read; None: not known."""
    if isinstance(item, Copy):
        return (Range(item.source + start, end - start),)
    return () if isinstance(item, Fill) else item.reads


def writes(item: Work, start: int, end: int) -> tuple[Range, ...] | None:
    """What its bytes from ``start`` to ``end`` write; None: not known."""
    if isinstance(item, Call | Tasks):
        return item.writes
    return (Range(item.target + start, end - start),)


def call(item: Call | Tasks, memory: Memory, start: int, end: int) -> None:
    """Run a call, or some of the tasks, the ranges checked before. Raises `OutOfBounds`."""
    memory.require(item.reads or ())
    memory.require(item.writes or ())
    if isinstance(item, Tasks):
        item.function(start, end)
    else:
        item.function()


def perform(items: Sequence[Work], memory: Memory) -> None:
    """Do all of it at once. Raises `OutOfBounds`."""
    others = [item for item in items if not isinstance(item, Copy)]
    if len(others) < len(items):
        memory.copy([item for item in items if isinstance(item, Copy)])
    for item in others:
        if isinstance(item, Fill):
            memory.fill(*item)
        else:
            call(item, memory, 0, size(item))


def require_independent(copies: Sequence[Copy], *, apart: bool = False) -> None:
    """Raise `Undefined` where a copy writes what it or another of them reads or writes.

    Args:
        apart: no target is in an area in which a source is.
    """
    if apart and len(copies) == 1:
        return
    places = sorted([(target, target + nbytes) for target, _, nbytes in copies if nbytes])
    end = 0
    for start, next_end in places:
        if start < end:
            raise Undefined("two copies of one call write the same byte")
        end = next_end
    for _, source, nbytes in () if apart else copies:
        # Targets are apart, so a source meets one of them if it meets the last that starts before
        # its end.
        last = bisect_left(places, (source + nbytes,)) - 1
        if nbytes and last >= 0 and places[last][1] > source:
            raise Undefined("a copy reads what it or another copy of its call writes")
