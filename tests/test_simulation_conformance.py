"""The simulation shows every outcome that CUDA's documents allow, and no other."""

from collections.abc import Hashable
from functools import cache, partial

import happens_before
import pytest
import stream_programs_simulated
from stream_programs import PROGRAMS, Program

from kvexact.impl.simulation import exhaustive
from kvexact.impl.simulation.schedules import schedule

by_name = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)


@cache
def allowed(name: str) -> set[str]:
    (program,) = [program for program in PROGRAMS if program.name == name]
    return happens_before.outcomes(program)


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
    found = exhaustive.outcomes(partial(stream_programs_simulated.run, program))
    assert {" ".join(map(str, seen)) for seen in found} == allowed(program.name)


@by_name
def test_hashed_schedules_show_what_is_allowed(program: Program) -> None:
    assert {simulated(program, number) for number in range(50)} <= allowed(program.name)


def test_enough_programs_are_written_out() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 40
    assert sum(program.allowed is not None for program in PROGRAMS) >= len(PROGRAMS) / 2


def test_hashed_schedules_show_most_outcomes() -> None:
    missed = {
        program.name: rest
        for program in PROGRAMS
        if (rest := allowed(program.name) - {simulated(program, number) for number in range(300)})
    }
    total = sum(len(allowed(program.name)) for program in PROGRAMS)
    assert sum(map(len, missed.values())) <= total / 10, missed
