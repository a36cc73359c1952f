"""``kvexact soak``."""

import os
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import click

from kvexact.fuzz import coverage
from kvexact.fuzz.about import commit
from kvexact.fuzz.artefacts import save, write_atomically
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_limits import SEED, Duration, limit_options
from kvexact.fuzz.cli_report import baseline_of, baseline_option, day_of, lines, today_option
from kvexact.fuzz.cli_targets import able_target, in_child, target_option
from kvexact.fuzz.console import Output
from kvexact.fuzz.favour import ROUND, favour
from kvexact.fuzz.finding import Finding, block
from kvexact.fuzz.items import families_of
from kvexact.fuzz.progress import Progress, progress_line
from kvexact.fuzz.report.files import write
from kvexact.fuzz.results import Part, Ran, Result, record, versions
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.soak import Soak
from kvexact.fuzz.soak_state import State, StateError, resume
from kvexact.fuzz.stop import Stop
from kvexact.fuzz.summary import complaints, summary
from kvexact.fuzz.tally import Tally
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import DEFAULT_TARGETS, NamedTarget
from kvexact.fuzz.trace import dump
from kvexact.fuzz.worker import Task
from kvexact.fuzz.workers import Workers


class ShardOf(click.ParamType[str]):
    """A shard: 0/4 is the first of four."""

    name = "I/N"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text, checked."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(value))
        if match is None or int(match[1]) >= int(match[2]):
            self.fail(f"{value!r} is no shard; write 0/4 for the first of four", param, ctx)
        return str(value)


@click.command("soak")
@target_option
@click.option("--max-time", type=Duration(), help="Of the whole soak; until stopped if not given.")
@click.option("--max-ops", type=click.IntRange(1), help="Stop after this many acted ops.")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Processes; their number does not change what is found.",
)
@click.option("--seed", type=SEED, help="Drawn and printed if not given.")
@click.option("--shard", type=ShardOf(), help="A share of a soak on many machines.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The soak's directory; one that was begun there goes on.",
)
@click.option("--no-isolation", is_flag=True, help="Run the target in the very workers.")
@limit_options
@baseline_option
@today_option
def soak_command(
    *,
    target_name: str | None,
    max_time: float | None,
    max_ops: int | None,
    workers: int,
    seed: int | None,
    shard: str | None,
    out: Path,
    no_isolation: bool,
    limits: Limits,
    baseline_path: Path | None,
    today: datetime | None,
) -> int:
    """Fuzz all families for hours, favour what was met least, and leave a report.

    The target runs in a process of its own, so that it may die, hang or lose its device. Ends at a
    budget, at Ctrl-C or SIGTERM, always with a report; the same command again goes on.

    \b
    Example:
      kvexact soak --target cpu --max-time 8h --workers 2 --out nightly
    """  # noqa: D301
    target = able_target(target_name or DEFAULT_TARGETS[0])
    baseline = baseline_of(baseline_path)
    state = _state(target, seed, shard or "", out)
    tally, plan = state.tally(), state.plan
    console = Output()
    own_seed = derive(plan.seed, "shard", shard) if shard else plan.seed
    going_on = f", goes on behind {tally.examples:,} examples" if tally.examples else ""
    console.say(f"kvexact soak: target {target.name}, seed {plan.seed}, files in {out}{going_on}")
    first = state.snapshot.next
    weights = favour(tally.counts, plan.families, target.target_type)
    task = Task(
        target.name,
        plan.families,
        own_seed,
        "soak",
        first,
        known=frozenset(found.signature for found in state.found),
        limits=None if no_isolation else limits,
        favour=weights,
        until=first + ROUND,
    )
    source = Workers(task, workers, out)
    try:
        with in_child(target), Progress(console) as progress, Stop() as stop:
            keeper = _Keeper(target, limits, state, tally, source, console)
            soak = Soak(
                tally,
                source,
                keeper.report,
                progress.show,
                max_ops,
                max_time,
                stopped=lambda: stop.asked,
                counted=keeper.counted,
                came=keeper.came,
                start=first,
            )
            whole = soak.run()
    finally:
        source.close()
    result = _result(target, state, tally, "" if whole else "interrupted")
    if baseline:
        result = baseline.judge(result, day_of(today))
    paths = write(result, out)
    console.say("\n".join(["", progress_line(tally), *summary(result.merged)]))
    console.say("\n".join(coverage.lines(result.total, target.target_type)))
    console.say("\n".join([*lines(result), *(os.path.relpath(path) for path in paths)]))
    if not whole:
        return 130
    return 0 if result.sound else 1


def _state(target: NamedTarget, seed: int | None, shard: str, out: Path) -> State:
    """The soak that was begun in a directory, or a new one."""
    names = tuple(family.name for family in families_of(target.target_type))
    try:
        out.mkdir(parents=True, exist_ok=True)
        state = resume(out, target.name, names, shard, seed)
        for partial in out.glob(".*.part"):  # of a process that died while it wrote
            partial.unlink()
        state.save()
    except StateError as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise BadInput(f"{out}: {error.strerror}; name another directory with --out") from error
    return state


@dataclass(slots=True)
class _Keeper:
    """Writes down what a soak finds and counts, as soon as it does.

    Attributes:
        early: files of failures that are not reduced yet.
    """

    target: NamedTarget
    limits: Limits
    state: State
    tally: Tally
    source: Workers
    console: Output
    early: dict[tuple[str, ...], Path] = field(default_factory=dict)

    def came(self, finding: Finding) -> None:
        """Keep a failure that is being reduced; what becomes of it takes its place."""
        path = self.state.directory / f"unreduced-{finding.trace.name}.json"
        if self.early.setdefault(finding.trace.signature, path) == path:
            write_atomically(path, dump(finding.trace))

    def report(self, finding: Finding, failed_runs: int | None) -> None:
        """Save a finding, then say it."""
        saved = save(finding, self.target, self.state.directory, failed_runs, self.limits)
        found = record(finding, saved, 1, failed_runs)
        self.state.found.append(found)
        self.state.save()
        early = self.early.get(found.signature)
        if early:
            early.unlink(missing_ok=True)
        self.console.say("\n".join(["", *block(finding, saved.command), f"  {found.often}"]))

    def counted(self, number: int, reported: bool) -> None:  # noqa: FBT001 - as it is called
        """At the end of a round, save it and decide the next one.

        It is not saved while a failure of it is being reduced: a soak that is killed then goes on
        before that failure, and meets it again.
        """
        if number % ROUND:
            return
        if reported:
            self.state.take(self.tally, number)
        weights = favour(self.tally.counts, self.state.plan.families, self.target.target_type)
        self.source.start_round(weights, number + ROUND)


def _result(target: NamedTarget, state: State, tally: Tally, ended: str) -> Result:
    """What a soak came to, in all its sittings."""
    merged = {(target.name, name): counts for name, counts in tally.counts.items()}
    run = Ran(
        target.name,
        state.plan.seed,
        versions(),
        "soak",
        commit(),
        state.plan.shard,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        tally.seconds,
        ended or tally.ended,
    )
    # A failure that was reported before the process died may not have been counted again.
    found = [replace(one, count=max(1, tally.failures[one.signature])) for one in state.found]
    return Result(
        (run,),
        tuple(Part(target.name, name, counts) for name, counts in tally.counts.items()),
        tuple(found),
        tuple(complaints(merged, [target], [target.name] if found else [])),
    )
