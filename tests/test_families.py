"""Families and steps: what they promise to meet is met, the same from the same choices."""

from collections import Counter
from dataclasses import fields
from functools import cache
from itertools import pairwise

import pytest

from kvexact.fuzz.budget import fit
from kvexact.fuzz.campaign import STEPS, run_example
from kvexact.fuzz.choose import Digits, Prng, chance, pick, sample, weighted
from kvexact.fuzz.counts import Counts, vacuous
from kvexact.fuzz.demands import fitted, fitted_group, is_state, orders_of, splits
from kvexact.fuzz.dimensions import VALUES, Draft, GroupDraft, LayerSetDraft, build, draft_of
from kvexact.fuzz.families import FAMILIES, SERVING
from kvexact.fuzz.features import FEATURES
from kvexact.fuzz.sizes import block_bytes
from kvexact.impl.engine.cache import Cache
from kvexact.impl.engine.engine import CpuEngine
from kvexact.refmodel.ops import BLOCK_OPS, OP_REASONS, Allocate, Evict, Free, Offload, Zero
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import GEOMETRY_REASONS, PAGE_FORMATS, Refused

BYTE_FAMILIES = sorted(name for name, family in FAMILIES.items() if not family.plans_only)


@cache
def counts_of(name: str, examples: int) -> Counts:
    """Counts of a family's first examples on the built-in engine, which must agree."""
    counts = Counts()
    target = CpuEngine()
    for seed in range(examples):
        example = run_example(target, FAMILIES[name], Prng(seed), counts)
        assert example.wrong is None, example.wrong
    return counts


@pytest.mark.parametrize("name", BYTE_FAMILIES)
def test_byte_families_are_not_vacuous(name):
    """Sixty examples of each: ops act, bytes change, and most examples restore changed bytes.

    Every kind of op is drawn that has a weight, and no other.
    """
    counts = counts_of(name, 60)

    family = FAMILIES[name]
    kinds = family.kinds(BLOCK_OPS)
    percent = family.illegal_percent
    assert vacuous(counts, plans_only=False, illegal_percent=percent, op_kinds=kinds) == []
    assert counts.geometries["accepted"] >= 30
    assert all(counts.ops[kind, "acted"] for kind in kinds)
    assert {kind for kind, _ in counts.ops} == kinds


def _owner_of(cache, op):
    cache.blocks.require_owned(cache.blocks.group(op.group), cache.blocks.ids(op.blocks))


def _owners_of_jobs(cache, op):
    for job in cache.host.moves(cache.blocks, op.jobs):
        cache.blocks.require_owned(job.group, job.blocks)


@pytest.mark.parametrize(
    ("kind", "too_early"),
    [
        (Allocate, lambda cache, op: cache.blocks.require_free(0, cache.blocks.ids(op.blocks))),
        (Free, _owner_of),
        (Zero, _owner_of),
        (Evict, lambda cache, op: cache.host.require_used(cache.host.ids(op.host_slots))),
        (Offload, _owners_of_jobs),
    ],
)
def test_ops_that_two_reasons_refuse_show_which_comes_first(kind, too_early):
    """What is named twice is refused for that, whoever owns it."""

    class Hasty(Cache):
        def apply(self, op, rows):
            if type(op) is kind:
                too_early(self, op)
            return super().apply(op, rows)

    class HastyEngine(CpuEngine):
        cache = Hasty

    for seed in range(300):
        example = run_example(HastyEngine(), FAMILIES["refusals"], Prng(seed), Counts())
        if example.wrong is not None:
            break
    assert example.wrong is not None
    assert (example.wrong.outcome, example.wrong.want) == ("refusal", "duplicate")


def test_the_planning_family_meets_every_reason_and_both_verdicts():
    """Verdicts are compared a few hundred times, with at least a fifth of each."""
    counts = counts_of("planning", 500)

    assert vacuous(counts, plans_only=True, illegal_percent=0) == []
    assert all(counts.geometries[f"refused:{reason}"] for reason in GEOMETRY_REASONS)


def test_every_refusal_of_every_op_is_met():
    """The refusals family sends each op for each reason that can refuse it."""
    counts = counts_of("refusals", 400)

    writes, reads = ("write_tokens", "write_values"), ("read", "read_values")
    never = {
        *(("copy_blocks", "duplicate"), ("copy_blocks", "host"), ("evict", "owner")),
        *((kind, "duplicate") for kind in reads),
        *((kind, "host") for kind in ("allocate", "free", "zero", *writes, *reads)),
        *((kind, "format") for kind in BLOCK_OPS if not kind.endswith("_values")),
        *(("reset", reason) for reason in OP_REASONS),
    }
    possible = {(kind, reason) for kind in BLOCK_OPS for reason in OP_REASONS} - never
    assert possible - set(counts.reasons) == set()
    assert never & set(counts.reasons) == set()


def test_every_value_of_every_dimension_can_be_drawn():
    """All values from real reports come up, on paper at least."""
    seen: dict[str, set[object]] = {name: set() for name in VALUES}
    seeds = [(FAMILIES["planning"], 6000), (SERVING["serving_windows"], 300)]
    for family, seed in ((family, seed) for family, end in seeds for seed in range(end)):
        draft = draft_of(family.draw(Prng(seed)))
        groups = draft.groups
        for part in (draft, *groups, *(layers for group in groups for layers in group.layer_sets)):
            for item in fields(part):
                if item.name in seen:
                    seen[item.name].add(getattr(part, item.name))
    missing = {name: set(values) - seen[name] for name, values in VALUES.items()}
    # A spare byte or two of a tiny row is a row more, and a declared size of 0 shows no excess.
    assert {name: values for name, values in missing.items() if values} == {}


def test_every_feature_is_met():
    """Formats, side buffers, states, types of values: fewer examples than the default profile."""
    total = Counts()
    for name in BYTE_FAMILIES:
        total.add(counts_of(name, 60))

    assert [name for name in FEATURES if not total.features[name]] == []


def test_the_byte_budget_leaves_sizes_that_formats_take():
    """Shrinking a head halves it to a size of its format, and latent rows have one size."""
    for page_format in PAGE_FORMATS:
        layers = fitted(LayerSetDraft(3, 4, 512, 512, page_format))
        group = fitted_group(GroupDraft(64, 2 - is_state(layers), layer_sets=(layers,)))
        geometry = fit(Prng(1), Draft((group,), 17, host_rows=8), budget_bytes=60_000)
        plan(geometry)
        size = (geometry.blocks + draft_of(geometry).host_rows) * block_bytes(geometry.groups)
        assert size <= 60_000 or page_format == "bf16_cpu_amx"


@pytest.mark.parametrize("page_format", PAGE_FORMATS)
def test_what_fits_a_format_is_accepted(page_format):
    """From any sizes, in every order that the family knows for it."""
    for seed in range(20):
        prng = Prng(seed)
        sizes = [1 + prng.below(300) for _ in range(3)]
        layers = fitted(LayerSetDraft(2, 1 + prng.below(3), sizes[0], sizes[1], page_format))
        group = fitted_group(
            GroupDraft(sizes[2], layer_sets=(layers,), tokens_per_state=seed % 3 + 1)
        )
        for order in orders_of((group,)):
            plan(build(Draft((group,), 2, order, kv_split=splits((group,)))))


def test_runs_of_slots_wrap_around_and_go_on_in_the_next_block():
    """Rings, windows that are not block-aligned, and writes of more rows than a wave has."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        run = run_example(CpuEngine(), FAMILIES["batch"], Prng(seed), Counts()).run
        for op in run.done:
            slots = [slot for slot in getattr(op, "slots", ()) if slot is not None]
            seen["large"] += len(slots) > 64
            last = run.model.slots(0) - 1
            for one, other in pairwise(slots):
                if (one.token, other.token) == (last, 0) and last:
                    seen["ring" if one.block == other.block else "on"] += 1
    assert seen["ring"] > 20
    assert seen["on"] > 20
    assert seen["large"] > 3


@pytest.mark.parametrize("name", BYTE_FAMILIES)
def test_byte_families_keep_to_the_byte_budget(name):
    """256 KiB of blocks and rows, 4 MiB now and then."""
    large = 0
    for seed in range(300):
        draft = draft_of(geometry := FAMILIES[name].draw(Prng(seed)))
        size = (geometry.blocks + draft.host_rows * draft.chunk_blocks) * block_bytes(
            geometry.groups
        )
        assert size <= 4 * 1024 * 1024
        large += size > 256 * 1024
    assert large <= 30


def test_families_draw_colliding_and_coprime_dimensions():
    """Heads that equal 2, and the block size; odd sizes as well."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        geometry = FAMILIES["one_group"].draw(Prng(seed))
        group = geometry.groups[0]
        heads = group.layer_sets[0].kv_heads
        seen["two heads"] += heads == 2
        seen["heads = block"] += heads == group.block_size
        seen["odd block"] += group.block_size % 2
        seen["order " + geometry.order] += 1
    assert all(count >= 15 for count in seen.values())


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_same_choices_make_the_same_example(name):
    """Geometry and ops are functions of the seed alone."""
    first, second = (
        run_example(CpuEngine(), FAMILIES[name], Prng(5), Counts()).run for _ in range(2)
    )

    assert first.geometry == second.geometry
    assert first.done == second.done
    assert len(first.done) in (0, STEPS)


def test_a_bad_geometry_of_a_family_is_refused_alike():
    """Families may draw what cannot be; that is a verdict like any other."""
    verdicts = Counter()
    for seed in range(300):
        try:
            plan(FAMILIES["mixed"].draw(Prng(seed)))
            verdicts["accepted"] += 1
        except Refused as refusal:
            verdicts[refusal.reason] += 1
    assert verdicts["accepted"] > 200
    assert verdicts["alignment"]


def test_prng_is_splitmix64():
    """The first words of seed 0 are those of the published generator, scaled."""
    prng = Prng(0)
    words = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]

    assert [prng.below(1 << 64) for _ in words] == words
    assert {Prng(seed).below(3) for seed in range(30)} == {0, 1, 2}


def test_digits_read_one_number_and_then_noise():
    """A number's digits come first; used up, choices go on, the same for the same number."""

    def choices() -> list[int]:
        digits = Digits(3 + 5 * (1 + 2 * 8))
        return [digits.below(end) for end in (5, 2, 10, 7, 7, 7, 7)]

    assert choices()[:3] == [3, 1, 8]
    assert choices() == choices()


def test_choices():
    """Helpers draw within their bounds."""
    prng = Prng(1)
    assert {pick(prng, "abc") for _ in range(50)} == set("abc")
    assert {weighted(prng, (0, 3, 1)) for _ in range(50)} == {1, 2}
    assert sorted(sample(prng, range(5), 9)) == [0, 1, 2, 3, 4]
    assert not any(chance(prng, 0) for _ in range(50))
    assert all(chance(prng, 100) for _ in range(50))
