"""Power: what counts as found, the command, and that known minima are minima."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from click.testing import CliRunner
from enumeration import alphabet, failing

from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.items import Profile
from kvexact.fuzz.power import power, run_trials, score
from kvexact.fuzz.reduce import reduce_failure
from kvexact.fuzz.trial import judge, search_hypothesis, search_prng
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.faults import FAULTS
from kvexact.refmodel.ops import BLOCK_OPS
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

KEYS = [
    "name",
    "kind",
    "report",
    "engine",
    "found",
    "seeds",
    "ops_median",
    "reduce_executions_median",
    "reduced_ops",
    "known_minimum",
    "minimal",
]
QUICK = ("width_without_scales", "scale_views_from_shape", "phantom_regions_unreported")


def run(*args: str) -> tuple[int, str]:
    """Exit code and standard output of the command."""
    found = CliRunner().invoke(power, args)
    return found.exit_code, found.stdout


def test_list_prints_names_and_nothing_else() -> None:
    """One name a line."""
    assert run("--list") == (0, "".join(f"{name}\n" for name in FAULTS))


@pytest.mark.parametrize(("name", "hint"), [("width_with_scales", True), ("nope", False)])
def test_an_unknown_fault_is_a_line(name: str, hint: bool) -> None:
    found = CliRunner().invoke(power, ["--fault", QUICK[0], "--fault", name])
    meant = "do you mean width_without_scales? " if hint else ""
    said = f"{name!r} is no fault; {meant}kvexact power --list has their names"
    assert (found.exit_code, found.stderr) == (2, f"Error: {said}\n")


def test_json_has_exactly_the_promised_keys() -> None:
    """Faults in the order in which they were asked for."""
    code, text = run(
        "--json", "--seeds", "2", "--workers", "1", *(f"--fault={name}" for name in QUICK)
    )

    assert code == 0
    found = json.loads(text)
    assert list(found) == ["faults"]
    assert [fault["name"] for fault in found["faults"]] == list(QUICK)
    for fault in found["faults"]:
        assert list(fault) == KEYS
        assert fault["engine"] == "prng"
        assert (fault["found"], fault["seeds"], fault["minimal"]) == (2, 2, True)
        assert fault["reduced_ops"] == fault["known_minimum"]
        assert fault["ops_median"] < 20_000
        assert fault["reduce_executions_median"] <= 300


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    """Every trial has its own seed."""
    alone, shared = (
        sorted(run_trials(QUICK, "prng", 2, seed=3, workers=workers), key=str) for workers in (1, 2)
    )

    assert alone == shared


def test_hypothesis_finds_a_fault_of_each_bug() -> None:
    """The other chooser."""
    code, text = run(
        "--chooser=hypothesis", "--json", "--seeds=1", "--workers=1", f"--fault={QUICK[0]}"
    )

    assert code == 0
    assert json.loads(text)["faults"][0]["engine"] == "hypothesis"


def test_the_table_says_what_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault whose report names another kind of difference is not found: exit 1."""
    name = QUICK[0]
    monkeypatch.setitem(FAULTS, name, replace(FAULTS[name], differences=frozenset({"refusal"})))

    found = CliRunner().invoke(power, ["--seeds=1", "--workers=1", f"--fault={name}"])

    assert found.exit_code == 1
    assert "0 of 1" in found.stdout
    assert "reported as mismatch / offload / lost" in found.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_its_processes_end_with_the_command(number: signal.Signals) -> None:
    """However it ends, at once, and also where it alone is told to."""
    command = subprocess.Popen(
        [Path(sys.executable).with_name("kvexact"), "power", "--seeds", "9", "--workers", "2"],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    while len(started := children.read_text().split()) < 3:  # two workers, and multiprocessing's
        time.sleep(0.05)
    lives = [os.pidfd_open(int(pid)) for pid in started]
    time.sleep(2)
    command.send_signal(number)
    ended = command.wait(20)
    try:
        assert ended in (130, -number)
        waiting = {*lives}
        while waiting:
            over = wait([*waiting], 20)
            assert over, f"{len(waiting)} of {len(lives)} live on"
            waiting.difference_update(over)
    finally:
        for life in lives:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(life, signal.SIGKILL)
            os.close(life)


def test_the_sound_engine_is_not_found() -> None:
    """Neither chooser reports anything."""
    sound = replace(FAULTS[QUICK[0]], target=CpuEngine)

    trial = judge(sound, *search_prng(CpuEngine, seed=5, ops_most=500))
    other = judge(sound, *search_hypothesis(CpuEngine, 5, Profile(shards=1, examples=2)))

    assert not trial.found
    assert trial.ops >= 500
    assert "no failure in" in trial.missed
    assert not other.found
    assert score(QUICK[0], "prng", [trial]).ops_median is None


def test_a_failure_of_the_sound_engine_is_no_find() -> None:
    """A trace that fails without the fault, too, shows nothing about the fault."""
    fault = replace(FAULTS[QUICK[0]], sound=FAULTS[QUICK[0]].target)

    trial = judge(fault, *search_prng(fault.target, seed=0))

    assert trial.missed.startswith("the sound engine fails, too")


def test_nine_of_ten_seeds_are_enough_for_hypothesis_alone() -> None:
    """The PRNG has to find a fault from every seed."""
    fault = FAULTS[QUICK[0]]
    hit = judge(fault, *search_prng(fault.target, seed=0))
    miss = replace(hit, missed="nothing")

    for misses, prng, hypothesis in ((0, True, True), (1, False, True), (2, False, False)):
        trials = [hit] * (10 - misses) + [miss] * misses
        assert score(fault.name, "prng", trials).passed is prng
        assert score(fault.name, "hypothesis", trials).passed is hypothesis
    assert not score(fault.name, "hypothesis", [replace(hit, minimal=False)]).passed


def test_the_alphabet_has_every_kind_of_op_on_blocks() -> None:
    """Legal and illegal, with one element and with several."""
    geometry = Geometry((Group(2, 2, (LayerSet(1, 1, 4, 4, "fp8_e4m3"),)),), 2, Host(64))

    assert {type(op) for op in alphabet(geometry, 0)} == set(BLOCK_OPS.values())


# The alphabet has all kinds of ops, but not all values, which faults of codecs may need.
ENUMERATED = [
    name
    for name, fault in FAULTS.items()
    if fault.known_minimum <= 2
    and fault.kind not in ("CODEC", "DTYPE")
    and fault.sound is CpuEngine  # a race depends on its schedule, too
    and "manager" not in vars(fault.target)  # nor has it ops on requests
]


#: Enumerating takes long; `.ci/nightly enumeration` takes every fault.
EVERY = int(os.environ.get("KVEXACT_ENUMERATE_EVERY", "3"))


@pytest.mark.parametrize("name", ENUMERATED[::EVERY])
def test_no_shorter_trace_fails(name: str) -> None:
    """By enumeration on the geometry of a reduced trace."""
    fault = FAULTS[name]
    failed, _ = search_prng(fault.target, seed=1)
    assert failed is not None
    geometry = reduce_failure(fault.target, failed[0], explain_failure(*failed)).program.geometry

    shortest = next(failing(fault.target, geometry, fault.known_minimum))
    assert len(shortest.ops) == fault.known_minimum
