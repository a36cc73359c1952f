"""Order of an asynchronous engine: what waits for what on three streams; docs/time.md.

Each piece of work leaves a mark, which is an event, at the blocks and host slots that it touched.
Later work in another stream waits for the marks that it finds there. A mark that is known to have
been passed is not waited for again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from kvexact.impl.engine.device import COMPUTE, LOAD, STORE, STREAMS, Device, Scratch
from kvexact.impl.engine.order import InOrder, Transfer, Work
from kvexact.impl.engine.views import Table, Views
from kvexact.impl.named import made
from kvexact.refmodel.ops import Slot

Found = TypeVar("Found")

#: More than any number of an event.
_ALL = 1 << 62


class Mark(NamedTuple):
    """The ``number``-th event of a stream."""

    stream: int
    number: int
    event: Any


class Loaded(NamedTuple):
    """The last load of a block, with a mark behind each of the group's layers."""

    group: int
    layers: Sequence[Mark]


class StreamOrder(InOrder):
    """See the module. The rules are the small methods in the middle."""

    #: Staging buffers.
    buffers: ClassVar[int] = 4

    def __init__(self, views: Views, device: Device) -> None:
        super().__init__(views, device)
        self.op = 0
        self.buffer = 0
        self._numbers = [0 for _ in STREAMS]
        #: Up to which number of each stream the host has waited; nobody has to do so again.
        self._ended = [0 for _ in STREAMS]
        #: Per stream, up to which number of each it has waited; its own work it always comes after.
        self._known = [[0 if other != one else _ALL for other in STREAMS] for one in STREAMS]
        self._last: Mark | None = None
        self._forget()

    def _forget(self) -> None:
        """All work has ended."""
        #: By block: the last compute work that wrote it, that touched it, and the last store.
        self.wrote: dict[int, Mark] = {}
        self.touched: dict[int, Mark] = {}
        self.stored: dict[int, Mark] = {}
        self.loaded: dict[int, Loaded] = {}
        #: By host slot: the last store into it, and the last load from it.
        self.filled: dict[int, Mark] = {}
        self.fetched: dict[int, Mark] = {}
        #: By op: the end of its transfer.
        self.jobs: dict[int, Mark] = {}
        #: By staging buffer: the end of its last use.
        self.used: dict[int, Mark] = {}

    def begin(self, op: int) -> None:
        """See `InOrder`."""
        self.op = op
        self.device.begin(op)

    def finish(self) -> None:
        """See `InOrder`."""
        self.device.finish()
        self._forget()

    # The rules: marks that work has to wait for.

    def compute_after_stores(self, work: Work) -> Sequence[Mark]:
        """The stores that read what compute work overwrites."""
        return _found(self.stored, work.writes)

    def compute_after_loads(self, work: Work, layer: int) -> Sequence[Mark]:
        """The loads of one layer of what compute work touches."""
        return [
            # Another group has its layers elsewhere in the block.
            layers[layer if group == work.group else -1]
            for group, layers in _found(self.loaded, (*work.reads, *work.writes))
        ]

    def store_after_compute(self, blocks: Sequence[int]) -> Sequence[Mark]:
        """The compute work that wrote what a store reads."""
        return _found(self.wrote, blocks)

    def store_after_loads(self, blocks: Sequence[int]) -> Sequence[Mark]:
        """The loads that wrote what a store reads."""
        return [layers[-1] for _, layers in _found(self.loaded, blocks)]

    def store_after_fetches(self, slots: Sequence[int]) -> Sequence[Mark]:
        """The loads that read the host slots which a store fills."""
        return _found(self.fetched, slots)

    def load_after_compute(self, blocks: Sequence[int]) -> Sequence[Mark]:
        """The compute work that wrote or read what a load overwrites, zeroing included."""
        return _found(self.touched, blocks)

    def load_after_stores(self, blocks: Sequence[int]) -> Sequence[Mark]:
        """The stores that read what a load overwrites."""
        return _found(self.stored, blocks)

    def load_after_fills(self, slots: Sequence[int]) -> Sequence[Mark]:
        """The stores that filled what a load reads."""
        return _found(self.filled, slots)

    # Decisions.

    def any_order(self, transfer: Transfer) -> bool:
        """Sources in the host tier that no pending store fills; those in the pool never."""
        return transfer.to_pool and all(
            self.has_ended(mark) for mark in _newest(_found(self.filled, transfer.slots))
        )

    def next_buffer(self) -> int:
        """The staging buffer that comes next."""
        return (self.buffer + 1) % self.buffers

    def reuse(self, mark: Mark) -> None:
        """Return when the last use of a staging buffer has ended."""
        self._reach(mark)

    def end_of_job(self, marks: Sequence[Mark]) -> Mark:
        """The mark that tells that a transfer has ended, of those behind its pieces."""
        return marks[-1]

    def awaited(self, marks: Sequence[Mark]) -> Sequence[Mark]:
        """Which of the marks of several streams are waited for."""
        return marks

    # What operations ask for.

    def stage(self, nbytes: int) -> Scratch:
        """See `InOrder`."""
        buffer = self.buffer = self.next_buffer()
        mark = self.used.get(buffer)
        if mark is not None:
            self.reuse(mark)
        return self.device.scratch_of(nbytes, buffer)

    def blocks(self, slots: Sequence[Slot | None]) -> Sequence[int]:
        """See `InOrder`."""
        return list(dict.fromkeys([slot[0] for slot in slots if slot is not None]))  # type: ignore[misc]  # bound

    def compute(self, work: Work) -> Iterable[Table]:
        """See `InOrder`: layer by layer where blocks are being loaded."""
        self._await(COMPUTE, self.compute_after_stores(work))
        loads = _found(self.loaded, (*work.reads, *work.writes))
        if loads and self._unknown(COMPUTE, [one.layers[-1] for one in loads]):
            return self._layer_by_layer(work)
        return (self.views.table(work.consumer, work.group),)

    def _layer_by_layer(self, work: Work) -> Iterator[Table]:
        for layer, part in enumerate(self.views.layers(work.consumer, work.group)):
            self._await(COMPUTE, self.compute_after_loads(work, layer))
            yield part

    def computed(self, work: Work) -> None:
        """See `InOrder`."""
        mark = self._last = self.used[self.buffer] = self.mark(COMPUTE)
        for block in work.writes:
            self.wrote[block] = self.touched[block] = mark
        for block in work.reads:
            self.touched[block] = mark

    def arrive(self) -> None:
        """See `InOrder`."""
        assert self._last is not None
        self._reach(self._last)

    def by_layer(self, transfer: Transfer) -> bool:
        """See `InOrder`: loads go layer by layer."""
        return transfer.to_pool

    def before(self, transfer: Transfer) -> int:
        """See `InOrder`."""
        blocks, slots = transfer.blocks, transfer.slots
        if transfer.to_pool:
            after = [
                *self.load_after_compute(blocks),
                *self.load_after_stores(blocks),
                *self.load_after_fills(slots),
            ]
            self._await(LOAD, after)
            return LOAD
        after = [
            *self.store_after_compute(blocks),
            *self.store_after_loads(blocks),
            *self.store_after_fetches(slots),
        ]
        self._await(STORE, after)
        return STORE

    def moved(self, transfer: Transfer, marks: Sequence[Mark]) -> None:
        """See `InOrder`."""
        end = self.jobs[self.op] = self.used[self.buffer] = self.end_of_job(marks)
        if transfer.to_pool:
            for slot in transfer.slots:
                self.fetched[slot] = end
            for job in transfer.jobs:
                loaded = made(Loaded, (job.group, marks))
                for block in job.blocks:
                    self.loaded[block] = loaded
        else:
            for slot in transfer.slots:
                self.filled[slot] = end
            for block in transfer.blocks:
                self.stored[block] = end

    def is_done(self, op: int) -> bool:
        """See `InOrder`."""
        return op not in self.jobs or self.has_ended(self.jobs[op])

    # Marks.

    def mark(self, stream: int) -> Mark:
        """See `InOrder`."""
        number = self._numbers[stream] = self._numbers[stream] + 1
        return made(Mark, (stream, number, self.device.record(stream)))

    def has_ended(self, mark: Mark) -> bool:
        """Whether the host may know that a mark has been passed."""
        if mark.number > self._ended[mark.stream]:
            if not self.device.query(mark.event):
                return False
            self._know(mark)
        return True

    def _await(self, stream: int, marks: Sequence[Mark]) -> None:
        """Let later work of a stream wait for marks."""
        unknown = self._unknown(stream, marks) if marks else ()
        for mark in self.awaited(_newest(unknown)) if unknown else ():
            self.device.wait(stream, mark.event)
            self._known[stream][mark.stream] = mark.number

    def _unknown(self, stream: int, marks: Sequence[Mark]) -> list[Mark]:
        """Those that neither the stream nor the host has waited for."""
        known, ended = self._known[stream], self._ended
        return [mark for mark in marks if known[mark.stream] < mark.number > ended[mark.stream]]

    def _reach(self, mark: Mark) -> None:
        """Let the host wait for a mark."""
        if mark.number > self._ended[mark.stream]:
            self.device.synchronize(mark.event)
            self._know(mark)

    def _know(self, mark: Mark) -> None:
        """The host has waited for a mark, which is newer than all that it knows."""
        self._ended[mark.stream] = mark.number


def _found(marks: Mapping[int, Found], places: Sequence[int]) -> list[Found]:
    """The marks, or loads, at these places."""
    return [*filter(None, map(marks.get, places))]


def _newest(marks: Sequence[Mark]) -> Sequence[Mark]:
    """The newest mark of each stream; it comes after the others."""
    if len(marks) < 2:
        return marks
    newest: dict[int, Mark] = {}
    for mark in marks:
        known = newest.get(mark.stream)
        if known is None or known.number < mark.number:
            newest[mark.stream] = mark
    return [newest[stream] for stream in STREAMS if stream in newest]
