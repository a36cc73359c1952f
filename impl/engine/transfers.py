"""Transfers between the pool and the host tier: descriptors, and two ways to carry them out.

Usually the driver copies a batch. Many small pieces on their way to the pool are faster in a kernel
that moves 8-byte words, if the pieces consist of such words.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvexact.impl.engine.device import WORD_BYTES, Batch, Device
from kvexact.impl.engine.order import InOrder, Transfer, transfer
from kvexact.impl.engine.plans import GroupPlan, Plan, SetPlan
from kvexact.impl.engine.regions import Region, Registered
from kvexact.impl.engine.tables import Moves
from kvexact.impl.named import made

#: The kernel takes runs shorter than this,
FAST_RUN_BYTES = 28 * 1024
#: and at least so many descriptors.
FAST_DESCRIPTORS = 16


class Run(NamedTuple):
    """One run of a layer of a block: ``nbytes`` in the pool, and in a row of the host tier.

    Attributes:
        pool, host: addresses in block 0, and in part 0 of host slot 0.
        block_stride, part_stride: to the next block, and to the next part of a host slot.
    """

    pool: int
    block_stride: int
    host: int
    part_stride: int
    nbytes: int


class GroupRuns(NamedTuple):
    """One group's registered runs.

    Attributes:
        layers: by layer, of all layer sets counted through.
        whole: those of all layers.
        fast: whether the kernel can move every run.
        longest: content bytes of the longest run.
    """

    layers: Sequence[Sequence[Run]]
    whole: Sequence[Run]
    fast: bool
    longest: int


#: Address in the pool, address in the host tier, bytes.
Descriptor = tuple[int, int, int]


class Transfers:
    """Moves registered regions of blocks into rows of the host tier, and back."""

    def __init__(
        self,
        plan: Plan,
        registered: Registered,
        device: Device,
        pool_address: int,
        host_address: int,
        order: InOrder,
    ) -> None:
        self.plan = plan
        self.device = device
        self.order = order
        self.pool_address = pool_address
        self.host_address = host_address
        self.groups = [
            self._runs(group, regions)
            for group, regions in zip(plan.groups, registered.groups, strict=True)
        ]

    def _runs(self, group: GroupPlan, regions: tuple[Region, ...]) -> GroupRuns:
        chunk = self.plan.geometry.host.chunk_blocks
        layers: list[list[Run]] = []
        known = iter(regions)
        start = 0
        for one in group.sets:
            for _ in range(one.shape.layers):
                page = [next(known) for _ in range(one.runs)]
                content = sum([region.length for region in page])
                at = start
                runs = []
                for region in page:
                    pool = self.pool_address + self.base(region)
                    strides = self.block_stride(group, region), self.part_stride(content)
                    length = self.width(one, region)
                    runs.append(Run(pool, strides[0], self.host_address + at, strides[1], length))
                    at += region.length
                layers.append(runs)
                start += content * chunk
        whole = [run for runs in layers for run in runs]
        fast = all(self.fits_kernel(run.nbytes) for run in whole)
        return GroupRuns(layers, whole, fast, max([run.nbytes for run in whole]))

    # Decisions.

    def base(self, region: Region) -> int:
        """Where a region starts, from the start of the storage."""
        return region.base

    def block_stride(self, group: GroupPlan, region: Region) -> int:  # noqa: ARG002
        """From one manager block's run to the next one's."""
        return region.stride

    def width(self, one: SetPlan, region: Region) -> int:  # noqa: ARG002
        """Bytes of a run that are moved."""
        return region.length

    def part_stride(self, content_bytes: int) -> int:
        """From one part of a chunk to the next one in a host row."""
        return content_bytes

    def fits_kernel(self, length: int) -> bool:
        """Whether the transfer kernel can move a run of this length."""
        return length < FAST_RUN_BYTES and length % WORD_BYTES == 0

    def places(self, job: Moves, *, to_pool: bool) -> tuple[Sequence[int], ...]:  # noqa: ARG002
        """Per element its block, host slot and part."""
        return job.blocks, job.slots, job.parts

    def launched(self, count: int) -> int:
        """How many of ``count`` descriptors a launch of the transfer kernel takes."""
        return count

    # Execution.

    def run(self, jobs: Sequence[Moves], *, to_pool: bool) -> None:
        """Move all that the jobs name; elements of one op do not depend on each other."""
        jobs = [job for job in jobs if job.blocks]
        if not jobs:
            return
        moved = transfer(jobs, to_pool=to_pool)
        order, device = self.order, self.device
        found, ends = self._describe(moved)
        count = len(found)
        slow = self._why_slow(moved, count)
        pool, host, lengths = zip(*found, strict=True)
        if not slow:
            lengths = tuple([length // WORD_BYTES for length in lengths])
        nbytes = 3 * WORD_BYTES * count
        scratch = order.stage(nbytes)
        scratch.words[: 3 * count] = (*pool, *host, *lengths)
        stream = order.before(moved)
        if not slow:
            device.push(stream, nbytes)
        any_order = order.any_order(moved)
        marks = []
        start = 0
        path = f"copy_batch {slow}"
        for end in ends:
            if not slow:
                places = [scratch.device + WORD_BYTES * (count * i + start) for i in range(3)]
                device.launch(stream, "transfer", *places, self.launched(end - start))
            else:
                device.counts[path] += 1
                device.copy_batch(stream, made(Batch, (start, end, count, to_pool, any_order)))
            marks.append(order.mark(stream))
            start = end
        order.moved(moved, marks)

    def _why_slow(self, transfer: Transfer, count: int) -> str:
        """Why the driver copies, not the kernel; empty: the kernel does."""
        if not transfer.to_pool:
            return "to the host"
        if count < FAST_DESCRIPTORS:
            return "of few runs"
        slow = [runs for job in transfer.jobs if not (runs := self.groups[job.group]).fast]
        if not slow:
            return ""
        long = any(runs.longest >= FAST_RUN_BYTES for runs in slow)
        return "of long runs" if long else "of odd runs"

    def _describe(self, transfer: Transfer) -> tuple[list[Descriptor], list[int]]:
        """What is moved, layer after layer where these go one by one, and the ends of these."""
        by_layer, row_bytes = self.order.by_layer(transfer), self.plan.row_bytes
        jobs = []
        for job in transfer.jobs:
            group = self.groups[job.group]
            places = [*zip(*self.places(job, to_pool=transfer.to_pool), strict=True)]
            jobs.append((group.layers if by_layer else (group.whole,), places))
        found: list[Descriptor] = []
        ends = []
        for turn in range(max([len(turns) for turns, _ in jobs])):
            for turns, places in jobs:
                if turn < len(turns):
                    found += [
                        (pool + block * stride, host + slot * row_bytes + part * step, nbytes)
                        for block, slot, part in places
                        for pool, stride, host, step, nbytes in turns[turn]
                    ]
            ends.append(len(found))
        return found, ends
