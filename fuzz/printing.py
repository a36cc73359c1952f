"""Keeps what a target prints, in Python or not, out of what a command prints."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_LIBC = ctypes.CDLL(None)


def print_to_stderr() -> None:
    """Have all that this process ever prints go to standard error."""
    os.dup2(2, 1)


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Around code of a target: whatever it prints goes to standard error."""
    try:
        output = os.dup(1)
    except OSError:  # it is closed: nothing gets there anyway
        yield
        return
    with suppress(OSError):
        print_to_stderr()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _LIBC.fflush(None)
        os.dup2(output, 1)
        os.close(output)
