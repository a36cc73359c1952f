"""Ops on requests in a run: what a target is sent, and how its answers are judged."""

from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from kvexact.fuzz.features import features_of_answer
from kvexact.fuzz.rows import compare_arrays
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Bytes, Result, Rows
from kvexact.refmodel.answer import Answer
from kvexact.refmodel.answers import Inadmissible
from kvexact.refmodel.cache import Cache, Effect
from kvexact.refmodel.formats import is_state
from kvexact.refmodel.ops import Op, Read, Slot
from kvexact.refmodel.positions import ByteOp, WritePositions
from kvexact.refmodel.serving import Serving
from kvexact.refmodel.serving_bind import bind_request
from kvexact.refmodel.serving_ops import Attend, Compute, Store
from kvexact.refmodel.spec import Geometry


@dataclass(slots=True)
class Serve:
    """Requests of one run.

    Attributes:
        model: of the run's bytes.
        state: what is known of requests and blocks.
        answers: by op id, all so far.
    """

    model: Cache
    state: Serving = field(init=False)
    answers: dict[int, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.model.plan
        self.state = Serving(plan.geometry, plan.host_slots)

    def bind(self, op: Op) -> Op:
        """The op as the target is sent it; see `bind_request`."""
        return bind_request(op, self.state)

    def rows(self, op: Op) -> Rows | None:
        """What a `Compute` stores, group after group; None for other ops."""
        if type(op) is not Compute:
            return None
        hashes = self.state.hashes(op)
        unplaced = (Slot(0, 0),) * len(hashes)
        writes = [WritePositions(op.id, g, unplaced, hashes, 0) for g in self.state.groups]
        return tuple(
            of_set
            for write in writes
            for of_set in self.model.split_rows(write, self.model.positions(write))
        )

    def follow(self, op: Op, result: Result) -> list[ByteOp]:
        """Judge what a target answered.

        Returns:
            What it does to bytes.

        Raises:
            Wrong: it breaks a rule.
        """
        assert not isinstance(op, Attend)
        try:
            found = self.state.follow(op, result)  # type: ignore[arg-type]
        except Inadmissible as broken:
            raise Wrong("inadmissible", op, str(broken), broken.rule, broken.cause) from broken
        assert isinstance(result, Answer)
        self.answers[op.id] = result
        return found

    def attend(self, op: Attend, result: Result) -> Effect:
        """Compare what a target read.

        Raises:
            Wrong: these are other bytes.
        """
        effect = Effect(acted=False)
        want: list[Bytes] = []
        places: list[tuple[int, int]] = []
        for group, slots in enumerate(self.state.seen(op)):
            read = Read(op.id, group, slots)
            found = self.model.apply(read)
            assert found.rows is not None
            effect += found
            parts = self.model.split_rows(read, found.rows)
            want += parts
            places += [(group, layer_set) for layer_set in range(len(parts))]
        compare_arrays(op, tuple(want), places, result)
        return effect

    def features(self, op: Op) -> set[str]:
        """Names of what an op met, by its answer."""
        return features_of_answer(op, self.answers[op.id])


def can_serve(geometry: Geometry) -> bool:
    """Whether requests may be served from it: all its groups are of token pages."""
    return all(
        group.tokens_per_state == 1
        and not any(is_state(layers.page_format) for layers in group.layer_sets)
        for group in geometry.groups
    )


def has_acted(op: Op, answer: Answer, done: list[ByteOp]) -> bool:
    """Whether an answered op did something."""
    if isinstance(op, Compute):
        return answer.accepted and (bool(done) or op.sampled is not None)
    return bool(done) or not isinstance(op, Store)


def digest(answers: dict[int, Answer]) -> str:
    """Hex digits that name all answers of a run, in order.

    Two runs of a trace whose digests are equal had the same hits, victims and slots, so their bytes
    are equal, too.
    """
    return sha256(msgspec.json.encode(list(answers.items()))).hexdigest()
