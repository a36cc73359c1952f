"""The three bugs that started kvexact, as checks of the model, of the engine, and of the fuzzer."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from kvexact.fuzz.campaign import campaign
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.edits import Program
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.reduce import Reducer
from kvexact.fuzz.run import execute
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.engine.planner import Planner
from kvexact.impl.engine.regions import Registrar
from kvexact.impl.faults import FAULTS
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.facts import FactValue, facts
from kvexact.refmodel.ops import Allocate, Handle, Job, Move, Offload, Restore, Slot, WriteTokens
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import ORDERS, Geometry, Group, Host, LayerSet, Refused

QUANTISED = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
DATA_BYTES_OF_64 = {"int8_per_token_head": 64, "fp8_per_token_head": 64, "int4_per_token_head": 32}


def geometry(page_format: str, **changes: object) -> Geometry:
    """Three layers, two heads of 64, four tokens, five blocks."""
    layers = LayerSet(3, 2, 64, 64, page_format)
    page_bytes = changes.pop("page_bytes", None)
    if page_bytes is not None:
        layers = replace(layers, page_bytes=page_bytes)
    plain = Geometry((Group(4, 4, (layers,)),), 5, Host(1 << 16))
    return replace(plain, **changes)  # type: ignore[arg-type]


def both(described: Geometry) -> list[Mapping[str, FactValue]]:
    """Facts of the model and of the engine."""
    return [facts(plan(described)), CpuEngine().plan(described)]


def found_by_fuzzer(name: str) -> Finding:
    """Fuzz an engine with this fault, from fresh families, until it is found and reduced."""
    make_target = FAULTS[name].target
    counts = {family: Counts() for family in FAMILIES}
    for example in campaign(make_target, list(FAMILIES.values()), seed=0, counts=counts):
        acted = sum(of_family.acted for of_family in counts.values())
        assert acted < 20_000, f"{name} was not found"
        if example.wrong is not None:
            return find(make_target, "cpu", example.family.name, example.run, example.wrong)
    raise AssertionError("unreachable")


def assert_minimal_and_true(name: str, finding: Finding) -> None:
    """The reduced trace fails on the faulted engine alone, and no single edit keeps its failure."""
    program = Program(finding.trace.geometry, finding.trace.ops)
    assert execute(CpuEngine(), *program)[1] is None
    reducer = Reducer(FAULTS[name].target, finding.failure.signature, program)
    assert reducer.is_minimal()
    assert len(program.ops) == FAULTS[name].known_minimum


# Bug 1: the transfer width left the inline scales out (vllm#48411; 0.24.0, 0.25.1).


def test_bug_1_content_is_data_without_quantisation():
    """Without inline scales, data, content and page are the same bytes."""
    for found in both(geometry("bf16")):
        assert found["g0.s0.content_bytes"] == found["g0.s0.page_bytes"] == 4 * 2 * 128 * 2


@pytest.mark.parametrize("page_format", QUANTISED)
def test_bug_1_content_is_data_and_scales_per_token_head(page_format):
    """With inline scales, content has 8 bytes a cell more than data, and the page is content."""
    data = 4 * 2 * 2 * DATA_BYTES_OF_64[page_format]
    for found in both(geometry(page_format)):
        assert found["g0.s0.content_bytes"] == data + 2 * 4 * 2 * 4
        assert found["g0.s0.page_bytes"] == found["g0.s0.content_bytes"]


@pytest.mark.parametrize("page_format", QUANTISED)
def test_bug_1_registered_width_is_content_exactly(page_format):
    """A transfer engine registers content, no scale short and no padding long."""
    for described in (geometry(page_format), geometry(page_format, page_bytes=65_536)):
        for found in both(described):
            lengths = {length for *_, length in found["regions"]}
            assert lengths == {found["g0.s0.content_bytes"]}


def test_bug_1_a_padded_size_wins_and_must_hold_the_content():
    """65,536 bytes win over a smaller content; one byte less than the content is refused."""
    for found in both(geometry("int8_per_token_head", page_bytes=65_536)):
        assert found["g0.s0.page_bytes"] == 65_536
    content = facts(plan(geometry("int8_per_token_head")))["g0.s0.content_bytes"]
    too_small = geometry("int8_per_token_head", page_bytes=content - 1)
    for ask in (plan, CpuEngine().plan):
        with pytest.raises(Refused) as refusal:
            ask(too_small)
        assert refusal.value.reason == "page"


@pytest.mark.parametrize("page_format", QUANTISED)
def test_bug_1_host_capacity_follows_content(page_format):
    """A host row has room for the scales of every layer."""
    for found in both(geometry(page_format)):
        assert found["host.row_bytes"] == 3 * found["g0.s0.content_bytes"]


@pytest.mark.parametrize("page_format", QUANTISED)
def test_bug_1_content_returns_in_another_block_and_padding_stays(page_format):
    """Write, offload, overwrite, restore elsewhere: content is back, padding never moved."""
    described = geometry(page_format, page_bytes=4096)
    slots = tuple(Slot(Handle(0, 0), token) for token in range(4))
    move = Job(0, (Move(Handle(0, 0), 1, 0),))
    back = Job(0, (Move(Handle(0, 1), 1, 0),))
    ops = (
        Allocate(0, 0, (3, 1)),
        WriteTokens(1, 0, slots, tag=1),
        Offload(2, (move,)),
        WriteTokens(3, 0, slots, tag=2),
        Restore(4, (back,)),
    )

    run, wrong = execute(CpuEngine(), described, ops)

    assert wrong is None
    assert run.recorded == ["acted"] * 5
    layout = run.model.layout(0)
    first_write = run.model.payload(WriteTokens(1, 0, tuple(Slot(3, t) for t in range(4)), tag=1))
    there = layout.of_slots(np.full(4, 1, np.intp), np.arange(4, dtype=np.intp))
    assert np.array_equal(run.model.areas["pool"][there], first_write)
    untouched = Cache(plan(described)).areas["pool"]
    changed = np.flatnonzero(run.model.areas["pool"] != untouched)
    assert set(changed.tolist()) <= {*layout.of_block(3).tolist(), *layout.of_block(1).tolist()}


def test_bug_1_is_found_by_the_fuzzer():
    """The width without scales: bytes of a page are lost on the way to the host."""
    finding = found_by_fuzzer("width_without_scales")

    assert finding.failure.signature.difference == "lost"
    assert_minimal_and_true("width_without_scales", finding)


# Bug 2: scale views with strides from shapes on a cross-layer pool (vllm#48412, vllm#49226).


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_bytes", [None, 2048])
@pytest.mark.parametrize("base_offset_bytes", [0, 8640])
@pytest.mark.parametrize("page_format", QUANTISED)
def test_bug_2_scale_views_lie_in_their_own_block(
    order, page_bytes, base_offset_bytes, page_format
):
    """Every scale of layer l and block b lies in a cell of just that layer and block."""
    described = geometry(
        page_format, order=order, page_bytes=page_bytes, base_offset_bytes=base_offset_bytes
    )
    if page_bytes and order in ("LHBNC", "BHLNC"):
        one_head = replace(described.groups[0].layer_sets[0], kv_heads=1)
        described = replace(described, groups=(Group(4, 4, (one_head,)),))
    planned = plan(described)
    heads = described.groups[0].layer_sets[0].kv_heads
    placement = planned.placements[0][0]
    cells = placement.cells_of_block_0()
    block_stride = placement.places[0].strides["B"]
    for found in both(described):
        for name in ("k_scale", "v_scale"):
            offset, *strides = found[f"g0.s0.{name}.view"]
            for layer, block, head, token in np.ndindex(3, 5, heads, 4):
                steps = zip(strides, (layer, block, head, token), strict=True)
                at = offset + sum(stride * index for stride, index in steps)
                own = cells[token, layer, head] + block * block_stride
                assert set(range(at, at + 4)) <= set(own.tolist())


def test_bug_2_unquantised_pools_keep_their_layout():
    """Without scales the cross-layer layout stays as it is: layers side by side in a block."""
    for found in both(geometry("bf16", order="BLHNC")):
        page = found["g0.s0.page_bytes"]
        assert found["g0.s0.k.view"][1:3] == (page, 3 * page)


@pytest.mark.parametrize(
    ("name", "difference"),
    [("scale_views_from_shape", "fact"), ("scale_views_mended_in_writer_only", "read")],
)
def test_bug_2_is_found_by_the_fuzzer(name, difference):
    """Views from shapes are found, and so is a mend that one consumer did not get."""
    finding = found_by_fuzzer(name)

    assert finding.failure.signature.difference == difference
    assert "scale" in finding.failure.signature.field
    assert_minimal_and_true(name, finding)


# Bug 3: physical storage viewed as regions (vllm#54021; between 0.28.0 and 0.29.0).


@pytest.mark.parametrize("tail_bytes", [0, 1, 135, 1087, 1088, 5440, 54_400])
def test_bug_3_regions_cover_exactly_the_logical_pool(tail_bytes):
    """Tails of nothing, a byte, less than a cell, a page, a region, or many: the same regions."""
    plain = geometry("int8_per_token_head")
    logical = plan(plain).logical_bytes
    described = replace(plain, physical_bytes=logical + tail_bytes)
    for found in both(described):
        covered = sorted(
            (base + block * stride, length)
            for base, count, stride, length in found["regions"]
            for block in range(count)
        )
        assert [start for start, _ in covered] == list(range(0, logical, covered[0][1]))
        assert found["regions"] == facts(plan(plain))["regions"]
        assert found["host.scheduler_slots"] == found["host.worker_slots"]


def test_bug_3_own_numbers():
    """33,626,154,240 logical bytes in 33,626,157,056; and 128 logical bytes in 4,096."""
    large = Geometry(
        (Group(5, 5, (LayerSet(27, 7, 128, 128, "fp8_e4m3"),)),),
        138_997,
        Host(1 << 33),
        tail_alignment=4096,
    )
    for found in both(large):
        assert found["pool.logical_bytes"] == 33_626_154_240
        assert found["pool.physical_bytes"] == 33_626_157_056
        assert found["host.scheduler_slots"] == found["host.worker_slots"] == (1 << 33) // 241_920
    small = Geometry(
        (Group(1, 1, (LayerSet(1, 1, 16, 16, "fp8_e4m3"),)),), 4, Host(4096), tail_alignment=4096
    )
    for found in both(small):
        assert (found["pool.logical_bytes"], found["pool.physical_bytes"]) == (128, 4096)
        assert found["regions"] == ((0, 4, 32, 32),)
        assert found["host.worker_slots"] == 128


@pytest.mark.parametrize("logical_bytes", [None, 0, 1, 16_319])
def test_bug_3_registration_refuses_a_missing_or_small_logical_size(logical_bytes):
    """Clearly refused, by reason, never by an index error."""
    planned = Planner().plan(geometry("int8_per_token_head"))
    with pytest.raises(Refused) as refusal:
        Registrar().register(planned, 1 << 20, logical_bytes)
    assert refusal.value.reason == "pool_size"


@pytest.mark.parametrize("changes", [{"logical_bytes": 1}, {"physical_bytes": 1}])
def test_bug_3_declared_sizes_that_do_not_fit_are_refused(changes):
    """A logical size that is not all blocks, or a storage smaller than it, is no pool."""
    for ask in (plan, CpuEngine().plan):
        with pytest.raises(Refused) as refusal:
            ask(geometry("int8_per_token_head", **changes))
        assert refusal.value.reason == "pool_size"


def test_bug_3_layers_of_overlaid_groups_are_registered_once():
    """Two groups over the same pages share their regions."""
    plain = geometry("int8_per_token_head")
    overlaid = replace(plain, groups=plain.groups * 2)
    for one, two in zip(both(plain), both(overlaid), strict=True):
        assert one["regions"] == two["regions"]


def test_bug_3_kernel_blocks_keep_the_managers_regions():
    """A pool that kernels see in parts is registered in manager blocks."""
    plain = geometry("int8_per_token_head")
    split = replace(plain, groups=(replace(plain.groups[0], kernel_block_size=2),))
    for one, two in zip(both(plain), both(split), strict=True):
        assert one["regions"] == two["regions"]


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("physical_viewed_as_regions", "refusal"),
        ("phantom_regions", "fact"),
        ("phantom_regions_unreported", "out of bounds"),
    ],
)
def test_bug_3_is_found_by_the_fuzzer(name, difference):
    """Start-up fails; phantom regions; and an id beyond the true slot count."""
    finding = found_by_fuzzer(name)

    assert finding.failure.signature.difference == difference
    assert_minimal_and_true(name, finding)
