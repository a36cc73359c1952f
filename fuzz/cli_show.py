"""``kvexact show``."""

from pathlib import Path

import click

from kvexact.fuzz.artefacts import write_atomically, wrong_bytes
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_targets import named_target, target_option
from kvexact.fuzz.console import Output
from kvexact.fuzz.failure import Failure
from kvexact.fuzz.pictures.show import draw_svg, draw_terminal, draw_timeline
from kvexact.fuzz.replay import TooLargeError, replay
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace, TraceError, load, load_geometry
from kvexact.fuzz.watched import watched
from kvexact.refmodel.spec import Refused


@click.command("show")
@click.argument("file", type=click.Path(path_type=Path))
@target_option
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw into this file instead."
)
def show_command(*, file: Path, target_name: str | None, svg: Path | None) -> int:
    """Draw a geometry: which bytes are whose, what is padding, what lies over what.

    FILE is a trace, or a geometry as JSON. The trace of a failure is run on its target, and the
    wrong bytes are shown; of an asynchronous target also what ran when.

    \b
    Example:
      kvexact show artifacts/*/*.json --svg failure.svg
    """  # noqa: D301
    trace = _load(file)
    target = _target(file, trace, target_name)
    failure = _failure(file, trace, target) if target else None
    run = watched(trace, target) if target else None
    caption = "\n".join(failure.lines) if failure else ""
    console = Output()
    try:
        if svg is None:
            draw_terminal(console, trace.geometry)
            if run:
                console.say()
                draw_timeline(console, run)
            if caption:
                console.say(f"\n{caption}")
        else:
            wrong = wrong_bytes(failure) if failure else None
            drawn = draw_svg(trace.geometry, wrong, caption, run)
            write_atomically(svg, drawn.encode())
            console.say(str(svg))
    except Refused as error:
        raise BadInput(f"{file}: this geometry cannot be ({error})") from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise BadInput(f"{svg}: {error.strerror}; name another file with --svg") from error
    return 0


def _load(path: Path) -> Trace:
    """A trace, or a geometry as a trace without ops."""
    try:
        return load(path)
    except TraceError as error:
        try:
            return Trace(load_geometry(path), ())
        except TraceError as other:
            raise BadInput(str(other)) from error


def _target(path: Path, trace: Trace, name: str | None) -> NamedTarget | None:
    """The target to run a trace on; None where the trace says nothing of a failure."""
    if not trace.signature and name is None:
        return None
    if name is None and ":" in trace.target:
        click.echo(
            f"kvexact: {path}: give --target {trace.target} to see its wrong bytes", err=True
        )
        return None
    return named_target(name or trace.target)


def _failure(path: Path, trace: Trace, target: NamedTarget) -> Failure | None:
    """How a trace fails on a target, if it does."""
    try:
        return replay(trace, target).failure
    except TooLargeError as error:
        raise BadInput(f"{path}: {error}") from error
