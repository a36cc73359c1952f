"""Finds shared through Hypothesis' databases; with a real Redis server where there is one."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvexact.fuzz import corpus, database
from kvexact.fuzz.cli import main
from kvexact.fuzz.database import DatabaseError

TRACES = corpus.traces_in(Path(__file__).parents[1] / "corpus")
SERVER = shutil.which("redis-server")


def kvexact(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """A server of our own, behind a socket that nobody else knows."""
    if SERVER is None or find_spec("redis") is None:
        pytest.skip("needs redis-server on PATH and the package redis")
    from redis import Redis

    socket = tmp_path / "redis.sock"
    command = [
        SERVER,
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while not socket.exists():
                assert server.poll() is None
                time.sleep(0.05)
            assert Redis(unix_socket_path=str(socket)).ping()
            yield f"unix://{socket}"
        finally:
            server.terminate()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A machine's finds."""
    (tmp_path / "here").mkdir()
    for path in TRACES[:3]:
        shutil.copy(path, tmp_path / "here")
    return tmp_path / "here"


def share(place: str, here: Path, there: Path) -> None:
    """Push from one machine, merge on another, and again."""
    for line in ("3 new, 0 known\n", "0 new, 3 known\n"):
        ended = kvexact("corpus", "push", place, here)
        assert (ended.exit_code, ended.output) == (0, line)
    for line in ("3 new, 0 known", "0 new, 3 known"):
        ended = kvexact("corpus", "merge", place, "--corpus", there)
        assert ended.exit_code == 0, ended.output
        assert line in ended.output
    copied = [path.read_bytes() for path in corpus.traces_in(there)]
    assert copied == [path.read_bytes() for path in corpus.traces_in(here)]


def test_through_a_directory(here: Path, tmp_path: Path) -> None:
    share(f"directory:{tmp_path / 'shared'}", here, tmp_path / "there")


def test_through_redis(redis: str, here: Path, tmp_path: Path) -> None:
    share(redis, here, tmp_path / "there")


def test_an_entry_that_is_no_trace_is_named(tmp_path: Path, here: Path) -> None:
    place = f"directory:{tmp_path / 'shared'}"
    kvexact("corpus", "push", place, here)
    database.open_database(place).save(database.KEY, b"{")
    ended = kvexact("corpus", "merge", place, "--corpus", tmp_path / "there")
    assert ended.exit_code == 2
    assert "3 new, 0 known" in ended.output
    assert "no JSON" in ended.output


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("github:owner", "github:OWNER/NAME"),
        ("nowhere", "no database"),
        ("unix:///none/redis.sock", "is it there|pip install"),
        ("redis://host:port", "write redis://HOST|pip install"),
    ],
)
def test_a_database_that_cannot_be(place: str, words: str) -> None:
    with pytest.raises(DatabaseError, match=words):
        database.pull(place)
    ended = kvexact("corpus", "push", place, TRACES[0].parent)
    assert (ended.exit_code, ended.output.count("\n")) == (2, 1)


def test_artifacts_of_github_can_be_named() -> None:
    assert database.is_database("github:owner/name")
    assert "owner" in repr(database.open_database("github:owner/name"))
