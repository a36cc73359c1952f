"""What a target shows, checked for its form: facts, and bytes."""

from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np

from kvexact.fuzz.wrong import Wrong, said
from kvexact.impl.target import Area, Bytes, Facts, Target, Unavailable
from kvexact.refmodel.answers import in_short
from kvexact.refmodel.spec import Geometry

_BYTE = np.dtype(np.uint8)


def view_of(target: Target, area: Area) -> Bytes:
    """All bytes of an area.

    Raises:
        Wrong: it is no flat array of bytes.
    """
    return as_view(target.view(area), area)


def as_view(view: Bytes, area: Area) -> Bytes:
    """The same, where it is the bytes of an area.

    Raises:
        Wrong: as of `view_of`.
    """
    if not is_bytes(view) or view.ndim != 1:
        text = f"view({area!r}) returned {_words(view)}; it must be a flat array of uint8"
        raise Wrong("exception", None, text, name="view")
    return view


def as_facts(answer: object) -> Facts:
    """The same, where it is facts; see `plain_facts`.

    Raises:
        Wrong: it is something else.
    """
    if not isinstance(answer, Mapping):
        text = f"it returned {_words(answer)}; facts must be a mapping"
        raise Wrong("exception", None, text, name="facts")
    return plain_facts(answer)


def plain_facts(answer: Mapping[Any, Any]) -> dict[str, Any]:
    """Facts that can be compared and sent: what is no number, nor a tuple of such, as its text."""
    return {
        str(name): value if _is_fact(value) or isinstance(value, str) else in_short(value)
        for name, value in answer.items()
    }


def _is_fact(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, tuple) and all(map(_is_fact, value)))


def launches_of(target: Target) -> dict[str, int]:
    """What a target launched, by name.

    Raises:
        Wrong: it tells of something else than numbers.
    """
    told: Any = target.launches()
    try:
        return {str(name): index(number) for name, number in told.items()}
    except (AttributeError, TypeError) as error:
        text = f"launches returned {in_short(told)}; it must be numbers by name"
        raise Wrong("exception", None, text, name="launches") from error


def fits(target: Target, geometry: Geometry) -> bool:
    """Whether a geometry fits a target.

    Raises:
        Unavailable: the target's own code fails at it.
    """
    try:
        return target.fits(geometry)
    except Unavailable:
        raise
    except Exception as error:
        text = f"asking what fits it raised {type(error).__name__}: {said(error)}"
        raise Unavailable(text) from error


def is_bytes(value: object) -> bool:
    """Whether a value is an array of bytes."""
    return isinstance(value, np.ndarray) and value.dtype == _BYTE


def _words(value: object) -> str:
    """A value that should have been another one, in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"


def same_bytes(one: bytearray, other: Bytes) -> bool:
    """Whether these bytes are equal."""
    return Known(one).equals(other)


class Known:
    """Bytes that others are compared with, again and again.

    A `bytearray` compares itself with a `memoryview` by memcmp, at a tenth of what it takes to
    call that by ctypes, or to have numpy compare arrays.

    Attributes:
        met: the array that was compared last; None: there was none.
    """

    def __init__(self, one: bytearray) -> None:
        self._one = one
        self.met: Bytes | None = None
        self._shown = memoryview(one)

    def equals(self, other: Bytes) -> bool:
        """Whether the other bytes are as many, and the same."""
        if other is not self.met:
            self.met = np.ascontiguousarray(other)  # a copy is nobody else's, so never met again
            self._shown = self.met.data
        return self._one == self._shown
