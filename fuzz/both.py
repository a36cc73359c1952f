"""Model and target, open on one geometry: one op in both, everything compared after it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvexact.fuzz.areas import Areas
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.features import AT_FENCE, REUSE, features_of_op
from kvexact.fuzz.names import Names
from kvexact.fuzz.rows import compare_rows, rows_for
from kvexact.fuzz.serve import Serve, can_serve, has_acted
from kvexact.fuzz.timed import END, take_answer
from kvexact.fuzz.wrong import Wrong, raised_by, said, verdicts_differ
from kvexact.impl.target import Result, Rows, Target
from kvexact.refmodel.answers import in_short
from kvexact.refmodel.cache import Cache, Effect
from kvexact.refmodel.ops import (
    BLOCK_OPS,
    SERVING_OPS,
    TIMED_OPS,
    CopyBlocks,
    Dangling,
    Free,
    Op,
    Read,
    ReadValues,
    WriteTokens,
    WriteValues,
)
from kvexact.refmodel.order import Ordered
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import ByteOp
from kvexact.refmodel.serving_ops import Attend, Mutate
from kvexact.refmodel.spec import Refused
from kvexact.refmodel.timed_ops import Fence, Poll

_WRITES = (WriteTokens, WriteValues)
_READS = (Read, ReadValues)
#: Ops on blocks, and in time, that have a result.
_WITH_RESULT = (Read, ReadValues, Poll)
#: What ops are on, by kind: a run has ops on blocks or on requests; ops in time go with both.
_SORTS = {
    **dict.fromkeys(BLOCK_OPS, "blocks"),
    **dict.fromkeys(SERVING_OPS, "requests"),
    **dict.fromkeys(TIMED_OPS, ""),
}


@dataclass(slots=True)
class Both:
    """A model and a target that were opened; `step` runs ops in both.

    Attributes:
        applied: what the model of bytes did.
        areas: compares the bytes of both.
        serve: its requests.
    """

    target: Target
    plan: Plan
    counts: Counts
    applied: list[ByteOp] = field(default_factory=list)
    model: Cache = field(init=False)
    names: Names = field(init=False)
    areas: Areas = field(init=False)
    serve: Serve = field(init=False)
    _sort: str = ""
    _restored: bool = False
    _acted: str = "open"

    def __post_init__(self) -> None:
        self.model = Ordered(self.plan) if self.target.is_async else Cache(self.plan)
        self.names = Names([{} for _ in self.plan.geometry.groups])
        self.areas = Areas(self.target, self.model, self.counts)
        self.serve = Serve(self.model)

    def begin(self) -> None:
        """Give all areas their first bytes.

        Raises:
            Wrong: they are not the target's then.
        """
        self.areas.poison()
        self.areas.compare(None)

    def step(self, op: Op, kind: str) -> str:
        """Run one op in both.

        Returns:
            What happened: "acted", "no-op", "refused:<reason>", "dangling" or "unsent".

        Raises:
            Wrong: they disagree.
        """
        if type(op) is Mutate:
            return self._mutate(op)
        if kind not in self.target.op_kinds:
            return "unsent"
        sort = _SORTS[kind]
        self._sort = self._sort or sort
        if sort not in ("", self._sort):
            return "dangling"
        if sort == "requests":
            return self._serve(op, kind)
        try:
            bound = self.names.bind(op)
        except Dangling:
            return "dangling"
        predicted = self.model.refusal(bound)
        if not self._sent(bound, predicted):
            return "unsent"
        rows = None
        if isinstance(bound, _WRITES):
            rows = rows_for(self.model, bound, predicted)
        read = self._apply(bound, rows, predicted)
        if predicted is not None:
            self.areas.compare(bound)
            return f"refused:{predicted}"
        if read is not None and not isinstance(bound, _WITH_RESULT):
            text = f"this op has no result; it must return None, not {in_short(read)}"
            raise Wrong("rows", bound, text, None, read)
        self.areas.adopt_free(bound, (bound,))
        effect = self._change((bound,))
        if self.target.is_async:
            self._follow_time(bound, read)
        if isinstance(bound, _READS):
            assert effect.rows is not None
            self.counts.compared_bytes += effect.rows.size
            compare_rows(self.model, bound, effect.rows, read)
        self.areas.compare(bound)
        self.names.follow(bound)
        for name in features_of_op(bound):
            self.counts.features[name] += 1
        self._note(kind, effect.changed_bytes, acted=effect.acted)
        return "acted" if effect.acted else "no-op"

    def _serve(self, op: Op, kind: str) -> str:
        """Run an op on requests."""
        if not can_serve(self.plan.geometry):
            return "unsent"
        try:
            bound = self.serve.bind(op)
        except Dangling:
            return "dangling"
        result = self._apply(bound, self.serve.rows(bound), None)
        if isinstance(bound, Attend):
            effect = self.serve.attend(bound, result)
            self.applied.append(Read(bound.id, 0, ()))
            self.counts.compared_bytes += effect.content_bytes
            acted = effect.acted
        else:
            in_bytes = self.serve.follow(bound, result)
            self.areas.adopt_free(bound, in_bytes)
            effect = self._change(in_bytes or (Free(bound.id, 0, ()),))
            for one in in_bytes:
                self.names.follow(one)
            acted = has_acted(bound, self.serve.answers[bound.id], in_bytes)
            self.counts.features.update(self.serve.features(bound))
        if self.target.is_async:
            self._follow_time(bound, result)
        self.areas.compare(bound)
        self._note(kind, effect.changed_bytes, acted=acted)
        return "acted" if acted else "no-op"

    def _mutate(self, op: Mutate) -> str:
        """Change undefined bytes in the model and in the target."""
        if "pool" not in self.target.declared:
            return "unsent"
        if isinstance(self.model, Ordered):
            self.step(Fence(END), "fence")  # what is pending shows before it is overwritten
        effect = self._change((op,))
        self.areas.load("pool", op)
        self.areas.compare(op)
        self._note("mutate", effect.changed_bytes, acted=effect.acted)
        return "acted" if effect.acted else "no-op"

    def _sent(self, op: Op, predicted: str | None) -> bool:
        """Whether the target has what this op needs, and promises what must come of it."""
        target = self.target
        if predicted is not None and predicted not in target.op_refusals:
            return False
        return target.copies_slots or not isinstance(op, CopyBlocks) or op.tokens is None

    def _apply(self, op: Op, rows: Rows | None, predicted: str | None) -> Result:
        """Send an op to the target and compare the verdict."""
        reason, text, read = None, "", None
        try:
            read = self.target.apply(op, rows)
        except Refused as refusal:
            reason, text = said(refusal.reason), said(refusal.text)
        except BaseException as error:
            raise raised_by(self.target, error, op) from error
        if reason != predicted:
            raise verdicts_differ("op", op, predicted, reason, text)
        return read

    def _change(self, in_bytes: Sequence[ByteOp]) -> Effect:
        """Have the model do what an op does to bytes."""
        self.applied += in_bytes
        effect = self.model.apply(in_bytes[0])
        for one in in_bytes[1:]:
            effect += self.model.apply(one)
        return effect

    def _follow_time(self, op: Op, answer: Result) -> None:
        """Take the answer to a poll; count what an op met while bytes were to come."""
        assert isinstance(self.model, Ordered)
        if isinstance(op, Poll):
            take_answer(self.model, op, answer, self.counts)
        if self.areas.to_come and (isinstance(op, Fence) or self.model.reused):
            self.counts.features[AT_FENCE if isinstance(op, Fence) else REUSE] += 1

    def _note(self, kind: str, changed_bytes: int, *, acted: bool) -> None:
        """Count what an accepted op did."""
        self.counts.changed_bytes[kind] += changed_bytes
        if acted:
            self.counts.pairs[self._acted, kind] += 1
            self._acted = kind
        if kind == "restore" and changed_bytes and not self._restored:
            self._restored = True
            self.counts.restoring += 1

    def end(self) -> None:
        """The fence that ends each run of an asynchronous target, and the polls behind it.

        Raises:
            Wrong: they disagree.
        """
        if isinstance(self.model, Ordered):
            open_jobs = [job for job, is_done in self.model.jobs.items() if not is_done]
            self.step(Fence(END), "fence")
            for job in open_jobs:
                self._poll_behind(self.model, Poll(END, job))

    def _poll_behind(self, model: Ordered, op: Poll) -> None:
        """Poll behind the last fence: the model has nothing to do, and nothing is to come."""
        self.applied.append(op)
        take_answer(model, op, self._apply(op, None, None), self.counts)
        self.areas.compare(op)
