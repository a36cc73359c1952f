"""One trace, executed: model and target side by side, everything compared after every op."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvexact.fuzz.both import Both
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.names import Names
from kvexact.fuzz.opening import Opening
from kvexact.fuzz.serve import Serve
from kvexact.fuzz.shown import launches_of
from kvexact.fuzz.sizes import storage_bytes
from kvexact.fuzz.trace import IN_ORDER
from kvexact.fuzz.wrong import Wrong, raised_by
from kvexact.impl.target import Facts, Target
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import KIND_OF, Op
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import ByteOp
from kvexact.refmodel.spec import Geometry

#: A geometry that takes more memory is only planned where a trace has no ops.
_ON_PAPER_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Run:
    """One geometry, opened in the model and in a target; `step` runs ops in both.

    Attributes:
        journal: notes geometry and ops before they run.
        schedule: under which an asynchronous target runs.
        done: ops that ran, with their handles.
        recorded: what happened to each of them, as a trace records it.
        opening: the model's plan, and what the target believes.
        both: model and target, where both accept the geometry.
    """

    target: Target
    geometry: Geometry
    counts: Counts = field(default_factory=Counts)
    journal: Journal | None = None
    schedule: int = IN_ORDER
    done: list[Op] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    opening: Opening = field(init=False)
    both: Both = field(init=False)
    _is_open: bool = False

    def __post_init__(self) -> None:
        self.opening = Opening(self.target, self.geometry, self.counts)

    @property
    def plan(self) -> Plan | None:
        """The model's plan; None: it refuses the geometry."""
        return self.opening.plan

    @property
    def facts(self) -> Facts:
        """What the target believes."""
        return self.opening.facts

    @property
    def model(self) -> Cache:
        """The model of bytes."""
        return self.both.model

    @property
    def names(self) -> Names:
        """What handles stand for."""
        return self.both.names

    @property
    def serve(self) -> Serve:
        """Its requests."""
        return self.both.serve

    @property
    def applied(self) -> list[ByteOp]:
        """What the model of bytes did."""
        return self.both.applied

    def open(self) -> bool:
        """Open the geometry in both. True: both accept it, and `step` may follow.

        Raises:
            Wrong: the verdicts, the reasons, the facts or the first bytes differ.
        """
        accepted = self._compare_verdicts(self._open_target)
        if accepted:
            assert self.plan is not None
            self.both = Both(self.target, self.plan, self.counts)
            self.both.begin()
            self._is_open = True
        return accepted

    def _open_target(self, geometry: Geometry) -> Facts:
        """Open the geometry in the target, under the schedule; both may fail like any call."""
        if self.target.is_async:
            self.target.schedule(self.schedule)
        return self.target.open(geometry)

    def plan_only(self) -> bool:
        """Compare verdicts and facts without memory. True: both accept the geometry."""
        return self._compare_verdicts(self.target.plan)

    def _compare_verdicts(self, ask: Callable[[Geometry], Facts]) -> bool:
        if self.journal:
            self.journal.begin(self.geometry, self.schedule)
        return self.opening.compare(ask)

    def step(self, op: Op) -> str:
        """Run one op in both, note and count it; see `Both.step`."""
        if self.journal:
            self.journal.write(op)
        self.done.append(op)
        self.recorded.append("failed")
        kind = KIND_OF[type(op)]
        happened = self.both.step(op, kind)
        self.recorded[-1] = happened
        outcome, _, reason = happened.partition(":")
        if reason:
            self.counts.reasons[kind, reason] += 1
        self.counts.ops[kind, "no-op" if outcome == "dangling" else outcome] += 1
        return happened

    def finish(self) -> Wrong | None:
        """See `Both.end`; where a run has failed, it ended there."""
        if not self._is_open or self.recorded[-1:] == ["failed"]:
            return None
        try:
            self.both.end()
        except Wrong as wrong:
            return wrong
        return None

    def close(self) -> Wrong | None:
        """Fence, count launches and close the target; what it did wrong at that."""
        found = self.finish()
        try:
            self.counts.launches.update(launches_of(self.target))
            self.target.close()
        except BaseException as error:  # noqa: BLE001 - a target's own code may raise anything
            return found or raised_by(self.target, error, None, "close")
        return found


def execute(
    target: Target, geometry: Geometry, ops: Sequence[Op], schedule: int = IN_ORDER
) -> tuple[Run, Wrong | None]:
    """Run a whole trace and close the target; the disagreement at which it ended, if any."""
    run = Run(target, geometry, schedule=schedule)
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
