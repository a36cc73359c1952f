"""Requests under the fuzzer: a sound manager passes, each broken rule is found and explained."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_target
from serving_target import ServingTarget

from kvexact.fuzz.campaign import Example, numbered_example
from kvexact.fuzz.counts import Counts, vacuous
from kvexact.fuzz.edits import Program, renumbered
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.families import SERVING
from kvexact.fuzz.features import SERVING_FEATURES
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.items import families_of
from kvexact.fuzz.reduce import Reducer
from kvexact.fuzz.reproduce import render
from kvexact.fuzz.run import execute
from kvexact.fuzz.serve import digest
from kvexact.fuzz.targets import NamedTarget, find_target
from kvexact.fuzz.trace import dump, load
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import Result, Rows, Target
from kvexact.refmodel.answer import Answer
from kvexact.refmodel.ops import BLOCK_OPS, OPS, Allocate, Handle, Op, Zero
from kvexact.refmodel.serving_ops import Admit, Attend, Compute, Mutate, Store
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

#: Acted ops within which a fault shows.
OPS_MOST = 40_000
#: How each fault shows: outcome, what differs, cause or field; and words of the explanation.
FAULTS: dict[str, tuple[str, str, str, str]] = {
    "free counted twice": ("inadmissible", "free", "pool", "blocks in no table"),
    "rejected token offered": ("inadmissible", "", "rejected", "was rejected"),
    "sampled token offered": ("inadmissible", "", "", "its slot"),
    "uncommitted block offered": ("inadmissible", "", "not computed", "without keys and values"),
    "window dropped too early": ("inadmissible", "dropped", "", "before the window"),
    "deeper in one group": ("inadmissible", "offered", "", "group 1 entry"),
    "batch evicts its own": ("inadmissible", "batch", "", "its own store evicted it"),
    "store dropped by a preempt": ("mismatch", "lost", "page", "last written by op"),
    "window stored late": ("mismatch", "lost", "page", "last written by op"),
    "evicted slot still offered": ("inadmissible", "offered", "", "offered"),
    "key of the last block alone": ("inadmissible", "offered", "other tokens", "other tokens"),
    "off by one at a boundary": ("inadmissible", "prefix", "length", "must be less than"),
}


def examples(target: Target, counts: Counts) -> Iterator[Example]:
    """Examples of both families in turn."""
    for number in range(10_000):
        for family in SERVING.values():
            yield numbered_example(target, family, number, 0, counts)


def faulty(fault: str) -> type[ServingTarget]:
    return type("Faulty", (ServingTarget,), {"fault": fault})


def found(fault: str) -> Finding:
    """The first failure of a fault, reduced."""
    make, counts = faulty(fault), Counts()
    for example in examples(make(), counts):
        if example.wrong is not None:
            return find(make, "ref", example.family.name, example.run, example.wrong)
        assert counts.acted < OPS_MOST, f"{fault} was not found"
    raise AssertionError


def test_answers_come_from_another_process() -> None:
    """An isolated target answers and fails like one in this process."""
    for name in ("ServingTarget", "LastBlockKeys", "NoAnswers", "Lists"):
        here, isolation = Counts(), Isolation(find_target(f"serving_target:{name}"))
        there, family = Counts(), SERVING["serving_windows"]
        targets = (getattr(serving_target, name)(), here), (isolation.make(), there)
        for number in range(25):
            one, other = (
                numbered_example(target, family, number, 0, counts) for target, counts in targets
            )
            assert one.run.recorded == other.run.recorded
            wrong = [e.wrong for e in (one, other)]
            how = [w and (w.outcome, w.text, w.want, w.got) for w in wrong]
            assert how[0] == how[1]
            assert digest(one.run.serve.answers) == digest(other.run.serve.answers)
        isolation.close()
        assert here.to_json() == there.to_json()
        assert here.acted > 100 or name in ("NoAnswers", "Lists")


def test_a_sound_manager_passes() -> None:
    """No report in thousands of ops that meet all that answers can have, and prove something."""
    counts = Counts()
    for example in examples(ServingTarget(), counts):
        assert example.wrong is None, example.wrong
        if counts.acted > 6000:
            break
    assert [name for name in SERVING_FEATURES if not counts.features[name]] == []
    kinds = SERVING["serving"].kinds(ServingTarget.op_kinds)
    assert vacuous(counts, plans_only=False, illegal_percent=0, op_kinds=kinds) == []
    del counts.features["hit in the host tier"]
    told = vacuous(counts, plans_only=False, illegal_percent=0, op_kinds=kinds)
    assert told == ["never met: hit in the host tier"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_rule_is_found_and_reduced(fault: str) -> None:
    """Each with a signature of its own and a message that says what is wrong."""
    outcome, difference, field, words = FAULTS[fault]
    finding = found(fault)
    signature = finding.failure.signature
    assert signature.outcome == outcome
    assert difference in ("", signature.difference)
    assert field in ("", signature.field)
    assert words in "\n".join(finding.failure.lines)
    assert len(finding.trace.ops) <= 15
    program = Program(finding.trace.geometry, finding.trace.ops)
    assert Reducer(faulty(fault), signature, program).is_minimal()


BYTES = LayerSet(1, 1, 4, 4, "fp8_e4m3")
SMALL = Geometry((Group(2, 2, (BYTES,)),), 4, Host(32))
PROMPT = (Admit(0, (5, 6, 7)), Compute(1, 0, 9, (1,), 0, 2))


class Blocks(CpuEngine):
    """Has ops on blocks alone."""

    op_kinds = frozenset(BLOCK_OPS)


def test_sorts_of_ops_do_not_mix() -> None:
    """What came first decides; an op in between belongs to both."""

    class Both(ServingTarget):
        op_kinds = frozenset(OPS)

    ops: tuple[Op, ...] = (*PROMPT, Allocate(2, 0, (3,)), Mutate(3, 0), Attend(4, 0))
    run, wrong = execute(Both(), SMALL, ops)
    assert wrong is None
    assert run.recorded == ["acted", "acted", "dangling", "acted", "acted"]
    run, wrong = execute(Blocks(), SMALL, (*PROMPT, Allocate(2, 0, (3,)), Mutate(3, 0)))
    assert wrong is None
    assert run.recorded == ["unsent", "unsent", "acted", "acted"]


def test_requests_need_pages_of_tokens() -> None:
    """Of states nothing is sent."""
    states = Group(2, 2, (LayerSet(1, 1, 4, 4, "state_fp32"),))
    geometry = Geometry((states,), 4, Host(4096), order="BLHNC")
    run, wrong = execute(ServingTarget(), geometry, PROMPT)
    assert (wrong, run.recorded) == (None, ["unsent", "unsent"])


def test_undefined_bytes_that_count_are_found() -> None:
    """A target that looks at bytes of a slot that nobody wrote."""

    class Looks(Blocks):
        def apply(self, op: Op, rows: Rows | None) -> Result:
            if isinstance(op, Zero):
                self.load("pool", np.roll(self.view("pool"), 1))
            return super().apply(op, rows)

    ops: tuple[Op, ...] = (Allocate(0, 0, (0,)), Mutate(1, 0), Zero(2, 0, (Handle(0, 0),)))
    run, wrong = execute(Looks(), SMALL, ops)
    assert wrong is not None
    failure = explain_failure(run, wrong)
    assert failure.signature.op == "zero"
    assert "last written by op 1 mutate" in "\n".join(failure.lines)


def test_a_trace_of_requests_is_kept_and_shown_again(tmp_path: Path) -> None:
    """Through a file, as a reproducer, and with new numbers."""
    finding = found("rejected token offered")
    path = tmp_path / "trace.json"
    path.write_bytes(dump(finding.trace))
    assert load(path) == finding.trace

    later = tuple(replace(op, id=op.id + 7) for op in PROMPT)
    later = (later[0], replace(later[1], request=7))
    assert renumbered(Program(SMALL, later)).ops == PROMPT

    target = NamedTarget("serving_target:LastBlockKeys", serving_target.LastBlockKeys)
    source = render(found("key of the last block alone"), target)
    names: dict[str, Any] = {}
    exec(source, names)
    with pytest.raises(AssertionError, match="it holds other tokens"):
        names["test_reproducer"]()


def test_families_of_requests_are_for_targets_that_have_them() -> None:
    """They are met by default there, and refused elsewhere."""
    assert [family.name for family in families_of(ServingTarget)] == ["planning", *SERVING]
    assert not set(SERVING) & {family.name for family in families_of(Blocks)}
    with pytest.raises(ValueError, match="a target without admit, readmit"):
        families_of(Blocks, ["serving"])
    with pytest.raises(ValueError, match="a target without allocate"):
        families_of(ServingTarget, ["one_group"])

    class Few(ServingTarget):
        op_kinds = ServingTarget.op_kinds - {"store", "lookup"}

    with pytest.raises(ValueError, match="'admit' is never sent to a target without store, lookup"):
        families_of(Few)
    assert [family.name for family in families_of(Few, ["planning"])] == ["planning"]


def test_equal_answers_have_equal_digests() -> None:
    """A digest names the answers of a run and nothing else."""
    one, _ = execute(ServingTarget(), SMALL, PROMPT)
    same, _ = execute(ServingTarget(), SMALL, (*PROMPT, Attend(2, 0)))
    other, _ = execute(ServingTarget(), SMALL, (*PROMPT, Store(2, 0)))
    assert digest(one.serve.answers) == digest(same.serve.answers)
    assert digest(one.serve.answers) != digest(other.serve.answers)


def test_what_attend_reads_is_compared() -> None:
    """Group, row and field of the first wrong byte are named."""

    class Forgets(ServingTarget):
        def apply(self, op: Op, rows: Rows | None) -> Result:
            read = super().apply(op, rows)
            if isinstance(read, tuple):
                read[0][1, 0, 0, 5] ^= 1
            return read

    run, wrong = execute(Forgets(), SMALL, (*PROMPT, Attend(2, 0)))
    assert wrong is not None
    failure = explain_failure(run, wrong)
    assert failure.signature == ("rows", "attend", "read", "v")
    assert failure.lines[0].startswith("op 2 attend(a0): a read of group 0 layer set 0 returned")
    assert "row 1  layer 0  head 0  field v  byte 1" in failure.lines[1]


def test_the_worked_example_of_the_docs() -> None:
    """docs/serving.md shows these answers and this message."""
    ops = (Admit(0, (5, 6, 7)), Compute(1, 0, 3, (8,), 0, 9), Admit(2, (5, 6, 7, 8, 1)))
    sound, wrong = execute(ServingTarget(), SMALL, ops)
    assert wrong is None
    assert sound.serve.answers == {
        0: Answer((4, 2), tables=((),)),
        1: Answer((2, 2), taken=((0, 1),), dropped=((),)),
        2: Answer((2, 2), hit=2, tables=((0,),)),
    }
    run, wrong = execute(faulty("rejected token offered")(), SMALL, ops)
    assert wrong is not None
    (line,) = explain_failure(run, wrong).lines
    text = (Path(__file__).parents[1] / "docs/serving.md").read_text()
    assert f"{line}\n" in text
