"""The reducer: minimal results, the same signature, and edits that leave a trace a trace."""

import pytest

from kvexact.fuzz.campaign import campaign
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.dimensions import VALUES, Draft, build, draft_of, simpler
from kvexact.fuzz.edits import (
    Program,
    below,
    edits,
    elements,
    numbers,
    renumbered,
    simpler_choices,
    without_element,
)
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.finding import find
from kvexact.fuzz.reduce import Reducer, failure_of
from kvexact.fuzz.trace import dump, parse
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.faults import FAULTS
from kvexact.impl.target import Rows
from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Handle,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Slot,
    WriteValues,
    Zero,
)
from kvexact.refmodel.ops import WriteTokens as Write

PLAIN = FAMILIES["one_group"].draw(Prng(1))


def finding_of(name: str, seed: int = 0):
    """Find a fault with the PRNG, and reduce it."""
    counts = {family: Counts() for family in FAMILIES}
    make = FAULTS[name].target
    for example in campaign(make, list(FAMILIES.values()), seed, counts):
        if example.wrong:
            return find(make, "cpu", example.family.name, example.run, example.wrong)
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    "name", ["width_without_scales", "restore_from_chunk_start", "parts_outlive_eviction"]
)
def test_reduced_traces_are_minimal_and_fail_alike(name):
    """No single edit keeps the failure, and the trace survives JSON."""
    finding = finding_of(name)
    trace = parse(dump(finding.trace))

    program = Program(trace.geometry, trace.ops)
    again = failure_of(FAULTS[name].target(), program)
    assert again is not None
    assert tuple(again[1].signature) == trace.signature
    assert Reducer(FAULTS[name].target, again[1].signature, program).is_minimal()
    assert [op.id for op in trace.ops] == list(range(len(trace.ops)))
    assert finding.executions < 600


def test_a_spent_budget_keeps_the_smallest_program_so_far():
    """The reducer never loses the failure, however little it may run."""
    finding = finding_of("copy_without_scales")
    program = Program(finding.trace.geometry, finding.trace.ops)
    padded = program._replace(ops=(*program.ops, Zero(90, 0, ()), Zero(91, 0, ())))
    reducer = Reducer(
        FAULTS["copy_without_scales"].target, finding.failure.signature, padded, budget=1
    )

    reducer.reduce()

    assert reducer.executions == 1
    assert failure_of(FAULTS["copy_without_scales"].target(), reducer.program) is not None


def test_geometries_that_do_not_fit_the_target_are_neither_drawn_nor_reduced_to():
    """A target is never asked about them, though plainer ones would fail alike."""

    class Elsewhere(FAULTS["copy_without_scales"].target):
        @classmethod
        def fits(cls, geometry):
            return geometry.order == "BLNHC"

        def open(self, geometry):
            assert self.fits(geometry)
            return super().open(geometry)

    counts = {"one_group": Counts()}
    wrong = (one for one in campaign(Elsewhere, [FAMILIES["one_group"]], 0, counts) if one.wrong)
    example = next(wrong)
    finding = find(Elsewhere, "cpu", "one_group", example.run, example.wrong)
    assert finding.failure.signature.outcome == "mismatch"
    assert finding.trace.geometry.order == "BLNHC"
    assert len(finding.trace.ops) == 2


def test_edits_reach_every_op_element_number_and_dimension():
    """Each kind of edit is there, and an allocated block in use is not taken away."""
    ops = (
        Allocate(0, 0, (3, 1, 2)),
        Write(1, 0, (Slot(Handle(0, 2), 3), None), tag=66),
        Offload(2, (Job(0, (Move(Handle(0, 0), 1, 0),)), Job(0, ()))),
        CopyBlocks(3, 0, (Pair(Handle(0, 0), Handle(0, 2)),), tokens=1),
    )
    program = Program(PLAIN, ops)

    found = list(edits(program))

    assert sum(len(edited.ops) == 3 for edited in found) == 4
    assert {path for op, path, _ in elements(program) if op == 2} == {
        ("jobs", 0),
        ("jobs", 1),
        ("jobs", 0, 1, 0),
    }
    assert without_element(program, 0, ("blocks", 0)) is None
    fewer = without_element(program, 0, ("blocks", 1))
    assert fewer is not None
    assert fewer.ops[1] == Write(1, 0, (Slot(Handle(0, 1), 3), None), tag=66)
    assert all("id" not in path for _, path, _ in numbers(program))
    assert {value for _, path, value in numbers(program) if path == ("tag",)} == {66}
    tags = {edited.ops[1].tag for edited in found if type(edited.ops[1]) is Write}
    assert tags == {66, 0, 1, 33, 65}


def test_lower_numbers():
    """All below up to 64, then a few; negative ones go to zero."""
    assert list(below(3)) == [0, 1, 2]
    assert len(below(64)) == 64
    assert list(below(2**31)) == [0, 1, 2**30, 2**31 - 1]
    assert list(below(-1)) == [0]


def test_an_unused_group_goes_and_the_others_follow():
    """Dropping group 0 renames group 1 in ops and jobs."""
    geometry = build(Draft(groups=draft_of(PLAIN).groups * 2))
    program = Program(
        geometry, (Allocate(0, 1, (0,)), Offload(1, (Job(1, (Move(Handle(0, 0), 0, 0),)),)))
    )

    fewer = next(edited for edited in edits(program) if len(edited.geometry.groups) == 1)

    assert fewer.ops[0].group == 0
    assert fewer.ops[1].jobs[0].group == 0


def test_renumbering_keeps_handles_on_their_ops():
    """Ids count from zero; a dangling handle goes on dangling."""
    program = Program(PLAIN, (Allocate(7, 0, (1,)), Zero(9, 0, (Handle(7, 0), Handle(3, 0)))))

    assert renumbered(program).ops == (
        Allocate(0, 0, (1,)),
        Zero(1, 0, (Handle(0, 0), Handle(-1, 0))),
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_drafts_and_geometries_are_two_forms_of_one_thing(family):
    """Building a geometry's draft gives the geometry back; simpler drafts can all be built."""
    for seed in range(30):
        geometry = FAMILIES[family].draw(Prng(seed))
        again = build(draft_of(geometry))
        assert build(draft_of(again)) == again
        for draft in simpler(draft_of(geometry)):
            build(draft)


def test_dimension_lists_have_no_value_twice():
    """A list is an order of simplicity."""
    for name, values in VALUES.items():
        assert len(set(values)) == len(values), name


def test_choices_of_ops_have_simplest_forms():
    """fp32, plain, and blocks that are not zeroed; each is an edit of its own."""
    ops = (Allocate(0, 0, (1,), zero=True), WriteValues(1, 0, (), 1, "bf16", "special"))
    program = Program(PLAIN, ops)

    assert [edited.ops for edited in simpler_choices(program)] == [
        (Allocate(0, 0, (1,)), ops[1]),
        (ops[0], WriteValues(1, 0, (), 1, "fp32", "special")),
        (ops[0], WriteValues(1, 0, (), 1, "bf16", "plain")),
    ]


class Deaf(CpuEngine):
    """Real values are not stored."""

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None if type(op) is WriteValues else super().apply(op, rows)


@pytest.mark.parametrize("family", ["values", "latent", "hybrid"])
def test_values_that_were_not_stored_are_reduced_to_plain_ones_of_the_first_format(family):
    """No scale, no side buffer, no state, one token to a slot; nothing that is not needed."""
    families = {family: Counts()}
    example = next(
        found for found in campaign(Deaf, [FAMILIES[family]], 0, families) if found.wrong
    )
    finding = find(Deaf, "deaf", family, example.run, example.wrong)

    assert finding.failure.signature == (
        "mismatch",
        "write_values",
        "lost",
        finding.trace.signature[3],
    )
    program = Program(finding.trace.geometry, finding.trace.ops)
    assert Reducer(Deaf, finding.failure.signature, program).is_minimal()
    write = finding.trace.ops[-1]
    assert type(write) is WriteValues
    assert (write.value_type, write.style) == ("fp32", "plain")
    (group,) = finding.trace.geometry.groups
    (layers,) = group.layer_sets
    assert group.tokens_per_state == 1
    assert (layers.side, layers.k_scale, layers.v_scale) == (False, 1.0, 1.0)
