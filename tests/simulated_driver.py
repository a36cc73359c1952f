"""The calls of the CUDA driver that stream_programs_cuda.py makes, on the simulation."""

import ctypes
from itertools import count
from typing import Any

import numpy as np

from kvexact.impl.simulation.actions import Order
from kvexact.impl.simulation.memory import Kind
from kvexact.impl.simulation.runtime import Runtime
from kvexact.impl.simulation.schedules import schedule
from kvexact.impl.simulation.streams import Event, Stream
from kvexact.impl.target import OutOfBounds

_ORDERS = {1: Order.STREAM, 2: Order.DURING_API_CALL, 3: Order.ANY}


class SimulatedDriver:
    """Stands in for the library; each method is a call of it, and returns an error code."""

    def __init__(self, number: int) -> None:
        self.runtime = Runtime(schedule(number))
        self.numbers = count(1)
        self.streams: dict[int | None, Stream] = {None: self.runtime.legacy}
        self.events: dict[int | None, Event] = {}

    def _register(self, data: Any, kind: Kind) -> int:
        return self.runtime.memory.register(kind.value, data, kind)

    def cuMemAlloc_v2(self, address: Any, nbytes: Any) -> int:  # noqa: N802
        address._obj.value = self._register(np.zeros(nbytes.value, np.uint8), Kind.DEVICE)
        return 0

    def cuMemHostAlloc(self, address: Any, nbytes: Any, _: Any) -> int:  # noqa: N802
        address._obj.value = self._register(np.zeros(nbytes.value, np.uint8), Kind.PINNED)
        return 0

    def cuMemFree_v2(self, address: Any) -> int:  # noqa: N802
        self.runtime.memory.release(address.value)
        return 0

    cuMemFreeHost = cuMemFree_v2  # noqa: N815

    def cuStreamCreate(self, handle: Any, flags: Any) -> int:  # noqa: N802
        handle._obj.value = next(self.numbers)
        self.streams[handle._obj.value] = self.runtime.stream(blocking=not flags.value)
        return 0

    def cuStreamDestroy_v2(self, handle: Any) -> int:  # noqa: N802
        del self.streams[handle.value]
        return 0

    def cuEventCreate(self, handle: Any, _: Any) -> int:  # noqa: N802
        handle._obj.value = next(self.numbers)
        self.events[handle._obj.value] = self.runtime.event()
        return 0

    def cuEventDestroy_v2(self, handle: Any) -> int:  # noqa: N802
        del self.events[handle.value]
        return 0

    def cuMemcpyDtoH_v2(self, target: Any, source: Any, nbytes: Any) -> int:  # noqa: N802
        target.raw = self.runtime.memory.read(source.value, nbytes.value)
        return 0

    def cuMemcpyHtoD_v2(self, target: Any, source: bytes, nbytes: Any) -> int:  # noqa: N802
        self.runtime.memory.write(target.value, source[: nbytes.value])
        return 0

    def cuMemcpyAsync(self, target: Any, source: Any, nbytes: Any, stream: Any) -> int:  # noqa: N802
        for address in (target.value, source.value):
            self._know(address, nbytes.value)
        self.runtime.memcpy_async(
            target.value, source.value, nbytes.value, self.streams[stream.value]
        )
        return 0

    def _know(self, address: int, nbytes: int) -> None:
        """What was not allocated here is pageable memory."""
        try:
            self.runtime.memory.find(address, nbytes)
        except OutOfBounds:
            memory = (ctypes.c_uint8 * nbytes).from_address(address)
            self._register(np.frombuffer(memory, np.uint8), Kind.PAGEABLE)

    def cuMemsetD8Async(self, target: Any, byte: Any, nbytes: Any, stream: Any) -> int:  # noqa: N802
        self.runtime.memset_async(
            target.value, byte.value, nbytes.value, self.streams[stream.value]
        )
        return 0

    def cuMemcpyBatchAsync_v2(self, *arguments: Any) -> int:  # noqa: N802
        targets, sources, sizes, total, attributes, first, groups, stream = arguments
        assert (total.value, first._obj.value, groups.value) == (len(targets), 0, 1)
        order = _ORDERS[attributes._obj.source_order]
        self.runtime.memcpy_batch_async(
            [*targets], [*sources], [*sizes], order, self.streams[stream.value]
        )
        return 0

    def cuLaunchHostFunc(self, stream: Any, function: Any, data: Any) -> int:  # noqa: N802
        self.runtime.launch_host_function(lambda: function(data), self.streams[stream.value])
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:  # noqa: N802
        self.runtime.record(self.events[event.value], self.streams[stream.value])
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, _: Any) -> int:  # noqa: N802
        self.runtime.wait(self.streams[stream.value], self.events[event.value])
        return 0

    def cuEventQuery(self, event: Any) -> int:  # noqa: N802
        return 0 if self.runtime.query(self.events[event.value]) else 600

    def cuStreamQuery(self, stream: Any) -> int:  # noqa: N802
        return 0 if self.runtime.query_stream(self.streams[stream.value]) else 600

    def cuEventSynchronize(self, event: Any) -> int:  # noqa: N802
        self.runtime.synchronize_event(self.events[event.value])
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:  # noqa: N802
        self.runtime.synchronize(self.streams[stream.value])
        return 0

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        self.runtime.synchronize_device()
        return 0
