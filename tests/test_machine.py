"""The Hypothesis machine: what it draws, how it ends, and that a sound engine passes it."""

import os
import subprocess
import sys
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import ClassVar

import hypothesis
import pytest

from kvexact.fuzz.campaign import campaign, numbered_example, place
from kvexact.fuzz.counts import Counts, vacuous
from kvexact.fuzz.families import FAMILIES, SERVING
from kvexact.fuzz.family import Family
from kvexact.fuzz.items import PROFILES, families_of, items_of
from kvexact.fuzz.machine import failures, run_item
from kvexact.fuzz.run import Run
from kvexact.fuzz.targets import NamedTarget
from kvexact.impl.adapters.example import ExampleCache, ExampleCacheWithBug
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.faults import FAULTS
from kvexact.refmodel.ops import OPS

EXAMPLES = 27
ROOT = Path(__file__).parents[1]


class Traces:
    """Everything that an item drew."""

    def __init__(self) -> None:
        self.of_each: list[str] = []

    def __call__(self, run: Run) -> None:
        self.of_each.append(sha256(repr((run.geometry, run.done)).encode()).hexdigest())


def drawn(family: str, seed: int, examples: int = 18) -> list[str]:
    traces = Traces()
    assert run_item(CpuEngine(), FAMILIES[family], seed, examples, Counts(), traces) is None
    return traces.of_each


def complaints(family: Family, counts: Counts) -> list[str]:
    return vacuous(
        counts,
        plans_only=family.plans_only,
        illegal_percent=family.illegal_percent,
        op_kinds=family.kinds(OPS),
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_sound_engine_passes(family: Family) -> None:
    counts = Counts()
    assert run_item(CpuEngine(), family, 3, EXAMPLES, counts) is None
    assert complaints(family, counts) == []
    if not family.plans_only:
        assert counts.geometries["accepted"] >= EXAMPLES - 3


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_sound_engine_passes_the_prng(family: Family) -> None:
    counts = Counts()
    for number, example in enumerate(campaign(CpuEngine, [family], 3, {family.name: counts}), 1):
        assert example.wrong is None
        if number == (200 if family.plans_only else EXAMPLES):
            break
    assert complaints(family, counts) == []


def test_one_seed_draws_the_same_whatever_is_loaded() -> None:
    """Hypothesis reads constants from loaded modules; pytest's many are loaded here only."""
    here = {family: drawn(family, 5) for family in ("overlay", "planning")}
    code = (
        "from tests.test_machine import drawn\n"
        "for family in ('overlay', 'planning'):\n"
        "    print(*drawn(family, 5))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "CI": "true"},
    )
    assert done.stdout.splitlines() == [" ".join(traces) for traces in here.values()]


def test_profiles_of_hypothesis_change_nothing() -> None:
    before = drawn("padded", 6)
    usual = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.register_profile("other", derandomize=True, max_examples=2, database=None)
    try:
        for profile in ("ci", "other"):
            hypothesis.settings.load_profile(profile)
            assert drawn("padded", 6) == before
    finally:
        hypothesis.settings.load_profile(usual)


def test_no_two_items_draw_the_same() -> None:
    """With CI=true Hypothesis would give all items the same data, were they not seeded."""
    code = """
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.items import items_of
from kvexact.fuzz.machine import run_item
from kvexact.fuzz.targets import find_target
from tests.test_machine import Traces

for name in ("cpu", "example"):
    target = find_target(name)
    for item in items_of(target, 3, 0):
        traces = Traces()
        run_item(target.target_type(), item.family, item.seed, 3, Counts(), traces)
        print(item.name, *traces.of_each)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "CI": "true"},
    )
    items = [line.split() for line in done.stdout.splitlines()]
    assert len(items) == 3 * (len(families_of(CpuEngine)) + len(families_of(ExampleCache)))
    traces = [trace for _, *traces in items for trace in traces]
    assert len(traces) >= 3 * len(items)
    assert len(set(traces)) == len(traces)


def test_examples_of_an_item_differ() -> None:
    traces = drawn("one_group", 8, 90)
    assert len(traces) >= 85
    assert len(set(traces)) == len(traces)


class Counted(ExampleCacheWithBug):
    opened = 0

    def open(self, geometry):  # type: ignore[no-untyped-def]
        type(self).opened += 1
        return super().open(geometry)


def test_a_failure_ends_it_at_once() -> None:
    """Hypothesis neither runs it again nor shrinks it."""
    traces = Traces()
    found = run_item(Counted(), FAMILIES["one_group"], 1, 90, Counts(), traces)
    assert found is not None
    run, wrong = found
    assert wrong.op is not None
    assert run.recorded[-1] == "failed"
    assert Counted.opened == len(traces.of_each)


def test_an_item_goes_on_after_a_failure() -> None:
    target = FAULTS["scale_views_from_shape"].target()
    found = list(failures(target, FAMILIES["one_group"], 2, 90, Counts()))
    assert len(found) >= 2
    assert {wrong.outcome for _, wrong in found} == {"fact"}


def test_bugs_of_the_fuzzer_are_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Run, op: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(Run, "step", broken)
    with pytest.raises(ZeroDivisionError):
        run_item(CpuEngine(), FAMILIES["mixed"], 1, 9, Counts())


def test_items_have_names_and_seeds_of_their_own() -> None:
    items = list(items_of(NamedTarget("cpu", CpuEngine), 4, 0))
    assert len({item.name for item in items}) == 4 * len(families_of(CpuEngine))
    assert items[0].name == "cpu-one_group-0"
    other_seed = items_of(NamedTarget("cpu", CpuEngine), 4, 1)
    other_target = items_of(NamedTarget("cuda", CpuEngine), 4, 0)
    seeds = {item.seed for some in (items, other_seed, other_target) for item in some}
    assert len(seeds) == 3 * len(items)


def test_families_fit_the_target() -> None:
    assert [family.name for family in families_of(CpuEngine)] == [*FAMILIES, *SERVING]

    class NoRefusals(ExampleCache):
        families: ClassVar[tuple[str, ...] | None] = None

    assert "refusals" not in {family.name for family in families_of(NoRefusals)}

    class Wrong(ExampleCache):
        families: ClassVar[tuple[str, ...] | None] = ("one_group", "paddded")

    with pytest.raises(ValueError, match="family 'paddded' does not exist; use one_group, "):
        families_of(Wrong)

    class Misspelt(ExampleCache):
        op_kinds = ExampleCache.op_kinds | {"evicts"}

    with pytest.raises(ValueError, match="op kind 'evicts' does not exist; use some of allocate, "):
        families_of(Misspelt)


def test_families_that_are_wanted() -> None:
    wanted = families_of(CpuEngine, ("padded", "refusals", "padded"))
    assert [family.name for family in wanted] == ["padded", "refusals"]
    assert families_of(ExampleCache, ["overlay"]) == [FAMILIES["overlay"]]
    with pytest.raises(ValueError, match="family 'x' does not exist"):
        families_of(CpuEngine, ["x"])
    with pytest.raises(ValueError, match="promises no refusal"):
        families_of(ExampleCache, ["padded", "refusals"])

    class Nothing(ExampleCache):
        families: ClassVar[tuple[str, ...] | None] = ()

    with pytest.raises(ValueError, match="no family is left"):
        families_of(Nothing)


def test_a_campaign_takes_families_in_turn() -> None:
    """An example's number alone says what it is."""
    families = [FAMILIES["padded"], FAMILIES["one_group"]]
    counts = {family.name: Counts() for family in families}
    examples = list(islice(campaign(CpuEngine, families, 4, counts), 6))
    for number, example in enumerate(examples):
        family, index = place(number, families)
        again = numbered_example(CpuEngine(), family, index, 4, Counts())
        assert (example.family, example.run.done) == (family, again.run.done)
    assert [example.family for example in examples] == families * 3


def test_profiles_are_of_fresh_examples() -> None:
    assert all(profile.examples % 9 == 0 for profile in PROFILES.values())
