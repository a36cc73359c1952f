"""What commands say where a disk has no room: one line, and a trace that is nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.trace import Trace, dump


@contextmanager
def saves(directory: Path, trace: Trace | None = None) -> Iterator[None]:
    """Around what writes there; where it fails, a trace goes to standard error instead.

    Raises:
        BadInput: it failed.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        rest = "free some room or name another directory"
        if trace is not None:
            rest += "; the failing trace, which no file holds, is above"
            click.echo(dump(trace).decode(), err=True)
        raise BadInput(f"{directory}: {error.strerror}; {rest}") from error
