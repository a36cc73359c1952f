"""`kvexact power`: how surely, how soon and how small the fuzzer finds every planted fault."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from multiprocessing import active_children, get_context
from statistics import median_low

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.orphans import die_with_parent
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.trial import Failed, Trial, judge, search_hypothesis, search_prng, search_soak
from kvexact.impl.faults import FAULTS
from kvexact.impl.target import Target

#: Of ten seeds, those from which a fault must be found.
_NEEDED_OF_TEN = {"prng": 10, "soak": 10, "hypothesis": 9}
_SEARCHES: dict[str, Callable[[Callable[[], Target], int], tuple[Failed | None, int]]] = {
    "prng": search_prng,
    "soak": search_soak,
    "hypothesis": search_hypothesis,
}
_PIPE_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class Score:
    """All trials of one fault, as `--json` gives it.

    Attributes:
        engine: the chooser.
        found, seeds: found from so many seeds of so many.
        ops_median: acted ops until the failure; this and the next two over the seeds that found it.
        reduced_ops: ops of the reduced trace, the median.
        known_minimum: fewest ops of any trace that shows the fault.
        minimal: no single edit of any seed's reduced trace keeps its failure.
    """

    name: str
    kind: str
    report: str
    engine: str
    found: int
    seeds: int
    ops_median: int | None
    reduce_executions_median: int | None
    reduced_ops: int | None
    known_minimum: int
    minimal: bool

    @property
    def passed(self) -> bool:
        """Found from enough seeds, and every reduced trace is minimal."""
        return self.found * 10 >= self.seeds * _NEEDED_OF_TEN[self.engine] and self.minimal


def score(name: str, engine: str, trials: Sequence[Trial]) -> Score:
    """The score of a fault from its trials."""
    fault = FAULTS[name]
    found = [trial for trial in trials if trial.found]
    return Score(
        name,
        fault.kind,
        fault.report,
        engine,
        len(found),
        len(trials),
        _median([trial.ops for trial in found]),
        _median([trial.executions for trial in found]),
        _median([trial.reduced_ops for trial in found]),
        fault.known_minimum,
        all(trial.minimal for trial in found),
    )


def _median(values: list[int]) -> int | None:
    return median_low(values) if values else None


def run_trial(name: str, engine: str, number: int, seed: int) -> Trial:
    """The trial of a fault with its seed of this number."""
    fault = FAULTS[name]
    own_seed = derive(seed, "power", name, number)
    return judge(fault, *_SEARCHES[engine](fault.target, own_seed))


def run_trials(
    names: Sequence[str], engine: str, seeds: int, seed: int, workers: int
) -> Iterator[tuple[str, int, Trial]]:
    """(fault, number of the seed, trial) in the order in which they end."""
    todo = [(name, number) for number in range(seeds) for name in names]
    if workers == 1:
        for name, number in todo:
            yield name, number, run_trial(name, engine, number, seed)
        return
    context = get_context("spawn")  # forked children would inherit threads
    with ProcessPoolExecutor(workers, context, _begin_worker, (os.getpid(),)) as pool:
        tasks: dict[Future[Trial], tuple[str, int]] = {
            pool.submit(run_trial, name, engine, number, seed): (name, number)
            for name, number in todo
        }
        try:
            for task in as_completed(tasks):
                yield *tasks[task], task.result()
        except BaseException:  # nobody wants the trials that run
            for process in active_children():
                process.kill()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker(parent: int) -> None:
    """Let a worker end at once where it is interrupted, and where the command ends, however."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@click.command(epilog="\b\nExample:\n  kvexact power --seeds 2 --fault width_without_scales")
@click.option(
    "--chooser",
    "engine",
    type=click.Choice(list(_SEARCHES)),
    default="prng",
    show_default=True,
    help="Where choices come from.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Seeds for each fault.",
)
@click.option("--seed", default=0, show_default=True, help="Seed from which all seeds derive.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME",
    help="Only this fault; may be given several times.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes; as many as CPUs if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
@click.option("--list", "only_list", is_flag=True, help="Print the names of all faults and end.")
@click.pass_context
def power(
    context: click.Context,
    engine: str,
    seeds: int,
    seed: int,
    faults: tuple[str, ...],
    workers: int | None,
    *,
    as_json: bool,
    only_list: bool,
) -> None:
    """Fuzz every planted fault and measure how surely, how soon and how small it is found.

    Ends with 1 if a fault is missed or a reduced trace is not minimal.
    """
    if only_list:
        click.echo("\n".join(FAULTS))
        return
    for name in faults:
        if name not in FAULTS:
            near = get_close_matches(name, FAULTS, 1)
            hint = f"do you mean {near[0]}? " if near else ""
            raise BadInput(f"{name!r} is no fault; {hint}kvexact power --list has their names")
    names = list(dict.fromkeys(faults)) or list(FAULTS)
    trials: dict[str, dict[int, Trial]] = {name: {} for name in names}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("trials", total=len(names) * seeds)
        for name, number, trial in run_trials(names, engine, seeds, seed, workers or _cpus()):
            trials[name][number] = trial
            progress.update(bar, advance=1, description=name)
            if trial.missed:
                line = f"{name}, seed {number}: {trial.missed}"
                progress.console.print(line, highlight=False, soft_wrap=True)
    scores = [score(name, engine, list(trials[name].values())) for name in names]
    if as_json:
        click.echo(json.dumps({"faults": [asdict(one) for one in scores]}, indent=2))
    else:
        _show(scores, trials)
    context.exit(0 if all(one.passed for one in scores) else 1)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _show(scores: Sequence[Score], trials: dict[str, dict[int, Trial]]) -> None:
    table = Table("fault", "kind", "report", box=None, pad_edge=False)
    for heading in ("found", "ops", "executions", "reduced", "known", "minimal"):
        table.add_column(heading, justify="right")
    for one in scores:
        sizes = [trial.reduced_ops for trial in trials[one.name].values() if trial.found]
        reduced = f"{min(sizes)}" if sizes else "-"
        if sizes and max(sizes) > min(sizes):
            reduced += f"-{max(sizes)}"
        table.add_row(
            one.name,
            one.kind,
            one.report,
            f"{one.found} of {one.seeds}",
            _number(one.ops_median),
            _number(one.reduce_executions_median),
            reduced,
            str(one.known_minimum),
            "yes" if one.minimal else "no",
            style=None if one.passed else "red",
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS)
    console.print(table)
    console.print(_summary(scores), highlight=False)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _summary(scores: Sequence[Score]) -> str:
    passed = sum(one.passed for one in scores)
    known = sum(one.reduced_ops == one.known_minimum for one in scores)
    medians = [one.ops_median for one in scores if one.ops_median is not None]
    return (
        f"{passed} of {len(scores)} faults found and reduced to a minimal trace, "
        f"{known} at the known minimum; median of the medians {_number(_median(medians))} ops"
    )
