"""The simulation's parts: memory, schedules, hazards, and calls that go wrong."""

from collections.abc import Callable, Hashable
from functools import partial

import numpy as np
import pytest

from kvexact.impl.notes import Note
from kvexact.impl.simulation import exhaustive, hazards
from kvexact.impl.simulation.actions import Order, Part, Piece
from kvexact.impl.simulation.memory import Kind, Memory, Range
from kvexact.impl.simulation.runtime import Runtime
from kvexact.impl.simulation.schedules import (
    PATIENCE,
    Early,
    Hashed,
    Late,
    Schedule,
    mixed,
    schedule,
)
from kvexact.impl.simulation.work import Call, Copy, Fill, Undefined
from kvexact.impl.target import Bytes, OutOfBounds


class Bench:
    """A runtime with 16 bytes on the device, pinned and pageable, that count from 0, 16 and 32."""

    def __init__(self, number: int | Schedule = 0, notes: list[Note] | None = None) -> None:
        chosen = schedule(number) if isinstance(number, int) else number
        self.runtime = Runtime(chosen, notes)
        self.data: dict[Kind, Bytes] = {}
        self.at: dict[Kind, int] = {}
        for first, kind in zip((0, 16, 32), Kind, strict=True):
            self.data[kind] = np.arange(first, first + 16, dtype=np.uint8)
            self.at[kind] = self.runtime.memory.register(kind.value, self.data[kind], kind)
        self.device, self.pinned, self.pageable = self.at.values()
        self.stream = self.runtime.stream(blocking=False)
        self.other = self.runtime.stream(blocking=False)

    def bytes(self, kind: Kind = Kind.DEVICE) -> list[int]:
        return self.data[kind].tolist()


class SlowEarly(Early):
    """As early as allowed, by way of the queue."""

    eager = False


# Memory.


def test_memory_finds_only_whole_ranges_of_one_area() -> None:
    memory = Memory()
    whole = np.zeros(32, np.uint8)
    start = memory.register("low", whole[:16], Kind.DEVICE)
    memory.register("high", whole[16:], Kind.DEVICE)
    assert memory.find(start + 8, 8).name == "low"
    for place in ((start - 1, 1), (start + 15, 2), (start + 32, 1), (start + 8, 24)):
        with pytest.raises(OutOfBounds, match="are outside registered memory"):
            memory.find(*place)
        with pytest.raises(OutOfBounds):
            memory.find_all([start, place[0]], [1, place[1]])
    assert [area.name for area in memory.find_all([start + 20, start, start], [4, 1, 16])] == [
        "low",
        "high",
    ]


def test_memory_that_is_registered_twice_or_scattered() -> None:
    memory = Memory()
    data = np.zeros(8, np.uint8)
    start = memory.register("data", data, Kind.DEVICE)
    with pytest.raises(ValueError, match="already registered"):
        memory.register("again", data[4:], Kind.DEVICE)
    with pytest.raises(ValueError, match="not contiguous"):
        memory.register("scattered", data[::2], Kind.DEVICE)
    with pytest.raises(OutOfBounds, match=r"data \+4 is not the start"):
        memory.release(start + 4)
    memory.release(start)
    with pytest.raises(OutOfBounds, match="an unknown address"):
        memory.find(start, 1)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_nothing_outside_is_touched(number: int) -> None:
    whole = np.zeros(48, np.uint8)
    runtime = Runtime(schedule(number))
    start = runtime.memory.register("middle", whole[16:32], Kind.DEVICE)
    for first, nbytes in ((-1, 4), (8, 9), (-1, 18)):
        with pytest.raises(OutOfBounds):  # noqa: PT012 - the one or the other, by the schedule
            runtime.launch([Fill(start + first, 1, nbytes)], runtime.legacy)
            runtime.synchronize_device()
    assert not whole[:16].any()
    assert not whole[32:].any()


# Calls that go wrong.


@pytest.mark.parametrize("number", [0, 1, 2])
def test_calls_with_wrong_arguments_queue_nothing(number: int) -> None:
    bench = Bench(number)
    runtime, at, stream = bench.runtime, bench.device, bench.stream
    batch = runtime.memcpy_batch_async
    wrong: list[tuple[type[Exception], Callable[[], None]]] = [
        (OutOfBounds, lambda: runtime.memcpy_async(at + 9, bench.pinned, 8, stream)),
        (OutOfBounds, lambda: runtime.memset_async(at - 1, 0, 4, stream)),
        (OutOfBounds, lambda: batch([at], [bench.pinned + 9], [8], Order.ANY, stream)),
        (OutOfBounds, lambda: runtime.free_async(at + 16, stream)),
        (Undefined, lambda: runtime.memcpy_async(at, at + 3, 4, stream)),
        (Undefined, lambda: batch([at, at + 4], [at + 8, at], [4, 4], Order.STREAM, stream)),
        (Undefined, lambda: batch([at, at + 3], [at + 8] * 2, [4, 4], Order.STREAM, stream)),
        (ValueError, lambda: batch([at], [bench.pinned], [4], Order.STREAM, runtime.legacy)),
        (ValueError, lambda: runtime.memset_async(at, 256, 4, stream)),
        (ValueError, lambda: runtime.memset_async(bench.pageable, 0, 4, stream)),
    ]
    for error, called in wrong:
        with pytest.raises(error):
            called()
    assert not runtime.pending_writes()
    runtime.synchronize_device()
    assert bench.bytes() == [*range(16)]


def test_dependent_copies_of_a_batch_are_found() -> None:
    random = np.random.default_rng(1)
    counts = [0, 0]
    for _ in range(400):
        bench = Bench(1)
        count = int(random.integers(1, 4))
        targets, sources = random.integers(0, 13, (2, count)).tolist()
        sizes = random.integers(0, 4, count).tolist()
        written = [set(range(t, t + n)) for t, n in zip(targets, sizes, strict=True)]
        read = [set(range(s, s + n)) for s, n in zip(sources, sizes, strict=True)]
        total = set().union(*written)
        dependent = sum(map(len, written)) > len(total) or any(total & one for one in read)
        counts[dependent] += 1
        try:
            bench.runtime.memcpy_batch_async(
                [bench.device + target for target in targets],
                [bench.device + source for source in sources],
                sizes,
                Order.STREAM,
                bench.stream,
            )
        except Undefined:
            assert dependent
        else:
            assert not dependent
    assert min(counts) > 50


@pytest.mark.parametrize("number", [0, 1])
def test_host_functions_and_tasks_call_nothing(number: int) -> None:
    bench = Bench(number)
    with pytest.raises(RuntimeError, match="called the simulation"):  # noqa: PT012 - as above
        bench.runtime.launch_host_function(bench.runtime.synchronize_device, bench.stream)
        bench.runtime.synchronize(bench.stream)


def test_the_ranges_of_a_call_are_checked_before_it_runs() -> None:
    bench = Bench()
    ran: list[int] = []
    outside = (Range(bench.device + 8, 9),)
    bench.runtime.begin(7)
    bench.runtime.launch([Call(lambda: ran.append(1), outside, ())], bench.stream, "gather")
    with pytest.raises(OutOfBounds, match=r"gather of op 7: 9 bytes at device \+8 are outside"):
        bench.runtime.synchronize(bench.stream)
    assert not ran


# Stream-ordered free.


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_free_is_in_stream_order(number: int) -> None:
    bench = Bench(number)
    bench.runtime.memcpy_async(bench.pinned, bench.device, 4, bench.stream)
    bench.runtime.free_async(bench.device, bench.stream)
    with pytest.raises(OutOfBounds, match=r"after the call that frees it|outside registered"):
        bench.runtime.memset_async(bench.device, 0, 4, bench.other)
    bench.runtime.synchronize_device()
    assert bench.bytes(Kind.PINNED)[:4] == [0, 1, 2, 3]
    again = np.zeros(4, np.uint8)
    bench.runtime.memory.register("again", again, Kind.DEVICE)


def test_free_beside_work_in_another_stream() -> None:
    def program(chosen: Schedule, seen: list[Hashable]) -> None:
        bench = Bench(chosen)
        try:
            bench.runtime.memset_async(bench.device, 9, 1, bench.other)
            bench.runtime.free_async(bench.device, bench.stream)
            bench.runtime.synchronize_device()
        except OutOfBounds:
            seen.append("used after free")

    assert exhaustive.outcomes(program) == {(), ("used after free",)}


# Schedules.


def test_hashes_are_the_same_everywhere() -> None:
    assert mixed(0) == 0xE220A8397B1DCDAF  # splitmix64's first number from 0
    assert mixed(1, 2, 3) == 0x6AE515C1C0AC7E37


def test_numbers_of_schedules() -> None:
    assert isinstance(schedule(0), Late)
    assert isinstance(schedule(1), Early)
    assert isinstance(schedule(2), Hashed)


def test_late_runs_what_is_waited_for_and_no_more() -> None:
    bench = Bench(0)
    runtime = bench.runtime
    runtime.memset_async(bench.device, 9, 1, bench.stream)
    runtime.memset_async(bench.device + 1, 9, 1, bench.other)
    event = runtime.event()
    runtime.record(event, bench.stream)
    runtime.memset_async(bench.device + 2, 9, 1, bench.stream)
    assert bench.bytes()[:3] == [0, 1, 2]
    runtime.synchronize_event(event)
    assert bench.bytes()[:3] == [9, 1, 2]
    runtime.synchronize(bench.other)
    assert bench.bytes()[:3] == [9, 9, 2]


def test_early_leaves_nothing_pending_with_and_without_the_queue() -> None:
    for bench in (Bench(1), Bench(SlowEarly())):
        event = bench.runtime.event()
        bench.runtime.memset_async(bench.device, 9, 4, bench.stream)
        bench.runtime.memcpy_async(bench.pinned, bench.device, 2, bench.other)
        bench.runtime.record(event, bench.stream)
        assert bench.runtime.query(event)
        assert not bench.runtime.pending_writes()
        assert bench.bytes(Kind.PINNED)[:4] == [9, 9, 18, 19]


@pytest.mark.parametrize("number", [0, 2, 3, 4, 5])
def test_a_loop_of_queries_ends(number: int) -> None:
    bench = Bench(number)
    bench.runtime.memset_async(bench.device, 9, 4, bench.stream)
    asked = 0
    while not bench.runtime.query_stream(bench.stream):
        asked += 1
    assert asked <= 8 * (PATIENCE + 1)
    assert bench.bytes()[:4] == [9] * 4


@pytest.mark.parametrize("number", range(2, 60))
def test_no_more_queries_in_a_row_than_allowed_see_nothing_run(number: int) -> None:
    """Though a copy that may be read early has been, and waits behind one that does not run."""
    notes: list[Note] = []
    bench = Bench(number, notes)
    bench.runtime.memcpy_async(bench.device, bench.pinned, 4, bench.stream)
    places = [bench.device + 8], [bench.pinned + 8], [4]
    bench.runtime.memcpy_batch_async(*places, Order.ANY, bench.stream)
    idle, op, ran = 0, 0, len(notes)
    while not bench.runtime.query_stream(bench.stream):
        bench.runtime.begin(op := op + 1)
        idle, ran = (idle + 1 if len(notes) == ran else 0), len(notes)
        assert idle <= PATIENCE


@pytest.mark.parametrize("number", range(2, 12))
def test_parts_hold_each_byte_once(number: int) -> None:
    sizes = [5, 0, 1, 17]
    for op in range(50):
        parts = schedule(number).split((op, 0), sizes)
        found = sorted(
            (piece.item, at) for part in parts for piece in part for at in range(*piece[1:])
        )
        assert found == [(item, at) for item, size in enumerate(sizes) for at in range(size)]
        assert all(parts)


def _decisions(ops: list[int], number: int) -> dict[int, list[list[int]]]:
    """What each op's own four bytes are at each call of each op; op k works in stream k % 3."""
    bench = Bench(number)
    streams = [bench.runtime.stream(blocking=False) for _ in range(3)]
    seen: dict[int, list[list[int]]] = {op: [] for op in range(4)}
    for op in ops:
        bench.runtime.begin(op)
        bench.runtime.memset_async(bench.device + 4 * op, 99, 4, streams[op % 3])
        bench.runtime.pass_time()
        for other, states in seen.items():
            states.append(bench.bytes()[4 * other : 4 * other + 4])
    return seen


@pytest.mark.parametrize("number", range(2, 40))
def test_deleting_an_op_leaves_the_rest_of_the_schedule_alone(number: int) -> None:
    every = _decisions([0, 1, 2], number)
    some = _decisions([0, 2], number)
    assert some[2][1] == every[2][2]  # op 2 has a stream of its own and comes last in both
    for short, long in ((some[0][0], every[0][0]), (some[0][1], every[0][2])):
        # Without op 1 there are fewer moments at which op 0 could run, and no others.
        assert all(a in (b, at) for at, (a, b) in enumerate(zip(short, long, strict=True)))


def test_one_number_one_result() -> None:
    for number in range(2, 20):
        assert _decisions([0, 1, 2, 3], number) == _decisions([0, 1, 2, 3], number)


def test_numbers_differ() -> None:
    found = {str(_decisions([0, 1, 2, 3], number)) for number in range(2, 60)}
    assert len(found) > 30


def test_half_a_copy_is_seen() -> None:
    halves = set()
    for number in range(2, 300):
        bench = Bench(number)
        bench.runtime.memcpy_async(bench.device, bench.pinned, 16, bench.stream)
        halves.add(sum(byte >= 16 for byte in bench.bytes()))
    assert {0, 16} < halves
    assert len(halves) > 5


@pytest.mark.parametrize(
    ("number", "ends_as"), [(0, b"NEW IDS?"), (1, b"old ids!"), (23, b"NEW ids!")]
)
def test_the_worked_example_of_the_documentation(number: int, ends_as: bytes) -> None:
    staging = np.frombuffer(b"old ids!", np.uint8).copy()
    device = np.zeros(8, np.uint8)
    runtime = Runtime(schedule(number))
    source = runtime.memory.register("staging", staging, Kind.PINNED)
    target = runtime.memory.register("device", device, Kind.DEVICE)
    stream = runtime.stream(blocking=False)
    runtime.begin(0)
    runtime.memcpy_async(target, source, 8, stream)
    staging[:] = np.frombuffer(b"NEW IDS?", np.uint8)
    runtime.begin(1)
    runtime.synchronize(stream)
    assert device.tobytes() == ends_as


# The enumeration.


def test_a_loop_that_asks_without_end_is_enumerated() -> None:
    def program(chosen: Schedule, seen: list[Hashable]) -> None:
        bench = Bench(chosen)
        bench.runtime.memset_async(bench.device, 9, 2, bench.stream)
        bench.runtime.begin(1)
        while not bench.runtime.query_stream(bench.stream):
            bench.runtime.begin(1)
        seen.append(tuple(bench.bytes()[:2]))

    assert exhaustive.outcomes(program) == {((9, 9),)}


class Parts(Hashed):
    """Takes each item apart at every byte, unlike a hashed schedule."""

    def split(self, key: tuple[int, int], sizes: list[int]) -> list[Part]:  # type: ignore[override]
        return [[Piece(item, at, at + 1)] for item, size in enumerate(sizes) for at in range(size)]


def test_enumeration_holds_what_random_runs_find() -> None:
    def program(chosen: Schedule, seen: list[Hashable]) -> None:
        bench = Bench(chosen)
        bench.runtime.memcpy_async(bench.device, bench.pinned, 2, bench.stream)
        bench.runtime.begin(1)
        bench.runtime.memcpy_async(bench.device + 8, bench.device, 2, bench.other)
        bench.runtime.begin(2)
        bench.runtime.synchronize_device()
        seen.append(tuple(bench.bytes()[8:10]))

    def run(number: int) -> tuple[Hashable, ...]:
        seen: list[Hashable] = []
        program(Parts(number), seen)
        return tuple(seen)

    found = exhaustive.outcomes(program)
    assert found == {((a, b),) for a in (0, 16) for b in (1, 17)}
    assert {run(number) for number in range(200)} == found


# Hazards.


def test_hazards_of_a_pending_copy() -> None:
    bench = Bench(0)
    runtime = bench.runtime
    runtime.begin(7)
    runtime.memcpy_async(bench.device + 4, bench.pinned + 2, 3, bench.stream)
    (write,) = runtime.pending_writes()
    (read,) = runtime.pending_reads()
    assert write == ((7, 0), "memcpy", Range(bench.device + 4, 3))
    assert read == ((7, 0), "memcpy", Range(bench.pinned + 2, 3))
    for start, nbytes, touched in ((0, 4, 0), (0, 5, 1), (6, 9, 1), (7, 9, 0), (5, 0, 0)):
        place = Range(bench.device + start, nbytes)
        assert len(hazards.on(place, runtime.pending_writes())) == touched
    runtime.synchronize(bench.stream)
    assert not runtime.pending_writes() + runtime.pending_reads()


def test_hazards_shrink_with_each_step() -> None:
    bench = Bench(0)
    runtime = bench.runtime
    batch = partial(runtime.memcpy_batch_async, [bench.device], [bench.pinned], [4])
    batch(Order.DURING_API_CALL, bench.stream)
    assert len(runtime.pending_writes()) == 1
    assert not runtime.pending_reads()  # the source may be changed, the target not be read


def test_a_call_that_says_nothing_may_touch_everything() -> None:
    bench = Bench(0)
    bench.runtime.launch([Call(lambda: None)], bench.stream)
    bench.runtime.launch([Call(lambda: None, (), ())], bench.other)
    (write,) = bench.runtime.pending_writes()
    assert write.place == hazards.EVERYTHING
    assert hazards.on(Range(bench.device, 1), bench.runtime.pending_reads())
    bench.runtime.synchronize(bench.stream)
    assert not bench.runtime.pending_writes()


@pytest.mark.parametrize("number", range(2, 30))
def test_settled_bytes_do_not_change(number: int) -> None:
    bench = Bench(number)
    runtime = bench.runtime
    for op in range(12):
        runtime.begin(op)
        stream = (bench.stream, bench.other)[op % 2]
        if op % 3:
            runtime.memcpy_async(bench.device + op % 5, bench.pinned + op, 4, stream)
        else:
            runtime.launch([Copy(bench.device + 8, bench.pinned, 2 + op % 3)], stream)
        before = bench.bytes()
        pending = runtime.pending_writes()
        runtime.pass_time()
        for at, (old, new) in enumerate(zip(before, bench.bytes(), strict=True)):
            assert old == new or hazards.on(Range(bench.device + at, 1), pending)
