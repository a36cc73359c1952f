"""Runs a stream program on a GPU, through the driver's library alone.

Kernels would need a compiler, so programs with a `Launch` cannot run here.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from stream_programs import (
    BLOCKING,
    DEVICE,
    LEGACY,
    NON_BLOCKING,
    PINNED,
    Batch,
    Copy,
    Fill,
    Get,
    Host,
    Launch,
    Op,
    Program,
    Query,
    QueryStream,
    Record,
    Set,
    Sync,
    SyncDevice,
    SyncEvent,
    Until,
    Wait,
    place,
)

_NOT_READY = 600
_NON_BLOCKING_STREAM = 1
_WITHOUT_TIMING = 2
_ORDERS = {"stream": 1, "during": 2, "any": 3}
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

Address = ctypes.c_uint64
Handle = ctypes.c_void_p
Size = ctypes.c_size_t


class CopyAttributes(ctypes.Structure):
    """The driver's CUmemcpyAttributes, without hints of location."""

    _fields_: ClassVar = [
        ("source_order", ctypes.c_int),
        ("hints", ctypes.c_int * 4),
        ("flags", ctypes.c_uint),
    ]


@cache
def driver() -> Any:
    """The driver's library with a current context, or why there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no CUDA driver: {error}"
    device, context = ctypes.c_int(), Handle()
    for code in (
        library.cuInit(0),
        library.cuDeviceGet(ctypes.byref(device), 0),
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        library.cuCtxSetCurrent(context),
    ):
        if code:
            return f"no CUDA device: error {code} of the driver"
    return library


def can_run(program: Program) -> bool:
    return not any(isinstance(op, Launch) for op in program.ops)


class OnDevice:
    """A program on a GPU; what the host sees is in ``seen``."""

    def __init__(self, program: Program, library: Any) -> None:
        self.program = program
        self.library = library
        self.seen: list[str] = []
        self.kept: list[Any] = []  # what the driver may still look at
        self.areas = {area: self.area(area, len(text)) for area, text in program.memory.items()}
        self.streams = {LEGACY: Handle()}
        for name in BLOCKING + NON_BLOCKING:
            flags = _NON_BLOCKING_STREAM if name in NON_BLOCKING else 0
            self.streams[name] = self.made("cuStreamCreate", flags)
        self.events: dict[str, Handle] = {}

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: CUDA error {code}"

    def ready(self, name: str, handle: Handle) -> bool:
        code = getattr(self.library, name)(handle)
        assert code in (0, _NOT_READY), f"{name}: CUDA error {code}"
        return bool(code == 0)

    def made(self, name: str, flags: int) -> Handle:
        handle = Handle()
        self.call(name, ctypes.byref(handle), ctypes.c_uint(flags))
        return handle

    def area(self, area: str, nbytes: int) -> int:
        """The address of new memory of the area's kind."""
        if area in DEVICE:
            address = Address()
            self.call("cuMemAlloc_v2", ctypes.byref(address), Size(nbytes))
            return int(address.value)
        if area in PINNED:
            pointer = Handle()
            self.call("cuMemHostAlloc", ctypes.byref(pointer), Size(nbytes), ctypes.c_uint(0))
            return int(pointer.value or 0)
        self.kept.append(ctypes.create_string_buffer(nbytes))
        return ctypes.addressof(self.kept[-1])

    def close(self) -> None:
        for area, address in self.areas.items():
            if area in DEVICE:
                self.call("cuMemFree_v2", Address(address))
            elif area in PINNED:
                self.call("cuMemFreeHost", Handle(address))
        for name in BLOCKING + NON_BLOCKING:
            self.call("cuStreamDestroy_v2", self.streams[name])
        for event in self.events.values():
            self.call("cuEventDestroy_v2", event)

    def event(self, name: str) -> Handle:
        if name not in self.events:
            self.events[name] = self.made("cuEventCreate", _WITHOUT_TIMING)
        return self.events[name]

    def range(self, where: str) -> tuple[int, int]:
        area, start, end = place(where)
        end = len(self.program.memory[area]) if end is None else end
        return self.areas[area] + start, end - start

    def text(self, where: str) -> str:
        address, nbytes = self.range(where)
        if where[0] in DEVICE:
            found = ctypes.create_string_buffer(nbytes)
            self.call("cuMemcpyDtoH_v2", found, Address(address), Size(nbytes))
            return found.raw.decode()
        return ctypes.string_at(address, nbytes).decode()

    def put(self, where: str, text: str) -> None:
        address, nbytes = self.range(where)
        if where[0] in DEVICE:
            self.call("cuMemcpyHtoD_v2", Address(address), text.encode(), Size(nbytes))
        else:
            ctypes.memmove(address, text.encode(), nbytes)

    def run(self) -> str:
        for area, text in self.program.memory.items():
            self.put(area, text)
        self.call("cuCtxSynchronize")
        for op in self.program.ops:
            self.step(op)
        self.call("cuCtxSynchronize")
        return " ".join([*self.seen, *(self.text(area) for area in self.program.shows)])

    def step(self, op: Op) -> None:
        if isinstance(op, Copy | Fill | Batch | Host):
            self.queue(op)
        elif isinstance(op, Record):
            self.call("cuEventRecord", self.event(op.event), self.streams[op.stream])
        elif isinstance(op, Wait):
            stream = self.streams[op.stream]
            self.call("cuStreamWaitEvent", stream, self.event(op.event), ctypes.c_uint(0))
        elif isinstance(op, Query):
            self.seen.append("FT"[self.ready("cuEventQuery", self.event(op.event))])
        elif isinstance(op, QueryStream):
            self.seen.append("FT"[self.ready("cuStreamQuery", self.streams[op.stream])])
        elif isinstance(op, Until):
            while not self.ready("cuEventQuery", self.event(op.event)):
                pass
        elif isinstance(op, SyncEvent):
            self.call("cuEventSynchronize", self.event(op.event))
        elif isinstance(op, Sync):
            self.call("cuStreamSynchronize", self.streams[op.stream])
        elif isinstance(op, SyncDevice):
            self.call("cuCtxSynchronize")
        elif isinstance(op, Set):
            self.put(op.target, op.text)
        elif isinstance(op, Get):
            self.seen.append(self.text(op.source))

    def queue(self, op: Copy | Fill | Batch | Host) -> None:
        stream = self.streams[op.stream]
        if isinstance(op, Copy):
            source, nbytes = self.range(op.source)
            target = Address(self.range(op.target)[0])
            self.call("cuMemcpyAsync", target, Address(source), Size(nbytes), stream)
        elif isinstance(op, Fill):
            target, nbytes = self.range(op.target)
            byte = ctypes.c_ubyte(ord(op.byte))
            self.call("cuMemsetD8Async", Address(target), byte, Size(nbytes), stream)
        elif isinstance(op, Batch):
            self.batch(op, stream)
        else:
            function = HOST_FUNCTION(self.mover(op))
            self.kept.append(function)
            self.call("cuLaunchHostFunc", stream, function, Handle())

    def batch(self, op: Batch, stream: Handle) -> None:
        count = len(op.moves)
        targets = (Address * count)(*(self.range(target)[0] for target, _ in op.moves))
        sources = (Address * count)(*(self.range(source)[0] for _, source in op.moves))
        sizes = (Size * count)(*(self.range(source)[1] for _, source in op.moves))
        attributes = CopyAttributes(_ORDERS[op.access])
        first, failed = Size(0), Size(0)
        shared = [targets, sources, sizes, Size(count), ctypes.byref(attributes)]
        shared += [ctypes.byref(first), Size(1)]
        # CUDA 13 took the index of the failed copy away from the signature of CUDA 12.8.
        if hasattr(self.library, "cuMemcpyBatchAsync_v2"):
            self.call("cuMemcpyBatchAsync_v2", *shared, stream)
        else:
            self.call("cuMemcpyBatchAsync", *shared, ctypes.byref(failed), stream)

    def mover(self, op: Host) -> Callable[[Any], None]:
        """A function that moves bytes on the host."""
        target, (source, nbytes) = self.range(op.target)[0], self.range(op.source)

        def move(_: Any) -> None:
            ctypes.memmove(target, source, nbytes)

        return move


def run(program: Program, library: Any) -> str:
    """The outcome of one run."""
    device = OnDevice(program, library)
    try:
        return device.run()
    finally:
        device.close()
