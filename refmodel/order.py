"""Which bytes are settled while work is pending; docs/time.md has the rule.

The model itself is sequential: it does each op at once. What it adds for a target whose work may be
pending is which bytes may not be looked at yet, and, where it is asked for, who wrote each of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.cache import Cache, Effect, Words, in_words
from kvexact.refmodel.content import Bytes
from kvexact.refmodel.ops import Offload, Reset, Restore
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import ByteOp
from kvexact.refmodel.serving_ops import Mutate
from kvexact.refmodel.timed_ops import Fence, Poll, Step

#: The mark of an unsettled byte: all bits.
UNSETTLED = 255


class _Marks(NamedTuple):
    """Of an area which bytes are unsettled, in words of one size; and one word of either kind.

    And the area itself, blurred by them.
    """

    words: Words
    settled: Words
    unsettled: Words
    blurred: Words


class Ordered(Cache):
    """A model that knows what of it a target may not have done yet.

    Attributes:
        unsettled: per area and byte `UNSETTLED` where it may still be another value in a target,
            else 0; so one `or` with the marks allows for all that may differ.
        blurred: per area its bytes `or` these marks, kept beside, as it is asked for far more
            often than it changes.
        jobs: ids of the transfers so far; True: done, as a fence or a poll said.
        begun: those since the last fence.
        pending: whether anything was begun since the last fence.
        reused: whether the last op stored or moved bytes that were unsettled before it.
    """

    def __init__(self, planned: Plan) -> None:
        super().__init__(planned)
        self.unsettled: dict[str, Bytes] = {
            area: np.zeros(data.size, np.uint8) for area, data in self.areas.items()
        }
        self.blurred: dict[str, Bytes] = {area: data.copy() for area, data in self.areas.items()}
        self._marks: dict[tuple[str, int], _Marks] = {}
        for area, word in self._memory:
            flags = in_words(np.array([0, UNSETTLED], np.uint8).repeat(word), word)
            words = in_words(self.unsettled[area], word)
            blurred = in_words(self.blurred[area], word)
            self._marks[area, word] = _Marks(words, flags[:1], flags[1:], blurred)
        self.jobs: dict[int, bool] = {}
        self.begun: set[int] = set()
        self.pending = self.reused = False
        self._op_id = -1
        #: Of what was stored since the last fence, op, area, word and places.
        self._since: list[tuple[int, str, int, Addresses]] = []

    def apply(self, op: ByteOp) -> Effect:
        """See `Cache`; of ops in time those act that find something begun and not known done."""
        self._op_id = op.id
        self.reused = False
        does = self._in_time.get(type(op))
        return does(self, op) if does else super().apply(op)

    def _begin(self, op: Offload | Restore) -> Effect:
        self.jobs[op.id], self.pending = False, True
        self.begun.add(op.id)
        return super().apply(op)

    def _end(self, op: Fence | Reset | Mutate) -> Effect:
        """A fence, or an op that is one beside: bytes are mutated through `load`."""
        effect = self._step(op) if type(op) is Fence else super().apply(op)
        self.fence()
        return effect

    def _step(self, _: Fence | Step) -> Effect:
        return Effect(self.pending)

    def _poll(self, op: Poll) -> Effect:
        return Effect(not self.jobs[op.job])

    def fence(self) -> None:
        """All work is done: every byte is settled."""
        for area, mask in self.unsettled.items():
            mask[:] = 0
            self.blurred[area][:] = self.areas[area]
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
                marks = self._marks[area, word]
                is_done = self.jobs.get(op_id, False)
                marks.words.put(places, marks.settled if is_done else marks.unsettled)
                data = self._memory[area, word][places] if is_done else marks.unsettled
                marks.blurred.put(places, data)

    def _load(self, area: str, word: int, places: Addresses) -> Bytes:
        self._meet(area, word, places)
        return super()._load(area, word, places)

    def _store(self, area: str, word: int, places: Addresses, data: Bytes) -> Effect:
        self._meet(area, word, places)
        marks = self._marks[area, word]
        marks.words.put(places, marks.unsettled)  # to spread one word takes an index longer
        marks.blurred.put(places, marks.unsettled)
        self._since.append((self._op_id, area, word, places))
        self.pending |= places.size > 0
        return super()._store(area, word, places, data)

    def _meet(self, area: str, word: int, places: Addresses) -> None:
        """Note whether some of the bytes that an op uses are unsettled."""
        if self.pending and not self.reused:
            self.reused = UNSETTLED in self._marks[area, word].words[places].tobytes()

    #: By type of an op, what does it, where it is more to time than to bytes.
    _in_time: ClassVar[dict[type[ByteOp], Callable[[Any, Any], Effect]]] = {
        **dict.fromkeys((Offload, Restore), _begin),
        **dict.fromkeys((Fence, Reset, Mutate), _end),
        Step: _step,
        Poll: _poll,
    }


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
