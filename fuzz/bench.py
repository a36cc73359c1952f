"""`kvexact bench`: what a step of the fuzzer costs, in steps of Hypothesis alone.

Absolute times depend on the machine and its load. So all is measured in turns, in one process, a
fixed number of times, and the ratios are of medians.
"""

import ctypes
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import median

import click
from rich.console import Console
from rich.progress import Progress

from kvexact.fuzz.bench_parts import gb_per_s, journal_us, long_arrays, parts_us
from kvexact.fuzz.bench_rounds import (
    BYTE_FAMILIES,
    Round,
    empty_round,
    isolated_round,
    machine_round,
    prng_round,
)
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.run import same_bytes
from kvexact.fuzz.targets import NamedTarget
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import Bytes

#: Most that a ratio may be.
BUDGETS = {
    "machine_added_over_empty_step": 1.0,
    "prng_op_over_empty_step": 0.7,
    "isolation_added_over_empty_step": 0.4,
}

_ROUNDS = 7
_COMPARISONS = 20


@dataclass(slots=True)
class Samples:
    """What the rounds measured, one element a round."""

    empty: list[Round] = field(default_factory=list)
    machine: list[Round] = field(default_factory=list)
    prng: list[dict[str, Round]] = field(default_factory=list)
    isolated: list[dict[str, Round]] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    journal_us: list[float] = field(default_factory=list)
    compare: list[float] = field(default_factory=list)
    memcmp: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """What `--json` prints.

    Attributes:
        machine_added_over_empty_step: what an op, drawn, run on both sides and compared, adds to a
            step of a Hypothesis machine, over a step of a machine with two empty rules.
        prng_op_over_empty_step: an op of the PRNG over the same step.
        setup_over_empty_step: a geometry, drawn, opened and closed, over the same step.
        isolation_added_over_empty_step: what isolating the target adds to an op of the PRNG.
        journal_added_over_empty_step: noting an op in the journal over the same step.
        compare_over_memcmp: speed of the comparison of long arrays over that of a plain one.
        parts_us: parts of a PRNG op, in microseconds; what is left is bookkeeping.
        ops_per_s: PRNG ops of each family, geometries included.
    """

    machine_added_over_empty_step: float
    prng_op_over_empty_step: float
    isolation_added_over_empty_step: float
    setup_over_empty_step: float
    journal_added_over_empty_step: float
    compare_over_memcmp: float
    compare_gb_per_s: float
    memcmp_gb_per_s: float
    empty_step_us: float
    machine_step_us: float
    prng_op_us: float
    parts_us: dict[str, float]
    ops_per_s: dict[str, float]

    def over_budget(self) -> list[str]:
        """What costs more than it may."""
        found = asdict(self)
        return [
            f"{name} is {found[name]:.2f}, more than {most}"
            for name, most in BUDGETS.items()
            if found[name] > most
        ]


def sample(rounds: Iterable[int]) -> Samples:
    """Measure in turns."""
    samples = Samples()
    one, other = long_arrays()
    engine = NamedTarget("cpu", CpuEngine)
    isolation = Isolation(engine)
    for number in rounds:
        samples.empty.append(empty_round(number))
        samples.machine.append(machine_round(number))
        of_family = {f.name: prng_round(number, f, engine.make()) for f in BYTE_FAMILIES}
        samples.prng.append(of_family)
        isolated = {f.name: isolated_round(number, f, isolation) for f in BYTE_FAMILIES}
        samples.isolated.append(isolated)
        runs = [run for done in of_family.values() for run in done.runs]
        samples.parts.append(parts_us(runs))
        samples.journal_us.append(journal_us(runs))
        for _ in range(_COMPARISONS):
            samples.compare.append(gb_per_s(same_bytes, one, other))
            samples.memcmp.append(gb_per_s(_memcmp, one, other))
    isolation.close()
    return samples


def result(samples: Samples) -> Result:
    """The medians of all rounds, and their ratios."""
    prng = [done for of_family in samples.prng for done in of_family.values()]
    steps = sum(done.steps for done in prng)
    empty = median(done.step_us for done in samples.empty)
    machine = median(done.step_us for done in samples.machine)
    op = median(map(_op_us, samples.prng))
    setup = median(done.setup_us for done in prng)
    compare, memcmp = median(samples.compare), median(samples.memcmp)
    parts = {"draw": sum(done.draw_s for done in prng) / steps * 1e6}
    parts |= {name: median(part[name] for part in samples.parts) for name in samples.parts[0]}
    parts["rest"] = op - sum(parts.values())
    return Result(
        (machine - empty) / empty,
        op / empty,
        median(map(_added_us, samples.isolated, samples.prng)) / empty,
        setup / empty,
        median(samples.journal_us) / empty,
        compare / memcmp,
        compare,
        memcmp,
        empty,
        machine,
        op,
        parts,
        {
            family.name: median(_ops_per_s(of_family[family.name]) for of_family in samples.prng)
            for family in BYTE_FAMILIES
        },
    )


def _op_us(of_family: dict[str, Round]) -> float:
    steps = sum(done.steps for done in of_family.values())
    return sum(done.steps_s for done in of_family.values()) / steps * 1e6


def _added_us(isolated: dict[str, Round], plain: dict[str, Round]) -> float:
    return _op_us(isolated) - _op_us(plain)


def _ops_per_s(done: Round) -> float:
    return done.steps / (done.steps_s + done.setup_s)


def _memcmp(one: Bytes, other: Bytes) -> bool:
    address, size = ctypes.c_void_p, ctypes.c_size_t(one.size)
    plain = ctypes.CDLL(None).memcmp
    return bool(plain(address(one.ctypes.data), address(other.ctypes.data), size) == 0)


@click.command(epilog="\b\nExample:\n  kvexact bench --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--check", is_flag=True, help="End with 1 where a ratio is over its budget.")
@click.pass_context
def bench(context: click.Context, *, as_json: bool, check: bool) -> None:
    """Measure what drawing, model, target and comparison cost.

    The unit is a step of a Hypothesis machine with two empty rules. Takes a minute or two.
    """
    with Progress(console=Console(stderr=True), transient=True) as progress:
        samples = sample(progress.track(range(_ROUNDS), description="rounds"))
    found = result(samples)
    if as_json:
        click.echo(json.dumps(_rounded(asdict(found)), indent=2))
    else:
        _show(found)
    complaints = found.over_budget()
    for complaint in complaints if check else ():
        click.echo(f"kvexact bench: {complaint}", err=True)
    context.exit(1 if check and complaints else 0)


def _rounded(values: dict[str, object]) -> dict[str, object]:
    return {
        name: round(value, 4) if isinstance(value, float) else _rounded(value)  # type: ignore[arg-type]
        for name, value in values.items()
    }


def _show(found: Result) -> None:
    lines = []
    for name, value in asdict(found).items():
        if isinstance(value, float):
            most = f"   (at most {BUDGETS[name]})" if name in BUDGETS else ""
            lines.append(f"{name:32}{value:10.2f}{most}")
        else:
            lines.append(name)
            lines += [f"  {part:30}{part_value:10,.1f}" for part, part_value in value.items()]
    click.echo("\n".join(lines))
