"""Handles of blocks and places of chunks, as a run has met them: what a drawn op may name."""

from dataclasses import dataclass, field

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
        match op:
            case Allocate(id=op_id, group=group, blocks=blocks):
                self.claimed.claim(op)
                for nth, block in enumerate(blocks):
                    self.live[group][block] = Handle(op_id, nth)
            case Free(group=group, blocks=names):
                for name in names:
                    self.freed.append(self.live[group].pop(block_id(name)))
                    del self.freed[:-_REMEMBERED]
            case Offload(id=op_id, jobs=jobs):
                self.jobs.append(op_id)
                self.stored += [(move.host_slot, move.part) for job in jobs for move in job.moves]
                del self.stored[:-_REMEMBERED]
            case Restore(id=op_id):
                self.jobs.append(op_id)
            case Reset():
                for of_group in self.live:
                    self.freed += of_group.values()
                    of_group.clear()
                del self.freed[:-_REMEMBERED]
