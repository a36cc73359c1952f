"""``kvexact replay`` and ``kvexact reduce``."""

from pathlib import Path

import click

from kvexact.fuzz.artefacts import command_line, write_atomically
from kvexact.fuzz.cli import BadInput, one_line
from kvexact.fuzz.cli_limits import limit_options
from kvexact.fuzz.cli_targets import able_target, in_child, named_target, target_option
from kvexact.fuzz.console import Output
from kvexact.fuzz.finding import Finding, block
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.journal import recover
from kvexact.fuzz.replay import Replay, TooLargeError, check_memory, replay
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace, TraceError, dump, load
from kvexact.fuzz.worker import reduce_trace

#: Exit code of each verdict.
_CODES = {"FIXED": 0, "FAILED": 1, "FLAKY": 1, "DRIFTED": 2, "ERROR": 2}
_STYLES = {"FIXED": "green", "FAILED": "red", "FLAKY": "yellow"}


def trace_and_target(path: Path, target_name: str | None) -> tuple[Trace, NamedTarget]:
    """A trace, and the target to run it on.

    Raises:
        BadInput: the file is no trace, or its target is not known here.
    """
    try:
        trace = (recover(path) if path.suffix == ".journal" else None) or load(path)
        check_memory(trace)
    except TooLargeError as error:
        raise BadInput(f"{path}: {error}") from error
    except TraceError as error:
        raise BadInput(str(error)) from error
    if target_name is None and ":" in trace.target:
        raise BadInput(
            f"{path}: its target {trace.target!r:.80} is not registered, and code is imported only "
            f"where the command line says so; add --target {trace.target:.80}"
        )
    return trace, named_target(target_name or trace.target)


@click.command("replay")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@target_option
@limit_options
def replay_command(*, files: tuple[Path, ...], target_name: str | None, limits: Limits) -> int:
    """Run saved traces again, three times each, and say what became of them.

    The target runs in a process of its own, so that it may die or hang. A file may also be the
    journal that a dead process left.

    \b
    FIXED         three clean runs
    FAILED        it fails each time
    FLAKY n of 3  it fails at times
    DRIFTED       an op does something else than when the trace was saved
    ERROR         the target cannot run

    \b
    Example:
      kvexact replay artifacts/*/*.json
    """  # noqa: D301
    console = Output()
    codes = []
    for path in files:
        try:
            trace, target = trace_and_target(path, target_name)
        except BadInput as error:
            if len(files) == 1:
                raise
            click.echo(f"kvexact: {one_line(error)}", err=True)
            codes.append(_CODES["ERROR"])
            continue
        result = replay(trace, target, limits)
        _print(console, path, target, result)
        codes.append(_CODES[result.verdict])
    return 1 if 1 in codes else max(codes)


def _print(console: Output, path: Path, target: NamedTarget, result: Replay) -> None:
    console.say(f"{result.words:13}", style=_STYLES.get(result.verdict, "magenta"), end=" ")
    lines = [f"{path}, on {target.name}"]
    if result.failure:
        lines += [str(result.failure.signature), *result.failure.lines]
    lines += [f"  {note}" for note in result.notes]
    console.say("\n".join(lines))


@click.command("reduce")
@click.argument("file", type=click.Path(path_type=Path))
@target_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write the smaller trace; FILE with .reduced.json if not given.",
)
@limit_options
def reduce_command(
    *, file: Path, target_name: str | None, output: Path | None, limits: Limits
) -> int:
    """Make a failing trace minimal: fewer ops, fewer elements, lower numbers, plainer geometry.

    \b
    Example:
      kvexact reduce long.json -o short.json
    """  # noqa: D301
    trace, target = trace_and_target(file, target_name)
    able_target(target.name)
    finding = _reduce(trace, target, limits)
    console = Output()
    if finding is None:
        console.say(f"{file} does not fail on {target.name}; nothing to reduce")
        return 0
    output = output or file.with_suffix(".reduced.json")
    try:
        write_atomically(output, dump(finding.trace))
    except OSError as error:
        raise BadInput(f"{output}: {error.strerror}; name another file with -o") from error
    lines = block(finding, command_line(output, target, limits))
    console.say("\n".join(lines))
    return 1


def _reduce(trace: Trace, target: NamedTarget, limits: Limits) -> Finding | None:
    isolation = Isolation(target, limits)
    try:
        with in_child(target):
            return reduce_trace(isolation, trace)
    finally:
        isolation.close()
