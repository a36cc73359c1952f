"""Transfers between the pool and the host tier: descriptors, and two ways to carry them out.

Usually the driver copies a batch. Many small pieces on their way to the pool are faster in a kernel
that moves 8-byte words, if the pieces consist of such words.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvexact.impl.engine.device import WORD_BYTES, Batch, Device, Words
from kvexact.impl.engine.order import InOrder, Transfer
from kvexact.impl.engine.plans import GroupPlan, Plan, SetPlan
from kvexact.impl.engine.regions import Region, Registered
from kvexact.impl.engine.tables import Moves
from kvexact.impl.named import made

#: The kernel takes runs shorter than this,
FAST_RUN_BYTES = 28 * 1024
#: and at least so many descriptors.
FAST_DESCRIPTORS = 16


class GroupRuns(NamedTuple):
    """One group's registered runs.

    Attributes:
        descriptors: [element, column and run]; (block, host slot, part, 1) times this are, of each
            run, its address in the pool, its address in the host tier, its content bytes.
        layers: the layer of each run, of all layer sets counted through.
        fast: whether the kernel can move every run.
        longest: content bytes of the longest run.
    """

    descriptors: Words
    layers: Words
    fast: bool
    longest: int


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
        #: For each job's group and number of blocks, the order by layer, and the layers' ends.
        self._layers: dict[tuple[tuple[int, int], ...], tuple[Words, list[int]]] = {}

    def _runs(self, group: GroupPlan, regions: tuple[Region, ...]) -> GroupRuns:
        chunk = self.plan.geometry.host.chunk_blocks
        runs: list[tuple[tuple[int, ...], ...]] = []
        layers: list[int] = []
        known = iter(regions)
        start = layer = 0
        for one in group.sets:
            for _ in range(one.shape.layers):
                page = [next(known) for _ in range(one.runs)]
                content = sum([region.length for region in page])
                at = start
                for region in page:
                    stride, part = self.block_stride(group, region), self.part_stride(content)
                    pool = stride, 0, 0, self.pool_address + self.base(region)
                    host = 0, self.plan.row_bytes, part, self.host_address + at
                    runs.append((pool, host, (0, 0, 0, self.width(one, region))))
                    layers.append(layer)
                    at += region.length
                start += content * chunk
                layer += 1
        descriptors = np.array(runs, np.int64).transpose(2, 1, 0).reshape(4, -1)
        lengths = [length for _, _, (*_, length) in runs]
        fast = all(self.fits_kernel(length) for length in lengths)
        return GroupRuns(descriptors, np.array(layers), fast, max(lengths))

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
        transfer = Transfer([job for job in jobs if job.blocks], to_pool)
        if not transfer.jobs:
            return
        order, device = self.order, self.device
        words, ends = self._by_layer(transfer, self._describe(transfer))
        count = words.shape[1]
        slow = self._why_slow(transfer, count)
        if not slow:
            words[2] //= WORD_BYTES
        scratch = order.stage(words.nbytes)
        scratch.words[: 3 * count] = words.reshape(-1)
        stream = order.before(transfer)
        if not slow:
            device.push(stream, words.nbytes)
        any_order = order.any_order(transfer)
        marks = []
        start = 0
        path = f"copy_batch {slow}"
        for end in ends:
            if not slow:
                places = [scratch.device + WORD_BYTES * (count * i + start) for i in range(3)]
                device.launch(stream, "transfer", *places, self.launched(end - start))
            else:
                device.count(path)
                device.copy_batch(stream, made(Batch, (start, end, count, to_pool, any_order)))
            marks.append(order.mark(stream))
            start = end
        order.moved(transfer, marks)

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

    def _describe(self, transfer: Transfer) -> Words:
        """[column, descriptor]: pool addresses, host addresses, lengths."""
        tables = []
        for job in transfer.jobs:
            places = self.places(job, to_pool=transfer.to_pool)
            elements = [word for place in zip(*places, strict=True) for word in (*place, 1)]
            found = (
                np.array(elements, np.int64).reshape(-1, 4).dot(self.groups[job.group].descriptors)
            )
            tables.append(found.reshape(len(job.blocks), 3, -1).swapaxes(0, 1).reshape(3, -1))
        return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)

    def _by_layer(self, transfer: Transfer, words: Words) -> tuple[Words, list[int]]:
        """The descriptors, layer after layer where these go one by one, and the ends of these."""
        if not self.order.by_layer(transfer):
            return words, [words.shape[1]]
        sizes = tuple([(job.group, len(job.blocks)) for job in transfer.jobs])
        if sizes not in self._layers:
            layers = np.concatenate(
                [self.groups[g].layers for g, blocks in sizes for _ in range(blocks)]
            )
            ends = np.cumsum(np.bincount(layers)).tolist()
            self._layers[sizes] = np.argsort(layers, kind="stable"), ends
        places, ends = self._layers[sizes]
        return words.take(places, axis=1), ends
