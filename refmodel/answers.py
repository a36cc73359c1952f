"""The shape of an answer: what its op answers and nothing else, and names of what exists."""

from collections.abc import Iterable
from dataclasses import fields

from kvexact.refmodel.answer import HOLE, Answer
from kvexact.refmodel.ops import Job, Move, Op
from kvexact.refmodel.requests import Requests
from kvexact.refmodel.serving_ops import Admit, Compute, Finish, Lookup, Preempt, Readmit, Store

#: What each op answers besides `free`.
ANSWERED: dict[type[Op], tuple[str, ...]] = {
    Admit: ("hit", "tables", "loads"),
    Readmit: ("hit", "tables", "loads"),
    Compute: ("accepted", "taken", "dropped"),
    Finish: (),
    Preempt: (),
    Store: ("stores", "evicted"),
    Lookup: ("hit",),
}


class Inadmissible(Exception):
    """An answer that breaks a rule of docs/serving.md.

    Attributes:
        rule: its name there.
        text: one line that names the value and the rule.
        cause: what makes it so, in a word or two, such as "rejected".
    """

    def __init__(self, rule: str, text: str, cause: str = "") -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text
        self.cause = cause


def check_shape(state: Requests, op: Op, answer: object) -> Answer:
    """The answer, if it has a sound shape.

    Raises:
        Inadmissible: it has not.
    """
    if not isinstance(answer, Answer):
        text = f"the target returned {in_short(answer)}; an op on requests returns an Answer"
        text += " of plain ints, bools and tuples"
        raise Inadmissible("shape", text, "type")
    if not (_are_ints(answer.free) and len(answer.free) == 2):
        raise _bad("free", answer.free, "a tuple of two ints")
    told = ("accepted",) if answer.accepted is False else ANSWERED[type(op)]
    for item in fields(Answer):
        value = getattr(answer, item.name)
        is_default = type(value) is type(item.default) and value == item.default
        if item.name in told:
            _check(state, item.name, value)
        elif item.name != "free" and not is_default:
            text = f"{item.name} is {in_short(value)}; this op answers"
            raise Inadmissible("shape", f"{text} {', '.join((*told, 'free'))} only", item.name)
    if answer.accepted is False and type(op) is not Compute:
        text = "accepted is False, but a hit of 0 needs no block; only a compute finds no room"
        raise Inadmissible("room", text)
    return answer


def _check(state: Requests, name: str, value: object) -> None:
    """Check a field that an op answers."""
    blocks, groups = range(len(state.references)), len(state.groups)
    if name == "accepted" and type(value) is not bool:
        raise _bad(name, value, "True or False")
    if name == "hit" and type(value) is not int:
        raise _bad(name, value, "an int")
    if name == "evicted" and not _are_ints(value, range(state.host_slots)):
        raise _bad(name, value, f"a tuple of host slots, 0 to {state.host_slots - 1}")
    if name in ("tables", "taken", "dropped"):
        known = {"tables": range(HOLE, blocks.stop), "taken": blocks}.get(name)
        sound = type(value) is tuple and len(value) == groups
        if not (sound and all(_are_ints(of_group, known) for of_group in _items(value))):
            least = "HOLE or " if name == "tables" else ""
            what = "entries" if name == "dropped" else f"{least}blocks, 0 to {blocks.stop - 1}"
            raise _bad(name, value, f"for each of {groups} groups a tuple of {what}")
    if name in ("loads", "stores"):
        sound = type(value) is tuple and all(_is_job(state, job) for job in _items(value))
        if not sound:
            raise _bad(name, value, "a tuple of Jobs whose Moves name what exists")


def _is_job(state: Requests, job: object) -> bool:
    if type(job) is not Job or type(job.moves) is not tuple or not _are_ints((job.group,)):
        return False
    if job.group not in state.groups or any(type(move) is not Move for move in job.moves):
        return False
    return (
        _are_ints(tuple(move.block for move in job.moves), range(len(state.references)))
        and _are_ints(tuple(move.host_slot for move in job.moves), range(state.host_slots))
        and _are_ints(tuple(move.part for move in job.moves), range(state.chunk_blocks))
    )


def _are_ints(value: object, known: range | None = None) -> bool:
    """Whether it is a tuple of ints, all of them known."""
    if type(value) is not tuple:
        return False
    return all(type(item) is int and (known is None or item in known) for item in value)


def _items(value: object) -> Iterable[object]:
    assert type(value) is tuple
    return value


def _bad(name: str, value: object, wanted: str) -> Inadmissible:
    return Inadmissible("shape", f"{name} is {in_short(value)}; it must be {wanted}", name)


def in_short(value: object) -> str:
    """How a value that may be anything shows itself, in a line; else its type."""
    try:
        return " ".join(f"{value!r:.80}".split())
    except Exception:  # noqa: BLE001 - a target's own code may raise anything
        return f"a {type(value).__name__} that cannot show itself"
