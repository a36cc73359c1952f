"""``kvexact soak``."""

import os
import re
from contextlib import closing
from datetime import datetime
from pathlib import Path

import click

from kvexact.fuzz import coverage
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_disk import saves
from kvexact.fuzz.cli_limits import SEED, Duration, limit_options
from kvexact.fuzz.cli_report import baseline_of, baseline_option, day_of, lines, today_option
from kvexact.fuzz.cli_targets import able_target, in_child, say_remarks, target_option
from kvexact.fuzz.console import Output
from kvexact.fuzz.favour import ROUND, favour
from kvexact.fuzz.items import families_of
from kvexact.fuzz.progress import Progress, progress_line
from kvexact.fuzz.report.files import write
from kvexact.fuzz.reserve import Reserve
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.soak import Soak
from kvexact.fuzz.soak_keeper import Keeper
from kvexact.fuzz.soak_state import State, StateError, resume, sole
from kvexact.fuzz.stop import Stop
from kvexact.fuzz.summary import summary
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import DEFAULT_TARGETS, NamedTarget
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
    say_remarks(console, target)
    first = state.snapshot.next
    task = Task(
        target.name,
        plan.families,
        own_seed,
        "soak",
        first,
        known=frozenset(found.signature for found in state.found),
        limits=None if no_isolation else limits,
        favour=favour(tally.counts, plan.families, target.target_type),
        until=first + ROUND,
    )
    with Stop() as stop:
        with saves(out):
            reserve = Reserve(out)
        with closing(reserve):
            with saves(out):
                source = Workers(task, workers, out)
            keeper = Keeper(target, limits, state, tally, reserve, source, console)
            with closing(source), in_child(target), Progress(console) as progress:
                whole = Soak(
                    tally,
                    source,
                    keeper.report,
                    progress.show,
                    max_ops,
                    max_time,
                    stopped=lambda: stop.asked or reserve.given_up,
                    counted=keeper.counted,
                    came=keeper.came,
                    fell=console.say,
                    start=first,
                ).run()
        interrupted = not whole and not reserve.given_up
        ended = "interrupted" if interrupted else ""
        if reserve.given_up:
            ended = f"no room was left in {out}; free some, then the same command goes on"
        result = keeper.result(ended)
        if baseline:
            result = baseline.judge(result, day_of(today))
        with saves(out):
            paths = write(result, out)
        console.say("\n".join(["", progress_line(tally), *summary(result.merged)]))
        console.say("\n".join(coverage.lines(result.total, target.target_type)))
        console.say("\n".join([*lines(result), *(os.path.relpath(path) for path in paths)]))
    if interrupted:
        return 130
    return 0 if result.sound else 1


def _state(target: NamedTarget, seed: int | None, shard: str, out: Path) -> State:
    """The soak that was begun in a directory, or a new one."""
    names = tuple(family.name for family in families_of(target.target_type))
    try:
        out.mkdir(parents=True, exist_ok=True)
        click.get_current_context().with_resource(sole(out))
        state = resume(out, target.name, names, shard, seed)
        for partial in out.glob(".*.part"):  # of a process that died while it wrote
            partial.unlink()
        state.save()
    except StateError as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise BadInput(f"{out}: {error.strerror}; name another directory with --out") from error
    return state
