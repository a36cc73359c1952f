"""One open geometry: the operations on its pool and its host tier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvexact.impl.engine.copies import Copies
from kvexact.impl.engine.device import COMPUTE, ROW_ALIGNMENT, WORD_BYTES, Device
from kvexact.impl.engine.order import InOrder, Work
from kvexact.impl.engine.planner import raised
from kvexact.impl.engine.plans import Plan
from kvexact.impl.engine.tables import BlockTable, HostTable, distinct
from kvexact.impl.engine.transfers import Transfers
from kvexact.impl.engine.values import Codecs
from kvexact.impl.engine.views import Views
from kvexact.impl.named import made
from kvexact.impl.target import Rows
from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Evict,
    Free,
    Offload,
    Op,
    Read,
    ReadValues,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.timed_ops import Fence, Poll, Step


def _rows_start(slots: int) -> int:
    """Where rows start in scratch memory, behind so many slots."""
    return raised(WORD_BYTES * slots, ROW_ALIGNMENT)


@dataclass(slots=True)
class Cache:
    """The parts of an open geometry. ``pool`` is the address of the pool's storage.

    In each operation all checks come first, then the device's work, then the tables.
    """

    device: Device
    order: InOrder
    plan: Plan
    pool: int
    blocks: BlockTable
    host: HostTable
    views: Views
    codecs: Codecs
    copies: Copies
    transfers: Transfers

    def apply(self, op: Op, rows: Rows | None) -> Rows | bool | None:
        """Run an op. Raises as `Target.apply` says."""
        return _HANDLERS[type(op)](self, op, rows)

    def allocate(self, op: Allocate, _: Rows | None) -> None:
        group = self.blocks.group(op.group)
        blocks = self.blocks.ids(op.blocks)
        distinct("block", blocks)
        self.blocks.require_free(group, blocks)
        if op.zero:
            self._clear(group, blocks)
        self.blocks.give(group, blocks)

    def free(self, op: Free, _: Rows | None) -> None:
        self.blocks.take(self._owned(op))

    def _owned(self, op: Free | Zero) -> list[int]:
        group = self.blocks.group(op.group)
        blocks = self.blocks.ids(op.blocks)  # type: ignore[arg-type]  # handles are bound
        distinct("block", blocks)
        self.blocks.require_owned(group, blocks)
        return list(blocks)

    def write_tokens(self, op: WriteTokens, rows: Rows | None) -> None:
        index = self.blocks.group(op.group)
        slots = self.blocks.slots(index, op.slots, unique=True)
        assert rows is not None
        if not slots:
            return
        start = _rows_start(len(slots))
        cells = b"".join([data.tobytes() for data in rows])
        nbytes = start + len(cells)
        scratch = self.order.stage(nbytes)
        scratch.words[: len(slots)] = slots
        scratch.memory[start:nbytes] = cells
        self.device.push(COMPUTE, nbytes)
        self._scatter("write", index, op.slots, start)

    def write_values(self, op: WriteValues, rows: Rows | None) -> None:
        index = self.blocks.group(op.group)
        slots = self.blocks.slots(index, op.slots, unique=True, values=True)
        assert rows is not None
        if slots:
            start = self.codecs.encode(index, slots, op.value_type, rows)
            self._scatter("write_values", index, op.slots, start)

    def _scatter(self, consumer: str, index: int, slots: Sequence[Slot | None], start: int) -> None:
        """Store cells from ``start`` of the staging buffer in the slots at its beginning."""
        order, device, group = self.order, self.device, self.plan.groups[index]
        place = device.scratch.device
        work = made(Work, (consumer, index, (), order.blocks(slots)))
        in_pool = self.plan.geometry.blocks * group.slots
        sizes = len(slots), group.kernel_slots, in_pool
        for table in order.compute(work):
            device.launch(COMPUTE, "write", *table, place, *sizes, place + start, self.pool)
        order.computed(work)

    def read(self, op: Read, _: Rows | None) -> Rows:
        index = self.blocks.group(op.group)
        slots = self.blocks.slots(index, op.slots, unique=False)
        count = len(slots)
        shapes = [one.shape for one in self.plan.groups[index].sets]
        sizes = [(count, s.layers, s.heads, s.cell_bytes) for s in shapes]
        start = _rows_start(count)
        nbytes = count * sum([s.layers * s.heads * s.cell_bytes for s in shapes])
        scratch = self.order.stage(start + nbytes)
        if count:
            scratch.words[:count] = slots
            self.device.push(COMPUTE, WORD_BYTES * count)
            work = self._gather(index, op.slots, start)
            self.device.pull(COMPUTE, start, nbytes)
            self.order.computed(work)
            self.order.arrive()
        rows = []
        for size in sizes:
            end = start + size[0] * size[1] * size[2] * size[3]
            rows.append(scratch.bytes[start:end].reshape(size).copy())
            start = end
        return tuple(rows)

    def read_values(self, op: ReadValues, _: Rows | None) -> Rows:
        index = self.blocks.group(op.group)
        slots = self.blocks.slots(index, op.slots, unique=False, values=True)
        places = self.codecs.stage(index, slots)
        if slots:
            work = self._gather(index, op.slots, places.cells)
            self.codecs.decode(index, len(slots), places)
            self.order.computed(work)
            self.order.arrive()
        return self.codecs.decoded(index, len(slots), places)

    def _gather(self, index: int, slots: Sequence[Slot | None], start: int) -> Work:
        """Bring cells of the slots at the beginning of the staging buffer to ``start`` of it."""
        order, device = self.order, self.device
        place = device.scratch.device
        work = made(Work, ("read", index, order.blocks(slots), ()))
        sizes = len(slots), self.plan.groups[index].kernel_slots
        for table in order.compute(work):
            device.launch(COMPUTE, "read", *table, place, *sizes, place + start, self.pool)
        return work

    def zero(self, op: Zero, _: Rows | None) -> None:
        self._clear(op.group, self._owned(op))

    def _clear(self, group: int, blocks: Sequence[int]) -> None:
        if blocks:
            scratch = self.order.stage(WORD_BYTES * len(blocks))
            scratch.words[: len(blocks)] = blocks
            self.device.push(COMPUTE, WORD_BYTES * len(blocks))
            work = made(Work, ("zero", group, (), blocks))
            for table in self.order.compute(work):
                address = scratch.device
                self.device.launch(COMPUTE, "zero", *table, address, len(blocks), self.pool)
            self.order.computed(work)

    def copy_blocks(self, op: CopyBlocks, _: Rows | None) -> None:
        index = self.blocks.group(op.group)
        group = self.plan.groups[index]
        pairs = self.blocks.pairs(index, op.pairs, op.tokens)
        self.copies.run(index, group, pairs, op.tokens)

    def offload(self, op: Offload, _: Rows | None) -> None:
        jobs = self.host.moves(self.blocks, op.jobs)
        distinct("part", [move[1:] for job in op.jobs for move in job.moves])
        for job in jobs:
            self.blocks.require_owned(job.group, job.blocks)
        self.host.require_room(jobs)
        self.transfers.run(jobs, to_pool=False)
        self.host.keep(jobs)

    def restore(self, op: Restore, _: Rows | None) -> None:
        jobs = self.host.moves(self.blocks, op.jobs)
        distinct("block", [block for job in jobs for block in job.blocks])
        for job in jobs:
            self.blocks.require_owned(job.group, job.blocks)
        self.host.require_held(jobs)
        self.transfers.run(jobs, to_pool=True)

    def evict(self, op: Evict, _: Rows | None) -> None:
        slots = self.host.ids(op.host_slots)
        distinct("host slot", slots)
        self.host.require_used(slots)
        self.host.drop(slots)

    def fence(self, _op: Fence, _: Rows | None) -> None:
        self.order.finish()

    def step(self, _op: Step, _: Rows | None) -> None:
        self.device.pass_time()

    def poll(self, op: Poll, _: Rows | None) -> bool:
        return self.order.is_done(op.job)

    def reset(self, _op: Reset, _: Rows | None) -> None:
        self.order.finish()
        self.blocks.reset()
        self.host.reset()


_HANDLERS: dict[type[Op], Callable[[Cache, Any, Rows | None], Rows | bool | None]] = {
    Allocate: Cache.allocate,
    Free: Cache.free,
    WriteTokens: Cache.write_tokens,
    WriteValues: Cache.write_values,
    Zero: Cache.zero,
    CopyBlocks: Cache.copy_blocks,
    Offload: Cache.offload,
    Restore: Cache.restore,
    Read: Cache.read,
    ReadValues: Cache.read_values,
    Evict: Cache.evict,
    Reset: Cache.reset,
    Fence: Cache.fence,
    Step: Cache.step,
    Poll: Cache.poll,
}
