"""The CPU device on simulated streams: kernels.cu runs when a schedule says so.

Pool and staging have device memory, the host tier and the host's side of staging are pinned. A
launch has a task for each strip or piece; copies are taken apart to bytes.
"""

from functools import partial
from typing import ClassVar

from kvexact.impl.engine.cpu import CpuDevice, guarded
from kvexact.impl.engine.device import (
    HOST,
    POISON,
    POOL,
    SCRATCH,
    WORD_BYTES,
    Batch,
    Scratch,
)
from kvexact.impl.engine.views import Strip
from kvexact.impl.named import made
from kvexact.impl.notes import Note
from kvexact.impl.simulation.actions import Order
from kvexact.impl.simulation.memory import Kind, Range
from kvexact.impl.simulation.runtime import Runtime
from kvexact.impl.simulation.schedules import schedule
from kvexact.impl.simulation.streams import Event
from kvexact.impl.simulation.work import Call, Tasks, Work

#: An enum is slow to tell its members.
_ANY, _STREAM = Order.ANY, Order.STREAM

_KINDS = {POOL: ("pool", Kind.DEVICE), HOST: ("host tier", Kind.PINNED)}
_STRIP_BYTES = WORD_BYTES * len(Strip._fields)

#: Of `STREAMS`.
_STREAM_NAMES = ("compute", "store", "load")

#: What a kernel reads, and writes.
_TOUCHES = {
    "write": ((SCRATCH,), (POOL,)),
    "read": ((SCRATCH, POOL), (SCRATCH,)),
    "copy": ((SCRATCH, POOL), (POOL,)),
    "zero": ((SCRATCH,), (POOL,)),
    "transfer": ((SCRATCH, HOST), (POOL,)),
    "encode": ((SCRATCH,), (SCRATCH,)),
    "decode": ((SCRATCH,), (SCRATCH,)),
}

#: Where a kernel is given how many strips or pieces it has, behind the arrays of these.
_COUNTS = {"write": 1, "read": 1, "copy": 1, "zero": 1, "transfer": 3}


class _Buffer(Scratch):
    """A staging buffer whose sides are apart; ``back`` is the device's, and lies at ``place``."""

    __slots__ = ("back", "place")

    def __init__(self, nbytes: int) -> None:
        data, host = guarded(nbytes)
        self.back, device = guarded(nbytes)
        self.place = Range(device, nbytes)
        super().__init__(data, host, device)


class SimulatedDevice(CpuDevice):
    """See the module. ``number`` is the schedule, from the next `release` on."""

    name: ClassVar[str] = "streams"

    def __init__(
        self, macros: tuple[str, ...] = (), *, number: int = 1, notes: list[Note] | None = None
    ) -> None:
        self.number = number
        #: What runs when is noted here, from the next `release` on.
        self.notes = notes
        self._places: dict[int, Range] = {}
        #: By kernel and staging buffer, what a launch reads, and writes.
        self._touches: dict[tuple[str, Range], list[tuple[Range, ...]]] = {}
        self._restart()
        super().__init__(macros)

    def _restart(self) -> None:
        """A runtime on which nothing is pending."""
        self.runtime = Runtime(schedule(self.number), self.notes)
        self._streams = [self.runtime.stream(name, blocking=False) for name in _STREAM_NAMES]

    def _make_scratch(self, number: int, nbytes: int) -> Scratch:
        if number < len(self._buffers):
            old = self._buffers[number]
            self.runtime.memory.release(old.host)
            self.runtime.memory.release(old.device)
        return super()._make_scratch(number, nbytes)

    def _new_buffer(self, nbytes: int) -> Scratch:
        return _Buffer(nbytes)

    def _enlist(self, number: int, buffer: Scratch) -> None:
        assert isinstance(buffer, _Buffer)
        for name, side, kind in (
            (f"staging {number}", buffer.bytes, Kind.PINNED),
            (f"staging {number} of the device", buffer.back, Kind.DEVICE),
        ):
            side.fill(POISON)
            self.runtime.memory.register(name, side, kind)

    def allocate(self, area: int, nbytes: int, registered_bytes: int) -> int:
        """See `Device`."""
        address = super().allocate(area, nbytes, registered_bytes)
        name, kind = _KINDS[area]
        data = self._areas[area][:registered_bytes]
        self._places[area] = Range(address, len(data))
        if len(data):
            self.runtime.memory.register(name, data, kind)
        return address

    # Work.

    def push(self, stream: int, nbytes: int) -> None:
        """See `Device`."""
        buffer = self.scratch
        self.runtime.memcpy_async(buffer.device, buffer.host, nbytes, self._streams[stream])

    def pull(self, stream: int, start: int, nbytes: int) -> None:
        """See `Device`."""
        buffer = self.scratch
        places = buffer.host + start, buffer.device + start
        self.runtime.memcpy_async(*places, nbytes, self._streams[stream])

    def launch(self, stream: int, kernel: str, *arguments: int) -> None:
        """See `Device`."""
        self.counts[kernel] += 1
        assert isinstance(self.scratch, _Buffer)
        staging = self.scratch.place
        reads, writes = self._touches.get((kernel, staging)) or self._touched(kernel, staging)
        run = partial(self._run, kernel, arguments, staging)
        count = _COUNTS.get(kernel)
        work: Work
        if count is None:
            work = Call(run, reads, writes)
        else:
            work = made(Tasks, (run, arguments[count], reads, writes))
        self.runtime.launch([work], self._streams[stream], kernel)

    def _touched(self, kernel: str, staging: Range) -> list[tuple[Range, ...]]:
        """What a kernel reads and what it writes, of the areas and a staging buffer."""
        found = self._touches[kernel, staging] = [
            tuple([staging if area == SCRATCH else self._places[area] for area in areas])
            for areas in _TOUCHES[kernel]
        ]
        return found

    def _run(
        self,
        kernel: str,
        arguments: tuple[int, ...],
        staging: Range,
        start: int = 0,
        end: int | None = None,
    ) -> None:
        """Run a launch, or its strips or pieces from ``start`` to ``end``."""
        if end is not None and end - start < arguments[count := _COUNTS[kernel]]:
            nbytes = WORD_BYTES if kernel == "transfer" else _STRIP_BYTES
            arrays = [array + nbytes * start for array in arguments[:count]]
            arguments = (*arrays, end - start, *arguments[count + 1 :])
        self._register(SCRATCH, *staging)
        self._call(kernel, arguments)

    def copy_batch(self, stream: int, batch: Batch) -> None:
        """See `Device`."""
        self.counts["copy_batch"] += 1
        first, end, total, to_pool, any_order = batch
        words = self.scratch.words
        pool = words[first:end].tolist()
        host = words[total + first : total + end].tolist()
        lengths = words[2 * total + first : 2 * total + end].tolist()
        targets, sources = (pool, host) if to_pool else (host, pool)
        order = _ANY if any_order else _STREAM
        self.runtime.memcpy_batch_async(targets, sources, lengths, order, self._streams[stream])

    # Order.

    def begin(self, op: int) -> None:
        """See `Device`."""
        self.runtime.begin(op)

    def record(self, stream: int) -> Event:
        """See `Device`."""
        event = Event()
        self.runtime.record(event, self._streams[stream])
        return event

    def wait(self, stream: int, event: Event) -> None:
        """See `Device`."""
        self.runtime.wait(self._streams[stream], event)

    def query(self, event: Event) -> bool:
        """See `Device`."""
        return self.runtime.query(event)

    def synchronize(self, event: Event) -> None:
        """See `Device`."""
        self.runtime.synchronize_event(event)

    def pass_time(self) -> None:
        """See `Device`."""
        self.runtime.pass_time()

    def finish(self) -> None:
        """See `Device`."""
        self.runtime.synchronize_device()

    def release(self) -> None:
        """See `Device`."""
        self._restart()
        self._places.clear()
        self._touches.clear()
        super().release()
