"""The bench: its keys, its budgets, and ratios that add up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvexact.fuzz import bench as module
from kvexact.fuzz.bench import bench, measure
from kvexact.fuzz.bench_parts import gb_per_s, long_arrays
from kvexact.fuzz.bench_result import BUDGETS, Result
from kvexact.fuzz.demands import RAW_ONLY
from kvexact.fuzz.shown import same_bytes
from kvexact.impl.adapters.vllm.home import HOME_VARIABLE
from kvexact.refmodel.spec import PAGE_FORMATS


@pytest.fixture(scope="module")
def found() -> Result:
    """One round."""
    *_, last = measure(1)
    assert isinstance(last, Result)
    return last


def test_ratios_follow_from_times(found: Result) -> None:
    """All ratios are to the empty step."""
    empty = found.empty_step_us

    assert found.prng_op_over_empty_step == pytest.approx(found.prng_op_us / empty)
    added = found.machine_step_us - empty
    assert found.machine_added_over_empty_step == pytest.approx(added / empty)
    assert sum(found.parts_us.values()) == pytest.approx(found.prng_op_us)
    assert sum(found.values_parts_us.values()) == pytest.approx(found.values_prng_op_us)
    values = found.values_machine_step_us / found.machine_step_us
    assert found.values_machine_step_over_raw == pytest.approx(values)
    values = found.values_prng_op_us / found.prng_op_us
    assert found.values_prng_op_over_raw == pytest.approx(values)
    assert found.setup_over_empty_step > 0
    assert found.journal_added_over_empty_step > 0
    assert min(found.ops_per_s.values()) > 0
    assert min(found.format_ops_per_s.values()) > 0
    assert set(PAGE_FORMATS) - set(found.format_ops_per_s) == set(RAW_ONLY)


def test_json_and_check(found: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A budget fails with --check alone; the JSON has every key with a budget."""
    slow = replace(
        found,
        prng_op_over_empty_step=7.0,
        machine_added_over_empty_step=0.5,
        timed_machine_added_over_empty_step=0.5,
        values_prng_op_over_raw=2.75,
    )
    monkeypatch.setattr(module, "measured", lambda: slow)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))

    plain = CliRunner().invoke(bench, ["--json"])
    checked = CliRunner().invoke(bench, ["--check"])

    assert plain.exit_code == 0
    assert "kvexact bench: vLLM is skipped: " in plain.stderr
    assert json.loads(plain.stdout)["vllm_ops_per_s"] == {}
    assert set(BUDGETS) < set(json.loads(plain.stdout))
    assert checked.exit_code == 1
    assert "prng_op_over_empty_step is 7.00, more than 0.7" in checked.stderr
    assert "values_prng_op_over_raw is 2.75, more than 2.5" in checked.stderr
    assert "machine_added_over_empty_step is" not in checked.stderr
    assert "(at most 0.7)" in checked.stdout


def test_comparison_of_long_arrays() -> None:
    """It is timed on arrays that are equal."""
    one, other = long_arrays()

    assert gb_per_s(same_bytes, one, other) > 0
    other[-1] ^= 1
    assert not same_bytes(one, other)
    assert not same_bytes(one, other[:-1])


def test_comparison_of_arrays_that_are_not_contiguous() -> None:
    """A target may show its bytes through a strided view."""
    bytes_ = np.arange(64, dtype=np.uint8)

    assert same_bytes(bytearray(range(0, 64, 2)), bytes_[::2])
    assert not same_bytes(bytearray(range(0, 64, 2)), bytes_[1::2])
