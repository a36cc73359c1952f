"""Handles of blocks and places of chunks, as a run has met them: what a drawn op may name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvexact.refmodel.ops import (
    Allocate,
    Claimed,
    Dangling,
    Free,
    Handle,
    Offload,
    Op,
    Reset,
    Restore,
    bind,
    block_id,
)
from kvexact.refmodel.positions import ByteOp
from kvexact.refmodel.timed_ops import Poll

#: How many of what is gone are remembered.
_REMEMBERED = 16


@dataclass(slots=True)
class Names:
    """Handles of blocks; `follow` keeps them in step with ownership.

    Attributes:
        live: per group, the owned blocks' handles in the order of allocation.
        freed: handles of blocks that were given back, the latest last.
        stored: (host slot, part) that offloads filled, the latest last.
        claimed: what handles stand for.
        jobs: ids of the transfers, the latest last.
    """

    live: list[dict[int, Handle]]
    freed: list[Handle] = field(default_factory=list)
    stored: list[tuple[int, int]] = field(default_factory=list)
    claimed: Claimed = field(default_factory=Claimed)
    jobs: list[int] = field(default_factory=list)

    def bind(self, op: Op) -> Op:
        """The same op with block ids for handles.

        Raises:
            Dangling: a handle, or the transfer that is polled, stands for nothing.
        """
        if type(op) is Poll and op.job not in self.jobs:
            raise Dangling(f"job {op.job}")
        return bind(op, self.claimed)

    def follow(self, op: ByteOp) -> None:
        """Note what an op did that was accepted; its blocks are ids."""
        follows = _FOLLOWS.get(type(op))
        if follows:
            follows(self, op)


def _allocate(names: Names, op: Allocate) -> None:
    names.live[op.group].update(zip(op.blocks, names.claimed.claim(op), strict=True))


def _free(names: Names, op: Free) -> None:
    live = names.live[op.group]
    names.freed += [live.pop(block_id(name)) for name in op.blocks]
    del names.freed[:-_REMEMBERED]


def _offload(names: Names, op: Offload) -> None:
    names.jobs.append(op.id)
    names.stored += [(slot, part) for _, moves in op.jobs for _, slot, part in moves]
    del names.stored[:-_REMEMBERED]


def _restore(names: Names, op: Restore) -> None:
    names.jobs.append(op.id)


def _reset(names: Names, _: Reset) -> None:
    for of_group in names.live:
        names.freed += of_group.values()
        of_group.clear()
    del names.freed[:-_REMEMBERED]


#: By type of an op, what it makes of names; of others nothing.
_FOLLOWS: dict[type[ByteOp], Callable[[Names, Any], None]] = {
    Allocate: _allocate,
    Free: _free,
    Offload: _offload,
    Restore: _restore,
    Reset: _reset,
}
