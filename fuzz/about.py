"""What a run ran on, asked of programs that may be missing: GPU and driver, commit."""

import subprocess

_WAIT_S = 20


def gpu_and_driver() -> tuple[str, str]:
    """Names of the GPUs and the driver's version; empty where there are none.

    Asks nvidia-smi, since a process that asks CUDA itself holds a context from then on.
    """
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    rows = [line.rsplit(", ", 1) for line in _answer(query).splitlines() if ", " in line]
    names = [name for name, _ in rows]
    several = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    text = ", ".join(words.removeprefix("1 x ") for words in several)
    return text, rows[0][1] if rows else ""


def commit() -> str:
    """The commit checked out around the current directory, with "-dirty" where it is changed."""
    return _answer(["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])


def _answer(command: list[str]) -> str:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_WAIT_S, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.strip()
