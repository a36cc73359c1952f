"""Stores that are submitted when the next op begins, as engines do from step to step."""

from typing import NamedTuple

from kvexact.impl.engine.cache import Cache
from kvexact.impl.engine.manager import Manager
from kvexact.refmodel.ops import Offload, Op


class Waiting(NamedTuple):
    """A store that was accepted, and the request whose blocks it copies."""

    request: int
    store: Offload


class DeferringManager(Manager):
    """Nothing comes between a store and the op at whose beginning it is submitted."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self.waiting: list[Waiting] = []

    def submit(self, request: int, store: Offload) -> None:
        """See `Manager`."""
        self.waiting.append(Waiting(request, store))

    def before(self, op: Op | None) -> None:
        """See `Manager`."""
        due = self.due(op)
        self.waiting = [one for one in self.waiting if one not in due]
        for _, store in due:
            self.cache.order.begin(store.id)
            self.send(store)

    # Decisions.

    def due(self, op: Op | None) -> list[Waiting]:  # noqa: ARG002
        """What is submitted before an op."""
        return self.waiting

    def send(self, store: Offload) -> None:
        """Submit a store, whose blocks still belong to its request."""
        self.cache.offload(store, None)
