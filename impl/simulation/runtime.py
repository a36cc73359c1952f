"""The calls of a CUDA runtime, on simulated streams.

Each call first checks its arguments, then queues work or looks at it. Whatever it queues is pending
until the schedule runs it. docs/time.md has the rules, with their sources, by the numbers here.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, filterfalse, repeat

from kvexact.impl.bounds import OutOfBounds
from kvexact.impl.named import made
from kvexact.impl.notes import Did, Note
from kvexact.impl.simulation.actions import Action, Key, Order, is_done
from kvexact.impl.simulation.copying import Sides
from kvexact.impl.simulation.hazards import Hazard, pending_reads, pending_writes
from kvexact.impl.simulation.memory import Area, Kind, Memory, Range
from kvexact.impl.simulation.queue import Queue
from kvexact.impl.simulation.schedules import Schedule
from kvexact.impl.simulation.streams import Event, Stream, Streams
from kvexact.impl.simulation.work import Call, Copy, Fill, Undefined, Work, require_independent

#: An enum is slow to tell its members.
_DEVICE, _STREAM = Kind.DEVICE, Order.STREAM


class Runtime:
    """One device and its host thread.

    Every call may raise `OutOfBounds` for a step that ran meanwhile and would have left registered
    memory; what is pending then is not to be trusted. Within tasks and host functions every call
    raises `RuntimeError`.

    Attributes:
        memory: what work may touch; areas are registered there.
        legacy: the legacy default stream.
    """

    def __init__(self, schedule: Schedule, notes: list[Note] | None = None) -> None:
        """``notes`` gets what runs when."""
        self.memory = Memory()
        self._notes = notes
        self._queue = Queue(self.memory, schedule, notes)
        self._streams = Streams()
        self._freed: set[int] = set()
        self.legacy = self._streams.legacy
        self._keys: Iterator[Key] = zip(repeat(0), count())

    def begin(self, op: int) -> None:
        """From now on calls belong to this op; they are named (op, 0), (op, 1) and so on."""
        self._keys = zip(repeat(op), count())
        if self._notes is not None:
            self._notes.append(Note(op, -1, "", "", "begun"))

    def stream(self, name: str = "", *, blocking: bool = True) -> Stream:
        """A new stream; a blocking one and the legacy stream wait for each other."""
        return self._streams.create(name, blocking=blocking)

    def event(self) -> Event:
        """A new event that was never recorded."""
        return Event()

    # Work.

    def memcpy_async(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy bytes in stream order (rules C1 to C5).

        Between two places on the host it returns when the bytes are there; otherwise the source may
        be read, and the target written, until the action has ended: also pageable memory.

        Raises:
            OutOfBounds: a range is not registered.
            Undefined: source and target overlap.
        """
        copies = [made(Copy, (target, source, nbytes))]
        read, written = self.memory.find(source, nbytes), self.memory.find(target, nbytes)
        for area in (read, written) if self._freed else ():
            self._require_kept(area)
        if abs(target - source) < nbytes:
            raise Undefined("source and target overlap")
        key = self._key()
        action = self._submit(key, "memcpy", copies, stream, _STREAM, (written, read))
        if action is not None and read.kind is not _DEVICE and written.kind is not _DEVICE:
            self._queue.finish(key, [action])

    def memcpy_batch_async(
        self,
        targets: Sequence[int],
        sources: Sequence[int],
        sizes: Sequence[int],
        order: Order,
        stream: Stream,
    ) -> None:
        """Copies without order among themselves; as a whole in stream order (rules B1 to B6).

        Raises:
            OutOfBounds: a range is not registered.
            Undefined: a copy writes what it or another one reads or writes.
            ValueError: the stream is the legacy one.
        """
        if stream is self.legacy:
            raise ValueError("a batch cannot be queued in the legacy default stream")
        copies = [*map(made, repeat(Copy), zip(targets, sources, sizes, strict=True))]
        written, read = self.memory.find_all(targets, sizes), self.memory.find_all(sources, sizes)
        for area in (*written, *read) if self._freed else ():
            self._require_kept(area)
        sides = (written[0], read[0]) if len(written) == len(read) == 1 else None
        require_independent(copies, apart=sides is not None and sides[0] is not sides[1])
        self._submit(self._key(), "memcpy batch", copies, stream, order, sides)

    def memset_async(self, target: int, value: int, nbytes: int, stream: Stream) -> None:
        """Fill bytes in stream order (rule M1).

        Raises:
            OutOfBounds: the range is not registered.
            ValueError: it is pageable memory, or no byte value.
        """
        if not 0 <= value <= 0xFF:
            raise ValueError(f"{value} is no byte")
        area = self.memory.find(target, nbytes)
        self._require_kept(area)
        if area.kind is Kind.PAGEABLE:
            raise ValueError("the device cannot fill pageable memory")
        self._submit(self._key(), "memset", [Fill(target, value, nbytes)], stream)

    def launch(self, tasks: Sequence[Work], stream: Stream, name: str = "kernel") -> None:
        """Run a kernel: tasks without order among themselves (rules K1, K2).

        A task is a copy or a fill, of which each byte moves by itself, or a call, which is one
        indivisible step. Ranges are checked when a task runs, as a device does.
        """
        self._submit(self._key(), name, tasks, stream)

    def launch_host_function(
        self,
        function: Callable[[], None],
        stream: Stream,
        reads: tuple[Range, ...] | None = None,
        writes: tuple[Range, ...] | None = None,
    ) -> None:
        """Call a function on the host in stream order (rules H1, H2); see `Call` for ranges."""
        self._submit(self._key(), "host function", [Call(function, reads, writes)], stream)

    def free_async(self, start: int, stream: Stream) -> None:
        """Release the area that starts there, in stream order (rule F1).

        Raises:
            OutOfBounds: it is not registered, or is already being freed.
        """
        area = self.memory.starting(start)
        self._require_kept(area)
        key = self._key()
        self._freed.add(start)

        def release() -> None:
            self.memory.release(start)
            self._freed.remove(start)

        place = Range(start, area.end - start)
        self._submit(key, "free", [Call(release, (), (place,))], stream)

    # Order.

    def record(self, event: Event, stream: Stream) -> None:
        """Capture what is in the stream now; what the event captured before is forgotten (E1)."""
        self._mark("record", stream)
        event.captured = self._streams.before(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """Later work in the stream waits for what the event has captured by now (E2, E3)."""
        self._mark("wait", stream, tuple(filterfalse(is_done, event.captured)))

    def query(self, event: Event) -> bool:
        """Whether all that the event captured has ended; True if it was never recorded (E4)."""
        return self._queue.ask(self._key(), event.captured)

    def query_stream(self, stream: Stream) -> bool:
        """Whether an event recorded there now would already have ended (S4)."""
        return self._queue.ask(self._key(), self._streams.before(stream))

    def synchronize_event(self, event: Event) -> None:
        """Return when all that the event captured has ended (E4)."""
        self._queue.finish(self._key(), event.captured)

    def synchronize(self, stream: Stream) -> None:
        """Return when all that an event recorded there now would capture has ended (S4)."""
        self._queue.finish(self._key(), self._streams.before(stream))

    def synchronize_device(self) -> None:
        """Return when all work has ended (S5)."""
        self._queue.finish_all(self._key())

    def pass_time(self) -> None:
        """The host does something else; work may run. No call of CUDA's."""
        self._queue.let_run(self._key())

    # What is pending.

    def pending_writes(self) -> list[Hazard]:
        """What may still be written; every other byte is settled."""
        return pending_writes(self._queue.pending)

    def pending_reads(self) -> list[Hazard]:
        """What may still be read."""
        return pending_reads(self._queue.pending)

    def _require_kept(self, area: Area) -> None:
        if area.start in self._freed:
            raise OutOfBounds(f"{area.name} is used by a call after the call that frees it")

    def _key(self) -> Key:
        if self._queue.is_running:
            raise RuntimeError("a host function or a task called the simulation")
        return next(self._keys)

    def _submit(
        self,
        key: Key,
        what: str,
        items: Sequence[Work],
        stream: Stream,
        order: Order = _STREAM,
        sides: Sides | None = None,
    ) -> Action | None:
        if self._notes is not None:
            self._note(key, what, stream, "queued")
        queue = self._queue
        if queue.schedule.eager:
            queue.perform(items, sides)
            if self._notes is not None:
                self._note(key, what, stream, "ended")
            return None
        before = self._streams.before(stream)
        action = Action(key, what, items, queue.split, before, order, stream.name, sides)
        stream.tail, stream.joined = action, ()
        queue.submit(action)
        return action

    def _mark(self, what: str, stream: Stream, after: tuple[Action, ...] = ()) -> None:
        """Let later work come after these, too. No byte moves, so the end alone may be seen."""
        key = self._key()
        if self._notes is not None:
            self._note(key, what, stream, "queued", after)
        if self._queue.schedule.lingers(key):
            before = self._streams.before(stream) + after
            action = Action(key, what, (), self._queue.split, before, _STREAM, stream.name)
            stream.tail, stream.joined = action, ()
            self._queue.submit(action)
        elif after or stream is self.legacy:
            self._streams.join(stream, after)

    def _note(
        self, key: Key, what: str, stream: Stream, did: Did, after: tuple[Action, ...] = ()
    ) -> None:
        assert self._notes is not None
        waits = tuple(dict.fromkeys(action.key[0] for action in after))
        self._notes.append(Note(*key, what, stream.name, did, waits))
