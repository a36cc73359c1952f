"""Which bytes are settled while work is pending; docs/time.md has the rule.

The model itself is sequential: it does each op at once. What it adds for a target whose work may be
pending is which bytes may not be looked at yet, and, where it is asked for, who wrote each of them.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.cache import Cache, Effect, Words, in_words
from kvexact.refmodel.content import Bytes
from kvexact.refmodel.layout import Mask
from kvexact.refmodel.ops import Offload, Op, Reset, Restore
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import ByteOp
from kvexact.refmodel.serving_ops import Mutate
from kvexact.refmodel.timed_ops import Fence, Poll, Step

_TIMED = frozenset({Fence, Step, Poll})
_TRANSFERS = frozenset({Offload, Restore})
#: Ops that are fences of their own: bytes are mutated through `load`.
_FENCES = frozenset({Reset, Mutate})


class Ordered(Cache):
    """A model that knows what of it a target may not have done yet.

    Attributes:
        unsettled: per area, which bytes may still be another value in a target.
        jobs: ids of the transfers so far; True: done, as a fence or a poll said.
        begun: those since the last fence.
        pending: whether anything was begun since the last fence.
        reused: whether the last op stored or moved bytes that were unsettled before it.
    """

    def __init__(self, planned: Plan) -> None:
        super().__init__(planned)
        self.unsettled: dict[str, Mask] = {
            area: np.zeros(data.size, np.bool_) for area, data in self.areas.items()
        }
        #: The same in words, and one word of either kind.
        self._masks: dict[tuple[str, int], Words] = {}
        self._flags: dict[int, tuple[Words, Words]] = {}
        for area, word in self._memory:
            self._masks[area, word] = in_words(self.unsettled[area].view(np.uint8), word)
            settled, unsettled = np.arange(2, dtype=np.uint8).repeat(word).reshape(2, word)
            self._flags[word] = in_words(settled, word), in_words(unsettled, word)
        self.jobs: dict[int, bool] = {}
        self.begun: set[int] = set()
        self.pending = self.reused = False
        self._op_id = -1
        #: Of what was stored since the last fence, op, area, word and places.
        self._since: list[tuple[int, str, int, Addresses]] = []

    def refusal(self, op: Op) -> str | None:
        """See `Cache`; an op in time is never refused."""
        return None if type(op) in _TIMED else super().refusal(op)

    def apply(self, op: ByteOp) -> Effect:
        """See `Cache`; of ops in time those act that find something begun and not known done."""
        self._op_id = op.id
        self.reused = False
        if type(op) in _TIMED:
            return self._pass_time(op)
        if type(op) in _TRANSFERS:
            self.jobs[op.id], self.pending = False, True
            self.begun.add(op.id)
        effect = super().apply(op)
        if type(op) in _FENCES:
            self.fence()
        return effect

    def _pass_time(self, op: ByteOp) -> Effect:
        if isinstance(op, Poll):
            return Effect(not self.jobs[op.job])
        pending = self.pending
        if type(op) is Fence:
            self.fence()
        return Effect(pending)

    def fence(self) -> None:
        """All work is done: every byte is settled."""
        for mask in self.unsettled.values():
            mask[:] = False
        self.jobs |= dict.fromkeys(self.begun, True)
        self.begun.clear()
        self._since.clear()
        self.pending = False

    def settle(self, job: int) -> None:
        """A transfer is done: the bytes that it stored last are settled."""
        if self.jobs[job]:
            return
        self.jobs[job] = True
        areas: set[str] = set()  # where it stored something, and others may have since
        for op_id, area, word, places in self._since:
            if op_id == job:
                areas.add(area)
            if area in areas:
                self._mark(area, word, places, unsettled=not self.jobs.get(op_id, False))

    def _load(self, area: str, word: int, places: Addresses) -> Bytes:
        self._meet(area, word, places)
        return super()._load(area, word, places)

    def _store(self, area: str, word: int, places: Addresses, data: Bytes) -> Effect:
        self._meet(area, word, places)
        self._mark(area, word, places, unsettled=True)
        self._since.append((self._op_id, area, word, places))
        self.pending |= places.size > 0
        return super()._store(area, word, places, data)

    def _mark(self, area: str, word: int, places: Addresses, *, unsettled: bool) -> None:
        """Note of bytes whether they are settled; to spread one word takes an index longer."""
        self._masks[area, word].put(places, self._flags[word][unsettled])

    def _meet(self, area: str, word: int, places: Addresses) -> None:
        """Note whether some of the bytes that an op uses are unsettled."""
        if self.pending and not self.reused:
            self.reused = 1 in self._masks[area, word][places].tobytes()


class Writers(Ordered):
    """The same, and for each byte of an area the id of the op that stored it last; -1: none did."""

    def __init__(self, planned: Plan) -> None:
        super().__init__(planned)
        self.writers: dict[str, npt.NDArray[np.int64]] = {
            area: np.full(data.size, -1, np.int64) for area, data in self.areas.items()
        }

    @classmethod
    def after(cls, planned: Plan, ops: Sequence[ByteOp]) -> "Writers":
        """A model that did these ops."""
        model = cls(planned)
        for op in ops:
            model.apply(op)
        return model

    def _store(self, area: str, word: int, places: Addresses, data: Bytes) -> Effect:
        writers = np.full(word, self._op_id).view(np.uint8)
        in_words(self.writers[area].view(np.uint8), 8 * word)[places] = in_words(writers, 8 * word)
        return super()._store(area, word, places, data)
