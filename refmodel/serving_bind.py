"""Binds ops on requests, clipped or found void, so that every sub-list of a trace is a trace."""

from dataclasses import replace

from kvexact.refmodel.ops import Dangling, Op
from kvexact.refmodel.requests import PREEMPTED, RUNNING, Requests
from kvexact.refmodel.serving_ops import (
    Admit,
    Attend,
    Compute,
    Finish,
    Lookup,
    Preempt,
    Readmit,
    Store,
)


def bind_request(op: Op, state: Requests) -> Op:
    """The op as a target is sent it.

    Raises:
        Dangling: it names no tokens, or a request that is not in the state that it needs.
    """
    match op:
        case Admit(tokens=()) | Lookup(tokens=()):
            raise Dangling("no tokens")
        case Readmit(request=name):
            _check(name, state, PREEMPTED)
        case Compute(request=name):
            _check(name, state, RUNNING)
            return _clipped(op, state)
        case (
            Finish(request=name)
            | Preempt(request=name)
            | Store(request=name)
            | Attend(request=name)
        ):
            _check(name, state, RUNNING)
    return op


def _check(name: int, state: Requests, wanted: str) -> None:
    request = state.requests.get(name)
    if request is None or request.state != wanted:
        raise Dangling(f"a{name} is not {wanted}")


def _clipped(op: Compute, state: Requests) -> Compute:
    request = state.requests[op.request]
    left = len(request.known) - request.computed
    count = min(max(op.count, 0), left)
    if count < left:
        return replace(op, count=count, drafts=(), accepted=0, sampled=None)
    return replace(op, count=count, accepted=min(max(op.accepted, 0), len(op.drafts)))
