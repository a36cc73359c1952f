"""Releases of vLLM, where they are installed: what is found in them, and what is not.

Nothing is installed here; `kvexact vllm install` does that.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvexact.fuzz.bench_vllm import vllm_ops_per_s
from kvexact.fuzz.campaign import campaign
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.edits import Program
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.items import families_of
from kvexact.fuzz.reduce import Reducer, failure_of
from kvexact.fuzz.run import execute
from kvexact.fuzz.targets import NamedTarget, find_target
from kvexact.fuzz.trace import Trace, load
from kvexact.fuzz.vllm_matrix import GONE, NOT_MET, seen, what_became
from kvexact.fuzz.vllm_reproducer import reproducer
from kvexact.impl.adapters.vllm.home import LISTED, Home
from kvexact.impl.adapters.vllm.known import FINDINGS, Known, Seen, known_findings, known_of
from kvexact.impl.adapters.vllm.process import end_all, process_of
from kvexact.impl.target import Target, Unavailable
from kvexact.refmodel.ops import (
    Allocate,
    Handle,
    Job,
    Move,
    Offload,
    Op,
    Restore,
    Slot,
    WriteTokens,
    Zero,
)
from kvexact.refmodel.serving_ops import Admit, Attend, Compute, Finish, Lookup, Store
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet, Refused

#: Acted ops within which each seed bug is found.
OPS_MOST = 18_000
#: Acted ops for which a release is fuzzed that does not have it.
OPS_ELSEWHERE = 1_000
#: The oldest and the newest release that is listed.
ENDS = (LISTED[0], LISTED[-1])
#: How many seeds find each.
SEEDS = int(os.environ.get("KVEXACT_VLLM_SEEDS", "1"))


@pytest.fixture(autouse=True, scope="module")
def _processes() -> Iterator[None]:
    yield
    end_all()


def of_release(name: str) -> NamedTarget:
    """A target of a release; skips where that is not installed."""
    release = name.partition("@")[2].partition("+")[0]
    try:
        Home.default().check(release)
    except Unavailable as why:
        pytest.skip(str(why))
    return find_target(name)


def findings(name: str, wanted: Callable[[Seen], bool], seed: int, ops: int) -> Iterator[Finding]:
    """Failures of a kind within so many acted ops, reduced: the first of each signature."""
    target = of_release(name)
    families = families_of(target.target_type)
    counts, met = Counts(), set()
    for example in campaign(target.make, families, seed, {f.name: counts for f in families}):
        if example.wrong is not None:
            failure = explain_failure(example.run, example.wrong)
            if failure.signature not in met and wanted(seen(example.run, failure)):
                met.add(failure.signature)
                yield find(target.make, name, example.family.name, example.run, example.wrong)
        if counts.acted >= ops:
            return


def known_in(name: str) -> list[Known]:
    kind, _, variant = name.partition("@")
    release, *mutations = variant.split("+")
    return known_of(kind, release, mutations)


def outcome(name: str, geometry: Geometry, ops: tuple[Op, ...]) -> str:
    """How a trace ends in a release, where it fits."""
    target = of_release(name).make()
    assert target.fits(geometry)
    run, wrong = execute(target, geometry, ops)
    return str(explain_failure(run, wrong).signature) if wrong else "sound"


#: Seed bugs: where one is known, and releases that do not have it.
SEED_BUGS = [
    ("vllm-offload@0.24.0", "tail-lost", "vllm-offload@0.26.0"),
    ("vllm-offload@0.25.1", "tail-lost", "vllm-offload@0.26.0"),
    ("vllm-offload@0.24.0", "scales-in-one-buffer", "vllm-offload@0.26.0"),
    ("vllm-offload@0.25.1", "scales-in-one-buffer", "vllm-offload@0.26.0"),
    ("vllm-simple@0.29.0+undo-54021", "phantom-regions", "vllm-simple@0.29.0"),
]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("name", "wanted", "sound"), SEED_BUGS)
def test_seed_bugs_are_found_and_reduced(name: str, wanted: str, sound: str, seed: int) -> None:
    """To four ops at most by one of its signatures; others may need more, such as zeros to find."""
    (known,) = (one for one in known_in(name) if one.name == wanted)
    for finding in findings(name, known.is_it, seed, OPS_MOST):
        program = Program(finding.trace.geometry, finding.trace.ops)
        assert Reducer(of_release(name).make, finding.failure.signature, program).is_minimal()
        if len(program.ops) <= 4:
            break
    else:
        pytest.fail("no signature of the bug was reduced to four ops")
    geometry = replace(program.geometry, tail_alignment=1)
    if "@0.26.0" in sound:  # pages have another form there
        geometry = replace(geometry, kv_split=False)
    assert execute(of_release(sound).make(), geometry, program.ops)[1] is None


@pytest.mark.parametrize("name", sorted({sound for _, _, sound in SEED_BUGS}))
def test_seed_bugs_are_not_found_elsewhere(name: str) -> None:
    """Whatever is found where there are none is known, and something else."""
    known = known_in(name)
    assert not {one.name for one in known} & {wanted for _, wanted, _ in SEED_BUGS}
    unknown = lambda seen: not any(one.is_it(seen) for one in known)  # noqa: E731
    assert not any(findings(name, unknown, 0, OPS_ELSEWHERE))


#: Releases with one fence less, and the same release with it.
SIMPLE, OFFLOAD = "vllm-simple@{}+mend-47282", "vllm-offload@{}"
FENCES = [
    *((SIMPLE, word, release) for word in ("undo-46278", "any-order") for release in ENDS),
    *((of, "said-early", release) for of in (SIMPLE, OFFLOAD) for release in ENDS),
    *((OFFLOAD, "undo-31341", release) for release in ENDS),
    *((OFFLOAD, "undo-50696", release) for release in ("0.28.0", "0.33.0")),
]


@pytest.mark.parametrize(("of", "word", "release"), FENCES)
def test_a_fence_that_is_missing_is_found(of: str, word: str, release: str) -> None:
    if (of, release) == (OFFLOAD, "0.24.0"):
        of += "+mend-50696"
    name, sound = of.format(release) + f"+{word}", of.format(release)
    moved = lambda seen: seen.of_order and seen.signature.startswith("mismatch / restore")  # noqa: E731
    finding = next(findings(name, moved, 0, OPS_MOST))
    geometry, trace = finding.trace.geometry, finding.trace.ops
    assert len(trace) <= 5
    assert outcome(name, geometry, trace) == str(finding.failure.signature)
    for well in (sound, f"{name}+at-once"):
        assert execute(of_release(well).make(), geometry, trace)[1] is None


SHAPE = LayerSet(2, 1, 32, 32, "bf16")
GEOMETRY = Geometry((Group(16, 16, (SHAPE,)),), 3, Host(65536, row_alignment=4096), order="BLHNC")
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (0, 1)),
    WriteTokens(1, 0, (Slot(0, 3), Slot(1, 4)), 1),
    Offload(2, (Job(0, (Move(0, 2, 0), Move(1, 0, 0))),)),
    WriteTokens(3, 0, (Slot(0, 3), Slot(1, 5)), 3),
    Restore(4, (Job(0, (Move(1, 2, 0), Move(0, 0, 0))),)),
)


ONE_BLOCK: tuple[Op, ...] = (
    Offload(2, (Job(0, (Move(0, 2, 0),)),)),
    WriteTokens(3, 0, (Slot(0, 3),), 3),
    Restore(4, (Job(0, (Move(0, 2, 0),)),)),
)


@pytest.mark.parametrize("blocks", [1, 4, 5, 6, 7, 10])
def test_a_trace_ends_the_same_every_time(blocks: int) -> None:
    """Late, and in several orders; with copy threads, in memory and on disk."""
    target = of_release("vllm-simple@0.33.0")
    ends = set()
    for again in range(4):
        if again == 2:
            process_of("0.33.0", ()).close()
        made = target.make()
        ops = OPS if blocks > 1 else (Allocate(0, 0, (0,)), *ONE_BLOCK)
        run, wrong = execute(made, replace(GEOMETRY, blocks=blocks, host=Host(65536)), ops)
        ends.add(explain_failure(run, wrong).wrong_at if wrong else None)
    assert len(ends) == 1


@pytest.mark.parametrize("order", ["BLHNC", "LBNHC", "BHLNC", "LBHNC"])
def test_the_newest_release_keeps_what_it_moves(order: str) -> None:
    assert outcome("vllm-offload@0.33.0", replace(GEOMETRY, order=order), OPS) == "sound"


@pytest.mark.parametrize("blocks", [12, 13])
def test_hits_and_victims_are_those_of_a_releases_own_manager(blocks: int) -> None:
    """Both policies of eviction: the other one is used where the number of blocks is odd."""
    geometry = replace(GEOMETRY, blocks=blocks, host=replace(GEOMETRY.host, capacity_bytes=8192))
    first, other = (1,) * 33, (2,) * 33
    ops: tuple[Op, ...] = (
        *(Admit(0, first), Compute(1, 0, 33), Store(2, 0), Attend(3, 0)),
        *(Admit(4, first), Attend(5, 4), Admit(6, other), Compute(7, 6, 33)),
        *(Store(8, 6), Lookup(9, first), Lookup(10, other), Admit(11, other), Attend(12, 11)),
    )
    run, wrong = execute(of_release("vllm-offload@0.33.0").make(), geometry, ops)
    assert wrong is None
    answers = run.serve.answers
    assert (answers[4].hit, answers[4].loads) == (32, (Job(0, (Move(3, 0, 0), Move(4, 1, 0))),))
    assert sorted(answers[8].evicted) == [0, 1]
    assert [answers[op].hit for op in (9, 10, 11)] == [0, 32, 32]


@pytest.mark.parametrize(
    ("release", "order"), [("0.33.0", "LBNHC"), ("0.28.0", "LBHNC"), ("0.24.0", "LBNHC")]
)
def test_packed_rows_are_kept(release: str, order: str) -> None:
    rows = LayerSet(2, 2, 64, 64, "turboquant_k3v4_nc")
    groups = (Group(16, 16, (rows,)),)
    geometry = replace(GEOMETRY, groups=groups, host=Host(65536), order=order)
    assert outcome(f"vllm-simple@{release}", geometry, OPS) == "sound"


@pytest.mark.parametrize(("release", "in_a_file"), [("0.33.0", True), ("0.26.0", False)])
def test_a_host_tier_may_be_a_file(release: str, in_a_file: bool) -> None:
    """Where the number of blocks is odd, in releases that can."""
    geometry = replace(GEOMETRY, host=Host(65536), order="BLNHC" if in_a_file else "LBNHC")
    name = f"vllm-simple@{release}"
    assert outcome(name, geometry, OPS) == "sound"
    for blocks, is_odd in ((geometry.blocks, True), (geometry.blocks + 1, False)):
        target = of_release(name).make()
        target.open(replace(geometry, blocks=blocks))
        assert ("host tier in a file" in target.launches()) is (is_odd and in_a_file)
        target.close()


#: An offload that aligns rows, in the newest release; one that does not, in the oldest.
BOTH = ("vllm-offload@0.33.0", "vllm-simple@0.24.0")


def groups_of(name: str, *groups: Group, blocks: int, kv_split: bool = False) -> Geometry:
    """Groups as the target of this name lays them out."""
    alignment = 4096 if "offload" in name else 1
    host = Host(1 << 18, row_alignment=alignment)
    return Geometry(groups, blocks, host, "LBNHC", kv_split and "@0.24.0" in name)


def met_of(name: str, geometry: Geometry) -> set[str]:
    """What a release makes of a geometry, in which a trace of moves is sound."""
    assert outcome(name, geometry, OPS) == "sound"
    target = of_release(name).make()
    target.open(geometry)
    met = set(target.launches())
    target.close()
    return met


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("layers", [(2, 2, 2), (2, 2, 1)])
def test_a_model_of_three_groups_has_two_kinds_of_attention_or_three(
    name: str, layers: tuple[int, ...]
) -> None:
    """Three where blocks are even. Of three layers with a window two make a group, one another."""
    groups = [Group(16, 16, (replace(SHAPE, layers=count),)) for count in layers]
    met = met_of(name, groups_of(name, *groups, blocks=5, kv_split=True))
    assert ("unequal groups" in met) is (layers == (2, 2, 1))
    assert {"spec FullAttentionSpec", "spec SlidingWindowSpec"} <= met
    assert "spec ChunkedLocalAttentionSpec" not in met
    even = groups_of(name, *groups, blocks=4, kv_split=True)
    if layers == (2, 2, 2):
        assert "spec ChunkedLocalAttentionSpec" in met_of(name, even)
    else:
        assert not of_release(name).target_type.fits(even)


@pytest.mark.parametrize("name", BOTH)
def test_latent_rows_may_lie_beside_states(name: str) -> None:
    rows = Group(16, 16, (LayerSet(2, 1, 576, 0, "bf16"),))
    states = Group(16, 16, (LayerSet(2, 1, 8, 16, "state_bf16", page_bytes=576 * 2 * 16),))
    met = met_of(name, groups_of(name, rows, states, blocks=4))
    assert {"spec MLAAttentionSpec", "spec MambaSpec"} <= met


def test_latent_rows_may_have_a_window() -> None:
    rows = Group(16, 16, (LayerSet(2, 1, 576, 0, "bf16"),))
    met = met_of(BOTH[0], groups_of(BOTH[0], rows, rows, blocks=4))
    assert {"spec MLAAttentionSpec", "spec SlidingWindowMLASpec"} <= met
    of_release(BOTH[1])
    assert not find_target(BOTH[1]).target_type.fits(groups_of(BOTH[1], rows, rows, blocks=4))
    packed = Group(64, 64, (LayerSet(1, 1, 576, 0, "fp8_ds_mla"),))
    two = groups_of(BOTH[0], packed, packed, blocks=4)
    assert not find_target(BOTH[0]).target_type.fits(two)


def test_latent_rows_and_keys_of_an_indexer_are_kept() -> None:
    target = of_release("vllm-offload@0.33.0").make()
    rows = LayerSet(2, 1, 576, 0, "fp8_ds_mla")
    keys = LayerSet(2, 1, 128, 0, "indexer_fp8")
    geometry = replace(GEOMETRY, groups=(Group(64, 64, (rows, keys)),), host=Host(1 << 19, 1, 4096))
    assert outcome("vllm-offload@0.33.0", geometry, OPS) == "sound"
    target.open(geometry)
    assert "spec MLAAttentionSpec" in target.launches()
    target.close()


@pytest.mark.parametrize(("name", "page"), [(BOTH[0], 32832), (BOTH[1], 37440)])
def test_compressed_vectors_are_kept(name: str, page: int) -> None:
    """With keys of an indexer, vectors of a window and states: once these had pages as large."""
    rows = LayerSet(1, 1, 512, 0, "deepseek_v4", page_bytes=37440)
    index_keys = LayerSet(1, 1, 128, 0, "indexer_fp8", page_bytes=8640)
    states = LayerSet(1, 1, 2048, 0, "fp32", page_bytes=page)
    index_states = LayerSet(1, 1, 512, 0, "fp32", page_bytes=8640)
    groups = (
        Group(256, 256, (rows, index_keys), tokens_per_state=4),
        Group(64, 64, (rows,)),
        Group(4, 4, (states, index_states)),
    )
    geometry = replace(groups_of(name, *groups, blocks=4), order="BLNHC")
    assert {"spec MLAAttentionSpec", "spec SlidingWindowMLASpec"} <= met_of(name, geometry)
    alone = replace(geometry, groups=groups[:1])
    assert not of_release(name).target_type.fits(alone)


@pytest.mark.parametrize(
    ("release", "ends"), [("0.28.0", "mismatch / zero / lost / k"), ("0.33.0", "sound")]
)
def test_pages_over_smaller_ones_are_zeroed(release: str, ends: str) -> None:
    """Beside states, of two kinds of attention."""
    small, large = LayerSet(2, 2, 32, 32, "bf16", page_bytes=6144), LayerSet(2, 3, 32, 32, "bf16")
    states = LayerSet(2, 1, 8, 16, "state_bf16", page_bytes=6144)
    name = f"vllm-views@{release}"
    groups = [Group(16, 16, (one,)) for one in (small, large, states)]
    ops = (Allocate(0, 1, (1,)), Zero(1, 1, (Handle(0, 0),)))
    assert outcome(name, groups_of(name, *groups, blocks=4), ops) == ends


def test_head_planes_are_not_registered() -> None:
    heads = replace(GEOMETRY.groups[0], layer_sets=(replace(SHAPE, kv_heads=2),))
    geometry = replace(GEOMETRY, groups=(heads,), order="LHBNC")
    assert outcome("vllm-offload@0.33.0", geometry, OPS) == "fact / open / fact / regions"


def test_that_whole_blocks_travel_is_declared() -> None:
    """Block-outermost, a smaller group's restore brings bytes that are not its content."""
    target = of_release("vllm-offload@0.33.0")
    small = Group(16, 16, (LayerSet(2, 1, 16, 16, "state_bf16", page_bytes=2048),))
    geometry = replace(GEOMETRY, groups=(GEOMETRY.groups[0], small))
    ops: tuple[Op, ...] = (
        Allocate(0, 1, (0, 1)),
        Offload(1, (Job(1, (Move(0, 0, 0),)),)),
        Restore(2, (Job(1, (Move(1, 0, 0),)),)),
    )
    assert outcome(target.name, geometry, ops) == "sound"
    strict: type[Target] = type("Strict", (target.target_type,), {"free": ()})
    run, wrong = execute(strict(), geometry, ops)
    assert wrong is not None
    assert str(explain_failure(run, wrong).signature) == "mismatch / restore / frame / padding"


def test_that_whole_blocks_travel_for_a_hit_is_declared() -> None:
    target = of_release("vllm-offload@0.33.0")
    rows = LayerSet(1, 1, 32, 0, "bf16")
    groups = [Group(16, 16, (one,)) for one in (rows, replace(rows, page_format="fp8_e4m3"))]
    geometry = replace(groups_of(target.name, *groups, blocks=4), order="BLHNC")
    tokens = (1,) * 17
    ops = (Admit(0, tokens[:16]), Compute(1, 0, 16), Store(2, 0), Finish(3, 0), Admit(4, tokens))
    assert outcome(target.name, geometry, ops) == "sound"
    strict: type[Target] = type("Strict", (target.target_type,), {"free": ()})
    run, wrong = execute(strict(), geometry, ops)
    assert wrong is not None
    assert str(explain_failure(run, wrong).signature) == "mismatch / admit / frame / neighbour"


def test_a_geometry_that_a_release_would_lay_out_otherwise_does_not_fit() -> None:
    found = of_release("vllm-offload@0.33.0").target_type
    for change in ({"kv_split": True}, {"base_offset_bytes": 4}, {"tail_alignment": 4096}):
        assert not found.fits(replace(GEOMETRY, **change))  # type: ignore[arg-type]
    padded = replace(GEOMETRY.groups[0], layer_sets=(replace(SHAPE, page_bytes=4096),))
    assert not found.fits(replace(GEOMETRY, groups=(padded,)))


def test_a_mend_that_nobody_knows_is_named() -> None:
    of_release("vllm-views@0.33.0")
    with pytest.raises(Unavailable, match="no mend is called 'undo-it'; use one of undo-54021, "):
        process_of("0.33.0", ("undo-it",))


def test_a_release_that_dies_is_replaced() -> None:
    target = of_release("vllm-offload@0.33.0")
    process_of("0.33.0", ()).close()
    assert outcome(target.name, GEOMETRY, OPS) == "sound"


#: Known findings and releases: in their range their traces fail; behind it they are sound.
REPLAYED = [
    ("vllm-offload@0.33.0", "head-planes-not-registered", NOT_MET),
    ("vllm-offload@0.33.0+bytes", "head-planes-not-registered", NOT_MET),
    ("vllm-simple@0.25.1+bytes", "scales-on-padded-pages", NOT_MET),
    ("vllm-offload@0.25.1+bytes", "scales-in-one-buffer", NOT_MET),
    ("vllm-simple@0.29.0+undo-54021", "copy-of-the-first-view-only", NOT_MET),
    ("vllm-simple@0.33.0", "unequal-pages-as-one-region", GONE),
]


@pytest.mark.parametrize(("name", "finding", "word"), REPLAYED)
def test_what_was_not_met_is_replayed(name: str, finding: str, word: str) -> None:
    kind, _, variant = name.partition("@")
    marked = variant.partition("+")[2]
    known = next(
        one
        for one in known_findings()
        if (one.name, one.target) == (finding, kind) and one.mutation == marked
    )
    assert what_became(known, of_release(name)) == word


def test_ops_a_second_are_measured() -> None:
    of_release("vllm-views@0.33.0")
    assert min(vllm_ops_per_s(["vllm-views@0.33.0"]).values()) > 0


def test_a_release_says_what_it_made_of_a_geometry() -> None:
    target = of_release("vllm-views@0.33.0").make()
    target.open(GEOMETRY)
    target.apply(Allocate(0, 0, (0, 1), zero=True), None)
    assert set(target.launches()) == {"spec FullAttentionSpec", "zeroed through views"}
    target.close()


TRACES = sorted(p for p in FINDINGS.glob("*.json") if "by-bytes" not in p.stem)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_finding_is_shown_by_vllm_alone(path: Path, tmp_path: Path) -> None:
    """In the release's environment, without kvexact, by a scenario of at most 40 lines."""
    trace = load(path)
    target = of_release(trace.target)
    text = reproducer(trace, target, "cpu")
    scenario = text.partition("# --- The scenario")[2].splitlines()[1:]
    assert sum(1 for line in scenario if line and not line.startswith("from ")) <= 40
    assert "kvexact" not in text
    file = tmp_path / "program.py"
    file.write_text(text)
    home, release = Home.default(), trace.target.partition("@")[2].partition("+")[0]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(home.release(release))}
    done = subprocess.run(
        [home.python, file], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    said = done.stdout + done.stderr.strip().splitlines()[-1] if done.stderr else done.stdout
    assert (
        "bytes wrong" in said
        or "scales" in said
        or "is invalid for input" in said
        or "cache dtype" in said
        or "out of bounds for storage" in said
    )


def test_a_fence_that_was_taken_out_is_not_told_with_vllm_alone() -> None:
    target = of_release("vllm-offload@0.33.0+undo-50696")
    geometry = replace(GEOMETRY, blocks=6)
    found = failure_of(target.make(), Program(geometry, OPS))
    assert found is not None
    trace = Trace(geometry, OPS, target.name, "", (), tuple(found[1].signature))
    with pytest.raises(Refused, match="is shown by replaying its trace"):
        reproducer(trace, target, "cpu")


def test_a_failure_of_order_stands_behind_a_kernel_that_takes_a_while() -> None:
    trace = load(next(path for path in TRACES if path.stem == "loads-before-compute-simple"))
    text = reproducer(trace, of_release(trace.target), "cuda")
    assert "torch.cuda._sleep" in text
    assert "class Stream" not in text
    compile(text, "program.py", "exec")


def test_with_a_gpu_no_stand_ins_are_needed() -> None:
    trace = load(next(path for path in TRACES if path.stem == "head-planes-not-registered"))
    target = of_release(trace.target)
    on_cpu, on_gpu = (reproducer(trace, target, device) for device in ("cpu", "cuda"))
    assert "class Stream" in on_cpu
    assert "class Stream" not in on_gpu
    assert "torch.cuda.synchronize()" in on_gpu
    compile(on_gpu, "program.py", "exec")
