"""Parts of the vLLM adapter that need no release."""

import builtins
import symtable
import sys
import threading
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from inspect import getsource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvexact.fuzz.choose import Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.families import SERVED
from kvexact.fuzz.page_parts import behind_data
from kvexact.fuzz.run import Run
from kvexact.fuzz.targets import UnknownTarget, find_target
from kvexact.fuzz.trace import load
from kvexact.fuzz.vllm_met import met_lines
from kvexact.impl.adapters.vllm import home as home_module
from kvexact.impl.adapters.vllm import reproducer as reproducer_module
from kvexact.impl.adapters.vllm.driver import offload
from kvexact.impl.adapters.vllm.driver import turns as turns_module
from kvexact.impl.adapters.vllm.driver.device import AT_ONCE, LATE, SimulatedDevice
from kvexact.impl.adapters.vllm.driver.fields import layer_fields, runs
from kvexact.impl.adapters.vllm.driver.mutations import MUTATIONS, Mutation
from kvexact.impl.adapters.vllm.driver.pool import Layer
from kvexact.impl.adapters.vllm.driver.shapes import Shape
from kvexact.impl.adapters.vllm.driver.standins import Event, Stream, batch_memcpy
from kvexact.impl.adapters.vllm.driver.symbols import Gone, find, first_of, need
from kvexact.impl.adapters.vllm.driver.turns import Turns
from kvexact.impl.adapters.vllm.home import HOME_VARIABLE, Home, InstallError, age
from kvexact.impl.adapters.vllm.known import Known, Seen, known_findings, known_of
from kvexact.impl.adapters.vllm.process import Process
from kvexact.impl.adapters.vllm.targets import VllmTarget, VllmViews
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.simulation.memory import Kind
from kvexact.impl.target import OutOfBounds, Unavailable
from kvexact.refmodel.ops import Allocate
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet, Refused


def installed_home(path: Path) -> Home:
    """A home that looks as if its environment were installed."""
    home = Home(path / "home")
    home.python.parent.mkdir(parents=True)
    home.python.symlink_to(sys.executable)
    pins = files("kvexact.impl.adapters.vllm") / "requirements.txt"
    (home.path / "env" / "requirements.txt").write_text(pins.read_text())
    return home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return installed_home(tmp_path)


def test_releases_are_in_order_and_checkouts_last(home: Home, tmp_path: Path) -> None:
    for name in ("0.9.1", "0.26.0", "0.25.1", "source"):
        (home.release(name) / "vllm").mkdir(parents=True)
    (home.path / "releases" / "half").mkdir()
    assert home.releases() == ["0.9.1", "0.25.1", "0.26.0", "source"]
    assert age("0.24.0") < age("0.25.1") < age("0.100.0") < age("source")


def test_what_is_not_installed_is_said_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"environment .* run: kvexact vllm install 0.26.0"):
        Home(tmp_path).check("0.26.0")
    home = installed_home(tmp_path)
    with pytest.raises(Unavailable, match=r"vLLM 0\.26\.0 is not installed"):
        home.check("0.26.0")
    with pytest.raises(Unavailable, match="no release of vLLM"):
        home.check("")


def test_a_changed_list_of_packages_makes_the_environment_stale(home: Home) -> None:
    assert home.has_environment
    (home.path / "env" / "requirements.txt").write_text("numpy==1\n")
    assert not home.has_environment


def test_a_wheel_is_unpacked_without_what_is_not_python(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "vllm-0.99.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/__init__.py", "vllm/v1/x.py", "vllm/_C.so", "other/y.py"):
            archive.writestr(name, "")
        archive.writestr("vllm-0.99.0.dist-info/METADATA", "Name: vllm\n")
    monkeypatch.setattr(home_module, "_download", lambda *_: wheel)
    said: list[str] = []
    home.install("0.99.0", said.append)
    place = home.release("0.99.0")
    found = sorted(p.relative_to(place).as_posix() for p in place.rglob("*.[pM]*") if p.is_file())
    assert [n for n in found if "cache" not in n] == ["vllm/__init__.py", "vllm/v1/x.py"]
    assert (place / "vllm-0.99.0.dist-info" / "METADATA").exists()
    assert not (place / "vllm" / "_C.so").exists()
    home.install("0.99.0", said.append)
    assert said == ["vLLM 0.99.0"]


def test_what_cannot_be_installed(home: Home, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="is no release; write a number"):
        home.install("newest", print)
    with pytest.raises(InstallError, match="no checkout of vLLM"):
        home.link("source", tmp_path)


def test_a_checkout_is_linked_and_replaced(home: Home, tmp_path: Path) -> None:
    for name in ("one", "two"):
        package = tmp_path / name / "vllm"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        home.link("source", tmp_path / name)
    assert home.release("source").resolve() == tmp_path / "two"
    (home.release("0.33.0") / "vllm").mkdir(parents=True)
    with pytest.raises(InstallError, match="is a release already"):
        home.link("0.33.0", tmp_path / "one")


def test_a_target_of_a_release_lacks_what_the_release_lacks(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(home.path))
    utils = home.release("0.99.0") / "vllm" / "v1" / "worker" / "utils.py"
    utils.parent.mkdir(parents=True)
    utils.write_text("def other(): ...\n")
    found = find_target("vllm-views@0.99.0+undo-54021").target_type
    assert "copy_blocks" not in found.op_kinds
    assert (found.release, found.mutations) == ("0.99.0", ("undo-54021",))  # type: ignore[attr-defined]
    utils.write_text("def copy_kv_cache_blocks_inplace(): ...\n")
    assert "copy_blocks" in find_target("vllm-views@0.99.0").target_type.op_kinds


def test_a_target_without_variants_says_so() -> None:
    with pytest.raises(UnknownTarget, match="it has no variants, so drop @1"):
        find_target("example@1")


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice()


def batched(target: int, source: int, nbytes: int, order: int, stream: Stream) -> None:
    """A copy of the driver's, as a release asks for it: in arrays."""
    rows = np.array([[target], [source], [nbytes]], np.uint64)
    attributes = np.array([order], np.uint32)
    places = [row.ctypes.data for row in rows]
    copied = batch_memcpy(Stream.device)(
        *places, 1, attributes.ctypes.data, None, 1, None, stream.cuda_stream
    )
    assert copied == 0


def test_copies_are_made_inside_registered_memory_only(device: SimulatedDevice) -> None:
    data = np.arange(64, dtype=np.uint8)
    start = data.ctypes.data
    device.register(start, 32, "the pool", Kind.DEVICE)
    device.copy([(start + 16, start, 16)], device.current, 1)
    assert data[16:32].tolist() == list(range(16))
    for target, source in ((start + 17, start), (start, start + 17), (start, start - 1)):
        with pytest.raises(OutOfBounds, match="16 bytes at the pool"):
            device.copy([(target, source, 16)], device.current, 1)
    assert data[32:].tolist() == list(range(32, 64))


def test_what_a_copy_thread_ran_into_is_told_later(device: SimulatedDevice) -> None:
    batched(0, 64, 8, 1, device.current)
    with pytest.raises(OutOfBounds):
        device.complain()
    device.complain()


@pytest.mark.parametrize(
    ("number", "order", "waits", "found"),
    [
        *((AT_ONCE, 3, False, 7), (LATE, 1, True, 7), (LATE, 1, False, 0)),
        *((LATE, 2, True, 0), (9, 1, True, 7)),
    ],
)
def test_a_store_has_what_it_waits_for(
    device: SimulatedDevice, number: int, order: int, waits: bool, found: int
) -> None:
    """The model writes 7s into the pool; a batch on another stream stores them."""
    device.open(number)
    pool, host = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    device.register(pool.ctypes.data, 8, "the pool", Kind.DEVICE)
    device.register(host.ctypes.data, 8, "the host tier", Kind.PINNED)
    device.begin(3)
    device.launch([lambda: pool.fill(7)])
    stream, done = Stream(), Event()
    if waits:
        stream.wait_stream(device.current)
    with device.on(stream):
        batched(host.ctypes.data, pool.ctypes.data, 8, order, device.current)
        done.record()
    assert device.current is not stream
    polls = next(number for number in range(99) if done.query())
    assert (polls == 0) is (number == AT_ONCE)
    assert set(host.tolist()) == {found}
    device.finish()
    assert set(pool.tolist()) == {7}


@pytest.mark.parametrize("early", [True, False])
def test_a_copy_thread_runs_at_its_turn(early: bool) -> None:
    turns, done = Turns(lambda: early), []
    queue = turns.queue()

    def read() -> None:
        while (item := queue.get()) is not None:
            done.append(item)

    thread = threading.Thread(target=read)
    thread.start()
    queue.put(1)
    queue.put(2)
    assert done == ([1, 2] if early else [])
    turns.run()
    assert done == [1, 2]
    queue.put(None)
    thread.join(5.0)
    assert not thread.is_alive()


def test_a_copy_thread_that_died_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_PATIENCE_S", 0.01)
    queue = Turns(lambda: False).queue()
    queue.put(1)
    with pytest.raises(TimeoutError, match="copy thread did not finish"):
        queue.run()


def _needed(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that code takes from around it."""
    for symbol in table.get_symbols():
        if symbol.is_global() and not symbol.is_assigned():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _needed(child)


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_stands_on_its_own_in_a_program(mutation: Mutation) -> None:
    given: dict[str, object] = {}
    exec(reproducer_module._plain_imports(), given)
    needed = {*_needed(symtable.symtable(getsource(mutation.apply), "program", "exec"))}
    assert {"need", "find"} & needed
    assert needed <= {*given, *dir(builtins), "need", "find"}


def test_symbols_are_found_by_name() -> None:
    assert find("json:nothing", "nowhere:at", "json:dumps") is find("json:dumps")
    assert find("json:decoder.JSONDecoder").__name__ == "JSONDecoder"
    assert find("nowhere") is None
    with pytest.raises(Gone, match="vLLM has none of json:x, y:z"):
        need("json:x", "y:z")
    with pytest.raises(Gone, match="int of vLLM has none of rows"):
        first_of(1, "rows")


@pytest.mark.parametrize("line", ["import nowhere", "from json import nothing"])
def test_a_module_that_is_there_and_cannot_be_imported_is_named(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its release would be taken for one that never had it."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("broken", "whole"):
        (tmp_path / f"{name}.py").write_text(line if name == "broken" else "x = 1")
    with pytest.raises(Gone, match=r"broken cannot be imported: .*'(nowhere|json)'"):
        find("broken:x", "whole:x")


def test_an_environment_that_does_not_start_says_how_to_mend_it(home: Home) -> None:
    home.python.unlink()
    home.python.write_text("no program")
    with pytest.raises(Unavailable, match=r"Permission denied.*remove .*env and install again"):
        Process(home, "0.33.0", ())


def test_of_a_release_that_is_not_listed_a_line_says_so() -> None:
    line = "0.99.1 is not listed, and driven as 0.33.0"
    assert VllmViews.variant("0.99.1+bytes").remark() == line
    assert not VllmViews.variant("0.33.0").remark()


def test_moves_are_joined_into_runs_of_parts() -> None:
    moves = [[5, 3, 0], [6, 3, 1], [7, 1, 0], [8, 4, 1], [9, 4, 0], [2, 6, 1]]
    joined = [([5, 6, 7], [3, 1], 0), ([8], [4], 1), ([9], [4], 0), ([2], [6], 1)]
    assert offload.runs(moves, 2) == joined
    assert offload.runs([[5, 3, 0], [6, 9, 0]], 1) == [([5, 6], [3, 9], 0)]
    first, second = offload.transfers([(1, [[5, 3, 0]]), (0, [[1, 2, 0]]), (1, [[6, 3, 1]])], 2)
    assert offload.chunked(first, 3) == ([1, 5], [1, 1, 0], [0, 0, 0], [2, 3])
    assert offload.chunked(second, 3) == ([6], [0, 1, 0], [0, 1, 0], [3])


def test_runs_of_a_page_are_maximal() -> None:
    pages = torch.zeros(4, 3, 2, 8, dtype=torch.uint8)
    whole, planes = pages.numpy(), pages.permute(1, 0, 2, 3).numpy()
    assert [n for _, n in runs(whole)] == [48]
    assert [n for _, n in runs(planes)] == [16] * 4


def test_fields_of_formats() -> None:
    assert Shape(1, 1, 8, 8, "int4_per_token_head").fields() == {
        "k": 4,
        "k_scale": 4,
        "v": 4,
        "v_scale": 4,
    }
    assert Shape(1, 1, 8, 8, "bf16").fields() == {"k": 16, "v": 16}
    assert Shape(1, 1, 3, 2, "state_bf16_fp32").fields() == {"conv": 6, "ssm": 8}
    assert Shape(1, 1, 64, 64, "turboquant_k3v4_nc").fields() == {
        "k": 24,
        "k_norm": 2,
        "v": 32,
        "v_scale": 2,
        "v_zero": 2,
    }
    assert Shape(1, 1, 576, 0, "fp16").fields() == {"k": 1152}
    assert sum(Shape(1, 1, 576, 0, "fp8_ds_mla").fields().values()) == 656


def test_keys_of_an_indexer_lie_before_their_scales() -> None:
    page = torch.arange(2 * 3 * 132, dtype=torch.int32).to(torch.uint8).view(2, 3, 132)
    layer = Layer("name", Shape(1, 1, 128, 0, "indexer_fp8"), None, page)
    found = layer_fields(layer)
    flat = page.numpy().reshape(2, -1)
    assert found["latent"].shape == (2, 1, 3, 128)
    assert found["latent"][1, 0, 2].tolist() == flat[1, 256:384].tolist()
    assert found["scale"][0, 0, 1].tolist() == flat[0, 388:392].tolist()
    found["scale"][0, 0, 1] = 7  # a view, not a copy
    assert page.numpy().reshape(2, -1)[0, 388:392].tolist() == [7] * 4


def test_known_findings_are_of_releases_that_can_be() -> None:
    for one in known_findings():
        assert age(one.first) <= age(one.last)
        assert one.text
    assert {one.name for one in known_of("vllm-offload", "0.25.1", ())} == {
        "tail-lost",
        "scales-in-one-buffer",
        "loads-before-compute",
        "packed-latents-viewed-as-plain",
        "packed-rows-viewed-as-plain",
    }
    still = {one.name for one in known_of("vllm-offload", "0.26.0", ())}
    assert still == {"packed-rows-viewed-as-plain", "loads-before-compute"}
    (of_zeroing,) = known_of("vllm-offload", "0.28.0", ())
    assert of_zeroing.name == "zeroing-of-the-first-page-only"
    for word in ("at-once", "mend-50696"):
        (of_zeroing,) = known_of("vllm-offload", "0.27.1", (word,))
        assert of_zeroing.name == "zeroing-of-the-next-block"
    undone = known_of("vllm-simple", "0.29.0", ("undo-54021",))
    assert "phantom-regions" in {one.name for one in undone}
    assert "phantom-regions" not in {one.name for one in known_of("vllm-simple", "0.29.0", ())}


def test_a_known_finding_is_known_where_it_shows_only() -> None:
    (one,) = (k for k in known_of("vllm-offload", "0.33.0", ()) if k.name.startswith("head"))
    shape = LayerSet(1, 2, 32, 32, "bf16")
    geometry = Geometry((Group(16, 16, (shape,)),), 2, Host(8192), order="LHBNC")
    other = Geometry((Group(16, 16, (shape,)),), 2, Host(8192), order="LBHNC")
    assert one.is_it(Seen("fact / open / fact / regions", geometry))
    assert not one.is_it(Seen("fact / open / fact / regions", other))
    assert not one.is_it(Seen("mismatch / restore / lost / k", geometry))


def test_what_shows_in_split_blocks_only_is_new_in_whole_ones() -> None:
    (one,) = (k for k in known_of("vllm-views", "0.31.0", ()) if k.name.startswith("heads"))
    shape = LayerSet(1, 2, 32, 32, "bf16")
    for kernel, is_known in ((16, True), (32, False)):
        geometry = Geometry((Group(32, kernel, (shape,)),), 2, Host(8192), order="BHLNC")
        seen = Seen("exception / open / exception / RuntimeError", geometry)
        assert one.is_it(seen) is is_known


@pytest.mark.parametrize(
    "one", known_findings(), ids=lambda one: f"{one.name} {one.target} {one.mutation}"
)
def test_a_known_finding_has_a_trace_that_shows_it(one: Known) -> None:
    trace = load(one.trace_path)
    assert trace.signature
    if trace.target.partition("@")[0] == one.target:
        signature = str(Signature(*trace.signature))
        assert one.is_it(Seen(signature, trace.geometry, behind_data=True, of_order=True))


def test_regions_of_unequal_pages_are_told_from_phantom_ones() -> None:
    known = known_of("vllm-simple", "0.29.0", ("undo-54021",))
    shape = LayerSet(1, 1, 32, 32, "bf16")
    for sets, name in (
        ((shape,), "phantom-regions"),
        ((shape, LayerSet(1, 2, 32, 32, "bf16")), "unequal-pages-as-one-region"),
    ):
        seen = Seen("fact / open / fact / regions", Geometry((Group(16, 16, sets),), 2, Host(8192)))
        assert next(one.name for one in known if one.is_it(seen)) == name


def test_facts_cannot_show_where_sizes_only_are_told() -> None:
    names = {one.name for one in known_of("vllm-simple", "0.29.0", ("undo-54021", "bytes"))}
    assert "unequal-pages-as-one-region" in names  # by an exception
    facts = [one for one in known_of("vllm-offload", "0.33.0", ("bytes",)) if not one.mutation]
    assert [one.name for one in facts] == ["copy-of-the-first-view-only"]


class Told(VllmTarget):
    """A release that has little."""

    session = "simple"
    op_kinds = frozenset({"allocate", "zero"})
    families = ("served", "served_chunked")

    @classmethod
    def ask_traits(cls) -> dict[str, Any]:
        return {
            "orders": ["BLHNC", "LBHNC"],
            "formats": ["fp8_e4m3"],
            "cache_types": ["auto", "fp8_e4m3", "nvfp4"],
            "rows": ["fp8_ds_mla"],
            "has_disk": True,
            "specs": ["FullAttentionSpec", "MambaSpec"],
            "tail_alignment": 1,
        }


def test_a_geometry_that_was_never_sent_met_nothing() -> None:
    assert Told().launches() == {}


def test_what_was_met_and_never_met_is_told() -> None:
    counts = Counts()
    counts.features.update({"order BLHNC": 3, "format fp8_e4m3": 1, "kernel split": 1})
    counts.launches.update({"spec MambaSpec": 1, "zeroed through views": 2})
    counts.ops["zero", "acted"] = 4
    met, never = met_lines(Told, counts)
    assert met == "met: BLHNC, fp8_e4m3, MambaSpec, kernel split, zeroed through views, zero"
    assert never.startswith("never met: LBHNC, bf16, ")
    assert {"nvfp4", "FullAttentionSpec", "host chunks", "allocate"} <= set(never.split(", "))


def test_the_tail_that_is_lost_is_known_where_no_data_are_wrong() -> None:
    (one,) = (k for k in known_of("vllm-offload", "0.25.1", ()) if k.name == "tail-lost")
    shape = LayerSet(1, 1, 32, 32, "int8_per_token_head")
    geometry = Geometry((Group(16, 16, (shape,)),) * 2, 2, Host(8192), kv_split=True)
    assert one.is_it(Seen("mismatch / restore / lost / v", geometry, behind_data=True))
    assert not one.is_it(Seen("mismatch / restore / lost / v", geometry))
    assert not one.is_it(Seen("mismatch / restore / stale / v", geometry, behind_data=True))


def test_what_lies_behind_the_data_of_a_page() -> None:
    """Pages of 16 tokens with 64 bytes and two scales: 1,024 bytes of data in 1,152."""
    shape = LayerSet(2, 1, 32, 32, "int8_per_token_head")
    groups = (Group(16, 16, (shape,)), Group(16, 16, (shape,)))
    run = Run(CpuEngine(), Geometry(groups, 3, Host(8192), order="LBNHC", kv_split=True))
    assert run.open()
    run.step(Allocate(0, 1, (1,)))
    first = 1152  # block 1 of layer 0; layer 1 begins 3 pages later
    for at, behind in (
        ((first + 1024, first + 1151), True),
        ((3 * 1152 + first + 1024,), True),
        ((first + 1023, first + 1024), False),
        ((first - 1,), False),
        ((), False),
    ):
        failure = Failure(Signature("mismatch", "restore", "lost", "v"), (), "pool", at)
        assert behind_data(run, failure) is behind
    run.close()


@pytest.mark.parametrize("family", sorted(SERVED))
def test_served_geometries_can_mostly_be(family: str) -> None:
    accepted, padded = 0, 0
    for seed in range(60):
        geometry = SERVED[family].draw(Prng(seed))
        try:
            plan(geometry)
        except Refused:
            continue
        accepted += 1
        padded += any(s.page_bytes is not None for g in geometry.groups for s in g.layer_sets)
    assert accepted >= 40
    assert padded or family in ("served", "served_chunked", "served_latent", "served_packed")
