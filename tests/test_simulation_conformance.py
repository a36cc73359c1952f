"""The simulation shows every outcome that CUDA's documents allow, and no other."""

from collections.abc import Hashable, Iterator
from functools import cache, partial
from itertools import permutations

import happens_before
import numpy as np
import pytest
import random_programs
import stream_programs_cuda
import stream_programs_simulated
from simulated_driver import SimulatedDriver
from stream_programs import PROGRAMS, Program

from kvexact.impl.simulation import exhaustive
from kvexact.impl.simulation.actions import Action, Order, Step
from kvexact.impl.simulation.memory import Kind, Range
from kvexact.impl.simulation.queue import Queue
from kvexact.impl.simulation.runtime import Runtime
from kvexact.impl.simulation.schedules import Schedule, schedule, whole
from kvexact.impl.simulation.streams import Streams
from kvexact.impl.simulation.work import Tasks

by_name = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)


def named(name: str) -> Program:
    (program,) = [program for program in PROGRAMS if program.name == name]
    return program


@cache
def allowed(name: str) -> set[str]:
    return happens_before.outcomes(named(name))


def shown(program: Program) -> set[str]:
    found = exhaustive.outcomes(partial(stream_programs_simulated.run, program))
    return {" ".join(map(str, seen)) for seen in found}


def simulated(program: Program, number: int) -> str:
    seen: list[Hashable] = []
    stream_programs_simulated.run(program, schedule(number), seen)
    return " ".join(map(str, seen))


@by_name
def test_brute_force_agrees_with_what_is_written(program: Program) -> None:
    if program.allowed is not None:
        assert program.why
        assert allowed(program.name) == program.allowed


@by_name
def test_all_schedules_show_what_is_allowed(program: Program) -> None:
    assert shown(program) == allowed(program.name)


@by_name
def test_hashed_schedules_show_what_is_allowed(program: Program) -> None:
    assert {simulated(program, number) for number in range(50)} <= allowed(program.name)


on_device = pytest.mark.parametrize(
    "program",
    [program for program in PROGRAMS if stream_programs_cuda.can_run(program)],
    ids=lambda program: program.name,
)


@on_device
def test_a_gpu_shows_only_what_is_allowed(program: Program) -> None:
    library = stream_programs_cuda.driver()
    if isinstance(library, str):
        pytest.skip(library)
    found = {stream_programs_cuda.run(program, library) for _ in range(50)}
    assert found <= allowed(program.name)


@on_device
@pytest.mark.parametrize("number", [0, 1])
def test_the_way_to_a_gpu_on_a_simulated_driver(program: Program, number: int) -> None:
    library = SimulatedDriver(number)
    assert stream_programs_cuda.run(program, library) == simulated(program, number)


def test_enough_programs_are_written_out() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 40
    assert sum(program.allowed is not None for program in PROGRAMS) >= len(PROGRAMS) / 2


def test_hashed_schedules_show_most_outcomes() -> None:
    missed = {
        program.name: rest
        for program in PROGRAMS
        if (rest := allowed(program.name) - {simulated(program, number) for number in range(100)})
    }
    total = sum(len(allowed(program.name)) for program in PROGRAMS)
    assert sum(map(len, missed.values())) <= total / 10, missed


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    program = random_programs.program(seed)
    assert shown(program) == happens_before.outcomes(program), program.ops


@pytest.mark.parametrize("seed", [None, *range(60)])
def test_marks_without_a_step_of_their_own_order_as_much(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in most drawn schedules; None: the programs that are written out."""
    monkeypatch.setattr(exhaustive._Path, "lingers", lambda *_: False)
    for program in PROGRAMS if seed is None else [random_programs.program(seed)]:
        assert shown(program) <= happens_before.outcomes(program), program.ops


STRIPS = 3


def strips(schedule: Schedule, seen: list[Hashable]) -> None:
    """A launch of strips, each of which writes its number in the next place, and a fill beside it.

    Seen is the order of the strips, and how many had run when the other stream's fill did.
    """
    runtime = Runtime(schedule)
    data = np.zeros(STRIPS + 2, np.uint8)
    start = runtime.memory.register("data", data, Kind.DEVICE)
    whole_area = (Range(start, data.size),)

    def run(first: int, end: int) -> None:
        for strip in range(first, end):
            data[data[-1]] = strip
            data[-1] += 1

    def note() -> None:
        data[-2] = data[-1]

    one, other = runtime.stream(blocking=False), runtime.stream(blocking=False)
    runtime.begin(0)
    runtime.launch([Tasks(run, STRIPS, whole_area, whole_area)], one)
    runtime.begin(1)
    runtime.launch_host_function(note, other, whole_area, whole_area)
    runtime.begin(2)
    runtime.synchronize_device()
    seen += data[: STRIPS + 1].tolist()


def test_strips_of_a_launch_run_in_every_order_with_other_work_at_any_point() -> None:
    orders = set(permutations(range(STRIPS)))
    allowed = {(*order, before) for order in orders for before in range(STRIPS + 1)}
    assert exhaustive.outcomes(strips) == allowed


def test_hashed_schedules_show_other_work_between_any_two_strips() -> None:
    found = set()
    for number in range(2, 300):
        seen: list[Hashable] = []
        strips(schedule(number), seen)
        found.add(tuple(seen))
    assert {seen[-1] for seen in found} == set(range(STRIPS + 1))
    assert {seen[0] for seen in found} > {0}
    assert found < exhaustive.outcomes(strips)


# A simulation with one rule broken must be found out.

_steps = Action.steps
_advance = Action.advance


def _one_part_at_a_time(action: Action) -> Iterator[Step]:
    yield from list(_steps(action))[:1]


def _read_and_write_at_once(action: Action, part: int, *rest: object) -> None:
    is_read = part >= 0 and action.phases[part] == 0
    _advance(action, part, *rest)
    if is_read:
        _advance(action, part, *rest)


def _over_with_the_last_byte(action: Action, part: int, *rest: object) -> None:
    _advance(action, part, *rest)
    action.done = min(action.phases, default=2) == 2


Patches = list[tuple[object, str, object]]
_orders = stream_programs_simulated.ORDERS
SABOTAGES: dict[str, tuple[Patches, str]] = {
    "streams have no order": (
        [(Streams, "before", lambda *_: ())],
        "one stream is in order",
    ),
    "the legacy stream is like others": (
        [(Streams, "before", lambda _, stream: (stream.tail,) if stream.tail else ())],
        "the legacy stream waits for blocking ones",
    ),
    "waits are forgotten": (
        [(Runtime, "wait", lambda *_: None)],
        "an event orders streams",
    ),
    "a wait is for the last event only": (
        [
            (exhaustive._Path, "lingers", lambda *_: False),
            (Streams, "join", lambda _, stream, actions: setattr(stream, "joined", actions)),
        ],
        "two waits in a row",
    ),
    "records capture nothing": (
        [(Runtime, "record", lambda *_: None)],
        "an event orders streams",
    ),
    "queries say yes": (
        [(Queue, "ask", lambda *_: True)],
        "a query tells no lies",
    ),
    "nobody waits": (
        [(Queue, "finish", lambda *_: None)],
        "from host to host",
    ),
    "any order is stream order": (
        [(stream_programs_simulated, "ORDERS", _orders | {"any": Order.STREAM})],
        "any order reads before earlier work",
    ),
    "any order reads during the call": (
        [(stream_programs_simulated, "ORDERS", _orders | {"any": Order.DURING_API_CALL})],
        "any order reads after the call",
    ),
    "during the call reads later": (
        [(stream_programs_simulated, "ORDERS", _orders | {"during": Order.ANY})],
        "sources read during the call",
    ),
    "copies are not taken apart": (
        [(exhaustive._Path, "split", lambda *arguments: whole(arguments[-1]))],
        "the host sees half a copy",
    ),
    "copies of a batch have an order": (
        [(Action, "steps", _one_part_at_a_time)],
        "the last copy of a batch is seen first",
    ),
    "a byte is read and written at once": (
        [(Action, "advance", _read_and_write_at_once)],
        "two copies swap",
    ),
    "an action is over with its last byte": (
        [(Action, "advance", _over_with_the_last_byte)],
        "bytes arrive before the stream is idle",
    ),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_broken_rule_is_found(sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patches, name = SABOTAGES[sabotage]
    for patch in patches:
        monkeypatch.setattr(*patch)
    assert shown(named(name)) != allowed(name)
