"""The files of a run: one directory, and in it trace, reproducer and picture of each finding."""

import os
import re
import secrets
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kvexact.fuzz.failure import Failure
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.pictures.draw_svg import draw_svg
from kvexact.fuzz.pictures.wrong import WrongBytes
from kvexact.fuzz.reproduce import render
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace, dump
from kvexact.fuzz.watched import watched
from kvexact.refmodel.spec import Refused

#: Where run directories are made, from the current directory.
ROOT = Path("artifacts")
_SLUG_CHARS = 60


@dataclass(frozen=True, slots=True)
class Saved:
    """The files of a finding.

    Attributes:
        command: shows the failure again, run as it stands in the directory it was made in.
        picture: None where the model refuses the geometry.
    """

    trace: Path
    reproducer: Path
    picture: Path | None
    command: str


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of one run.

    Attributes:
        path: where it is, in full.
        made: directories that were not there before the run: this one, then those around it.
    """

    path: Path
    made: tuple[Path, ...]

    def remove_if_empty(self) -> None:
        """Leave nothing of a run that found nothing, and whatever was there before it."""
        for directory in self.made:
            try:
                directory.rmdir()
            except OSError:  # not empty, or gone already
                return


def make_run_directory(root: Path, seed: int) -> RunDirectory:
    """Make a directory for one run: UTC time, seed, and four digits that keep two runs apart."""
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = root.absolute() / f"{time}-{seed}-{secrets.token_hex(2)}"
    made = tuple(directory for directory in (path, *path.parents) if not directory.exists())
    path.mkdir(parents=True)
    return RunDirectory(path, made)


def save(
    finding: Finding,
    target: NamedTarget,
    directory: Path,
    failed_runs: int | None = None,
    limits: Limits | None = None,
) -> Saved:
    """Write a finding's files. Saving it again writes the same files.

    Args:
        failed_runs: how many of three runs of its trace failed; None: not tried.
        limits: that the target had.
    """
    name = file_name(finding.trace)
    trace = directory / f"{name}.json"
    reproducer = directory / f"test_{name.replace('-', '_')}.py"
    write_atomically(trace, dump(finding.trace))
    write_atomically(reproducer, render(finding, target, failed_runs).encode())
    picture: Path | None = directory / f"{name}.svg"
    try:
        drawn = draw_svg(
            finding.trace.geometry,
            wrong_bytes(finding.failure),
            "\n".join(finding.failure.lines),
            watched(finding.trace, target),
        )
    except Refused:
        picture = None
    else:
        assert picture is not None
        write_atomically(picture, drawn.encode())
    return Saved(trace, reproducer, picture, command_line(trace, target, limits))


def file_name(trace: Trace) -> str:
    """A name from a trace's failure and content, without an ending."""
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(trace.signature).lower()).strip("-")
    return f"{words[:_SLUG_CHARS].strip('-') or 'trace'}-{trace.name}"


def command_line(trace: Path, target: NamedTarget, limits: Limits | None = None) -> str:
    """The shell line that shows a saved failure again, from the current directory."""
    parts = ["kvexact", "replay", os.path.relpath(trace)]
    if not target.registered:
        parts += ["--target", target.name]
    if limits and limits.deadline_s != Limits().deadline_s:
        parts += ["--deadline", f"{limits.deadline_s:g}"]
    if limits and limits.memory_bytes:
        parts += ["--memory-limit", f"{limits.memory_bytes}"]
    return shlex.join(parts)


def wrong_bytes(failure: Failure) -> WrongBytes | None:
    """A failure's wrong bytes, to be drawn; None where none are known."""
    if not failure.wrong_at or failure.area not in ("pool", "host"):
        return None
    return WrongBytes(
        "pool" if failure.area == "pool" else "host",
        np.array(failure.wrong_at, np.intp),
        np.frombuffer(failure.want, np.uint8),
        np.frombuffer(failure.got, np.uint8),
        failure.group,
    )


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is either whole or not there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or it may be there and empty, after the machine stopped
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
