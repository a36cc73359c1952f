"""The run: every way in which a target can differ is noticed, and what it declares is honoured."""

from typing import ClassVar

import numpy as np
import pytest

from kvexact.fuzz.campaign import campaign
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.edits import Program
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.shown import same_bytes
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import DeviceLost, FreeBytes, OutOfBounds, Rows, Unavailable
from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Free,
    Handle,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Read,
    ReadValues,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet, Refused

PADDED = LayerSet(2, 2, 8, 8, "fp8_e4m3", page_bytes=160)
GEOMETRY = Geometry((Group(4, 4, (PADDED,)),), 5, Host(4096, row_alignment=512))
A, B = Handle(0, 0), Handle(0, 1)
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (3, 1)),
    WriteTokens(1, 0, (Slot(A, 2), None, Slot(B, 0)), tag=1),
    Offload(2, (Job(0, (Move(A, 1, 0),)),)),
    Restore(3, (Job(0, (Move(B, 1, 0),)),)),
    CopyBlocks(4, 0, (Pair(A, B),), 2),
    Read(5, 0, (Slot(B, 1), None)),
    Zero(6, 0, (A,)),
    Free(7, 0, (A,)),
    Reset(8),
)


def wrong_of(target: CpuEngine, *ops: Op, geometry: Geometry = GEOMETRY) -> Wrong:
    """The disagreement at which a run of these ops ends, after it was put in words."""
    run, wrong = execute(target, geometry, ops or OPS)
    assert wrong is not None
    failure = explain_failure(run, wrong)
    assert failure.signature.outcome == wrong.outcome
    assert all(failure.lines)
    return wrong


def test_a_sound_target_agrees_and_everything_is_counted():
    """All ops act, all bytes of both areas are compared after each of them."""
    run, wrong = execute(CpuEngine(), GEOMETRY, OPS)

    assert wrong is None
    assert run.recorded == ["acted"] * len(OPS)
    areas = 5 * 2 * 160 + 8 * 512
    read = 2 * 2 * 2 * 16
    assert run.counts.compared_bytes == areas * (1 + len(OPS)) + read
    assert run.counts.acted == len(OPS)
    assert run.counts.restoring == 1
    assert run.counts.changed_bytes["zero"] > 200


def test_a_dangling_handle_is_a_defined_no_op():
    """Handles of a deleted, refused or shorter allocate stand for nothing."""
    ops = (
        Zero(1, 0, (Handle(0, 0),)),
        Allocate(2, 0, (9,)),
        Zero(3, 0, (Handle(2, 0),)),
        Allocate(4, 0, (1,)),
        Zero(5, 0, (Handle(4, 1),)),
    )
    run, wrong = execute(CpuEngine(), GEOMETRY, ops)

    assert wrong is None
    assert run.recorded == ["dangling", "refused:range", "dangling", "acted", "dangling"]


class Forgetful(CpuEngine):
    """Zero does nothing."""

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None if type(op) is Zero else super().apply(op, rows)


class Eager(CpuEngine):
    """Zero also touches a byte of padding."""

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if type(op) is Zero:
            pool = self.view("pool").copy()
            pool[3 * 160 + 128] ^= 0xFF
            self.load("pool", pool)
        return read


class EagerAndSaysSo(Eager):
    """The same, declared with a reason."""

    free = (FreeBytes("zero", "page_padding", "pages are cleared whole"),)


def test_lost_and_stray_bytes_are_noticed():
    """An op without effect, and one with a byte too many."""
    assert wrong_of(Forgetful()).outcome == "mismatch"
    assert wrong_of(Eager()).outcome == "mismatch"


def test_declared_free_bytes_are_excused_and_counted():
    """Padding inside the touched page may change where the target says so; nothing else may."""
    run, wrong = execute(EagerAndSaysSo(), GEOMETRY, OPS)

    assert wrong is None
    assert run.counts.free_bytes == 2 * 32
    stray = Zero(1, 0, (Handle(0, 1),))
    assert wrong_of(EagerAndSaysSo(), OPS[0], stray).outcome == "mismatch"


class FreeHostRows(CpuEngine):
    """Offload scribbles over the unused end of its row, and says so."""

    free = (FreeBytes("offload", "host_padding", "rows are moved whole"),)

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if type(op) is Offload:
            host = self.view("host").copy()
            host[2 * 512 - 1] ^= 0xFF
            self.load("host", host)
        return read


def test_declared_host_padding_is_excused():
    """The unused end of a host row may change where the target says so."""
    assert execute(FreeHostRows(), GEOMETRY, OPS)[1] is None


class Raising(CpuEngine):
    """Raises at a zero."""

    error: ClassVar[Exception] = ZeroDivisionError("oops")

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is Zero:
            raise self.error
        return super().apply(op, rows)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ZeroDivisionError("oops"), "exception"),
        (OutOfBounds("pool +7"), "out_of_bounds"),
        (DeviceLost("sticky"), "device_lost"),
        (Refused("owner", "no"), "refusal"),
    ],
)
def test_what_a_target_raises_is_a_finding_of_its_kind(monkeypatch, error, outcome):
    """Exceptions, accesses out of bounds, lost devices and wrong refusals are told apart."""
    monkeypatch.setattr(Raising, "error", error)

    assert wrong_of(Raising()).outcome == outcome


def test_an_op_that_must_be_refused_and_is_not():
    """Accepting what the model refuses is a finding, before any byte is looked at."""

    class Lax(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            return None if type(op) is Free else super().apply(op, rows)

    wrong = wrong_of(Lax(), Free(0, 0, (4,)))

    assert (wrong.outcome, wrong.want, wrong.got) == ("refusal", "owner", None)


def test_an_op_that_is_refused_for_another_reason_is_noticed():
    class OtherReason(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            try:
                return super().apply(op, rows)
            except Refused as refused:
                reason = "duplicate" if refused.reason == "range" else "range"
                raise Refused(reason, refused.text) from refused

    wrong = wrong_of(OtherReason(), Allocate(0, 0, (9,)))

    assert (wrong.outcome, wrong.want, wrong.got) == ("refusal", "range", "duplicate")


def test_rows_of_every_layer_set_are_compared():
    class LastSetWrong(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            read = super().apply(op, rows)
            if read is not None:
                read[-1][0, 0, 0, 0] ^= 1
            return read

    sets = (LayerSet(1, 1, 4, 4, "fp8_e4m3"), LayerSet(2, 1, 8, 8, "bf16"))
    geometry = Geometry((Group(2, 2, sets),), 2, Host(512))
    for read in (Read(1, 0, (Slot(A, 1),)), ReadValues(1, 0, (Slot(A, 1),))):
        wrong = wrong_of(LastSetWrong(), Allocate(0, 0, (1,)), read, geometry=geometry)
        assert (wrong.outcome, wrong.name) == ("rows", "0.1")


def test_a_refused_op_must_change_nothing():
    """Refused in words, done in bytes."""

    class TwoFaced(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            if type(op) is Free:
                pool = self.view("pool").copy()
                pool[0] ^= 1
                self.load("pool", pool)
            return super().apply(op, rows)

    assert wrong_of(TwoFaced(), Free(0, 0, (4,))).outcome == "mismatch"


def test_reads_are_compared_by_shape_and_byte():
    """A read that returns nothing, or one byte off, is noticed."""

    class Mute(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            read = super().apply(op, rows)
            return None if type(op) is Read else read

    class Mishearing(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            read = super().apply(op, rows)
            if read is not None:
                read[0][0, 1, 1, 9] ^= 1
            return read

    assert wrong_of(Mute()).outcome == "rows"
    run, wrong = execute(Mishearing(), GEOMETRY, OPS)
    assert wrong is not None
    assert explain_failure(run, wrong).signature == ("rows", "read", "read", "v")


def test_facts_are_compared_where_offered():
    """A wrong fact is a finding; a missing one counts as unchecked."""

    class Boaster(CpuEngine):
        def open(self, geometry):
            return {**super().open(geometry), "host.worker_slots": 99}

    class Silent(CpuEngine):
        def open(self, geometry):
            super().open(geometry)
            return {"pool.logical_bytes": 1600}

    class Numpy(CpuEngine):
        fact: ClassVar[object] = np.int64(1600)

        def open(self, geometry):
            return {**super().open(geometry), "pool.logical_bytes": self.fact}

    class Array(Numpy):
        fact = np.array([0, 1])

    assert wrong_of(Boaster()).name == "host.worker_slots"
    for target, shown in ((Numpy, "np.int64(1600)"), (Array, "array([0, 1])")):
        run, wrong = execute(target(), GEOMETRY, OPS)
        assert wrong is not None
        text = f"open: fact pool.logical_bytes is {shown}, not 1600"
        assert explain_failure(run, wrong).lines[0] == text
    run, wrong = execute(Silent(), GEOMETRY, OPS)
    assert wrong is None
    assert run.counts.facts == 1
    assert run.counts.unchecked["regions"] == 1


@pytest.mark.parametrize("told", [{"write": "often"}, 3])
def test_launches_are_numbers_by_name(told):
    """What is none is a failure of the target, at its end."""

    class Vague(CpuEngine):
        def launches(self):
            return told

    wrong = wrong_of(Vague())
    assert (wrong.outcome, wrong.name) == ("exception", "launches")
    assert wrong.text == f"launches returned {told}; it must be numbers by name"


def test_an_area_of_another_size_is_a_wrong_fact():
    """A view must show the whole area."""

    class Short(CpuEngine):
        def view(self, area):
            return super().view(area)[:-1]

    assert wrong_of(Short()).outcome == "fact"


def test_verdicts_on_geometries():
    """Wrong refusals, missing refusals, declared ones, and those that are not promised."""
    bad = Geometry(GEOMETRY.groups, 5, Host(1))

    class Picky(CpuEngine):
        def open(self, geometry):
            raise Refused("taste", "not these")

    class PickyAndSaysSo(Picky):
        may_refuse = frozenset({"taste"})

    class Promising(CpuEngine):
        geometry_refusals = frozenset({"cell"})

    class Crashing(CpuEngine):
        def open(self, geometry):
            raise RuntimeError("no memory")

    class Elsewhere(Crashing):
        @classmethod
        def fits(cls, geometry):
            return geometry != GEOMETRY

    assert wrong_of(Picky()).outcome == "refusal"
    assert wrong_of(Picky(), geometry=bad).outcome == "refusal"
    assert wrong_of(Crashing()).outcome == "exception"
    for target, geometry, verdict in (
        (PickyAndSaysSo(), GEOMETRY, "declined:taste"),
        (Elsewhere(), GEOMETRY, "declined:unfit"),
        (Promising(), bad, "unsent"),
        (CpuEngine(), bad, "refused:host"),
    ):
        run, wrong = execute(target, geometry, OPS)
        assert wrong is None
        assert run.counts.geometries == {verdict: 1}
        assert run.done == []


def test_a_target_that_cannot_say_what_fits_it_cannot_run():
    """What its own code raises at it is told in one line, and is no bug of the harness."""

    class Confused(CpuEngine):
        @classmethod
        def fits(cls, geometry):
            raise KeyError(geometry.order)

    class Away(CpuEngine):
        @classmethod
        def fits(cls, geometry):
            raise Unavailable("plug it in")

    with pytest.raises(Unavailable, match="asking what fits it raised KeyError: 'LBHNC'"):
        execute(Confused(), GEOMETRY, OPS)
    with pytest.raises(Unavailable, match=r"^plug it in$"):
        next(campaign(Away, [FAMILIES["one_group"]], 0, {"one_group": Counts()}))


def test_ops_that_a_target_does_not_have_or_refuse_are_not_sent():
    """Declarations keep ops away, and they are counted as unsent."""

    class Small(CpuEngine):
        op_kinds = frozenset({"allocate", "write_tokens"})
        op_refusals = frozenset({"range"})

    ops = (Allocate(0, 0, (1,)), Zero(1, 0, (A,)), Allocate(2, 0, (1,)), Allocate(3, 0, (-1,)))
    run, wrong = execute(Small(), GEOMETRY, ops)

    assert wrong is None
    assert run.recorded == ["acted", "unsent", "unsent", "refused:range"]


def test_writes_that_are_refused_still_get_rows():
    """A refused write brings rows of the right shape; of no known group, none."""
    seen = []

    class Watching(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            seen.append(None if rows is None else [item.shape for item in rows])
            return super().apply(op, rows)

    slots = (Slot(2**31, 0), None)
    _, wrong = execute(
        Watching(), GEOMETRY, (WriteTokens(0, 0, slots, 1), WriteTokens(1, 7, slots, 1))
    )

    assert wrong is None
    assert seen == [[(2, 2, 2, 16)], None]


def test_plan_only_compares_verdicts_and_facts():
    """The planning family needs no memory."""
    run = Run(CpuEngine(), Geometry(GEOMETRY.groups, 2**40, Host(2**50)))

    assert run.plan_only()
    assert run.counts.facts > 5


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 1001])
def test_same_bytes_sees_every_byte(size):
    """Whichever single byte differs, and whatever the size."""
    bytes_ = np.arange(size, dtype=np.uint8)
    one = bytearray(bytes_.tobytes())
    assert same_bytes(one, bytes_)
    assert not same_bytes(one, np.zeros(size + 1, np.uint8))
    for byte in range(size):
        other = bytes_.copy()
        other[byte] ^= 0x80
        assert not same_bytes(one, other)


def test_a_program_is_geometry_and_ops():
    """Executing a program closes the target, so that one instance can run the next."""
    target = CpuEngine()
    program = Program(GEOMETRY, OPS)
    assert execute(target, *program)[1] is None
    assert execute(target, *program)[1] is None


TURNED = (Slot(A, 3), None, Slot(A, 0))
VALUES: tuple[Op, ...] = (
    Allocate(0, 0, (3, 1), zero=True),
    WriteValues(1, 0, TURNED, 1, "bf16", "special"),
    ReadValues(2, 0, TURNED),
)


def test_values_are_sent_compared_and_counted():
    """Decoded rows are compared like raw ones, and what was met is noted."""
    run, wrong = execute(CpuEngine(), GEOMETRY, VALUES)

    assert wrong is None
    assert run.recorded == ["acted"] * 3
    read = 3 * 2 * 2 * (8 + 8) * 4
    assert run.counts.compared_bytes == (5 * 2 * 160 + 8 * 512) * 4 + read
    assert run.counts.changed_bytes["allocate"] > 400
    met = {"zero on allocate", "values bf16", "special values"}
    assert met <= set(run.counts.features)
    assert "values fp32" not in run.counts.features


def test_other_values_are_noticed_and_named():
    """The first element that differs, as a number, with its head, and key or value."""

    class Decoding(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            read = super().apply(op, rows)
            if type(op) is ReadValues and read is not None:
                read[0].view("<f4")[2, 1, 0, 11] = 0.1
            return read

    run, wrong = execute(Decoding(), GEOMETRY, VALUES)
    assert wrong is not None
    failure = explain_failure(run, wrong)

    assert failure.signature == ("rows", "read_values", "read", "value")
    assert "row 2  layer 1  head 0  value element 3" in failure.lines[1]
    assert "0.100000001" in failure.lines[3]
    assert "(3dcccccd" in failure.lines[3]
    assert "1 of 192" in failure.lines[0]


def test_a_target_may_scribble_on_the_values_that_it_is_given():
    """The model keeps its own."""

    class Scribbling(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            read = super().apply(op, rows)
            for of_set in rows or ():
                of_set[:] = 0
            return read

    assert execute(Scribbling(), GEOMETRY, VALUES)[1] is None


def test_values_that_must_be_refused_come_in_rows_of_the_right_shape():
    """For a group of raw writes only, and for blocks that are not the group's."""
    raw = LayerSet(2, 1, 16, 8, "turboquant_4bit_nc")
    seen = []

    class Watching(CpuEngine):
        def apply(self, op: Op, rows: Rows | None) -> Rows | None:
            seen.append(None if rows is None else [of_set.shape for of_set in rows])
            return super().apply(op, rows)

    geometry = Geometry((Group(4, 4, (raw,)), Group(4, 4, (PADDED,))), 5, Host(4096), "BLHNC")
    ops = (
        WriteValues(0, 0, (None, Slot(1, 1)), 0, "fp16"),
        WriteValues(1, 1, (Slot(1, 1),), 0),
        WriteValues(2, 7, (Slot(1, 1),), 0),
        ReadValues(3, 0, ()),
    )
    run, wrong = execute(Watching(), geometry, ops)

    assert wrong is None
    refused = ["refused:format", "refused:owner", "refused:range", "refused:format"]
    assert run.recorded == refused
    assert seen == [[(2, 2, 1, 48)], [(1, 2, 2, 64)], None, None]
