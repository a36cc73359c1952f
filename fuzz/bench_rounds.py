"""Rounds of a benchmark: steps of an empty machine, of the fuzzer's machine, and of the PRNG."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import process_time
from typing import ClassVar

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from kvexact.fuzz.budget import fit
from kvexact.fuzz.campaign import STEPS
from kvexact.fuzz.choose import Chooser, Prng, pick
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.demands import fitted_group
from kvexact.fuzz.dimensions import GroupDraft
from kvexact.fuzz.drawing import draw_pool, draw_set
from kvexact.fuzz.draws import steps_of
from kvexact.fuzz.families import FAMILIES, TIMED
from kvexact.fuzz.family import VALUE_WEIGHTS, Family
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.machine import run_item
from kvexact.fuzz.run import Run
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.timed import draw_schedule
from kvexact.impl.engine.engine import CpuEngine, Engine, StreamsEngine
from kvexact.impl.target import Facts, Result, Rows, Target
from kvexact.refmodel.formats import takes_values
from kvexact.refmodel.ops import Op
from kvexact.refmodel.spec import PAGE_FORMATS, Geometry

RAW_FAMILIES = [f for f in FAMILIES.values() if not f.plans_only and not f.encodes]
TIMED_FAMILIES = [f for f in TIMED.values() if not f.encodes]
VALUE_FAMILIES = [f for f in FAMILIES.values() if f.encodes]
#: Formats that take values.
FORMATS = [name for name in PAGE_FORMATS if takes_values(name)]

#: Examples of each family in a round, and of each format.
_EXAMPLES, _OF_FORMAT = 9, 2


@dataclass(slots=True)
class Round:
    """What one round took.

    Attributes:
        steps_s: all but set-up; of ``steps`` steps.
        setup_s: drawing, opening and closing ``geometries`` geometries.
        runs: the runs themselves.
    """

    steps: int = 0
    steps_s: float = 0.0
    geometries: int = 0
    setup_s: float = 0.0
    runs: list[Run] = field(default_factory=list)


class _Clock(Engine):
    """An engine with a clock for set-up: from a geometry's draw to its first op, and `close`."""

    def __init__(self) -> None:
        super().__init__()
        self.geometries = 0
        self.setup_s = 0.0
        self.began = 0.0
        self._since: float | None = None

    def watch(self, family: Family) -> Family:
        """The same family, whose draws start the clock."""

        def draw(chooser: Chooser) -> Geometry:
            self._since = process_time()
            self.began = self.began or self._since
            self.geometries += 1
            return family.draw(chooser)

        return replace(family, draw=draw)

    def _stop(self) -> None:
        if self._since is not None:
            self.setup_s += process_time() - self._since
            self._since = None

    def apply(self, op: Op, rows: Rows | None) -> Result:
        """See `Target`."""
        self._stop()
        return super().apply(op, rows)

    def open(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        since, self._since = self._since, None  # `open` closes what was open
        facts = super().open(geometry)
        self._since = since
        return facts

    def close(self) -> None:
        """See `Target`."""
        self._stop()
        start = process_time()
        super().close()
        self.setup_s += process_time() - start


class _Clocked(_Clock, CpuEngine):
    pass


class _ClockedStreams(_Clock, StreamsEngine):
    pass


class _Empty(RuleBasedStateMachine):
    """Two rules that do nothing."""

    steps: ClassVar[int] = 0
    #: When each example began, and after how many steps.
    begun: ClassVar[list[tuple[float, int]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.begun.append((process_time(), self.steps))

    @rule()
    def one(self) -> None:
        """Count."""
        type(self).steps += 1

    @rule()
    def other(self) -> None:
        """Count."""
        type(self).steps += 1


def empty_round(number: int) -> dict[str, Round]:
    """The empty machine as Hypothesis runs it, 100 examples of 50 steps without its database.

    Ten examples make a piece; what comes before the first one is left out.
    """
    _Empty.steps = 0
    _Empty.begun.clear()
    plain = settings(
        max_examples=100,
        stateful_step_count=50,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),  # a busy machine is no fault of it
    )
    run_state_machine_as_test(seed(derive(number, "empty"))(_Empty), settings=plain)
    ends = [*_Empty.begun[::10], (process_time(), _Empty.steps)]
    return {
        str(piece): Round(steps - steps_before, end - start)
        for piece, ((start, steps_before), (end, steps)) in enumerate(pairwise(ends))
    }


def machine_round(number: int, family: Family) -> Round:
    """Examples of a family, with Hypothesis; of one in time on the engine on streams.

    What comes before the first example is left out.
    """
    target, counts = _ClockedStreams() if family.name in TIMED else _Clocked(), Counts()
    failed = run_item(target, target.watch(family), derive(number, family.name), _EXAMPLES, counts)
    assert failed is None, failed
    total_s = process_time() - target.began
    steps = sum(counts.ops.values())
    return Round(steps, total_s - target.setup_s, target.geometries, target.setup_s)


def prng_round(
    number: int, family: Family, target: Target, clock: Callable[[], float] = process_time
) -> Round:
    """The same examples of one family, with the PRNG."""
    done = Round()
    for example in range(_EXAMPLES):
        _prng_example(done, target, family, Prng(derive(number, family.name, example)), clock)
    return done


def draw_round(number: int, family: Family) -> Round:
    """The same examples, of which only the drawing of ops is timed."""
    target, done = CpuEngine(), Round()
    for example in range(_EXAMPLES):
        chooser = Prng(derive(number, family.name, example))
        run = Run(target, family.draw(chooser), schedule=draw_schedule(chooser, target))
        if run.open():
            draw = steps_of(chooser, family, run).draw
            for op_id in range(STEPS):
                start = process_time()
                op = draw(chooser, op_id)
                done.steps_s += process_time() - start
                run.step(op)
            done.steps += STEPS
        target.close()
    return done


def isolated_round(number: int, family: Family, isolation: Isolation) -> Round:
    """The same examples once more, on an isolated target.

    Measured is what both processes work, on one core, as the workers of a soak do.
    """
    target, cores = isolation.make(), os.sched_getaffinity(0)
    try:
        isolation.share_core(number)
        return prng_round(number, family, target, lambda: process_time() + isolation.cpu_seconds())
    finally:
        os.sched_setaffinity(0, cores)


def format_round(number: int, page_format: str) -> Round:
    """Values of one format, with the PRNG."""

    def draw(chooser: Chooser) -> Geometry:
        layers = draw_set(chooser, page_format)
        group = GroupDraft(pick(chooser, (1, 2, 4, 8)), layer_sets=(layers,))
        return fit(chooser, draw_pool(chooser, fitted_group(group)))

    target, done = CpuEngine(), Round()
    family = Family(page_format, draw, page_format, weights=VALUE_WEIGHTS)
    example = 0
    while done.geometries < _OF_FORMAT or not done.steps:
        chooser = Prng(derive(number, page_format, example))
        _prng_example(done, target, family, chooser, process_time)
        example += 1
    return done


def _prng_example(
    done: Round, target: Target, family: Family, chooser: Chooser, clock: Callable[[], float]
) -> None:
    start = clock()
    run = Run(target, family.draw(chooser), schedule=draw_schedule(chooser, target))
    done.geometries += 1
    if run.open():
        draw = steps_of(chooser, family, run).draw
        done.runs.append(run)
        done.setup_s += clock() - start
        start = clock()
        for op_id in range(STEPS):
            run.step(draw(chooser, op_id))
        assert run.finish() is None
        done.steps += STEPS
        done.steps_s += clock() - start
        start = clock()
    target.close()
    done.setup_s += clock() - start
