"""Geometries and ops as plain data: what cannot be written down, and how handles are bound."""

import ast
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

import kvexact.refmodel
from kvexact.refmodel import ops, spec
from kvexact.refmodel.answer import Answer
from kvexact.refmodel.ops import (
    BLOCK_OPS,
    HARNESS_OPS,
    KIND_OF,
    OP_REASONS,
    OPS,
    SERVING_OPS,
    TIMED_OPS,
    VALUE_STYLES,
    VALUE_TYPES,
    Allocate,
    Block,
    Claimed,
    CopyBlocks,
    Dangling,
    Evict,
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
    bind,
    map_blocks,
)
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import (
    GEOMETRY_REASONS,
    ORDERS,
    PAGE_FORMATS,
    Geometry,
    GeometryError,
    Group,
    Host,
    LayerSet,
    Refused,
)

SHAPE = LayerSet(2, 2, 8, 8, "int8_per_token_head")
GROUP = Group(4, 4, (SHAPE,))
HOST = Host(10_000)
GEOMETRY = Geometry((GROUP,), 3, HOST)


def one(shape: LayerSet) -> Geometry:
    """Three blocks of 4 tokens of one layer set."""
    return replace(GEOMETRY, groups=(replace(GROUP, layer_sets=(shape,)),))


FOLDER = Path(*kvexact.refmodel.__path__)
MODULES = sorted(FOLDER.rglob("*.py"))


# --- spec


WHOLE: list[tuple[Any, str, int]] = [
    (SHAPE, "layers", 1),
    (SHAPE, "kv_heads", 1),
    (SHAPE, "head_size_k", 1),
    (SHAPE, "head_size_v", 0),
    (SHAPE, "page_bytes", 1),
    (GROUP, "block_size", 1),
    (GROUP, "kernel_block_size", 1),
    (GROUP, "tokens_per_state", 1),
    (HOST, "capacity_bytes", 0),
    (HOST, "chunk_blocks", 1),
    (HOST, "row_alignment", 1),
    (GEOMETRY, "blocks", 1),
    (GEOMETRY, "base_offset_bytes", 0),
    (GEOMETRY, "tail_alignment", 1),
    (GEOMETRY, "logical_bytes", 0),
    (GEOMETRY, "physical_bytes", 0),
]


@pytest.mark.parametrize(("data", "name", "least"), WHOLE, ids=[name for _, name, _ in WHOLE])
def test_whole_numbers(data: Any, name: str, least: int) -> None:
    """Numbers are ints from the least one to 2^62; a message names owner, field, value, rule."""
    assert getattr(replace(data, **{name: least}), name) == least
    assert getattr(replace(data, **{name: 2**62}), name) == 2**62
    owner = {LayerSet: "layer set", Group: "group", Host: "host", Geometry: "geometry"}[type(data)]
    for wrong in (least - 1, 2**62 + 1, float(least), True, str(least)):
        with pytest.raises(GeometryError) as caught:
            replace(data, **{name: wrong})
        rule = f"it must be a whole number from {least} to 2^62"
        assert str(caught.value) == f"{owner}: {name} is {wrong!r}; {rule}"


@pytest.mark.parametrize(("data", "name"), [(SHAPE, "page_bytes"), (GEOMETRY, "logical_bytes")])
def test_what_may_be_left_out(data: Any, name: str) -> None:
    """None stands for what the geometry derives."""
    assert getattr(replace(data, **{name: None}), name) is None


@pytest.mark.parametrize("name", ["layers", "blocks", "capacity_bytes"])
def test_what_may_not_be_left_out(name: str) -> None:
    """None is no number elsewhere."""
    data: Any = {"layers": SHAPE, "blocks": GEOMETRY, "capacity_bytes": HOST}[name]
    with pytest.raises(GeometryError, match=f"{name} is None"):
        replace(data, **{name: None})


@pytest.mark.parametrize(
    ("data", "name", "known"), [(SHAPE, "page_format", PAGE_FORMATS), (GEOMETRY, "order", ORDERS)]
)
def test_names(data: Any, name: str, known: tuple[str, ...]) -> None:
    """Names are those of a list, which the message shows whole."""
    for each in known:
        assert getattr(replace(data, **{name: each}), name) == each
    for wrong in (known[0].lower() + "x", "", None, 3, [known[0]]):
        with pytest.raises(GeometryError) as caught:
            replace(data, **{name: wrong})
        assert f"{name} is {wrong!r}; use one of {', '.join(known)}" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "name", "kind"), [(GROUP, "layer_sets", LayerSet), (GEOMETRY, "groups", Group)]
)
def test_tuples(data: Any, name: str, kind: type) -> None:
    """Lists of parts are non-empty tuples of one kind; a message shows the start of a value."""
    member = getattr(data, name)[0]
    for wrong in ((), [member], (member, 3), member, None):
        with pytest.raises(GeometryError) as caught:
            replace(data, **{name: wrong})
        rule = f"{name} is {wrong!r:.60}; it must be a tuple of at least one {kind.__name__}"
        assert rule in str(caught.value)


def test_host_and_split() -> None:
    """A host tier is a Host, a choice is True or False."""
    with pytest.raises(GeometryError, match=r"geometry: host is None; it must be a Host"):
        replace(GEOMETRY, host=None)  # type: ignore[arg-type]
    with pytest.raises(GeometryError, match=r"geometry: kv_split is 1; use True or False"):
        replace(GEOMETRY, kv_split=1)  # type: ignore[arg-type]
    assert replace(GEOMETRY, kv_split=True).kv_split
    with pytest.raises(GeometryError, match=r"layer set: side is 0; use True or False"):
        replace(SHAPE, side=0)  # type: ignore[arg-type]
    assert replace(SHAPE, side=True).side


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scales(name: str) -> None:
    """A scale is a float that fp32 holds, neither vast nor tiny."""
    scaled: Any = replace
    for right in (1.0, 0.5, 2.0**-100, 2.0**100, 0.10000000149011612):
        assert getattr(scaled(SHAPE, **{name: right}), name) == right
    for wrong in (0.1, 0.0, -1.0, 2.0**-101, 2.0**101, float("inf"), float("nan"), 1, None, "1"):
        with pytest.raises(GeometryError) as caught:
            scaled(SHAPE, **{name: wrong})
        rule = "it must be a float from 2^-100 to 2^100 that fp32 holds exactly, such as 0.5"
        assert str(caught.value) == f"layer set: {name} is {wrong!r}; {rule}"


@pytest.mark.parametrize(("name", "known"), [("value_type", VALUE_TYPES), ("style", VALUE_STYLES)])
def test_names_of_values(name: str, known: tuple[str, ...]) -> None:
    """Types and styles of values are those of a list, which the message shows whole."""
    op: Any = WriteValues(0, 0, (), 1)
    for each in known:
        assert getattr(replace(op, **{name: each}), name) == each
    with pytest.raises(GeometryError) as caught:
        replace(op, **{name: "fp8"})
    assert str(caught.value) == f"write_values: {name} is 'fp8'; use one of {', '.join(known)}"


def test_defaults() -> None:
    """What is left out is the plainest choice: no offset, no tail, no padding, whole cells."""
    assert SHAPE.page_bytes is None
    assert (HOST.chunk_blocks, HOST.row_alignment) == (1, 1)
    assert (GEOMETRY.order, GEOMETRY.kv_split) == ("LBHNC", False)
    assert (GEOMETRY.base_offset_bytes, GEOMETRY.tail_alignment) == (0, 1)
    assert (GEOMETRY.logical_bytes, GEOMETRY.physical_bytes) == (None, None)
    assert CopyBlocks(0, 0, ()).tokens is None
    assert not Allocate(0, 0, ()).zero
    assert (SHAPE.side, SHAPE.k_scale, SHAPE.v_scale) == (False, 1.0, 1.0)
    assert GROUP.tokens_per_state == 1
    values = WriteValues(0, 0, (), 1)
    assert (values.value_type, values.style) == ("fp32", "plain")


def test_plain_data_is_frozen_and_hashable() -> None:
    """Geometries, ops and answers can be compared, hashed and not changed."""
    assert hash(GEOMETRY) == hash(replace(GEOMETRY))
    with pytest.raises(FrozenInstanceError):
        GEOMETRY.blocks = 4  # type: ignore[misc]
    op = Zero(1, 0, (2,))
    assert {op, Zero(1, 0, (2,))} == {op}
    with pytest.raises(FrozenInstanceError):
        op.group = 4  # type: ignore[misc]
    assert hash(Answer((2, 9))) == hash(Answer(free=(2, 9), accepted=True))


def test_geometry_error_is_a_value_error() -> None:
    """What cannot be written down is an ordinary ValueError; a refusal is none."""
    assert issubclass(GeometryError, ValueError)
    assert not issubclass(Refused, ValueError)


@pytest.mark.parametrize(
    ("geometry", "reason", "pieces"),
    [
        (
            replace(
                GEOMETRY,
                groups=(Group(4, 4, (LayerSet(1, 1, 3, 2, "int4_per_token_head"),)),),
            ),
            "cell",
            ("k of int4_per_token_head", "head size of 3", "3/2 bytes", "a multiple of 2"),
        ),
        (
            one(LayerSet(1, 1, 16, 32, "nvfp4")),
            "cell",
            ("nvfp4 has a key size of 16", "value size of 32", "use equal sizes"),
        ),
        (
            one(LayerSet(1, 1, 96, 96, "nvfp4_swizzled")),
            "cell",
            ("nvfp4_swizzled has a head size of 96", "use a multiple of 64"),
        ),
        (
            one(LayerSet(1, 1, 96, 96, "ultraquant_4bit")),
            "cell",
            ("ultraquant_4bit rotates a head of 96", "use a power of two"),
        ),
        (
            one(LayerSet(1, 1, 2048, 8, "int4_per_token_head")),
            "cell",
            ("rotate a head of 2048", "more than 512", "a size that is no multiple of 1024"),
        ),
        (
            one(LayerSet(1, 2, 576, 0, "fp8_ds_mla")),
            "cell",
            ("2 heads, a key size of 576 and a value size of 0", "use 1 head, 576 and 0"),
        ),
        (
            one(LayerSet(1, 2, 4, 4, "state_bf16")),
            "cell",
            ("page of state_bf16 is one state", "2 heads", "use one head"),
        ),
        (
            replace(GEOMETRY, groups=(Group(4, 4, (SHAPE, LayerSet(1, 1, 4, 4, "state_fp32"))),)),
            "layout",
            ("pages of int8_per_token_head and of state_fp32", "use a group for the states"),
        ),
        (
            replace(one(LayerSet(1, 1, 16, 16, "nvfp4")), kv_split=True),
            "layout",
            ("nvfp4 has no key half and value half", "use kv_split False"),
        ),
        (
            replace(one(LayerSet(1, 2, 16, 16, "nvfp4")), order="LHBNC"),
            "layout",
            ("LHBNC spreads the 2 heads", "nvfp4 has regions", "heads inside layers and blocks"),
        ),
        (
            replace(one(LayerSet(1, 2, 4, 4, "bf16_cpu_vec")), order="LBNHC"),
            "layout",
            ("LBNHC has slots outside heads", "4 slots of each of 2 heads", "heads outside slots"),
        ),
        (
            one(LayerSet(1, 2, 8, 8, "bf16_aiter")),
            "layout",
            ("bf16_aiter tiles 8 slots", "a kernel block has 4", "use a multiple of 8"),
        ),
        (
            replace(GEOMETRY, groups=(Group(3, 3, (SHAPE,), tokens_per_state=4),)),
            "page",
            ("block of 3 tokens has no slot", "4 tokens share one", "at least 4 tokens"),
        ),
        (
            replace(GEOMETRY, groups=(Group(4, 4, (replace(SHAPE, page_bytes=191),)),)),
            "page",
            ("191 bytes", "2 heads x 4 slots", "192 bytes", "make page_bytes at least 192"),
        ),
        (
            replace(
                GEOMETRY,
                order="BHLNC",
                groups=(Group(4, 4, (replace(SHAPE, page_bytes=196),)),),
            ),
            "padding",
            ("BHLNC with 2 heads", "4 bytes of padding", "drop page_bytes or keep heads inside"),
        ),
        (
            replace(GEOMETRY, groups=(GROUP, Group(5, 5, (SHAPE,)))),
            "overlay",
            ("192 and 240 bytes", "make their pages equal or put B outermost"),
        ),
        (
            replace(GEOMETRY, groups=(Group(4, 3, (SHAPE,)),)),
            "kernel_split",
            ("3 tokens does not divide a block of 4", "use a divisor"),
        ),
        (
            replace(GEOMETRY, groups=(Group(4, 2, (LayerSet(1, 1, 4, 4, "state_fp32"),)),)),
            "kernel_split",
            ("block of 4 tokens holds one state", "of 2 tokens would cut", "of the whole block"),
        ),
        (
            replace(GEOMETRY, groups=(Group(6, 3, (SHAPE,), tokens_per_state=2),)),
            "kernel_split",
            ("2 tokens share a slot", "kernel block of 3 tokens cuts", "use a multiple of 2"),
        ),
        (
            replace(GEOMETRY, order="BLHNC", groups=(Group(4, 2, (SHAPE,)),)),
            "kernel_split",
            ("block stride of 384 bytes", "use a kernel block of the whole block, or a dense page"),
        ),
        (
            replace(GEOMETRY, base_offset_bytes=2),
            "alignment",
            ("field k_scale", "no multiple of its 4 bytes", "pad to a multiple of 4"),
        ),
        (
            replace(GEOMETRY, logical_bytes=1151),
            "pool_size",
            ("1151 logical bytes", "3 blocks take 1152", "declare that or nothing"),
        ),
        (
            replace(GEOMETRY, base_offset_bytes=4, physical_bytes=1155),
            "pool_size",
            ("1155 bytes", "offset of 4 and 1152", "make physical_bytes at least 1156"),
        ),
        (
            replace(GEOMETRY, host=Host(383)),
            "host",
            ("383 bytes holds no row of 384", "raise it or put fewer blocks in a chunk"),
        ),
    ],
)
def test_refusals_say_what_and_how_to_mend_it(
    geometry: Geometry, reason: str, pieces: tuple[str, ...]
) -> None:
    """A refusal has its reason, and names the values, the rule and a way out."""
    with pytest.raises(Refused) as caught:
        plan(geometry)
    assert caught.value.reason == reason
    assert str(caught.value) == f"{reason}: {caught.value.text}"
    for piece in pieces:
        assert piece in caught.value.text


def test_geometry_reasons_precede_in_order() -> None:
    """With everything wrong at once, mending the first reason uncovers the next."""
    bad = LayerSet(1, 2, 3, 2, "int4_per_token_head", page_bytes=1)
    state = LayerSet(1, 1, 8, 8, "state_bf16", page_bytes=1)
    geometry = Geometry(
        (Group(4, 3, (bad, state)), Group(4, 4, (bad, bad))),
        blocks=2,
        host=Host(0),
        order="LHBNC",
        base_offset_bytes=1,
        physical_bytes=0,
    )
    met = []
    even = replace(bad, head_size_k=2)  # content 80: 4 tokens x 2 heads x 10 bytes
    stages: list[Callable[[Geometry], Geometry]] = [
        lambda g: replace(g, groups=(Group(4, 3, (even, state)), Group(4, 4, (even, even)))),
        lambda g: replace(g, groups=(Group(4, 3, (even,)), Group(4, 4, (even, even)))),
        lambda g: replace(g, groups=tuple(padded(group, 82) for group in g.groups)),
        lambda g: replace(g, groups=(padded(g.groups[0], 80), padded(g.groups[1], 80, heads=1))),
        lambda g: replace(g, groups=(Group(4, 3, (replace(even, page_bytes=None),)),)),
        lambda g: replace(g, groups=(Group(4, 2, (replace(even, page_bytes=None),)),)),
        lambda g: replace(g, base_offset_bytes=0, groups=(Group(4, 2, (EVEN_4,)),)),
        lambda g: replace(g, physical_bytes=None),
        lambda g: replace(g, host=Host(10_000)),
    ]
    for mend in stages:
        with pytest.raises(Refused) as caught:
            plan(geometry)
        met.append(caught.value.reason)
        geometry = mend(geometry)
    assert tuple(met) == GEOMETRY_REASONS
    plan(geometry)


EVEN_4 = LayerSet(1, 2, 8, 8, "int4_per_token_head")


def padded(group: Group, page: int, heads: int = 2) -> Group:
    shapes = [replace(s, page_bytes=page, kv_heads=heads) for s in group.layer_sets]
    return replace(group, layer_sets=tuple(shapes))


# --- ops

ALL: tuple[Op, ...] = (
    Allocate(0, 0, (4, 5), zero=True),
    Free(1, 0, (Handle(0, 1), 2)),
    WriteTokens(2, 0, (Slot(Handle(0, 0), 1), None, Slot(3, 0)), 7),
    WriteValues(10, 0, (Slot(Handle(0, 0), 1), None, Slot(3, 0)), 7, "bf16", "special"),
    Zero(3, 0, (Handle(0, 0),)),
    CopyBlocks(4, 0, (Pair(Handle(0, 0), 1), Pair(2, Handle(0, 1))), 2),
    Offload(5, (Job(0, (Move(Handle(0, 0), 3, 1), Move(1, 0, 0))), Job(1, ()))),
    Restore(6, (Job(0, (Move(Handle(0, 1), 3, 1),)),)),
    Read(7, 0, (None, Slot(Handle(0, 1), 0))),
    ReadValues(11, 0, (None, Slot(Handle(0, 1), 0))),
    Evict(8, (1, 2)),
    Reset(9),
)
BOUND: tuple[Op, ...] = (
    Allocate(0, 0, (4, 5), zero=True),
    Free(1, 0, (5, 2)),
    WriteTokens(2, 0, (Slot(4, 1), None, Slot(3, 0)), 7),
    WriteValues(10, 0, (Slot(4, 1), None, Slot(3, 0)), 7, "bf16", "special"),
    Zero(3, 0, (4,)),
    CopyBlocks(4, 0, (Pair(4, 1), Pair(2, 5)), 2),
    Offload(5, (Job(0, (Move(4, 3, 1), Move(1, 0, 0))), Job(1, ()))),
    Restore(6, (Job(0, (Move(5, 3, 1),)),)),
    Read(7, 0, (None, Slot(5, 0))),
    ReadValues(11, 0, (None, Slot(5, 0))),
    Evict(8, (1, 2)),
    Reset(9),
)


def claimed(blocks: dict[int, tuple[int, ...]]) -> Claimed:
    """What allocations with these ids claimed."""
    found = Claimed()
    for op_id, ids in blocks.items():
        found.claim(Allocate(op_id, 0, ids))
    return found


@pytest.mark.parametrize(("op", "bound"), list(zip(ALL, BOUND, strict=True)), ids=str)
def test_bind(op: Op, bound: Op) -> None:
    """Every handle becomes its block id; ids, pads and everything else stay."""
    found = bind(op, claimed({0: (4, 5)}))
    assert found == bound
    assert type(found) is type(op)
    assert bind(bound, Claimed()) == bound


@pytest.mark.parametrize("op", [op for op, bound in zip(ALL, BOUND, strict=True) if op != bound])
def test_dangling_handles(op: Op) -> None:
    """A handle on an op that claimed nothing, or less, is dangling, and the message names it."""
    with pytest.raises(Dangling, match=r"^a0\.[01]$"):
        bind(op, Claimed())
    with pytest.raises(Dangling, match=r"^a0\.[01]$"):
        bind(op, claimed({0: (), 1: (4, 5)}))


@pytest.mark.parametrize("index", [-1, 2, 100])
def test_handles_do_not_wrap(index: int) -> None:
    """An index outside the claimed blocks dangles; it is not counted from the end."""
    with pytest.raises(Dangling, match=f"a3.{index}"):
        bind(Zero(0, 0, (Handle(3, index),)), claimed({3: (4, 5)}))


def test_map_blocks_visits_references_in_order() -> None:
    """All block references of an op are visited, but not those that an allocate claims."""
    seen: list[Block] = []

    def note(block: Block) -> Block:
        seen.append(block)
        return block

    for op in BOUND:
        assert map_blocks(op, note) == op
    assert seen == [5, 2, 4, 3, 4, 3, 4, 4, 1, 2, 5, 4, 1, 5, 5, 5]


def test_op_kinds() -> None:
    """Each op type has one name, and the names are the types' own."""
    assert len(BLOCK_OPS) == len(ALL)
    assert {type(op) for op in ALL} == set(BLOCK_OPS.values())
    kinds = [*BLOCK_OPS, *TIMED_OPS, *SERVING_OPS, *HARNESS_OPS]
    assert kinds == list(OPS)
    for kind, op_type in OPS.items():
        assert kind.replace("_", "") == op_type.__name__.lower()
        assert KIND_OF[op_type] == kind


def test_reasons_are_distinct() -> None:
    """A reason says by its name whether a geometry or an op was refused."""
    assert len({*OP_REASONS, *GEOMETRY_REASONS}) == len(OP_REASONS) + len(GEOMETRY_REASONS) - 1
    assert set(OP_REASONS) & set(GEOMETRY_REASONS) == {"host"}


# --- independence


@pytest.mark.parametrize("module", [spec, ops], ids=["spec", "ops"])
def test_plain_data_computes_nothing(module: Any) -> None:
    """What implementations share with the model holds no sum that could be wrong for both."""
    tree = ast.parse(Path(module.__file__).read_text())
    sums = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr)
    ]
    bounds = ["2 ** 62", "2.0 ** (-100)", "2.0 ** 100"] if module is spec else []
    assert sorted(ast.unparse(node) for node in sums) == sorted(bounds)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AugAssign)]


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(FOLDER)) for path in MODULES])
def test_the_model_imports_numpy_and_itself_only(path: Path) -> None:
    """The oracle leans on nothing that it judges."""
    allowed = {"numpy", "dataclasses", "typing", "collections", "itertools", "functools", "struct"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.startswith("kvexact.refmodel.") or name.split(".")[0] in allowed, name
