"""A write-ahead journal: geometry and ops in a mapped file, each before it runs.

When a process dies, the pages of the mapping outlive it, so `recover` finds what it was doing. One
example at a time: each geometry starts the file anew.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from kvexact.fuzz.reserve import allocate
from kvexact.fuzz.trace import IN_ORDER, Trace, TraceError, op_from_json
from kvexact.refmodel.ops import OPS, Op
from kvexact.refmodel.spec import Geometry

#: Far more than one example takes.
BYTES = 1024 * 1024

_OPENING = {op_type: f'{{"op":"{kind}",'.encode() for kind, op_type in OPS.items()}
_END = b"\n\0"


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line."""

    target: str
    family: str
    geometry: Geometry
    schedule: int = IN_ORDER


class Journal:
    """Writes a journal.

    A line becomes visible with its first byte, which is stored last. So a torn line is no line,
    and what an earlier example left behind it is never read.
    """

    def __init__(self, path: Path, size: int = BYTES) -> None:
        """Make the file, or start the one there anew; ``size`` bytes bound it.

        Raises:
            OSError: there is no room for them.
        """
        self.path = path
        self.target = ""
        self.family = ""
        allocate(path, size)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self._memory[0] = 0
        self._size = size
        self._end = 0
        self._encode = msgspec.json.Encoder().encode

    def begin(self, geometry: Geometry, schedule: int = IN_ORDER) -> None:
        """Start the file anew with a geometry and a schedule."""
        self._memory[0] = 0
        self._end = 0
        self._append(self._encode(_Head(self.target, self.family, geometry, schedule)))

    def write(self, op: Op) -> None:
        """Note an op that is about to run."""
        self._append(_OPENING[type(op)] + self._encode(op)[1:])

    def _append(self, line: bytes) -> None:
        """One line; where the file has no room for it, nothing after it is noted either."""
        start, end = self._end, self._end + len(line)
        if end + 2 > self._size:
            self._end = self._size
            return
        memory = self._memory
        memory[start + 1 : end + 2] = line[1:] + _END
        memory[start] = line[0]
        self._end = end + 1

    def close(self, *, keep: bool = False) -> None:
        """Close the file, and remove it unless it is to be kept."""
        self._memory.close()
        if not keep:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def clear(path: Path) -> None:
    """Have the journal of a dead process tell nothing, and keep its room."""
    with path.open("r+b") as file:
        file.write(b"\0")


def recover(path: Path) -> Trace | None:
    """The trace that a process was running when it died; its last op is the one under way.

    None where there is no journal, or it was still empty. A torn or foreign tail is left out.
    """
    try:
        lines = path.read_bytes().split(b"\0", 1)[0].split(b"\n")[:-1]
        head = msgspec.json.decode(lines[0], type=_Head)
    except (OSError, IndexError, ValueError, msgspec.MsgspecError):
        return None
    ops: list[Op] = []
    for line in lines[1:]:
        try:
            ops.append(op_from_json(msgspec.json.decode(line), f"line {len(ops) + 2}"))
        except (ValueError, msgspec.MsgspecError, TraceError):
            break
    return Trace(head.geometry, tuple(ops), head.target, head.family, schedule=head.schedule)
