"""How much memory a run takes, all its processes together, as Linux tells it."""

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, this one if none is named, and of all below it.

    A process that ends meanwhile counts as nothing; so do all where Linux does not list children.
    """
    place = Path("/proc", str(pid or os.getpid()))
    try:
        pages = int((place / "statm").read_text().split()[1])
        children = [int(child) for task in place.glob("task/*/children") for child in _words(task)]
    except (OSError, IndexError):
        return 0
    return pages * _PAGE_BYTES + sum(map(resident_bytes, children))


def _words(path: Path) -> list[str]:
    return path.read_text().split()
