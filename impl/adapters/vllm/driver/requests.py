"""Requests: what the host tier holds is decided by a release's own offloading manager.

Blocks of the pool are given out here, and nothing is cached in it: every hit is the manager's. It
is called in the order in which the connector's scheduler calls it, and is told that a transfer has
ended one op late, as an engine tells it a step later; until then what it moves is in use.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from math import lcm
from typing import Any

from kvexact.impl.adapters.vllm.driver import release

Answer = dict[str, Any]
#: Of jobs: group, then moves (block, host slot, part).
Jobs = list[tuple[int, list[list[int]]]]


class VictimInUse(Exception):
    """The manager gave away a host slot that a transfer reads or writes."""


@dataclass
class Request:
    """A request, running or preempted.

    Attributes:
        context: how the manager is told of it.
        known: its tokens.
        computed: how many of them have keys and values.
        tables: the blocks of each group.
    """

    context: Any
    known: list[int]
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Transfer:
    """What was copied, and of whose."""

    keys: list[bytes]
    context: Any
    store: bool


class Requests:
    """Requests of one open geometry, with one block in a host slot.

    Args:
        manager: a release's, new.
        sizes: tokens of a block, by group.
        move: copies jobs to the host tier, or from it.
    """

    def __init__(
        self,
        manager: Any,
        sizes: list[int],
        blocks: int,
        slots: int,
        move: Callable[..., None],
    ) -> None:
        self._manager, self._sizes, self._slots, self._move = manager, sizes, slots, move
        self._unused = list(range(blocks))
        self._requests: dict[int, Request] = {}
        #: Where a key lies, as the manager said when it was stored.
        self._held: dict[bytes, int] = {}
        #: Transfers of this op, and of the one before it, that the manager believes to be running.
        self._begun: list[Transfer] = []
        self._running: list[Transfer] = []

    def admit(self, call: dict[str, Any]) -> Answer:
        """A new request, named by its op."""
        context = release.request_context(f"a{call['id']}")
        self._manager.on_new_request(context)
        self._requests[call["id"]] = request = Request(context, call["tokens"])
        return self._enter(request)

    def readmit(self, call: dict[str, Any]) -> Answer:
        return self._enter(self._requests[call["request"]])

    def lookup(self, call: dict[str, Any]) -> Answer:
        context = release.request_context(f"a{call['id']}")
        return self._answer(hit=self._hit(Request(context, call["tokens"])))

    def preempt(self, call: dict[str, Any]) -> Answer:
        return self._leave(self._requests[call["request"]])

    def finish(self, call: dict[str, Any]) -> Answer:
        request = self._requests.pop(call["request"])
        self._manager.on_request_finished(request.context)
        return self._leave(request)

    def extend(self, call: dict[str, Any]) -> Answer:
        """Blocks for the tokens of a compute, which then are known, where there is room."""
        request = self._requests[call["request"]]
        end = request.computed + call["count"] + len(call["drafts"])
        wanted = [
            max(0, -(-end // size) - len(table))
            for size, table in zip(self._sizes, request.tables, strict=True)
        ]
        if sum(wanted) > len(self._unused):
            return self._answer(accepted=False)
        taken = [self._take(count) for count in wanted]
        for table, blocks in zip(request.tables, taken, strict=True):
            table += blocks
        return self._answer(taken=taken, dropped=[[] for _ in taken])

    def learn(self, call: dict[str, Any]) -> None:
        """What is known and computed after a compute."""
        request = self._requests[call["request"]]
        request.known += call["drafts"][: call["accepted"]]
        request.computed += call["count"] + call["accepted"]
        if call["sampled"] is not None:
            request.known.append(call["sampled"])

    def store(self, call: dict[str, Any]) -> Answer:
        """Offer the manager all full blocks of a request."""
        request = self._requests[call["request"]]
        places = {
            key: (group, table[entry])
            for group, table in enumerate(request.tables)
            for entry, key in enumerate(self._keys(request, group, request.computed))
        }
        told = self._manager.prepare_store(list(places), request.context)
        if told is None:  # no room for them
            return self._answer(stores=[], evicted=[])
        self._check_victims(told.evicted_keys)
        evicted = [self._held.pop(key, -1) for key in told.evicted_keys]  # -1: was never stored
        slots = [int(slot) for slot in told.store_spec.block_ids]
        stored = dict(zip(told.keys_to_store, slots, strict=True))
        self._held |= stored
        moves = [(*places[key], slot) for key, slot in stored.items()]
        self._transfer(list(stored), moves, request.context, store=True)
        return self._answer(stores=_jobs(moves), evicted=evicted)

    def seen(self, name: int) -> int:
        """How many tokens of a request have keys and values."""
        return self._requests[name].computed

    def slots(self, name: int, group: int, positions: range) -> list[list[int] | None]:
        """Where positions of a request lie: block, token."""
        table, size = self._requests[name].tables[group], self._sizes[group]
        return [[table[position // size], position % size] for position in positions]

    def end_step(self) -> None:
        """After each op: the manager is told that transfers of the op before it have ended."""
        for one in self._running:
            tell = self._manager.complete_store if one.store else self._manager.complete_load
            tell(one.keys, one.context)
        self._running, self._begun = self._begun, []

    def _check_victims(self, keys: list[bytes]) -> None:
        busy = {key for one in self._running for key in one.keys}.intersection(keys)
        if busy:
            slots = sorted(self._held[key] for key in busy)
            raise VictimInUse(f"host slots {slots} were given away while a transfer uses them")

    def _enter(self, request: Request) -> Answer:
        """Load the longest prefix that the manager has and for which there is room."""
        hit = self._hit(request)
        step = lcm(*self._sizes)
        while sum(hit // size for size in self._sizes) > len(self._unused):
            hit -= step
        request.computed = hit
        request.tables = [self._take(hit // size) for size in self._sizes]
        keys = [
            (group, table[entry], key)
            for group, table in enumerate(request.tables)
            for entry, key in enumerate(self._keys(request, group, hit))
        ]
        moves: list[tuple[int, int, int]] = []
        if keys:
            wanted = [key for _, _, key in keys]
            self._manager.touch(wanted, request.context)
            slots = self._manager.prepare_load(wanted, request.context).block_ids
            moves = [(g, b, int(slot)) for (g, b, _), slot in zip(keys, slots, strict=True)]
            self._transfer(wanted, moves, request.context, store=False)
        tables = [list(table) for table in request.tables]
        return self._answer(hit=hit, tables=tables, loads=_jobs(moves))

    def _hit(self, request: Request) -> int:
        """Tokens of the longest prefix that the manager has in every group; never all of them."""
        found = len(request.known) - 1
        for group, size in enumerate(self._sizes):
            entries = 0
            for key in self._keys(request, group, found):
                if not release.is_hit(self._manager.lookup(key, request.context)):
                    break
                entries += 1
            found = min(found, entries * size)
        return found - found % lcm(*self._sizes)

    def _keys(self, request: Request, group: int, count: int) -> Iterator[bytes]:
        """Keys of the blocks that are full with the first so many tokens of a request."""
        size = self._sizes[group]
        for end in range(size, count + 1, size):
            digest = sha256(bytes(str(request.known[:end]), "ascii")).digest()
            yield release.offload_key(request.context, digest, group, end)

    def _transfer(
        self, keys: list[bytes], moves: list[tuple[int, int, int]], context: Any, *, store: bool
    ) -> None:
        if moves:
            self._move(_jobs(moves), store=store)
        self._begun.append(Transfer(keys, context, store))

    def _leave(self, request: Request) -> Answer:
        for table in request.tables:
            self._unused += reversed(table)
        request.tables, request.computed = [], 0
        return self._answer()

    def _take(self, count: int) -> list[int]:
        taken, self._unused = self._unused[:count], self._unused[count:]
        return taken

    def _answer(self, **decided: Any) -> Answer:
        return {"free": [len(self._unused), self._slots - len(self._held)], **decided}


def _jobs(moves: list[tuple[int, int, int]]) -> Jobs:
    """Moves (group, block, host slot) as jobs, a group after the other."""
    return [
        (group, [[block, slot, 0] for _, block, slot in of_group])
        for group, of_group in groupby(moves, key=lambda move: move[0])
    ]
