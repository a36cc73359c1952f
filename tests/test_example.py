"""The example target beside the model, without the fuzzer: its formats in every order and form."""

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvexact.fuzz.cli import main
from kvexact.impl.adapters.example import BITS, ExampleCache, ExampleCacheWithBug
from kvexact.impl.target import Target
from kvexact.refmodel import facts, ops
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import ORDERS, PAGE_FORMATS, Geometry, Group, Host, LayerSet, Refused

BLOCKS, SLOTS, PARTS, TOKENS = 5, 3, 2, 3


def small(
    order: str = "LBHNC",
    page_format: str = "int8_per_token_head",
    *,
    kv_split: bool = False,
    page_bytes: int | None = None,
    kernel_block_size: int = TOKENS,
    sets: int = 1,
) -> Geometry:
    shape = LayerSet(2, 2, 16, 8, page_format, page_bytes)
    group = Group(TOKENS, kernel_block_size, (shape,) * sets)
    host = Host(1 << 14, chunk_blocks=PARTS)
    return Geometry((group,), BLOCKS, host, order, kv_split, base_offset_bytes=8, tail_alignment=64)


def history(seed: int) -> list[ops.Op]:
    """Write, offload, overwrite and restore elsewhere, in an order that ``seed`` shuffles."""
    rng = random.Random(seed)
    slots = [ops.Slot(block, token) for block in range(BLOCKS) for token in range(TOKENS)]
    rows = list(itertools.product(range(SLOTS), range(PARTS)))

    def shuffled(tag: int) -> ops.WriteTokens:
        return ops.WriteTokens(tag, 0, (None, *rng.sample(slots, len(slots))), tag)

    def moves() -> tuple[ops.Job, ...]:
        places = zip(rng.sample(range(BLOCKS), BLOCKS), rows[:BLOCKS], strict=True)
        return (ops.Job(0, ()), ops.Job(0, tuple(ops.Move(b, *place) for b, place in places)))

    return [
        ops.Allocate(0, 0, tuple(range(BLOCKS))),
        shuffled(1),
        ops.Offload(2, moves()),
        shuffled(3),
        ops.Restore(4, moves()),
        ops.Read(5, 0, (None, *slots, slots[0], None)),
        ops.Read(6, 0, ()),
        ops.WriteTokens(7, 0, (), 7),
        ops.Free(8, 0, (3, 1)),
        ops.Allocate(9, 0, (1,), zero=True),
    ]


def first_difference(target: Target, geometry: Geometry, seed: int = 0) -> str | None:
    """The kind of the first op after which target and model differ."""
    planned = plan(geometry)
    cache, shape = Cache(planned), geometry.groups[0].layer_sets[0]
    expected = facts.facts(planned)
    assert target.open(geometry).items() <= expected.items()
    target.load("pool", cache.areas["pool"])
    for op in history(seed):
        assert cache.refusal(op) is None
        rows = None
        if isinstance(op, ops.WriteTokens):
            flat = cache.payload(op)
            cell_bytes = flat.shape[1] // (shape.layers * shape.kv_heads)
            rows = (flat.reshape(-1, shape.layers, shape.kv_heads, cell_bytes),)
        got, effect = target.apply(op, rows), cache.apply(op)
        assert effect.acted or op.id in (6, 7)
        if effect.rows is not None:
            assert got is not None
            if not np.array_equal(got[0].reshape(effect.rows.shape), effect.rows):
                return "read"
        if not np.array_equal(target.view("pool"), cache.areas["pool"]):
            return ops.KIND_OF[type(op)]
    target.close()
    target.close()
    return None


@pytest.mark.parametrize("kv_split", [False, True], ids=["packed", "split"])
@pytest.mark.parametrize("page_format", BITS)
@pytest.mark.parametrize("order", ORDERS)
def test_example_is_sound(order: str, page_format: str, kv_split: bool) -> None:
    geometry = small(order, page_format, kv_split=kv_split)
    assert first_difference(ExampleCache(), geometry) is None
    has_scales = page_format.endswith("per_token_head")
    assert first_difference(ExampleCacheWithBug(), geometry) == ("restore" if has_scales else None)


@pytest.mark.parametrize("kv_split", [False, True], ids=["packed", "split"])
@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_example_leaves_padding_alone(order: str, kv_split: bool) -> None:
    assert (
        first_difference(ExampleCache(), small(order, kv_split=kv_split, page_bytes=256 + 64))
        is None
    )


SHARED = Group(4, 4, (LayerSet(2, 2, 16, 8, "bf16"),), tokens_per_state=2)
SIDE = Group(4, 4, (LayerSet(2, 2, 16, 8, "bf16", side=True),))


@pytest.mark.parametrize(
    ("geometry", "text"),
    [
        (small(sets=2), "only one layer set"),
        (small(kernel_block_size=1), "only one layer set"),
        (replace(small(), groups=(SHARED,)), "a slot for each token"),
        (replace(small(), groups=(SIDE,)), "no side buffers"),
    ],
)
def test_example_declares_what_it_refuses(geometry: Geometry, text: str) -> None:
    with pytest.raises(Refused, match=text) as caught:
        ExampleCache().plan(geometry)
    assert caught.value.reason in ExampleCache.may_refuse


@pytest.mark.parametrize("page_format", PAGE_FORMATS)
def test_example_is_asked_about_its_formats_only(page_format: str) -> None:
    assert ExampleCache.fits(small(page_format=page_format)) == (page_format in BITS)


def test_example_bug_is_shown_in_the_readme(tmp_path: Path) -> None:
    """Its command prints what stands below it, but for the name of the run's folder."""
    text = (Path(__file__).parents[1] / "README.md").read_text()
    command, printed = re.findall(r"^```(?:sh)?\n(.*?)```$", text, re.MULTILINE | re.DOTALL)[2:4]
    words = command.split()
    assert words[:2] == ["kvexact", "fuzz"]
    done = CliRunner().invoke(main, [*words[1:], "--artifacts", str(tmp_path)])
    lines = printed.splitlines()
    assert "\n".join(lines[:-1]) in done.stdout
    (trace,) = tmp_path.glob("*/*.json")
    assert f"/{trace.name} " in lines[-1]


def test_example_bug_is_found(tmp_path: Path) -> None:
    """What docs/adapter.md tells the reader to try."""
    target = f"{ExampleCacheWithBug.__module__}:{ExampleCacheWithBug.__qualname__}"
    words = f"fuzz --first --seed 0 --max-ops 5000 --target {target} --artifacts {tmp_path}"
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 1, done.output
    assert "mismatch / restore / lost / k_scale" in done.output
    assert len(list(tmp_path.glob("*/test_*.py"))) == 1
