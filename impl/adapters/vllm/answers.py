"""Answers to ops on requests, made of what a release's process says."""

from typing import Any

from kvexact.refmodel.answer import Answer
from kvexact.refmodel.ops import Job, Move


def answer_of(told: dict[str, Any]) -> Answer:
    """The same, of tuples; the fields of `Answer` by their names, without those not answered."""
    return Answer(**{name: _read(name, value) for name, value in told.items()})


def _read(name: str, value: Any) -> Any:
    if name in ("loads", "stores"):
        return tuple(Job(group, tuple(Move(*move) for move in moves)) for group, moves in value)
    return tuples(value)


def tuples(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
