"""The report of a run: ``summary.json``, ``junit.xml`` and one standalone ``report.html``."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from kvexact.fuzz.artefacts import write_atomically
from kvexact.fuzz.report.faults import FaultRow
from kvexact.fuzz.report.junit import junit
from kvexact.fuzz.report.page import page
from kvexact.fuzz.results import Found, Result
from kvexact.fuzz.results_merge import merge
from kvexact.fuzz.summary_file import load, save

PAGE, JUNIT = "report.html", "junit.xml"


def write(result: Result, directory: Path, faults: Sequence[FaultRow] = ()) -> list[Path]:
    """Write a result's three files into the directory that holds the files of its findings.

    Args:
        faults: what `kvexact power` measured; empty: it was not asked.
    """
    paths = [save(result, directory), directory / JUNIT, directory / PAGE]
    write_atomically(paths[1], junit(result))
    write_atomically(paths[2], page(result, directory, faults).encode())
    return paths


def gather(sources: Sequence[Path], directory: Path) -> Result:
    """The result of several runs, the files of its findings copied into a directory of its own.

    Raises:
        ResultError: a source holds no result.
        OSError: a file cannot be copied.
    """
    results = [load(source) for source in sources]
    directory.mkdir(parents=True, exist_ok=True)
    for source, result in zip(sources, results, strict=True):
        folder = source if source.is_dir() else source.parent
        for found in result.findings:
            for name in files_of(found):
                _copy(folder / name, directory / name)
    return merge(results)


def files_of(found: Found) -> list[str]:
    """Names of a finding's files."""
    return [name for name in (found.trace, found.reproducer, found.picture) if name]


def _copy(source: Path, target: Path) -> None:
    """Copy a plain file; names come from content, so one of the same name is the same."""
    if source.is_file() and not source.is_symlink() and not target.exists():
        shutil.copyfile(source, target)
