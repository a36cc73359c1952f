"""Finds shared through Hypothesis' example databases: a directory, Redis, GitHub artifacts.

What is shared is the trace, not the choices that Hypothesis drew. A choice means an op only
together with the run's seed and the version of the code that decodes it; a trace means the same
everywhere, and needs no Hypothesis to run.
"""

from collections.abc import Iterable
from pathlib import Path

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
)

from kvexact.fuzz.reading import BYTES_MOST
from kvexact.fuzz.trace import Trace, TraceError, dump, parse

#: Under which all traces lie.
KEY = b"kvexact.traces"
_REDIS = ("redis://", "rediss://", "unix://")
_GITHUB, _DIRECTORY = "github:", "directory:"


class DatabaseError(ValueError):
    """A place that is no database, or does not answer: one line with the fix."""


def is_database(place: str) -> bool:
    """Whether a place is a database by its name; anything else is a path."""
    return place.startswith((*_REDIS, _GITHUB, _DIRECTORY))


def open_database(place: str) -> ExampleDatabase:
    """The database of redis://HOST, github:OWNER/NAME or directory:PATH.

    Raises:
        DatabaseError: there is none.
    """
    if place.startswith(_REDIS):
        try:
            from hypothesis.extra.redis import RedisExampleDatabase
            from redis import Redis
        except ImportError as error:
            raise DatabaseError(
                f"{place}: redis is missing; pip install 'kvexact[redis]'"
            ) from error
        try:
            return RedisExampleDatabase(Redis.from_url(place))
        except ValueError as error:
            raise DatabaseError(f"{place}: {error}; write redis://HOST:PORT/NUMBER") from error
    if place.startswith(_GITHUB):
        owner, _, name = place.removeprefix(_GITHUB).partition("/")
        if not owner or not name:
            raise DatabaseError(f"{place}: no repository; write github:OWNER/NAME")
        return GitHubArtifactDatabase(owner, name)
    if place.startswith(_DIRECTORY):
        return DirectoryBasedExampleDatabase(Path(place.removeprefix(_DIRECTORY)))
    raise DatabaseError(
        f"{place}: no database; write redis://HOST, github:OWNER/NAME or directory:PATH"
    )


def push(place: str, traces: Iterable[Trace]) -> int:
    """Store traces; how many of them are new.

    Raises:
        DatabaseError: it cannot be reached, or only be read.
    """
    database = open_database(place)
    known = {trace.name for trace in pull(place)[0]}
    new = {trace.name: trace for trace in traces if trace.name not in known}
    try:
        for _, trace in sorted(new.items()):
            database.save(KEY, dump(trace))
    except Exception as error:
        raise DatabaseError(f"{place}: {_said(error)}; may it be written?") from error
    return len(new)


def pull(place: str) -> tuple[list[Trace], list[str]]:
    """All traces in the order of their names, and why other entries are none.

    Raises:
        DatabaseError: it cannot be reached.
    """
    database = open_database(place)
    try:
        entries = sorted(database.fetch(KEY))
    except Exception as error:
        raise DatabaseError(f"{place}: {_said(error)}; is it there?") from error
    traces, refused = [], []
    for entry in entries:
        if len(entry) > BYTES_MOST:
            refused.append(f"{place}: an entry is larger than {BYTES_MOST:,} bytes")
            continue
        try:
            traces.append(parse(entry))
        except TraceError as error:
            refused.append(f"{place}: {error}")
    return sorted(traces, key=lambda trace: trace.name), refused


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
