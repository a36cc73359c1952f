"""`kvexact bench`: what a step of the fuzzer costs, in steps of Hypothesis alone.

Absolute times depend on the machine and its load. So the same small pieces of work are measured in
turns, in one process, a few times, and of each piece the least time counts: load only adds to it.
"""

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress

from kvexact.fuzz.bench_parts import gb_per_s, journal_us, long_arrays, parts_us
from kvexact.fuzz.bench_result import BUDGETS, Pieces, Result, Samples, result
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

_ROUNDS = 8
#: All rounds do the same work.
_SEED = 0
_COMPARISONS = 20


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


def _memcmp(one: bytearray, other: Bytes) -> bool:
    address, size = ctypes.c_void_p, ctypes.c_size_t(len(one))
    plain, here = ctypes.CDLL(None).memcmp, np.frombuffer(one, np.uint8)
    return bool(plain(address(here.ctypes.data), address(other.ctypes.data), size) == 0)


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
