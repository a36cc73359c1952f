"""Handles of blocks and places of chunks, as a run has met them: what a drawn op may name."""

from dataclasses import dataclass, field

from kvexact.refmodel.ops import Allocate, Handle, Offload

#: How many of what is gone are remembered.
_REMEMBERED = 16


@dataclass(slots=True)
class Names:
    """Handles of blocks, kept up by the run.

    Attributes:
        live: per group, the owned blocks' handles in the order of allocation.
        freed: handles of blocks that were given back, the latest last.
        stored: (host slot, part) that offloads filled, the latest last.
    """

    live: list[dict[int, Handle]]
    freed: list[Handle] = field(default_factory=list)
    stored: list[tuple[int, int]] = field(default_factory=list)

    def allocated(self, op: Allocate) -> None:
        for nth, block in enumerate(op.blocks):
            self.live[op.group][block] = Handle(op.id, nth)

    def gave_back(self, group: int, block: int) -> None:
        self.freed.append(self.live[group].pop(block))
        del self.freed[:-_REMEMBERED]

    def filled(self, op: Offload) -> None:
        self.stored += [(move.host_slot, move.part) for job in op.jobs for move in job.moves]
        del self.stored[:-_REMEMBERED]

    def reset(self) -> None:
        for of_group in self.live:
            self.freed += of_group.values()
            of_group.clear()
        del self.freed[:-_REMEMBERED]
