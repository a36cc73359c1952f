"""Order of a synchronous engine: one stream, and each piece of work is waited for.

What the operations ask for is the interface of this part; `StreamOrder` gives other answers.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvexact.impl.engine.device import COMPUTE, Device, Scratch
from kvexact.impl.engine.tables import Moves
from kvexact.impl.engine.views import Table, Views
from kvexact.impl.named import made
from kvexact.refmodel.ops import Slot


class Work(NamedTuple):
    """Compute work on blocks of a group, and for which of the consumers of `Views`."""

    consumer: str
    group: int
    reads: Sequence[int]
    writes: Sequence[int]


class Transfer(NamedTuple):
    """What one operation moves between the tiers: jobs, and all blocks and host slots of these."""

    jobs: Sequence[Moves]
    to_pool: bool
    blocks: Sequence[int]
    slots: Sequence[int]


def transfer(jobs: Sequence[Moves], *, to_pool: bool) -> Transfer:
    """A transfer that moves all that these jobs name."""
    if len(jobs) == 1:
        _, blocks, slots, _ = jobs[0]
    else:
        blocks = [block for job in jobs for block in job.blocks]
        slots = [slot for job in jobs for slot in job.slots]
    return made(Transfer, (jobs, to_pool, blocks, slots))


class InOrder:
    """See the module."""

    def __init__(self, views: Views, device: Device) -> None:
        self.views = views
        self.device = device

    def begin(self, op: int) -> None:
        """What follows belongs to this op."""

    def stage(self, nbytes: int) -> Scratch:
        """A staging buffer that nothing pending uses; used until the next one is asked for."""
        return self.device.scratch_of(nbytes)

    def blocks(self, slots: Sequence[Slot | None]) -> Sequence[int]:  # noqa: ARG002
        """The blocks of these slots, as far as order depends on them."""
        return ()

    def compute(self, work: Work) -> Iterable[Table]:
        """Wait for what must come before, table by table of strips that are to be launched."""
        return (self.views.table(work.consumer, work.group),)

    def computed(self, work: Work) -> None:  # noqa: ARG002
        """Compute work is enqueued."""
        self.device.finish()

    def arrive(self) -> None:
        """Return when the last compute work has ended: the host takes what it brought."""

    def by_layer(self, transfer: Transfer) -> bool:  # noqa: ARG002
        """Whether layers are moved one after the other."""
        return False

    def before(self, transfer: Transfer) -> int:  # noqa: ARG002
        """Wait for what must come before a transfer; its stream."""
        return COMPUTE

    def any_order(self, transfer: Transfer) -> bool:  # noqa: ARG002
        """Whether sources may be read out of stream order."""
        return False

    def mark(self, stream: int) -> Any:  # noqa: ARG002
        """A mark behind what is enqueued in a stream."""
        return None

    def moved(self, transfer: Transfer, marks: Sequence[Any]) -> None:  # noqa: ARG002
        """A transfer is enqueued, with a mark behind each layer or behind all of them."""
        self.device.finish()

    def is_done(self, op: int) -> bool:  # noqa: ARG002
        """Whether the transfer that an op began has ended."""
        return True

    def finish(self) -> None:
        """Return when all work has ended."""
        self.device.finish()
