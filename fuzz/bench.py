"""`kvexact bench`: what a step of the fuzzer costs, in steps of Hypothesis alone.

Absolute times depend on the machine and its load. So the same small pieces of work are measured in
turns, in one process, a few times, and of each piece the least time counts: load only adds to it.
"""

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field

import click
from rich.console import Console
from rich.progress import Progress

from kvexact.fuzz.bench_parts import gb_per_s, journal_us, long_arrays, parts_us
from kvexact.fuzz.bench_rounds import (
    FORMATS,
    RAW_FAMILIES,
    TIMED_FAMILIES,
    VALUE_FAMILIES,
    Round,
    draw_round,
    empty_round,
    format_round,
    isolated_round,
    machine_round,
    prng_round,
)
from kvexact.fuzz.bench_vllm import vllm_or_skipped
from kvexact.fuzz.child import Child, Died
from kvexact.fuzz.family import Family
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.run import Run
from kvexact.fuzz.shown import same_bytes
from kvexact.fuzz.targets import NamedTarget
from kvexact.impl.engine.engine import CpuEngine, StreamsEngine
from kvexact.impl.target import Bytes

#: Most that a ratio may be.
BUDGETS = {
    "machine_added_over_empty_step": 1.0,
    "prng_op_over_empty_step": 0.7,
    "values_machine_step_over_raw": 1.5,
    "values_prng_op_over_raw": 2.5,
    "isolation_added_over_empty_step": 0.4,
    "timed_machine_added_over_empty_step": 1.5,
}

_ROUNDS = 8
#: All rounds do the same work.
_SEED = 0
_COMPARISONS = 20


Pieces = dict[str, Round]


@dataclass(slots=True)
class Samples:
    """What the rounds measured, one element a round; times of work by the name of its piece."""

    empty: list[Pieces] = field(default_factory=list)
    machine: list[Pieces] = field(default_factory=list)
    prng: list[Pieces] = field(default_factory=list)
    values_machine: list[Pieces] = field(default_factory=list)
    draws: list[Pieces] = field(default_factory=list)
    values_draws: list[Pieces] = field(default_factory=list)
    values_prng: list[Pieces] = field(default_factory=list)
    timed_machine: list[Pieces] = field(default_factory=list)
    timed_prng: list[Pieces] = field(default_factory=list)
    formats: list[Pieces] = field(default_factory=list)
    isolated: list[Pieces] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    values_parts: list[dict[str, float]] = field(default_factory=list)
    journal_us: list[float] = field(default_factory=list)
    compare: list[float] = field(default_factory=list)
    memcmp: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """What `--json` prints. Where nothing else is said, of families that write raw bytes.

    Attributes:
        machine_added_over_empty_step: what an op, drawn, run on both sides and compared, adds to a
            step of a Hypothesis machine, over a step of a machine with two empty rules.
        prng_op_over_empty_step: an op of the PRNG over the same step.
        values_machine_step_over_raw: a step of the machine of families that write real values, over
            one of those that write raw bytes.
        values_prng_op_over_raw: the same of an op of the PRNG.
        timed_machine_added_over_empty_step, timed_prng_op_over_empty_step: the same two of families
            about pending work, on the engine on streams.
        setup_over_empty_step: a geometry, drawn, opened and closed, over the same step.
        isolation_added_over_empty_step: what isolating the target adds to an op of the PRNG.
        journal_added_over_empty_step: noting an op in the journal over the same step.
        compare_over_memcmp: speed of the comparison of long arrays over that of a plain one.
        parts_us: parts of a PRNG op, in microseconds; what is left is bookkeeping.
        values_parts_us: the same for families that write real values.
        ops_per_s: PRNG ops of each family, geometries included.
        format_ops_per_s: the same where all pages are of one format.
    """

    machine_added_over_empty_step: float
    prng_op_over_empty_step: float
    values_machine_step_over_raw: float
    values_prng_op_over_raw: float
    isolation_added_over_empty_step: float
    timed_machine_added_over_empty_step: float
    timed_prng_op_over_empty_step: float
    setup_over_empty_step: float
    journal_added_over_empty_step: float
    compare_over_memcmp: float
    compare_gb_per_s: float
    memcmp_gb_per_s: float
    empty_step_us: float
    machine_step_us: float
    prng_op_us: float
    values_machine_step_us: float
    values_prng_op_us: float
    parts_us: dict[str, float]
    values_parts_us: dict[str, float]
    ops_per_s: dict[str, float]
    format_ops_per_s: dict[str, float]

    def over_budget(self) -> list[str]:
        """What costs more than it may."""
        found = asdict(self)
        return [
            f"{name} is {found[name]:.2f}, more than {most}"
            for name, most in BUDGETS.items()
            if found[name] > most
        ]


def measure(rounds: int) -> Iterator[int | Result]:
    """Measure in turns: the number of each round, when it is done, and then the result."""
    samples = Samples()
    one, other = long_arrays()
    engine = NamedTarget("cpu", CpuEngine)
    isolation = Isolation(engine)

    def plain(number: int, family: Family) -> Round:
        return prng_round(number, family, engine.make())

    def isolated(number: int, family: Family) -> Round:
        return isolated_round(number, family, isolation)

    def in_time(number: int, family: Family) -> Round:
        return prng_round(number, family, StreamsEngine())

    for number in range(rounds):
        samples.empty.append(empty_round(_SEED))
        samples.machine.append(_each(RAW_FAMILIES, machine_round))
        samples.values_machine.append(_each(VALUE_FAMILIES, machine_round))
        samples.timed_machine.append(_each(TIMED_FAMILIES, machine_round))
        samples.prng.append(_each(RAW_FAMILIES, plain))
        samples.isolated.append(_each(RAW_FAMILIES, isolated))
        samples.values_prng.append(_each(VALUE_FAMILIES, plain))
        samples.timed_prng.append(_each(TIMED_FAMILIES, in_time))
        samples.draws.append(_each(RAW_FAMILIES, draw_round))
        samples.values_draws.append(_each(VALUE_FAMILIES, draw_round))
        samples.formats.append({name: format_round(_SEED, name) for name in FORMATS})
        samples.parts.append(parts_us(_runs(samples.prng[-1])))
        samples.values_parts.append(parts_us(_runs(samples.values_prng[-1])))
        samples.journal_us.append(journal_us(_runs(samples.prng[-1])))
        for _ in range(_COMPARISONS):
            samples.compare.append(gb_per_s(same_bytes, one, other))
            samples.memcmp.append(gb_per_s(_memcmp, one, other))
        yield number
    isolation.close()
    yield result(samples)


def _each(families: Iterable[Family], measure: Callable[[int, Family], Round]) -> Pieces:
    return {family.name: measure(_SEED, family) for family in families}


def _runs(of_each: dict[str, Round]) -> list[Run]:
    return [run for done in of_each.values() for run in done.runs]


def result(samples: Samples) -> Result:
    """The least times of all rounds, and their ratios."""
    empty, machine = _step_us(samples.empty), _step_us(samples.machine)
    values_machine = _step_us(samples.values_machine)
    timed_machine = _step_us(samples.timed_machine)
    op, values_op = _step_us(samples.prng), _step_us(samples.values_prng)
    setup = _least(samples.prng, lambda done: done.setup_s)
    setup /= sum(done.geometries for done in samples.prng[0].values())
    compare, memcmp = max(samples.compare), max(samples.memcmp)
    return Result(
        machine_added_over_empty_step=(machine - empty) / empty,
        prng_op_over_empty_step=op / empty,
        values_machine_step_over_raw=values_machine / machine,
        values_prng_op_over_raw=values_op / op,
        isolation_added_over_empty_step=(_step_us(samples.isolated) - op) / empty,
        timed_machine_added_over_empty_step=(timed_machine - empty) / empty,
        timed_prng_op_over_empty_step=_step_us(samples.timed_prng) / empty,
        setup_over_empty_step=setup * 1e6 / empty,
        journal_added_over_empty_step=min(samples.journal_us) / empty,
        compare_over_memcmp=compare / memcmp,
        compare_gb_per_s=compare,
        memcmp_gb_per_s=memcmp,
        empty_step_us=empty,
        machine_step_us=machine,
        prng_op_us=op,
        values_machine_step_us=values_machine,
        values_prng_op_us=values_op,
        parts_us=_parts(samples.draws, samples.parts, op),
        values_parts_us=_parts(samples.values_draws, samples.values_parts, values_op),
        ops_per_s=_speeds(samples.prng)
        | _speeds(samples.values_prng)
        | _speeds(samples.timed_prng),
        format_ops_per_s=_speeds(samples.formats),
    )


def _least(rounds: list[Pieces], time_s: Callable[[Round], float]) -> float:
    """Seconds of all pieces together, of each the least."""
    return sum(min(time_s(pieces[name]) for pieces in rounds) for name in rounds[0])


def _step_us(rounds: list[Pieces]) -> float:
    steps = sum(done.steps for done in rounds[0].values())
    return _least(rounds, lambda done: done.steps_s) / steps * 1e6


def _parts(draws: list[Pieces], measured: list[dict[str, float]], op_us: float) -> dict[str, float]:
    """Parts of an op, the rest of it last."""
    parts = {"draw": _step_us(draws)}
    parts |= {name: min(part[name] for part in measured) for name in measured[0]}
    return parts | {"rest": op_us - sum(parts.values())}


def _speeds(rounds: list[Pieces]) -> dict[str, float]:
    """Ops a second of each family or format."""
    return {name: max(_ops_per_s(of_each[name]) for of_each in rounds) for name in rounds[0]}


def _ops_per_s(done: Round) -> float:
    return done.steps / (done.steps_s + done.setup_s)


def _memcmp(one: Bytes, other: Bytes) -> bool:
    address, size = ctypes.c_void_p, ctypes.c_size_t(one.size)
    plain = ctypes.CDLL(None).memcmp
    return bool(plain(address(one.ctypes.data), address(other.ctypes.data), size) == 0)


def measured() -> Result:
    """The result, of a process that is started as the workers of a soak are."""
    with (
        Progress(console=Console(stderr=True), transient=True) as progress,
        closing(Child(measure, _ROUNDS)) as child,
    ):
        task = progress.add_task("rounds", total=_ROUNDS)
        while not isinstance(item := child.receive(), Result):
            if item is None or isinstance(item, Died):
                raise click.ClickException("the process that measures was ended; run it again")
            progress.advance(task)
    return item


@click.command(epilog="\b\nExample:\n  kvexact bench --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--check", is_flag=True, help="End with 1 where a ratio is over its budget.")
@click.pass_context
def bench(context: click.Context, *, as_json: bool, check: bool) -> None:
    """Measure what drawing, model, target and comparison cost.

    The unit is a step of a Hypothesis machine with two empty rules. Takes about two minutes.
    Where a release of vLLM is installed, its ops a second are told as well.
    """
    found = measured()
    vllm, skipped = vllm_or_skipped()
    if skipped:
        click.echo(f"kvexact bench: {skipped}", err=True)
    if as_json:
        click.echo(json.dumps(_rounded(asdict(found) | {"vllm_ops_per_s": vllm}), indent=2))
    else:
        _show(found, vllm)
    complaints = found.over_budget()
    for complaint in complaints if check else ():
        click.echo(f"kvexact bench: {complaint}", err=True)
    context.exit(1 if check and complaints else 0)


def _rounded(values: dict[str, object]) -> dict[str, object]:
    return {
        name: round(value, 4) if isinstance(value, float) else _rounded(value)  # type: ignore[arg-type]
        for name, value in values.items()
    }


def _show(found: Result, vllm: dict[str, float]) -> None:
    lines = []
    for name, value in (asdict(found) | ({"vllm_ops_per_s": vllm} if vllm else {})).items():
        if isinstance(value, float):
            most = f"   (at most {BUDGETS[name]})" if name in BUDGETS else ""
            lines.append(f"{name:32}{value:10.2f}{most}")
        else:
            lines.append(name)
            lines += [f"  {part:30}{part_value:10,.1f}" for part, part_value in value.items()]
    click.echo("\n".join(lines))
