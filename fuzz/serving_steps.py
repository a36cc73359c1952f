"""Draws one operation on requests from what the model knows of them."""

from collections.abc import Callable

from kvexact.fuzz.choose import Chooser, chance, pick, weighted
from kvexact.fuzz.family import Family
from kvexact.fuzz.run import Run
from kvexact.fuzz.steps import drawn_in_time, polled
from kvexact.refmodel.ops import Op
from kvexact.refmodel.requests import PREEMPTED, RUNNING, Request
from kvexact.refmodel.serving_ops import (
    Admit,
    Attend,
    Compute,
    Finish,
    Lookup,
    Mutate,
    Preempt,
    Readmit,
    Store,
)
from kvexact.refmodel.timed_ops import Fence, Poll, Step

#: So few different tokens that prompts meet by chance.
_TOKENS = 2
#: Requests that run at a time, and tokens of one, at most.
_RUNNING_MOST, _TOKENS_MOST = 3, 48
#: Token sequences that are remembered to draw prefixes from.
_REMEMBERED = 8
#: Kinds that need a request that runs.
_OF_RUNNING = frozenset({"compute", "finish", "preempt", "store", "attend"})


class ServingSteps:
    """Draws ops for one example.

    Args:
        run: an open one; only read.
    """

    def __init__(self, chooser: Chooser, family: Family, run: Run) -> None:
        self._state = state = run.serve.state
        self._jobs = run.names.jobs
        kinds = family.kinds(run.target.op_kinds)
        self._urn = [
            kind for kind, weight in family.weights.items() for _ in range(weight) if kind in kinds
        ]
        if run.target.is_async:
            self._urn += drawn_in_time(chooser)
        self._sizes = sorted(set(state.sizes))
        self._stored: dict[tuple[int, ...], None] = {}
        self._met: list[tuple[int, ...]] = []
        blocks = len(state.references)
        fitting = (n for n in range(_TOKENS_MOST) if self._blocks_of(n + 1) > blocks)
        self._longest = max(1, next(fitting, _TOKENS_MOST))

    def _blocks_of(self, tokens: int) -> int:
        return sum(-(-tokens // size) for size in self._state.sizes)

    def draw(self, chooser: Chooser, op_id: int) -> Op:
        """The next op."""
        kind = self._able(chooser, pick(chooser, self._urn))
        draw: Callable[[Chooser, int], Op] = getattr(self, f"_{kind}")
        return draw(chooser, op_id)

    def _able(self, chooser: Chooser, kind: str) -> str:
        """The kind itself, or one that makes way for it where it has nothing to act on."""
        running, preempted = self._in(RUNNING), self._in(PREEMPTED)
        if kind == "poll" and not self._jobs:
            kind = "store"
        if kind == "readmit" and not preempted:
            kind = "preempt"
        if kind in _OF_RUNNING and not running:
            kind = "readmit" if preempted and chance(chooser, 50) else "admit"
        if kind == "admit" and len(running) >= _RUNNING_MOST:
            kind = "compute"
        if kind == "compute" and not self._has_room(running) and chance(chooser, 80):
            kind = pick(chooser, ("finish", "preempt", "store"))
        if kind == "store" and not self._storing(running) and chance(chooser, 80):
            kind = pick(chooser, ("finish", "compute"))
        return kind

    def _storing(self, running: list[Request]) -> list[Request]:
        """Requests with committed blocks that the host tier lacks."""
        held = self._state.in_host().keys()
        return [request for request in running if self._state.committed(request) - held]

    def _has_room(self, running: list[Request]) -> bool:
        """Whether any request may take blocks for one more token."""
        return not all(self._lacks(request, 1) for request in running)

    def _in(self, state: str) -> list[Request]:
        return [request for request in self._state.requests.values() if request.state == state]

    def _request(self, chooser: Chooser) -> Request:
        return pick(chooser, self._in(RUNNING))

    def _admit(self, chooser: Chooser, op_id: int) -> Op:
        return Admit(op_id, self._prompt(chooser))

    def _lookup(self, chooser: Chooser, op_id: int) -> Op:
        return Lookup(op_id, self._prompt(chooser))

    def _readmit(self, chooser: Chooser, op_id: int) -> Op:
        return Readmit(op_id, pick(chooser, self._in(PREEMPTED)).id)

    def _compute(self, chooser: Chooser, op_id: int) -> Op:
        request = self._request(chooser)
        left = len(request.known) - request.computed
        if len(request.known) >= self._longest + 2 and not left:
            return Finish(op_id, request.id)
        count = left
        if left > 1 and chance(chooser, 60):
            end = self._length(chooser, len(request.known))
            count = max(1, min(left, end - request.computed))
        while count > 1 and self._lacks(request, count) and chance(chooser, 95):
            count -= 1
        if count < left:
            return Compute(op_id, request.id, count)
        drafts = self._tokens(chooser, 1 + chooser.below(4)) if chance(chooser, 35) else ()
        accepted = chooser.below(len(drafts) + 1)
        sampled = chooser.below(_TOKENS) if chance(chooser, 75) else None
        self._meet(request.known + drafts)
        return Compute(op_id, request.id, count, drafts, accepted, sampled)

    def _lacks(self, request: Request, count: int) -> bool:
        """Whether so many tokens find no room without a drop."""
        needed = sum(self._state.needed(request, request.computed + count))
        return needed > self._state.free[0]

    def _finish(self, chooser: Chooser, op_id: int) -> Op:
        return Finish(op_id, self._request(chooser).id)

    def _preempt(self, chooser: Chooser, op_id: int) -> Op:
        return Preempt(op_id, self._request(chooser).id)

    def _store(self, chooser: Chooser, op_id: int) -> Op:
        running = self._in(RUNNING)
        return Store(op_id, pick(chooser, self._storing(running) or running).id)

    def _attend(self, chooser: Chooser, op_id: int) -> Op:
        return Attend(op_id, self._request(chooser).id)

    def _mutate(self, _chooser: Chooser, op_id: int) -> Op:
        return Mutate(op_id, op_id)

    def _fence(self, _chooser: Chooser, op_id: int) -> Op:
        return Fence(op_id)

    def _step(self, _chooser: Chooser, op_id: int) -> Op:
        return Step(op_id)

    def _poll(self, chooser: Chooser, op_id: int) -> Op:
        return Poll(op_id, polled(chooser, self._jobs))

    def _prompt(self, chooser: Chooser) -> tuple[int, ...]:
        """Mostly a prefix of what was met before, then a few tokens; or tokens alone."""
        for key in self._state.in_host():
            self._stored.pop(key.tokens, None)
            self._stored[key.tokens] = None
        stored = list(self._stored)[-_REMEMBERED:]
        in_pool = {key.tokens for key in self._state.keys.values()}
        lost = [tokens for tokens in stored if tokens not in in_pool]
        known = [request.known for request in self._state.requests.values()]
        tokens: tuple[int, ...] = ()
        kinds = [kind for kind in (self._met, known[-_REMEMBERED:], stored, lost) if kind]
        if kinds and not chance(chooser, 10):
            tokens = pick(chooser, pick(chooser, kinds))
            if chance(chooser, 40):
                tokens = tokens[: self._length(chooser, len(tokens))]
        length = self._length(chooser, self._longest)
        if len(tokens) >= length:
            length = len(tokens) + (chooser.below(3) if chance(chooser, 75) else 0)
        tokens += self._tokens(chooser, max(length - len(tokens), not tokens))
        if len(tokens) > 1 and chance(chooser, 10):  # a key tells in which order its tokens come
            first = chooser.below(len(tokens) - 1)
            pair = tokens[first : first + 2]
            tokens = (*tokens[:first], *pair[::-1], *tokens[first + 2 :])
        if chance(chooser, 75):
            self._meet(tokens)
        return tokens[: self._longest + 1]

    def _length(self, chooser: Chooser, most: int) -> int:
        """A number of tokens up to ``most``: mostly at the end of a block, or one beside it."""
        if chance(chooser, 20):
            return 1 + chooser.below(max(1, most))
        size = pick(chooser, self._sizes)
        length = size * (1 + chooser.below(max(1, most // size))) + weighted(chooser, (2, 3, 2)) - 1
        return max(1, min(length, most))

    def _tokens(self, chooser: Chooser, count: int) -> tuple[int, ...]:
        return tuple([chooser.below(_TOKENS) for _ in range(count)])

    def _meet(self, tokens: tuple[int, ...]) -> None:
        """Remember tokens that a later prompt may begin with."""
        self._met.append(tokens)
        del self._met[:-_REMEMBERED]
