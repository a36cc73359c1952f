"""Requests under the fuzzer: a sound manager passes, each broken rule is found and explained."""

from collections.abc import Iterator

import pytest
from serving_target import ServingTarget

from kvexact.fuzz.campaign import Example, numbered_example
from kvexact.fuzz.counts import Counts, vacuous
from kvexact.fuzz.edits import Program
from kvexact.fuzz.families import SERVING
from kvexact.fuzz.features import SERVING_FEATURES
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.reduce import Reducer
from kvexact.impl.target import Target

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
