"""The simulated device behind the stand-ins: work is pending until something makes it run.

What makes it run, and when, are the rules of docs/time.md; a schedule chooses among them. Calls are
named by the op's id and the call within it.
"""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from kvexact.impl.adapters.vllm.driver.standins import Copies, Device, Event, Stream
from kvexact.impl.adapters.vllm.driver.turns import Turns
from kvexact.impl.simulation import streams
from kvexact.impl.simulation.actions import Order
from kvexact.impl.simulation.memory import Kind
from kvexact.impl.simulation.runtime import Runtime
from kvexact.impl.simulation.schedules import mixed, schedule
from kvexact.impl.simulation.work import Call

#: `CUmemcpySrcAccessOrder`.
_ORDERS = {1: Order.STREAM, 2: Order.DURING_API_CALL, 3: Order.ANY}
#: Schedules by number: as late as allowed, and at once.
LATE, AT_ONCE = 0, 1


class SimulatedDevice(Device):
    """A device with the model's stream and those of a release.

    Attributes:
        turns: of the release's copy threads.
    """

    def __init__(self) -> None:
        self.turns = Turns(self._is_early)
        self.queue_type = self.turns.queue
        self._begin_anew(AT_ONCE)
        super().__init__()

    def open(self, number: int) -> None:
        """Forget all there was; from now on work runs as this schedule says."""
        self.turns.forget()
        self._begin_anew(number)
        self.streams.clear()
        Stream()

    def _begin_anew(self, number: int) -> None:
        self._number, self._op, self._items = number, 0, 0
        self._runtime = Runtime(schedule(number))
        self._caught: Exception | None = None

    @property
    def at_once(self) -> bool:
        """Whether nothing is ever pending."""
        return self._number == AT_ONCE

    def _is_early(self) -> bool:
        """Whether a thread works on the next item within the call that queues it."""
        self._items += 1
        chosen = mixed(self._number, self._op, self._items) % 2 == 0
        return self.at_once or (self._number != LATE and chosen)

    def begin(self, op: int) -> None:
        """An op with this id begins."""
        self._op, self._items = op, 0
        self._runtime.begin(op)

    # Memory.

    def register(self, start: int, size: int, name: str, kind: Kind) -> None:
        """Let work touch these bytes, of which no others were registered before."""
        data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
        self._runtime.memory.register(name, data, kind)

    def zero(self, target: int, size: int) -> None:
        """See `Device`. Raises `OutOfBounds`."""
        self._runtime.memory.fill(target, 0, size)

    # What the model does.

    def launch(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Let the model's stream do these, in any order among themselves."""
        self._runtime.launch([Call(task) for task in tasks], self.current.made, "forward pass")

    def finish(self) -> None:
        """The model's stream does all that is in it."""
        self._runtime.synchronize(self.current.made)

    # What a release calls.

    def new_stream(self) -> streams.Stream:
        """Streams of torch have no order with the default one."""
        return self._runtime.stream(blocking=False)

    def new_event(self) -> streams.Event:
        return self._runtime.event()

    def copy(self, copies: Copies, stream: Stream, order: int) -> None:
        """See `Device`. Raises `OutOfBounds`, `Undefined`."""
        targets, sources, sizes = zip(*copies, strict=True)
        self._runtime.memcpy_batch_async(targets, sources, sizes, _ORDERS[order], stream.made)

    def copy_in_thread(self, copies: Copies, stream: Stream, order: int) -> None:
        """See `Device`; what it raises is kept, since a thread would lose it."""
        try:
            self.copy(copies, stream, order)
        except Exception as error:  # noqa: BLE001 - told later, whatever it is
            self._caught = error

    def complain(self) -> None:
        """Raise what was caught on a thread."""
        caught, self._caught = self._caught, None
        if caught is not None:
            raise caught

    def record(self, event: Event, stream: Stream) -> None:
        self._runtime.record(event.made, stream.made)

    def wait(self, stream: Stream, event: Event) -> None:
        self._runtime.wait(stream.made, event.made)

    def query(self, event: Event) -> bool:
        return self._runtime.query(event.made)

    def synchronize(self, event: Event) -> None:
        self._runtime.synchronize_event(event.made)
