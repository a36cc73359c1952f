"""Sabotage of the harness turns a run red, each kind of it.

Each test spoils one thing in the harness and then does what the fuzz tests do: the check of the
harness itself, items of a few families, and the question whether they proved anything.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvexact.fuzz import areas, both, counts, finding, opening, reduce, run, self_check, steps
from kvexact.fuzz.choose import Chooser
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.edits import Program
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.family import RAW_WEIGHTS
from kvexact.fuzz.items import families_of
from kvexact.fuzz.machine import failures
from kvexact.fuzz.reduce import failure_of
from kvexact.fuzz.shown import same_bytes
from kvexact.fuzz.summary import complaints, merge
from kvexact.fuzz.targets import NamedTarget
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.faults import FAULTS
from kvexact.impl.target import Area, Bytes, Facts, FreeBytes, Result, Rows, Target
from kvexact.refmodel import cache, order, rows
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.content import slot_rows
from kvexact.refmodel.ops import (
    Allocate,
    Offload,
    Op,
    Read,
    ReadValues,
    Reset,
    Restore,
    WriteValues,
)
from kvexact.refmodel.spec import Geometry, Refused

SOUGHT = ("padded", "chunked", "values", "planning")
EXAMPLES = 27


def red(target: type[Target] = CpuEngine, names: tuple[str, ...] = SOUGHT) -> list[str]:
    """Why a run is red; empty: it is green."""
    blind = self_check.missed()
    if blind:
        return blind
    parts = []
    for family in families_of(target):
        if family.name in names:
            found = Counts()
            for _, wrong in failures(target(), family, 1, EXAMPLES, found):
                return [f"failure: {wrong.text}"]
            parts.append(("it", family.name, found))
    return complaints(merge(parts), [NamedTarget("it", target)])


def test_without_sabotage_it_is_green() -> None:
    assert red() == []


Sabotage = Callable[[pytest.MonkeyPatch], None]
SABOTAGES: dict[str, tuple[Sabotage, str]] = {}


def sabotage(expected: str) -> Callable[[Sabotage], Sabotage]:
    def register(spoil: Sabotage) -> Sabotage:
        SABOTAGES[spoil.__name__] = spoil, expected
        return spoil

    return register


# Comparing.


@sabotage("PaddingByte: nothing seen")
def compare_returns_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(areas.Areas, "compare", lambda self, op: None)


@sabotage("PaddingByte: nothing seen")
def all_bytes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(areas.Known, "equals", lambda self, other: True)


@sabotage("TailByte: nothing seen")
def the_last_bytes_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def equals(self: areas.Known, other: Bytes) -> bool:
        return same_bytes(self._one[:-8], other[:-8])

    monkeypatch.setattr(areas, "Known", type("Short", (areas.Known,), {"equals": equals}))


@sabotage("HostByte: nothing seen")
def only_the_pool_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = areas.Areas.compare

    def pool_only(self: areas.Areas, op: Op | None) -> None:
        known, self._known = self._known, {"pool": self._known["pool"]}
        try:
            compare(self, op)
        finally:
            self._known = known

    monkeypatch.setattr(areas.Areas, "compare", pool_only)


@sabotage("ContentByte: nothing seen")
def the_model_is_fed_from_the_targets_view(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = areas.Areas.compare

    def feed(self: areas.Areas, op: Op | None) -> None:
        for area in self._known:
            self._model.areas[area][:] = self._target.view(area)
        compare(self, op)

    monkeypatch.setattr(areas.Areas, "compare", feed)


@sabotage("IllegalOpChangesByte: nothing seen")
def nothing_is_compared_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = areas.Areas.compare

    def legal_only(self: areas.Areas, op: Op | None) -> None:
        if op is None or self._model.refusal(op) is None:
            compare(self, op)

    monkeypatch.setattr(areas.Areas, "compare", legal_only)


@sabotage("NeighbourByteBesideFreePadding: nothing seen")
def everything_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        areas.PADDINGS, "page_padding", lambda rows, op: np.arange(rows.plan.physical_bytes)
    )


@sabotage("ReadByte: nothing seen")
def rows_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both, "compare_rows", lambda model, op, rows, read: None)


@sabotage("DecodedByte: nothing seen")
def decoded_rows_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = both.compare_rows

    def raw_only(model: Cache, op: Read | ReadValues, rows: Bytes, read: Result) -> None:
        if not isinstance(op, ReadValues):
            compare(model, op, rows, read)

    monkeypatch.setattr(both, "compare_rows", raw_only)


@sabotage("PadRowDecoded: nothing seen")
def pad_rows_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = both.compare_rows

    def without_pads(model: Cache, op: Read | ReadValues, rows: Bytes, read: Result) -> None:
        if isinstance(read, tuple):
            kept = [n for n, slot in enumerate(op.slots) if slot is not None]
            op = replace(op, slots=tuple(op.slots[n] for n in kept))
            rows = rows[kept]
            read = tuple(of_set[kept] for of_set in read)
        compare(model, op, rows, read)

    monkeypatch.setattr(both, "compare_rows", without_pads)


@sabotage("Fact: nothing seen")
def facts_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening.Opening, "_compare_facts", lambda self, expected: None)


@sabotage("GeometryRefused: ")
def verdicts_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_compare_verdicts", lambda predicted, refused: None)


@sabotage("IllegalOpAccepted: nothing seen")
def refusals_of_ops_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(self: both.Both, op: Op, rows: Rows | None, predicted: str | None) -> Rows | None:
        try:
            return self.target.apply(op, rows)
        except Refused:
            return None

    monkeypatch.setattr(both.Both, "_apply", apply)


@sabotage("SettledByte: nothing seen")
def nothing_is_settled_before_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = areas.Areas.compare

    def unsettled(self: areas.Areas, op: Op | None) -> None:
        marked = {area: np.full_like(of.mask, 255) for area, of in self._unsettled.items()}
        self._unsettled = {area: areas.Unsettled(mask, mask) for area, mask in marked.items()}
        compare(self, op)

    monkeypatch.setattr(areas.Areas, "compare", unsettled)


@sabotage("ByteAtTheEnd: nothing seen")
def no_example_ends_with_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.Run, "finish", lambda self: None)


@sabotage("DoneTooSoon: nothing seen")
def a_poll_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order.Ordered, "settle", lambda self, job: None)


@sabotage("NeverDone: nothing seen")
def answers_to_polls_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both, "take_answer", lambda model, op, answer, counts: None)


# What is there to compare.


@sabotage("UnwrittenBytesZeroed: nothing seen")
def poison_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "poison", lambda area, size: np.zeros(size, np.uint8))


@sabotage("ShiftedContent: nothing seen")
def payload_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(tag: int, group: int, slots: np.ndarray, row_bytes: int) -> Bytes:
        return np.full((len(slots), row_bytes), tag + 1, np.uint8)

    monkeypatch.setattr(rows, "slot_rows", constant)


@sabotage("RestoreLost: nothing seen")
def every_write_has_the_same_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "slot_rows", lambda tag, *rest: slot_rows(0, *rest))


@sabotage("ValuesLost: nothing seen")
def writes_of_values_store_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the model nor, as it is a copy of it, in a target."""

    def nothing(self: cache.Cache, op: WriteValues) -> cache.Effect:
        return cache.Effect(acted=bool(op.slots))

    monkeypatch.setitem(cache.Cache._does, WriteValues, nothing)


@sabotage("ValuesOfAnotherSlot: nothing seen")
def values_are_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    values = cache.Cache.values

    def constant(self: cache.Cache, op: WriteValues) -> Rows:
        return tuple(np.ones_like(of_set) for of_set in values(self, op))

    monkeypatch.setattr(cache.Cache, "values", constant)


@sabotage("ZeroOnAllocateForgotten: nothing seen")
def allocations_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = cache.Cache.apply

    def forgetful(self: cache.Cache, op: Op) -> cache.Effect:
        return apply(self, replace(op, zero=False) if isinstance(op, Allocate) else op)

    monkeypatch.setattr(cache.Cache, "apply", forgetful)


# What is drawn.


@sabotage("no write_values acted")
def values_are_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    read = steps.Steps._read_values
    monkeypatch.setattr(steps.Steps, "_write_values", read)
    monkeypatch.setattr(counts, "_OPS_LEAST", 500)


@sabotage("restored bytes that had changed")
def restore_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.Steps, "_restore", lambda self, c, op_id, illegal: Reset(op_id))


@sabotage("no restore acted")
def restore_has_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {kind: n for kind, n in RAW_WEIGHTS.items() if kind != "restore"}
    for name in SOUGHT[:2]:
        monkeypatch.setitem(FAMILIES, name, replace(FAMILIES[name], weights=weights))
    monkeypatch.setattr(counts, "_OPS_LEAST", 500)
    monkeypatch.setattr(counts, "RESTORING_LEAST", 0)


@sabotage("restored bytes that had changed")
def the_destination_is_right_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every restore follows an offload of the same blocks."""
    offload = steps.Steps._offload
    last: list[Op] = []

    def keep(self: steps.Steps, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        last[:] = [offload(self, chooser, op_id, illegal=False)]
        return last[0]

    def give_back(self: steps.Steps, chooser: Chooser, op_id: int, *, illegal: bool) -> Op:
        jobs = [op.jobs for op in last if isinstance(op, Offload)]
        return Restore(op_id, jobs[0]) if jobs else Read(op_id, 0, ())

    def draw(self: steps.Steps, chooser: Chooser, op_id: int) -> Op:
        """One op in three restores, right after an offload."""
        kinds = (allocate, keep, give_back)
        return kinds[op_id % 3](self, chooser, op_id, illegal=False)

    allocate = steps.Steps._allocate
    monkeypatch.setattr(steps.Steps, "draw", draw)


@sabotage("ops acted, fewer than")
def all_ops_have_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.Steps, "draw", lambda self, chooser, op_id: Read(op_id, 0, ()))


@sabotage("ops acted, fewer than")
def nearly_all_ops_are_illegal(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = steps.Mix.draw
    monkeypatch.setattr(steps.Mix, "draw", lambda *args: replace(draw(*args), illegal_percent=95))


@sabotage("what ops do: ")
def all_ops_count_as_no_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both.Both, "step", lambda self, op, kind: "no-op")


@sabotage("geometries were refused")
def only_good_geometries_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    good = FAMILIES["batch"].draw
    planned = replace(FAMILIES["planning"], draw=lambda chooser: _dense(good(chooser)))
    monkeypatch.setitem(FAMILIES, "planning", planned)


def _dense(geometry: Geometry) -> Geometry:
    sets = tuple(replace(s, page_format="fp8_e4m3") for s in geometry.groups[0].layer_sets)
    return replace(geometry, groups=(replace(geometry.groups[0], layer_sets=sets),))


# What a target says.


class SaysNothing(CpuEngine):
    def open(self, geometry: Geometry) -> Facts:
        super().open(geometry)
        return {}

    def plan(self, geometry: Geometry) -> Facts:
        super().plan(geometry)
        return {}


class RefusesEverything(CpuEngine):
    geometry_refusals = frozenset[str]()
    may_refuse = frozenset({"unsupported"})

    def open(self, geometry: Geometry) -> Facts:
        raise Refused("unsupported", f"nothing is, least of all {geometry}")


class KeepsTheModelsBuffer(CpuEngine):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[Area, Bytes] = {}

    def load(self, area: Area, data: Bytes) -> None:
        super().load(area, data)
        self.loaded[area] = data

    def view(self, area: Area) -> Bytes:
        return self.loaded.get(area, super().view(area))

    def close(self) -> None:
        self.loaded.clear()
        super().close()


class DoesNothing(CpuEngine):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None


class PromisesNothing(CpuEngine):
    """It declares no area, so that no byte is compared."""

    declared = frozenset[Area]()
    op_kinds = CpuEngine.op_kinds - {"read"}


class ExcusesItself(CpuEngine):
    """The paddings that it declares free are no excuse for content."""

    free = tuple(
        FreeBytes(kind, what, "laziness")
        for kind in ("write_tokens", "zero", "copy_blocks", "restore", "offload")
        for what in ("page_padding", "host_padding")
    )

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None if type(op) is Restore else super().apply(op, rows)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (SaysNothing, "no fact was compared"),
        (RefusesEverything, "the target declined"),
        (KeepsTheModelsBuffer, "the very memory that load was given"),
        (DoesNothing, "failure: "),
        (PromisesNothing, "no byte was compared"),
        (ExcusesItself, "failure: "),
    ],
)
def test_a_target_that_dodges_turns_a_run_red(target: type[Target], expected: str) -> None:
    why = red(target, SOUGHT[:2])
    assert [line for line in why if expected in line], why


# Reducing.


def test_a_reducer_that_takes_any_failure_for_the_same_saves_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the reducer claims, what is saved was seen to fail with the reported signature."""
    make_target, family = FAULTS["restore_from_chunk_start"].target, FAMILIES["chunked"]
    failed_run, wrong = next(failures(make_target(), family, 1, 90, Counts()))
    monkeypatch.setattr(reduce.Reducer, "_fails", lambda self, program: True)
    found = finding.find(make_target, "it", "chunked", failed_run, wrong)
    again = failure_of(make_target(), Program(found.trace.geometry, found.trace.ops))
    assert again is not None
    assert tuple(again[1].signature) == found.failure.signature == found.trace.signature
    assert found.trace.ops == tuple(failed_run.done)


@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_turns_a_run_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, expected = SABOTAGES[name]
    spoil(monkeypatch)
    why = red()
    assert [line for line in why if expected in line], why
