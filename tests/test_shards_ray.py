"""Shards on a local Ray cluster: the same as by hand, merged into one report."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvexact.fuzz import summary_file
from kvexact.fuzz.shards_ray import run_shard

ARGUMENTS = ["--target", "cpu", "--seed", "7", "--max-ops", "2000"]


def kvexact(*args: object) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, as Ray warns of much when it is loaded."""
    command = [sys.executable, "-c", "from kvexact.fuzz.cli import main; main()", *map(str, args)]
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the package ray")
def test_a_local_cluster(tmp_path: Path) -> None:
    ended = kvexact("soak-ray", *ARGUMENTS, "--shards", 3, "--out", tmp_path / "all")
    assert ended.returncode == 0, ended.stderr
    merged = summary_file.load(tmp_path / "all")
    assert [run.shard for run in merged.runs] == ["0/3", "1/3", "2/3"]
    assert (tmp_path / "all" / "report.html").is_file()
    assert kvexact("soak", *ARGUMENTS, "--shard", "1/3", "--out", tmp_path / "one").returncode == 0
    by_hand = summary_file.load(tmp_path / "one")
    on_cluster = summary_file.load(tmp_path / "all" / "shard-1")
    assert by_hand.parts == on_cluster.parts
    assert merged.total.acted > by_hand.total.acted


def test_a_shard_that_cannot_run_says_why() -> None:
    shard = run_shard(["--target", "none", "--seed", "7", "--max-ops", "10"], "0/2")
    assert shard.code == 2
    assert "none" in shard.printed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--target", "cpu"], "give --max-ops or --max-time"),
        (["--target", "none", "--max-ops", "1"], "target 'none' is not registered"),
    ],
)
def test_bad_input_is_said_before_anything_starts(
    tmp_path: Path, args: list[str], words: str
) -> None:
    ended = kvexact("soak-ray", *args, "--seed", 1, "--shards", 2, "--out", tmp_path / "out")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert words in ended.stderr
