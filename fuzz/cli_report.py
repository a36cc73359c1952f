"""``kvexact report``."""

from datetime import UTC, date, datetime
from pathlib import Path

import click

from kvexact.fuzz.baseline import Baseline, BaselineError
from kvexact.fuzz.baseline import load as load_baseline
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.console import Output
from kvexact.fuzz.report.faults import load_faults
from kvexact.fuzz.report.files import gather, write
from kvexact.fuzz.results import Result
from kvexact.fuzz.summary_file import ResultError

baseline_option = click.option(
    "--baseline",
    "baseline_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file of known failures that may occur until a date.",
)
today_option = click.option(
    "--today",
    type=click.DateTime(["%Y-%m-%d"]),
    help="The day by which the baseline is read; by UTC if not given.",
)


def baseline_of(path: Path | None) -> Baseline | None:
    """The baseline that the command line names.

    Raises:
        BadInput: it is none.
    """
    try:
        return load_baseline(path) if path else None
    except BaselineError as error:
        raise BadInput(str(error)) from error


def day_of(today: datetime | None) -> date:
    """The day that the command line names, or this one."""
    return (today or datetime.now(UTC)).date()


@click.command("report")
@click.argument(
    "sources", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path)
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write; needed for several runs, else their own directory.",
)
@click.option(
    "--power",
    "power_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What `kvexact power --json` printed, to be shown too.",
)
@baseline_option
@today_option
def report_command(
    *,
    sources: tuple[Path, ...],
    out: Path | None,
    power_path: Path | None,
    baseline_path: Path | None,
    today: datetime | None,
) -> int:
    """Write summary.json, junit.xml and a standalone report.html of one run, or of several.

    DIR is a run's directory, or its summary.json. Several are merged, shards or targets alike, and
    the files of their findings are copied.

    \b
    Example:
      kvexact report shard-0 shard-1 --out nightly
    """  # noqa: D301
    if out is None and len(sources) > 1:
        raise BadInput(f"{len(sources)} runs have no one directory; name a new one with --out")
    baseline = baseline_of(baseline_path)
    source = sources[0]
    out = out or (source if source.is_dir() else source.parent)
    try:
        faults = load_faults(power_path) if power_path else ()
        result = gather(sources, out)
        if baseline:
            result = baseline.judge(result, day_of(today))
        paths = write(result, out, faults)
    except ResultError as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise BadInput(f"{out}: {error.strerror}; name another directory with --out") from error
    console = Output()
    console.say("\n".join([*lines(result), *map(str, paths)]))
    return 0 if result.sound else 1


def lines(result: Result) -> list[str]:
    """What a result comes to, for a terminal."""
    found = [
        f"{found.target}: {found.name}, {found.count:,} times"
        + (f", known until {found.accepted.until}" if found.accepted else "")
        for found in result.findings
    ]
    ended = [
        f"ended early: {run.target} {run.shard}: {run.ended}" for run in result.runs if run.ended
    ]
    complaints = [f"proves less than it claims: {line}" for line in result.complaints]
    return [*found, *ended, *complaints, *result.notes]
