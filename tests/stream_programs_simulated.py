"""Runs a stream program on the simulation."""

from collections.abc import Hashable
from functools import partial

import numpy as np
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

from kvexact.impl.simulation import work
from kvexact.impl.simulation.actions import Order
from kvexact.impl.simulation.memory import Kind, Range
from kvexact.impl.simulation.runtime import Runtime
from kvexact.impl.simulation.schedules import Schedule
from kvexact.impl.simulation.streams import Event, Stream

ORDERS = {"stream": Order.STREAM, "during": Order.DURING_API_CALL, "any": Order.ANY}


def kind(area: str) -> Kind:
    if area in DEVICE:
        return Kind.DEVICE
    return Kind.PINNED if area in PINNED else Kind.PAGEABLE


class Simulated:
    """A program on a runtime of its own; what the host sees goes to ``seen``."""

    def __init__(self, program: Program, schedule: Schedule, seen: list[Hashable]) -> None:
        self.program = program
        self.seen = seen
        self.runtime = Runtime(schedule)
        self.data = {
            area: np.frombuffer(text.encode(), np.uint8).copy()
            for area, text in program.memory.items()
        }
        for area, data in self.data.items():
            self.runtime.memory.register(area, data, kind(area))
        self.streams: dict[str, Stream] = {LEGACY: self.runtime.legacy}
        for name in BLOCKING + NON_BLOCKING:
            self.streams[name] = self.runtime.stream(blocking=name in BLOCKING)
        self.events: dict[str, Event] = {}

    def range(self, text: str) -> Range:
        area, start, end = place(text)
        data = self.data[area][start:end]
        return Range(int(data.ctypes.data), data.size)

    def event(self, name: str) -> Event:
        return self.events.setdefault(name, self.runtime.event())

    def text(self, where: str) -> str:
        area, start, end = place(where)
        return self.data[area][start:end].tobytes().decode()

    def put(self, where: str, text: str) -> None:
        area, start, end = place(where)
        self.data[area][start:end] = np.frombuffer(text.encode(), np.uint8)

    def run(self) -> None:
        for number, op in enumerate(self.program.ops):
            self.runtime.begin(number)
            self.queue(op) if hasattr(op, "stream") else self.look(op, number)
        self.runtime.begin(len(self.program.ops))
        self.runtime.synchronize_device()
        self.seen += [self.text(area) for area in self.program.shows]

    def queue(self, op: Op) -> None:
        runtime = self.runtime
        if isinstance(op, QueryStream):
            self.seen.append("FT"[runtime.query_stream(self.streams[op.stream])])
            return
        if isinstance(op, Sync):
            runtime.synchronize(self.streams[op.stream])
            return
        self.submit(op, self.streams[op.stream])

    def submit(self, op: Op, stream: Stream) -> None:
        runtime = self.runtime
        if isinstance(op, Copy):
            target, source = self.range(op.target), self.range(op.source)
            runtime.memcpy_async(target.start, source.start, target.nbytes, stream)
        elif isinstance(op, Fill):
            runtime.memset_async(*self.filled(op), stream)
        elif isinstance(op, Batch):
            pairs = [(self.range(target), self.range(source)) for target, source in op.moves]
            runtime.memcpy_batch_async(
                [target.start for target, _ in pairs],
                [source.start for _, source in pairs],
                [target.nbytes for target, _ in pairs],
                ORDERS[op.access],
                stream,
            )
        elif isinstance(op, Launch):
            runtime.launch([self.task(*move) for move in op.moves], stream)
        elif isinstance(op, Host):
            runtime.launch_host_function(partial(self.move, op), stream)
        elif isinstance(op, Record):
            runtime.record(self.event(op.event), stream)
        elif isinstance(op, Wait):
            runtime.wait(stream, self.event(op.event))

    def filled(self, op: Fill) -> tuple[int, int, int]:
        target = self.range(op.target)
        return target.start, ord(op.byte), target.nbytes

    def task(self, target: str, source: str) -> work.Work:
        return work.Copy(self.range(target).start, *self.range(source))

    def move(self, op: Host) -> None:
        self.put(op.target, self.text(op.source))

    def look(self, op: Op, number: int) -> None:
        runtime = self.runtime
        if isinstance(op, Query):
            self.seen.append("FT"[runtime.query(self.event(op.event))])
        elif isinstance(op, Until):
            while not runtime.query(self.event(op.event)):
                runtime.begin(number)
        elif isinstance(op, SyncEvent):
            runtime.synchronize_event(self.event(op.event))
        elif isinstance(op, SyncDevice):
            runtime.synchronize_device()
        elif isinstance(op, Set):
            runtime.pass_time()
            self.put(op.target, op.text)
        elif isinstance(op, Get):
            runtime.pass_time()
            self.seen.append(self.text(op.source))


def run(program: Program, schedule: Schedule, seen: list[Hashable]) -> None:
    Simulated(program, schedule, seen).run()
