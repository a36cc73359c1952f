"""What a target shows, checked for its form: facts, and bytes."""

import ctypes
from collections.abc import Mapping

import numpy as np

from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Area, Bytes, Facts, Target

_COPIED_BYTES = 32 * 1024
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def view_of(target: Target, area: Area) -> Bytes:
    """All bytes of an area.

    Raises:
        Wrong: it is no flat array of bytes.
    """
    view = target.view(area)
    if not is_bytes(view) or view.ndim != 1:
        text = f"view({area!r}) returned {_words(view)}; it must be a flat array of uint8"
        raise Wrong("exception", None, text, name="view")
    return view


def as_facts(answer: object) -> Facts:
    """The same, where it is facts.

    Raises:
        Wrong: it is something else.
    """
    if not isinstance(answer, Mapping):
        text = f"it returned {_words(answer)}; facts must be a mapping"
        raise Wrong("exception", None, text, name="facts")
    return answer


def is_bytes(value: object) -> bool:
    """Whether a value is an array of bytes."""
    return isinstance(value, np.ndarray) and value.dtype == np.uint8


def _words(value: object) -> str:
    """A value that should have been another one, in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"


def same_bytes(one: Bytes, other: Bytes) -> bool:
    """Whether two byte arrays are equal."""
    if one.size != other.size:
        return False
    if one.size <= _COPIED_BYTES:  # then copies are cheaper than numpy's addresses
        return one.tobytes() == other.tobytes()
    here, there = np.ascontiguousarray(one), np.ascontiguousarray(other)
    return not _memcmp(here.ctypes.data, there.ctypes.data, here.size)
