"""``kvexact corpus``: add, merge, minimise."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from kvexact.fuzz import corpus, database
from kvexact.fuzz.child import Child, Died
from kvexact.fuzz.cli import BadInput
from kvexact.fuzz.cli_targets import able_target, in_child, target_option
from kvexact.fuzz.console import Output
from kvexact.fuzz.replay import TooLargeError, check_memory
from kvexact.fuzz.targets import DEFAULT_TARGETS, NamedTarget
from kvexact.fuzz.trace import Trace, TraceError, load

_corpus_option = click.option(
    "--corpus",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=corpus.ROOT,
    show_default=True,
    help="The directory of traces.",
)


@click.group("corpus")
def corpus_command() -> None:
    """Keep traces that replay as tests.

    \b
    Example:
      kvexact corpus add artifacts/*/mismatch*.json --note "copies bring scales along (#17)"
    """  # noqa: D301


@corpus_command.command("add")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE..."
)
@click.option("--note", required=True, help="What the trace guards, in a line.")
@_corpus_option
def add_command(*, files: tuple[Path, ...], note: str, directory: Path) -> int:
    """Put traces into the corpus, with a note that says what they guard.

    \b
    Example:
      kvexact corpus add artifacts/*/mismatch*.json --note "copies bring scales along (#17)"
    """  # noqa: D301
    if not note.strip():
        raise BadInput("--note is empty; say in a line what the trace guards")
    console = Output()
    traces = [_load(path) for path in files]
    with _writing(directory):
        for trace in traces:
            console.say(str(corpus.add(trace, note.strip(), directory)))
    return 0


@corpus_command.command("merge")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@_corpus_option
def merge_command(*, sources: tuple[str, ...], directory: Path) -> int:
    """Copy traces of other corpora, of runs' directories, or of databases that machines share.

    What is there stays as it is. A database is redis://HOST, github:OWNER/NAME or directory:PATH.

    \b
    Example:
      kvexact corpus merge artifacts/* redis://cache.example:6379
    """  # noqa: D301
    traces, refused = _read(sources)
    with _writing(directory):
        new = corpus.merge(traces, directory)
    known = len({trace.name for trace in traces}) - len(new)
    Output().say("\n".join([*map(str, new), f"{len(new)} new, {known} known"]))
    return _complain(refused)


@corpus_command.command("push")
@click.argument("place", metavar="DATABASE")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
def push_command(*, place: str, sources: tuple[str, ...]) -> int:
    """Store traces in a database that machines share: redis://HOST, or directory:PATH.

    \b
    Example:
      kvexact corpus push redis://cache.example:6379 artifacts/*
    """  # noqa: D301
    traces, refused = _read(sources)
    try:
        new = database.push(place, traces)
    except database.DatabaseError as error:
        raise BadInput(str(error)) from error
    known = len({trace.name for trace in traces}) - new
    Output().say(f"{new} new, {known} known")
    return _complain(refused)


@corpus_command.command("minimise")
@_corpus_option
@target_option
def minimise_command(*, directory: Path, target_name: str | None) -> int:
    """Remove traces that meet nothing which the others do not meet.

    What counts: features, pairs of ops, refusals, launches, and the failure that a trace once
    showed. A trace that fails stays.

    \b
    Example:
      kvexact corpus minimise --target cpu
    """  # noqa: D301
    target = able_target(target_name or DEFAULT_TARGETS[0])
    paths = corpus.traces_in(directory)
    if not paths:
        raise BadInput(f"{directory}: no traces in it; name a corpus with --corpus")
    traces = [_load(path) for path in paths]
    ran = dict(zip(paths, _run(target, traces), strict=True))
    met = {path: things for path, things in ran.items() if things}
    ops = {path: len(trace.ops) for path, trace in zip(paths, traces, strict=True)}
    dropped = corpus.superfluous(met, ops)
    with _writing(directory):
        for path in dropped:
            path.unlink()
    failing = len(paths) - len(met)
    stay = f"{len(paths) - len(dropped)} of {len(paths)} traces stay, {failing} of them failing"
    Output().say("\n".join([*(f"removed {path}" for path in dropped), stay]))
    return 1 if failing else 0


def _run(target: NamedTarget, traces: Sequence[Trace]) -> list[corpus.Things]:
    """What each trace meets, in processes that may die of it."""
    done: list[corpus.Things] = []
    while len(done) < len(traces):
        child = Child(corpus.run_all, target.name, traces[len(done) :])
        try:
            with in_child(target):
                done += [frozenset() if isinstance(item, Died) else item for item in child]
        finally:
            child.close()
    return done


def _read(sources: Sequence[str]) -> tuple[list[Trace], list[str]]:
    """All traces of directories and databases, and why other files and entries are none."""
    traces: list[Trace] = []
    refused: list[str] = []
    for source in sources:
        if database.is_database(source):
            try:
                found, bad = database.pull(source)
            except database.DatabaseError as error:
                raise BadInput(str(error)) from error
        elif Path(source).is_dir():
            found, bad = corpus.read(Path(source))
        else:
            raise BadInput(f"{source}: no directory; name one that holds traces")
        traces += found
        refused += bad
    return traces, refused


def _complain(refused: Sequence[str]) -> int:
    """Say what was no trace; the exit code."""
    for line in refused:
        click.echo(f"kvexact: {line}", err=True)
    return 2 if refused else 0


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Around work on the corpus' files: what cannot be written is bad input."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{directory}: {error.strerror}; name another one with --corpus") from error


def _load(path: Path) -> Trace:
    try:
        trace = load(path)
        check_memory(trace)
    except TooLargeError as error:
        raise BadInput(f"{path}: {error}") from error
    except TraceError as error:
        raise BadInput(str(error)) from error
    return trace
