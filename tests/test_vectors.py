"""Vectors for other languages: what they cover, how answers are judged, and the reader in C."""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvexact.fuzz.cli import main
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.vectors_check import load_cases
from kvexact.fuzz.vectors_target import answer
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import Area, Facts, Rows
from kvexact.refmodel.content import poison
from kvexact.refmodel.ops import BLOCK_OPS, KIND_OF, OP_REASONS, CopyBlocks, Op
from kvexact.refmodel.spec import GEOMETRY_REASONS, ORDERS, PAGE_FORMATS, Geometry

READER = Path(__file__).parents[1] / "examples" / "c_reader"
MEGABYTE = 1 << 20
Json = dict[str, Any]


def kvexact(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "default"
    result = kvexact("vectors", "write", "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[Json]:
    return load_cases(folder)


@pytest.fixture
def answers(cases: list[Json], tmp_path: Path) -> Callable[[Json], Path]:
    """Writes answers to a file."""

    def write(found: Json) -> Path:
        path = tmp_path / "answers.json"
        path.write_text(json.dumps({"kvexact_answers": 1, "cases": found}))
        return path

    return write


@pytest.fixture(scope="module")
def right(cases: list[Json]) -> str:
    """Right answers to some cases, as the engine gives them, as JSON."""
    asked = [case for case in cases if case["name"] in ("format-bf16", "refused-cell", "overlay")]
    return json.dumps({case["name"]: answer(CpuEngine(), case) for case in asked})


# What is written.


def test_the_default_set_is_small_and_covers_everything(folder: Path, cases: list[Json]) -> None:
    assert 50 <= len(cases) <= 80
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2 * MEGABYTE
    accepted = [case["geometry"] for case in cases if case["verdict"] == "accepted"]
    groups = [group for geometry in accepted for group in geometry["groups"]]
    sets = [layers for group in groups for layers in group["layer_sets"]]
    assert {layers["page_format"] for layers in sets} == set(PAGE_FORMATS)
    assert {geometry["order"] for geometry in accepted} == set(ORDERS)
    assert {geometry["order"] for geometry in accepted if geometry["kv_split"]} == set(ORDERS)
    assert any(layers["side"] for layers in sets)
    assert any(layers["page_bytes"] for layers in sets)
    assert any(layers["k_scale"] != 1 for layers in sets)
    assert any(group["tokens_per_state"] > 1 for group in groups)
    assert any(group["kernel_block_size"] < group["block_size"] for group in groups)
    assert any(len(geometry["groups"]) > 1 for geometry in accepted)
    assert any(geometry["host"]["chunk_blocks"] > 1 for geometry in accepted)
    refused = {case["verdict"] for case in cases} - {"accepted"}
    assert refused == {f"refused:{reason}" for reason in GEOMETRY_REASONS}


@pytest.mark.parametrize("seed", [0, 1])
def test_every_op_acts_and_is_refused_for_every_reason(seed: int, tmp_path: Path) -> None:
    kvexact("vectors", "write", "--out", tmp_path, "--seed", seed)
    met = Counter(
        (step["op"]["op"], step["outcome"])
        for case in load_cases(tmp_path)
        for step in case.get("ops", ())
    )
    assert {kind for kind, outcome in met if outcome == "acted"} == set(BLOCK_OPS)
    refused = {outcome for _, outcome in met} - {"acted"}
    assert refused == {f"refused:{reason}" for reason in OP_REASONS}


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    def files(name: str, *args: object) -> dict[str, bytes]:
        assert kvexact("vectors", "write", "--out", tmp_path / name, *args).exit_code == 0
        return {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}

    drawn = ("--family", "values", "--family", "overlay", "--count", 2)
    for args in ((), drawn):
        one = files(f"one{len(args)}", "--seed", 5, *args)
        assert one == files(f"two{len(args)}", "--seed", 5, *args)
        assert one != files(f"three{len(args)}", "--seed", 6, *args)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_agrees_with_what_a_family_draws(family: str, tmp_path: Path) -> None:
    kvexact("vectors", "write", "--out", tmp_path, "--family", family, "--count", 3)
    result = kvexact("vectors", "check", tmp_path, "--target", "cpu")
    assert result.exit_code == 0, result.output
    assert "unchecked" not in result.output


def test_the_engine_agrees_with_the_default_set(folder: Path) -> None:
    result = kvexact("vectors", "check", folder, "--target", "cpu")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("agree: 80 verdicts, ")
    assert "unchecked" not in result.output


class Modest(CpuEngine):
    """Promises little, and fails at what it does not promise."""

    op_kinds = frozenset(BLOCK_OPS) - {"offload", "restore"}
    op_refusals = frozenset({"owner", "duplicate"})
    geometry_refusals = frozenset({"cell"})
    declared = frozenset[Area]({"pool"})

    @classmethod
    def fits(cls, geometry: Geometry) -> bool:
        return geometry.order == "LBHNC"

    def plan(self, geometry: Geometry) -> Facts:
        assert self.fits(geometry)
        return super().plan(geometry)

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        assert KIND_OF[type(op)] in self.op_kinds
        return super().apply(op, rows)


class Raising(CpuEngine):
    """Fails at a copy."""

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is CopyBlocks:
            raise IndexError
        return super().apply(op, rows)


def test_a_target_is_asked_what_it_promises(folder: Path) -> None:
    result = kvexact("vectors", "check", folder, "--target", f"{__name__}:Modest")
    assert result.exit_code == 0, result.output
    assert "unchecked, for want of an answer: " in result.output


@pytest.mark.parametrize("name", ["kvexact.impl.faults:copy_without_scales", f"{__name__}:Raising"])
def test_a_faulty_target_is_found(name: str, folder: Path) -> None:
    result = kvexact("vectors", "check", folder, "--target", name)
    assert result.exit_code == 1, result.output
    assert " copy_blocks: " in result.output


def test_documents_say_what_bytes_an_area_begins_with() -> None:
    text = (READER.parents[1] / "docs" / "vectors.md").read_text()
    assert f"The pool begins with `{poison(0, 8).tobytes().hex(' ')}`" in text


# How answers are judged.


def test_partial_answers_agree_and_the_rest_is_counted(
    folder: Path, answers: Callable[[Json], Path], right: str
) -> None:
    found = json.loads(right)
    del found["overlay"]
    found["format-bf16"]["ops"] = [None, *found["format-bf16"]["ops"][1:3]]
    del found["format-bf16"]["facts"]["regions"]
    result = kvexact("vectors", "check", folder, answers(found))
    assert result.exit_code == 0
    checked, unchecked = result.output.splitlines()
    assert checked == "agree: 2 verdicts, 10 facts, 6 digests, 2 outcomes in 80 cases"
    assert unchecked.startswith("unchecked, for want of an answer: 78 verdicts, ")


def test_no_answer_proves_nothing(folder: Path, answers: Callable[[Json], Path]) -> None:
    result = kvexact("vectors", "check", folder, answers({}))
    assert (result.exit_code, "nothing was checked" in result.output) == (1, True)


def spoil_verdict(found: Json) -> str:
    found["refused-cell"]["verdict"] = "accepted"
    return "case refused-cell: verdict\n  want  refused:cell\n  got   accepted\n"


def spoil_fact(found: Json) -> str:
    found["overlay"]["facts"]["host.row_bytes"] = 7
    return "case overlay: fact host.row_bytes\n  want  576\n  got   7\n"


def spoil_outcome(found: Json) -> str:
    found["overlay"]["ops"][1]["outcome"] = "acted"
    return "case overlay, op 1 allocate: outcome\n  want  refused:owner\n  got   acted\n"


def spoil_digest(found: Json) -> str:
    found["overlay"]["ops"][2]["digests"]["host"] = "00"
    return "case overlay, op 2 write_tokens: digest host\n  want  "


def spoil_birth(found: Json) -> str:
    found["format-bf16"]["digests"]["pool"] = "00"
    return "case format-bf16: digest pool\n  want  "


def spoil_read(found: Json) -> str:
    found["format-bf16"]["ops"][9]["returns"].reverse()
    return "case format-bf16, op 9 read: returns\n  want  "


def spoil_kind(found: Json) -> str:
    found["format-bf16"]["ops"][0]["returns"] = []
    return "case format-bf16, op 0 allocate: returns\n  want  nothing\n  got   []\n"


@pytest.mark.parametrize(
    "spoil",
    [
        *(spoil_verdict, spoil_fact, spoil_outcome, spoil_digest, spoil_birth, spoil_read),
        spoil_kind,
    ],
)
def test_the_first_difference_is_named(
    spoil: Callable[[Json], str], folder: Path, answers: Callable[[Json], Path], right: str
) -> None:
    found = json.loads(right)
    said = spoil(found)
    result = kvexact("vectors", "check", folder, answers(found))
    assert result.exit_code == 1
    assert result.output.startswith(said)


BAD_ANSWERS: dict[str, tuple[object, str]] = {
    "no object": ([], "kvexact_answers is None; this kvexact reads version 1"),
    "version": ({"kvexact_answers": 2}, "kvexact_answers is 2; this kvexact reads version 1"),
    "no cases": ({"kvexact_answers": 1}, '"cases" is no object of objects'),
    "case": ({"kvexact_answers": 1, "cases": {"missing": {}}}, "no case is named 'missing'"),
    "fact": (
        {"kvexact_answers": 1, "cases": {"overlay": {"facts": {"pool.bytes": 1}}}},
        "case overlay: facts must be an object with keys of the case's own",
    ),
    "key": (
        {"kvexact_answers": 1, "cases": {"overlay": {"fact": {}}}},
        "case overlay: unknown key 'fact'",
    ),
    "ops": (
        {"kvexact_answers": 1, "cases": {"overlay": {"ops": [None] * 99}}},
        "case overlay: ops must be a list of at most",
    ),
    "op": (
        {"kvexact_answers": 1, "cases": {"overlay": {"ops": [1]}}},
        "case overlay: ops[0] is 1; use an object or null",
    ),
    "op key": (
        {"kvexact_answers": 1, "cases": {"overlay": {"ops": [{"digest": {}}]}}},
        "case overlay, op 0 allocate: unknown key 'digest'",
    ),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_bad_answers_are_one_line(bad: str, folder: Path, tmp_path: Path) -> None:
    data, said = BAD_ANSWERS[bad]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(data))
    refused(said, "vectors", "check", folder, path)


def test_bad_input_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("no")
    refused("no JSON", "vectors", "check", folder, tmp_path / "text.json")
    refused("No such file", "vectors", "check", folder, tmp_path / "missing.json")
    refused("No such file", "vectors", "check", tmp_path, tmp_path / "text.json")
    refused("give either", "vectors", "check", folder)
    refused("not registered", "vectors", "check", folder, "--target", "missing")
    refused("not empty", "vectors", "write", "--out", folder)
    refused("--family", "vectors", "write", "--out", tmp_path / "new", "--count", "3")
    refused("--count", "vectors", "write", "--out", tmp_path / "new", "--count", "0")
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"kvexact_vectors": 1, "cases": [{"file": "../other.json"}]}))
    refused("cases[0] has file '../other.json'", "vectors", "check", tmp_path, index)
    index.write_text(json.dumps({"kvexact_vectors": 1, "cases": 3}))
    refused('"cases" is no list', "vectors", "check", tmp_path, index)
    index.write_text(json.dumps({"kvexact_vectors": 1, "cases": [{"file": "index.json"}]}))
    refused("no case", "vectors", "check", tmp_path, index)


def refused(said: str, *args: object) -> None:
    result = kvexact(*args)
    assert result.exit_code == 2
    assert said in result.output
    assert result.output.startswith("kvexact: ")
    assert result.output.count("\n") == 1


# The reader in C.


def built(folder: Path, *options: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = folder / "reader"
    warnings = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
    sources = sorted(READER.glob("*.c"))
    subprocess.run([compiler, *warnings, *options, "-o", program, *sources], check=True)
    return program


def read(program: Path, folder: Path, output: Path) -> Path:
    with output.open("wb") as file:
        subprocess.run([program, folder], check=True, stdout=file)
    return output


def test_the_reader_derives_every_digest(folder: Path, cases: list[Json], tmp_path: Path) -> None:
    found = read(built(tmp_path), folder, tmp_path / "answers.json")
    result = kvexact("vectors", "check", folder, found)
    assert result.exit_code == 0, result.output
    digests = 2 * sum(1 + len(case["ops"]) for case in cases if "ops" in case)
    assert f"agree: {digests:,} digests" in result.output


def test_the_reader_reads_what_families_draw(tmp_path: Path) -> None:
    families = ("latent", "hybrid", "chunked", "kernel_split")
    chosen = [part for name in families for part in ("--family", name)]
    kvexact("vectors", "write", "--out", tmp_path / "drawn", "--count", 4, *chosen)
    found = read(built(tmp_path), tmp_path / "drawn", tmp_path / "answers.json")
    result = kvexact("vectors", "check", tmp_path / "drawn", found)
    assert result.exit_code == 0, result.output


def test_a_fault_in_the_reader_is_found(folder: Path, tmp_path: Path) -> None:
    found = read(built(tmp_path, "-DPLANTED_FAULT"), folder, tmp_path / "answers.json")
    result = kvexact("vectors", "check", folder, found)
    assert result.exit_code == 1
    assert "copy_blocks: digest pool\n" in result.output
