"""One trace, executed: model and target side by side, everything compared after every op."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kvexact.fuzz.counts import Counts
from kvexact.fuzz.features import features_of, features_of_op
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.names import Names
from kvexact.fuzz.sizes import storage_bytes
from kvexact.impl.target import (
    Area,
    Bytes,
    DeviceLost,
    Facts,
    OutOfBounds,
    Rows,
    Target,
    Unavailable,
)
from kvexact.refmodel.cache import Cache, Effect
from kvexact.refmodel.facts import FactValue, facts
from kvexact.refmodel.free import PADDINGS
from kvexact.refmodel.ops import (
    KIND_OF,
    Allocate,
    CopyBlocks,
    Dangling,
    Free,
    Offload,
    Op,
    Read,
    ReadValues,
    Reset,
    WriteTokens,
    WriteValues,
    bind,
    block_id,
)
from kvexact.refmodel.plan import Plan, plan
from kvexact.refmodel.spec import Geometry, LayerSet, Refused

#: A geometry that takes more memory is only planned where a trace has no ops.
_ON_PAPER_BYTES = 64 * 1024 * 1024

Outcome = Literal[
    "mismatch", "rows", "fact", "refusal", "exception", "out_of_bounds", "device_lost"
]


_COPIED_BYTES = 32 * 1024
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(eq=False)
class Wrong(Exception):
    """Model and target disagree.

    Attributes:
        outcome: how it showed.
        op: the op after which it showed, blocks bound to ids; None: when the geometry was opened.
        text: one line for a person.
        want, got: what disagrees: reasons, fact values, or bytes.
        area: the area whose bytes differ.
        name: the fact's name, or the exception's type.
    """

    outcome: Outcome
    op: Op | None
    text: str
    want: object = None
    got: object = None
    area: str = ""
    name: str = ""


@dataclass(slots=True)
class Run:
    """One geometry, opened in the model and in a target; `step` runs ops in both.

    Attributes:
        done: ops that ran, with their handles.
        recorded: what happened to each of them, as a trace records it.
        facts: what the target believes.
        journal: notes geometry and ops before they run.
    """

    target: Target
    geometry: Geometry
    counts: Counts = field(default_factory=Counts)
    journal: Journal | None = None
    done: list[Op] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)
    plan: Plan | None = None
    model: Cache = field(init=False)
    names: Names = field(init=False)
    _claimed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _restored: bool = False
    _areas: tuple[Area, ...] = ()

    def open(self) -> bool:
        """Open the geometry in both. True: both accept it, and `step` may follow.

        Raises:
            Wrong: the verdicts, the reasons or the facts differ.
        """
        accepted = self._compare_plans(self.target.open)
        if accepted:
            assert self.plan is not None
            self.model = Cache(self.plan)
            self.names = Names([{} for _ in self.geometry.groups])
            self._areas = tuple(sorted(self.target.declared))
            for area in self._areas:
                self._poison(area)
            self._compare_areas(None)
        return accepted

    def plan_only(self) -> bool:
        """Compare verdicts and facts without memory. True: both accept the geometry."""
        return self._compare_plans(self.target.plan)

    def _compare_plans(self, ask: Callable[[Geometry], Facts]) -> bool:
        if self.journal:
            self.journal.begin(self.geometry)
        predicted = None
        try:
            self.plan = plan(self.geometry)
        except Refused as refusal:
            predicted = refusal.reason
        if predicted is not None and predicted not in self.target.geometry_refusals:
            return self._verdict("unsent", accepted=False)
        refused, answer = None, None
        try:
            answer = ask(self.geometry)
        except Refused as refusal:
            refused = refusal
        except Exception as error:
            raise self._raised(error, None) from error
        if refused is None:
            self.facts = _as_facts(answer)
        if refused is not None and predicted is None and refused.reason in self.target.may_refuse:
            return self._verdict(f"declined:{refused.reason}", accepted=False)
        self._compare_verdicts(predicted, refused)
        if predicted is not None:
            return self._verdict(f"refused:{predicted}", accepted=False)
        assert self.plan is not None
        self._compare_facts(facts(self.plan))
        self.counts.features.update(features_of(self.plan))
        return self._verdict("accepted", accepted=True)

    def _verdict(self, name: str, *, accepted: bool) -> bool:
        self.counts.geometries[name] += 1
        return accepted

    def _compare_verdicts(self, predicted: str | None, refused: Refused | None) -> None:
        reason = refused.reason if refused else None
        if reason != predicted:
            text = (
                f"the model {_verdict(predicted)} this geometry, the target {_verdict(reason)} it"
            )
            if refused:
                text += f" ({refused.text})"
            raise Wrong("refusal", None, text, predicted, reason)

    def _compare_facts(self, expected: dict[str, FactValue]) -> None:
        for name, want in expected.items():
            if name not in self.facts:
                self.counts.unchecked[name] += 1
                continue
            self.counts.facts += 1
            got: object = self.facts[name]
            if not isinstance(got, int | tuple) or got != want:
                raise Wrong("fact", None, f"fact {name} is {got}, not {want}", want, got, name=name)

    def step(self, op: Op) -> str:
        """Run one op in both.

        Returns:
            What happened: "acted", "no-op", "refused:<reason>", "dangling" or "unsent".

        Raises:
            Wrong: they disagree.
        """
        if self.journal:
            self.journal.write(op)
        self.done.append(op)
        self.recorded.append("failed")
        kind = KIND_OF[type(op)]
        happened = self._step(op, kind)
        self.recorded[-1] = happened
        outcome, _, reason = happened.partition(":")
        if reason:
            self.counts.reasons[kind, reason] += 1
        self.counts.ops[kind, "no-op" if outcome == "dangling" else outcome] += 1
        return happened

    def _step(self, op: Op, kind: str) -> str:
        try:
            bound = bind(op, self._claimed)
        except Dangling:
            return "dangling"
        predicted = self.model.refusal(bound)
        promised = predicted is None or predicted in self.target.op_refusals
        of_slots = isinstance(bound, CopyBlocks) and bound.tokens is not None
        if kind not in self.target.op_kinds or not promised:
            return "unsent"
        if of_slots and not self.target.copies_slots:
            return "unsent"
        rows = None
        if isinstance(bound, WriteTokens | WriteValues):
            rows = self._rows(bound, predicted)
        read = self._apply(bound, rows, predicted)
        if predicted is not None:
            self._compare_areas(bound)
            return f"refused:{predicted}"
        self._adopt_free_bytes(bound, kind)
        effect = self.model.apply(bound)
        self._compare_rows(bound, effect, read)
        self._compare_areas(bound)
        self._keep_names(bound)
        self._note_features(bound)
        self.counts.changed_bytes[kind] += effect.changed_bytes
        if kind == "restore" and effect.changed_bytes and not self._restored:
            self._restored = True
            self.counts.restoring += 1
        return "acted" if effect.acted else "no-op"

    def _rows(self, op: WriteTokens | WriteValues, predicted: str | None) -> Rows | None:
        """What a write stores; where it is refused, rows whose bytes do not matter."""
        if isinstance(op, WriteValues):
            return self._values(op, predicted)
        if predicted is None:
            return self.model.split_rows(op, self.model.payload(op))
        if not 0 <= op.group < len(self.geometry.groups):
            return None
        unseen = np.zeros((len(op.slots), self.model.layout(op.group).row_bytes), np.uint8)
        return self.model.split_rows(op, unseen)

    def _values(self, op: WriteValues, predicted: str | None) -> Rows | None:
        """The same for real values."""
        if predicted is None:
            return tuple(rows.copy() for rows in self.model.values(op))
        if not 0 <= op.group < len(self.geometry.groups):
            return None
        shapes = [
            (len(op.slots), *_values_shape(layers, op.value_type))
            for layers in self.geometry.groups[op.group].layer_sets
        ]
        return tuple(np.zeros(shape, np.uint8) for shape in shapes)

    def _apply(self, op: Op, rows: Rows | None, predicted: str | None) -> Rows | None:
        """Send an op to the target and compare the verdict."""
        reason, text, read = None, "", None
        try:
            read = self.target.apply(op, rows)
        except Refused as refusal:
            reason, text = refusal.reason, f" ({refusal.text})"
        except Exception as error:
            raise self._raised(error, op) from error
        if reason != predicted:
            text = (
                f"the model {_verdict(predicted)} this op, the target {_verdict(reason)} it{text}"
            )
            raise Wrong("refusal", op, text, predicted, reason)
        return read

    def _raised(self, error: Exception, op: Op | None) -> Wrong:
        if isinstance(error, Unavailable):
            raise error
        outcome: Outcome = "exception"
        if isinstance(error, OutOfBounds):
            outcome = "out_of_bounds"
        elif isinstance(error, DeviceLost):
            outcome = "device_lost"
        name = type(error).__name__
        return Wrong(outcome, op, f"the target raised {name}: {error}", name=name)

    def _adopt_free_bytes(self, op: Op, kind: str) -> None:
        """Take what the target declares free, inside this op's extents, from the target."""
        for free in self.target.free:
            if free.op_kind != kind:
                continue
            assert self.plan is not None
            area: Area = "host" if free.what == "host_padding" else "pool"
            places = PADDINGS[free.what](self.plan, op)
            if places.size and area in self.target.declared:
                self.model.areas[area][places] = self._view(area, op)[places]
                self.counts.free_bytes += places.size

    def _compare_rows(self, op: Op, effect: Effect, read: Rows | None) -> None:
        if effect.rows is None:
            return
        if type(op) is ReadValues:
            want = self.model.split_values(op, effect.rows)
        else:
            assert type(op) is Read
            want = self.model.split_rows(op, effect.rows)
        got = read if isinstance(read, tuple) and all(map(_is_bytes, read)) else ()
        if [item.shape for item in want] != [item.shape for item in got]:
            shapes = [item.shape for item in want]
            text = f"a read must return a tuple of uint8 arrays of shapes {shapes}"
            raise Wrong("rows", op, text, want, read)
        self.counts.compared_bytes += effect.rows.size
        for layer_set, (one, other) in enumerate(zip(want, got, strict=True)):
            if not np.array_equal(one, other):
                text = f"a read of layer set {layer_set} returned other bytes"
                raise Wrong("rows", op, text, one, np.array(other), name=str(layer_set))

    def _compare_areas(self, op: Op | None) -> None:
        """Compare every byte of every declared area."""
        for area in self._areas:
            want, got = self.model.areas[area], self._view(area, op)
            self._same_size(area, op, got)
            self.counts.compared_bytes += want.size
            if not same_bytes(want, got):
                text = f"{area} differs in {np.count_nonzero(want != got)} bytes"
                raise Wrong("mismatch", op, text, want.copy(), np.array(got), area)

    def _poison(self, area: Area) -> None:
        """Give an area its first bytes; the target must copy them, as its own stay apart."""
        want, view = self.model.areas[area], self._view(area, None)
        self._same_size(area, None, view)
        try:
            self.target.load(area, want)
        except Exception as error:
            raise self._raised(error, None) from error
        if np.may_share_memory(want, self._view(area, None)):
            text = f"the {area} is the very memory that load was given; load must copy it"
            raise Wrong("fact", None, text, "its own", "the model's", name=f"{area}.memory")

    def _same_size(self, area: Area, op: Op | None, view: Bytes) -> None:
        want = self.model.areas[area].size
        if view.size != want:
            text = f"the {area} has {view.size} bytes, not {want}"
            raise Wrong("fact", op, text, want, view.size, name=f"{area}.bytes")

    def _view(self, area: Area, op: Op | None) -> Bytes:
        try:
            view = self.target.view(area)
        except Exception as error:
            raise self._raised(error, op) from error
        if not _is_bytes(view) or view.ndim != 1:
            text = f"view({area!r}) returned {_shown(view)}; it must be a flat array of uint8"
            raise Wrong("exception", op, text, name="view")
        return view

    def _keep_names(self, op: Op) -> None:
        """Keep handles in step with ownership."""
        match op:
            case Allocate(id=op_id, blocks=blocks):
                self._claimed[op_id] = blocks
                self.names.allocated(op)
            case Free(group=group, blocks=blocks):
                for block in blocks:
                    self.names.gave_back(group, block_id(block))
            case Offload():
                self.names.filled(op)
            case Reset():
                self.names.reset()

    def _note_features(self, op: Op) -> None:
        """Count what is met in single ops."""
        if type(op) is WriteValues or type(op) is Allocate:
            self.counts.features.update(features_of_op(op))


def _values_shape(layers: LayerSet, value_type: str) -> tuple[int, int, int]:
    """Layers, heads and bytes of values of one slot."""
    width = 4 if value_type == "fp32" else 2
    return layers.layers, layers.kv_heads, (layers.head_size_k + layers.head_size_v) * width


def _as_facts(answer: object) -> Facts:
    if not isinstance(answer, Mapping):
        text = f"it returned {_shown(answer)}; facts must be a mapping"
        raise Wrong("exception", None, text, name="facts")
    return answer


def _is_bytes(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8


def _shown(value: object) -> str:
    """A value that should have been another one, in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"


def same_bytes(one: Bytes, other: Bytes) -> bool:
    """Whether two byte arrays are equal."""
    if one.size != other.size:
        return False
    if one.size <= _COPIED_BYTES:  # then copies are cheaper than numpy's addresses
        return one.tobytes() == other.tobytes()
    here, there = np.ascontiguousarray(one), np.ascontiguousarray(other)
    return not _memcmp(here.ctypes.data, there.ctypes.data, here.size)


def execute(
    target: Target, geometry: Geometry, ops: Sequence[Op], journal: Journal | None = None
) -> tuple[Run, Wrong | None]:
    """Run a whole trace and close the target; the disagreement at which it ended, if any."""
    run = Run(target, geometry, journal=journal)
    try:
        if not ops and storage_bytes(geometry) > _ON_PAPER_BYTES:
            run.plan_only()
        elif run.open():
            for op in ops:
                run.step(op)
    except Wrong as wrong:
        return run, wrong
    finally:
        target.close()
    return run, None


def _verdict(reason: str | None) -> str:
    return "accepts" if reason is None else f"refuses ({reason})"
