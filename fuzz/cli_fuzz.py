"""``kvexact fuzz``."""

import os
import secrets
from pathlib import Path

import click

from kvexact.fuzz.artefacts import ROOT, RunDirectory, make_run_directory, save
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_disk import saves
from kvexact.fuzz.cli_limits import SEED, Duration
from kvexact.fuzz.cli_targets import able_target, in_child, say_remarks, target_option
from kvexact.fuzz.console import Output
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.finding import Finding, block
from kvexact.fuzz.items import families_of
from kvexact.fuzz.progress import Progress, progress_line
from kvexact.fuzz.soak import Soak
from kvexact.fuzz.stop import Stop
from kvexact.fuzz.summary import complaints, summary
from kvexact.fuzz.tally import Tally
from kvexact.fuzz.targets import DEFAULT_TARGETS, NamedTarget
from kvexact.fuzz.worker import Task
from kvexact.fuzz.workers import Workers

#: The budget where none is given, and the seed where CI is set.
_MAX_OPS, _CI_SEED = 100_000, 0


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
@click.option("--seed", type=SEED, help="Drawn and printed if not given; 0 in CI.")
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
    target = able_target(target_name or DEFAULT_TARGETS[0])
    try:
        names = tuple(family.name for family in families_of(target.target_type, families))
    except ValueError as error:
        raise BadInput(f"target {target.name!r}: {error}") from error
    if seed is None:
        seed = _CI_SEED if os.environ.get("CI") else secrets.randbits(32)
    if max_ops is None and max_time is None:
        max_ops = _MAX_OPS

    console = Output()
    directory = _make_directory(artifacts, seed)

    def report(finding: Finding, failed_runs: int | None) -> None:
        with saves(directory.path, finding.trace):
            saved = save(finding, target, directory.path, failed_runs)
        console.say("\n".join(["", *block(finding, saved.command)]))

    tally = Tally({name: Counts() for name in names})
    with Stop() as stop:
        with saves(directory.path):
            source = Workers(Task(target.name, names, seed, chooser), workers, directory.path)
        try:
            place = os.path.relpath(directory.path)
            of = f"target {target.name}, {chooser}, seed {seed}"
            console.say(f"kvexact fuzz: {of}, files in {place}")
            say_remarks(console, target)
            with in_child(target), Progress(console) as progress:
                soak = Soak(
                    tally,
                    source,
                    report,
                    progress.show,
                    max_ops,
                    max_time,
                    first,
                    stopped=lambda: stop.asked,
                )
                whole = soak.run()
        finally:
            source.close()
            directory.remove_if_empty()
    sound = _sum_up(console, tally, target)
    if not whole:
        return 130
    return 0 if sound else 1


def _make_directory(root: Path, seed: int) -> RunDirectory:
    try:
        return make_run_directory(root, seed)
    except OSError as error:
        raise BadInput(
            f"{root}: no directory can be made there ({error.strerror}); "
            f"name another one with --artifacts"
        ) from error


def _sum_up(console: Output, tally: Tally, target: NamedTarget) -> bool:
    """Say what a run did; whether it found nothing, and proves that there is nothing."""
    merged = {(target.name, name): counts for name, counts in tally.counts.items()}
    console.say("\n".join(["", progress_line(tally), *summary(merged)]))
    bad = []
    for signature, number in tally.failures.most_common():
        often = "once" if number == 1 else f"{number:,} times"
        bad.append(f"failed {often}: {signature}")
    if tally.ended:
        bad.append(f"ended early: {tally.ended}")
    failed = [target.name] if tally.failures else []
    lines = complaints(merged, [target], failed)
    bad += [f"proves less than it claims: {text}" for text in lines]
    for line in bad:
        console.say(line, style="red")
    return not bad
