"""A disagreement as a person reads it, and the signature by which two of them are the same."""

from dataclasses import dataclass
from typing import NamedTuple


class Signature(NamedTuple):
    """What makes two failures the same finding.

    Attributes:
        outcome: how it showed, e.g. "mismatch".
        op: the op kind, "open" or "close"; "pending": any op that was pending.
        difference: e.g. "lost", "shifted", "fact"; of what was pending, what stored these bytes
            last, e.g. "offload".
        field: the field, area, fact, reason or exception concerned.
    """

    outcome: str
    op: str
    difference: str
    field: str

    def __str__(self) -> str:
        return " / ".join(part for part in self if part)


@dataclass(frozen=True, slots=True)
class Failure:
    """A disagreement, explained.

    Attributes:
        lines: the message, without the line that says how to see it again.
        wrong_at: positions of wrong bytes in ``area``, with the bytes expected and found there.
        group: the owner of the first of them, where it has one.
        facts: (name, believed, expected) of the facts that differ and of the layer set concerned.
    """

    signature: Signature
    lines: tuple[str, ...]
    area: str = ""
    wrong_at: tuple[int, ...] = ()
    want: bytes = b""
    got: bytes = b""
    group: int | None = None
    facts: tuple[tuple[str, str, str], ...] = ()
