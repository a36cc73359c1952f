"""One trace, executed: model and target side by side, everything compared after every op."""

import ctypes
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from kvexact.fuzz.counts import Counts
from kvexact.fuzz.features import features_of, features_of_op
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.names import Names
from kvexact.fuzz.rows import rows_for
from kvexact.fuzz.sizes import storage_bytes
from kvexact.impl.target import (
    Area,
    Bytes,
    DeviceLost,
    Facts,
    OutOfBounds,
    Result,
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
    Op,
    Read,
    ReadValues,
    WriteTokens,
    WriteValues,
    bind,
)
from kvexact.refmodel.plan import Plan, plan
from kvexact.refmodel.spec import Geometry, Refused

#: A geometry that takes more memory is only planned where a trace has no ops.
_ON_PAPER_BYTES = 64 * 1024 * 1024

#: How a failure shows. The last five are of what a target runs in, and of its process.
Outcome = Literal[
    "mismatch",
    "rows",
    "fact",
    "refusal",
    "exception",
    "out_of_bounds",
    "out_of_memory",
    "device_lost",
    "signal",
    "exit",
    "hang",
]

_COPIED_BYTES = 32 * 1024
#: Characters that are kept of what a target says.
_SAID_CHARS = 2000
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(eq=False)
class Wrong(Exception):
    """Model and target disagree.

    Attributes:
        outcome: how it showed.
        op: the op after which it showed, blocks bound to ids; None: there was none.
        text: one line for a person.
        want, got: what disagrees: reasons, fact values, or bytes.
        area: the area whose bytes differ.
        name: the fact's name, the exception's type, the signal, or the exit status.
        during: what ran where there was no op: "open" or "close".
    """

    outcome: Outcome
    op: Op | None
    text: str
    want: object = None
    got: object = None
    area: str = ""
    name: str = ""
    during: str = "open"


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
    _restored: bool = False
    _acted: str = "open"
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
        except BaseException as error:
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
            bound = bind(op, self.names.claimed)
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
            rows = rows_for(self.model, bound, predicted)
        read = self._apply(bound, rows, predicted)
        if predicted is not None:
            self._compare_areas(bound)
            return f"refused:{predicted}"
        self._adopt_free_bytes(bound, kind)
        effect = self.model.apply(bound)
        self._compare_rows(bound, effect, read)
        self._compare_areas(bound)
        self.names.follow(bound)
        self._note_features(bound)
        self.counts.changed_bytes[kind] += effect.changed_bytes
        if effect.acted:
            self.counts.pairs[self._acted, kind] += 1
            self._acted = kind
        if kind == "restore" and effect.changed_bytes and not self._restored:
            self._restored = True
            self.counts.restoring += 1
        return "acted" if effect.acted else "no-op"

    def _apply(self, op: Op, rows: Rows | None, predicted: str | None) -> Result:
        """Send an op to the target and compare the verdict."""
        reason, text, read = None, "", None
        try:
            read = self.target.apply(op, rows)
        except Refused as refusal:
            reason, text = said(refusal.reason), f" ({said(refusal.text)})"
        except BaseException as error:
            raise self._raised(error, op) from error
        if reason != predicted:
            text = (
                f"the model {_verdict(predicted)} this op, the target {_verdict(reason)} it{text}"
            )
            raise Wrong("refusal", op, text, predicted, reason)
        return read

    def _raised(self, error: BaseException, op: Op | None, during: str = "open") -> Wrong:
        """What the target raised; a device that is lost, where a probe says so."""
        wrong = raised(error)
        try:
            self.target.probe()
        except BaseException as lost:  # noqa: BLE001 - what a broken target may raise, too
            probed = raised(lost)
            wrong = probed if probed.outcome == "device_lost" else wrong
        return replace(wrong, op=op, during=during)

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

    def _compare_rows(self, op: Op, effect: Effect, read: Result) -> None:
        if effect.rows is None:
            return
        if type(op) is ReadValues:
            want = self.model.split_values(op, effect.rows)
        else:
            assert type(op) is Read
            want = self.model.split_rows(op, effect.rows)
        got = read if isinstance(read, tuple) and all(map(is_bytes, read)) else ()
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
        except BaseException as error:
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
            return view_of(self.target, area)
        except BaseException as error:
            raise self._raised(error, op) from error

    def close(self) -> Wrong | None:
        """Count launches and close the target; what it did wrong at that."""
        try:
            self.counts.launches.update(self.target.launches())
            self.target.close()
        except BaseException as error:  # noqa: BLE001 - a target's own code may raise anything
            return self._raised(error, None, "close")
        return None

    def _note_features(self, op: Op) -> None:
        """Count what is met in single ops."""
        if type(op) is WriteValues or type(op) is Allocate:
            self.counts.features.update(features_of_op(op))


def raised(error: BaseException) -> Wrong:
    """What a target raised, as a failure of it.

    Raises:
        Unavailable: the target says that it cannot run here.
        KeyboardInterrupt: somebody interrupts; a target that raises this where SIGINT does not
            has failed.
    """
    if isinstance(error, Unavailable):
        raise error
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if isinstance(error, KeyboardInterrupt) and interrupts:
        raise error
    if isinstance(error, Wrong):
        return error
    name = type(error).__name__
    outcome: Outcome = "exception"
    if isinstance(error, OutOfBounds):
        outcome = "out_of_bounds"
    elif isinstance(error, DeviceLost):
        outcome = "device_lost"
    elif isinstance(error, MemoryError) or name == "OutOfMemoryError":
        outcome = "out_of_memory"
    return Wrong(outcome, None, f"the target raised {name}: {said(error)}", name=name)


def said(value: object) -> str:
    """What a target says, as text that is of a sane length and can be written down."""
    try:
        text = str(value)[:_SAID_CHARS]
    except Exception as error:  # noqa: BLE001 - a target's own code may raise anything
        return f"(its text raises {type(error).__name__})"
    return text.encode(errors="backslashreplace").decode()


def view_of(target: Target, area: Area) -> Bytes:
    """All bytes of an area.

    Raises:
        Wrong: it is no flat array of bytes.
    """
    view = target.view(area)
    if not is_bytes(view) or view.ndim != 1:
        text = f"view({area!r}) returned {_shown(view)}; it must be a flat array of uint8"
        raise Wrong("exception", None, text, name="view")
    return view


def _as_facts(answer: object) -> Facts:
    if not isinstance(answer, Mapping):
        text = f"it returned {_shown(answer)}; facts must be a mapping"
        raise Wrong("exception", None, text, name="facts")
    return answer


def is_bytes(value: object) -> bool:
    """Whether a value is an array of bytes."""
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
    found: Wrong | None = None
    try:
        if not ops and storage_bytes(geometry) > _ON_PAPER_BYTES:
            run.plan_only()
        elif run.open():
            for op in ops:
                run.step(op)
    except Wrong as wrong:
        found = wrong
    finally:
        at_close = run.close()
    return run, found or at_close


def _verdict(reason: str | None) -> str:
    return "accepts" if reason is None else f"refuses ({reason})"
