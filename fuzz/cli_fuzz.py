"""``kvexact fuzz``."""

import os
import re
import secrets
from pathlib import Path

import click

from kvexact.fuzz.artefacts import ROOT, make_run_directory, save
from kvexact.fuzz.child import ChildError
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_targets import able_target, families_of, target_option
from kvexact.fuzz.console import Output
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.finding import Finding, block
from kvexact.fuzz.progress import Progress, print_summary
from kvexact.fuzz.soak import Soak, Workers
from kvexact.fuzz.tally import Tally
from kvexact.fuzz.targets import DEFAULT
from kvexact.fuzz.worker import Task
from kvexact.impl.target import Unavailable

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
#: The budget where none is given, and the seed where CI is set.
_MAX_OPS, _CI_SEED = 100_000, 0


class Duration(click.ParamType[float]):
    """Seconds: 90, 90s, 8m or 2h."""

    name = "TIME"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds of a text."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if match is None:
            self.fail(f"{value!r} is no time; write seconds, or 90s, 8m, 2h", param, ctx)
        return float(match[1]) * _UNITS_S[match[2]]


@click.command("fuzz")
@target_option
@click.option("--family", "families", multiple=True, metavar="NAME", help="May be given often.")
@click.option(
    "--chooser",
    type=click.Choice(["prng", "hypothesis"]),
    default="prng",
    show_default=True,
    help="Where choices come from.",
)
@click.option("--seed", type=click.IntRange(0), help="Drawn and printed if not given; 0 in CI.")
@click.option("--max-ops", "--ops", type=click.IntRange(1), help="Stop after this many acted ops.")
@click.option("--max-time", type=Duration(), help="Stop earlier, after this time.")
@click.option("--first", is_flag=True, help="Stop at the first failure.")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Processes; their number does not change what is found.",
)
@click.option(
    "--artifacts",
    type=click.Path(file_okay=False, path_type=Path),
    default=ROOT,
    show_default=True,
    help="Where the run's directory is made.",
)
def fuzz_command(
    *,
    target_name: str | None,
    families: tuple[str, ...],
    chooser: str,
    seed: int | None,
    max_ops: int | None,
    max_time: float | None,
    first: bool,
    workers: int,
    artifacts: Path,
) -> int:
    """Look for disagreements between a target and the model.

    Goes on after a failure: each new one is reduced, saved and shown at once; one that is known is
    counted. The same seed and --max-ops give the same result, whatever --workers is. Without a
    budget it stops after 100,000 acted ops.

    \b
    Example:
      kvexact fuzz --target cpu --family overlay --family padded --seed 7 --max-time 8m
    """  # noqa: D301
    target = able_target(target_name or DEFAULT)
    for name in families:
        if name not in FAMILIES:
            raise BadInput(f"family {name!r} is not known; use one of {', '.join(FAMILIES)}")
    names = families or families_of(target.target_type)
    if seed is None:
        seed = _CI_SEED if os.environ.get("CI") else secrets.randbits(32)
    if max_ops is None and max_time is None:
        max_ops = _MAX_OPS

    console = Output()
    directory = _make_directory(artifacts, seed)

    def report(finding: Finding, failed_runs: int | None) -> None:
        saved = save(finding, target, directory, failed_runs)
        console.say("\n".join(["", *block(finding, saved.command)]))

    tally = Tally({name: Counts() for name in names}, target.target_type.op_kinds)
    source = Workers(Task(target.name, names, seed, chooser), workers, directory)
    try:
        place = os.path.relpath(directory)
        console.say(f"kvexact fuzz: target {target.name}, {chooser}, seed {seed}, files in {place}")
        with Progress(console) as progress:
            soak = Soak(tally, source, report, progress.show, max_ops, max_time, first)
            whole = soak.run()
    except Unavailable as error:
        raise BadInput(f"target {target.name!r} cannot run here: {error}") from error
    except ChildError as error:
        raise SystemExit(f"kvexact has a bug:\n{error}") from error
    finally:
        source.close()
        _remove_if_empty(directory)
    print_summary(console, tally)
    if not whole:
        return 130
    return 1 if tally.failures or tally.complaints() else 0


def _make_directory(root: Path, seed: int) -> Path:
    try:
        return make_run_directory(root, seed)
    except OSError as error:
        raise BadInput(
            f"{root}: no directory can be made there ({error.strerror}); "
            f"name another one with --artifacts"
        ) from error


def _remove_if_empty(directory: Path) -> None:
    """Leave nothing of a run that found nothing."""
    if not any(directory.iterdir()):
        directory.rmdir()
        if directory.parent.name == ROOT.name and not any(directory.parent.iterdir()):
            directory.parent.rmdir()
