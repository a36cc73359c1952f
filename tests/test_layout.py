"""Workers and their targets' processes are laid out alike."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvexact.fuzz.child import Child
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.layout import same_addresses
from kvexact.fuzz.targets import NamedTarget
from kvexact.impl.adapters.example import ExampleCache

_TARGET = "kvexact.impl.adapters.example:ExampleCache"
_NO_RANDOMIZE = 0x0040000


def _personality(process: object = "self") -> int:
    return int(Path(f"/proc/{process}/personality").read_text(), 16)


def _addresses() -> Iterator[tuple[int | None, bool]]:
    """Of a function of the interpreter; whether the process of a target has such ones as well."""
    function = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value
    with closing(Isolation(NamedTarget(_TARGET, ExampleCache))) as isolation:
        yield function, bool(_personality(isolation.start().pid) & _NO_RANDOMIZE)


def _may_choose() -> bool:
    """Whether the system lets a process choose; asked in one that does nothing else."""
    ask = f"import ctypes; print(ctypes.CDLL(None).personality({_NO_RANDOMIZE}))"
    command = [sys.executable, "-c", ask]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout[0] != "-"


pytestmark = pytest.mark.skipif(
    not _may_choose(), reason="the system does not let processes choose how they are laid out"
)


def test_children_have_the_same_addresses() -> None:
    """And so do the processes that they start."""
    found = []
    for _ in range(2):
        with closing(Child(_addresses)) as child:
            found += child

    (one, is_alike), other = found
    assert one is not None
    assert is_alike
    assert other == (one, True)


def test_nothing_else_changes() -> None:
    """This process, and what it starts afterwards, is laid out as ever."""
    before = _personality()

    with same_addresses():
        assert _personality() & _NO_RANDOMIZE
    with pytest.raises(ZeroDivisionError), same_addresses():
        raise ZeroDivisionError

    assert _personality() == before
