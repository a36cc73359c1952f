"""The engine on streams: fenced or free the bytes are the same, and one trace has one result.

KVEXACT_FENCED says how many traces run both ways, KVEXACT_REPEATS how often one trace runs, and
KVEXACT_SHARES is a file to which lines are added: of so many traces of requests, how many agree.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvexact.fuzz.campaign import run_example
from kvexact.fuzz.choose import Prng
from kvexact.fuzz.cli import main
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.edits import Program
from kvexact.fuzz.families import SERVING, TIMED
from kvexact.fuzz.machine import run_item
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.serve import digest as digest_of_answers
from kvexact.impl.engine.engine import StreamsEngine
from kvexact.impl.target import Area, Result, Rows
from kvexact.refmodel.ops import KIND_OF, TIMED_OPS, Op
from kvexact.refmodel.timed_ops import Fence, Poll

FENCED = int(os.environ.get("KVEXACT_FENCED", "300"))
REPEATS = int(os.environ.get("KVEXACT_REPEATS", "5"))
SHARES = os.environ.get("KVEXACT_SHARES", os.devnull)
SEED = int(os.environ.get("SEED", "0"))
AREAS: tuple[Area, ...] = ("pool", "host")
FAMILIES = [*TIMED.values(), *SERVING.values()]
SHARDS = 6
STEPS = 9
#: Requests need some before they meet.
SERVING_STEPS = 24


class Watched(StreamsEngine):
    """Keeps the rows that it returned, the last bytes, and a digest of all that it ever showed."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []
        self.last: list[bytes] = []
        self.seen = sha256()

    def apply(self, op: Op, rows: Rows | None) -> Result:
        result = super().apply(op, rows)
        if isinstance(result, tuple):
            self.read.append(b"".join(item.tobytes() for item in result))
            self.seen.update(self.read[-1])
        self.last = [self.view(area).tobytes() for area in AREAS]
        for data in (repr(type(result)).encode(), repr(result is True).encode(), *self.last):
            self.seen.update(data)
        return result


def drawn(number: int) -> tuple[Watched, Run]:
    """A short trace, run as its schedule says."""
    target = Watched()
    family = FAMILIES[number % len(FAMILIES)]
    chooser = Prng(derive(SEED, "fenced", number))
    steps = SERVING_STEPS if family.name in SERVING else STEPS
    example = run_example(target, family, chooser, Counts(), steps=steps)
    assert example.wrong is None, example.wrong
    return target, example.run


def fenced(run: Run) -> tuple[Op, ...]:
    """The same ops, a fence behind each."""
    return tuple(one for op in run.done for one in (op, Fence(1000 + op.id)))


def on_bytes(run: Run, recorded: list[str]) -> list[str]:
    """What happened to each op but those in time, which find less to do behind a fence."""
    pairs = zip(run.done, recorded, strict=True)
    return [happened for op, happened in pairs if KIND_OF[type(op)] not in TIMED_OPS]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_fenced_after_each_op_and_free_the_bytes_are_equal(shard: int) -> None:
    """Where requests are answered alike, as at least half of the traces are; all fit the model."""
    alike = asked = 0
    for number in range(shard, FENCED, SHARDS):
        free, run = drawn(number)
        target = Watched()
        again, wrong = execute(target, run.geometry, fenced(run), run.schedule)
        assert wrong is None, wrong
        if run.done and run.serve.answers:
            asked += 1
            if digest_of_answers(run.serve.answers) != digest_of_answers(again.serve.answers):
                continue
            alike += 1
        assert on_bytes(run, run.recorded) == on_bytes(run, again.recorded[::2])
        assert target.last == free.last
        assert target.read == free.read
    assert asked
    assert 2 * alike >= asked
    with Path(SHARES).open("a") as shares:
        shares.write(f"{alike} {asked}\n")


def test_polls_name_transfers_of_requests_too() -> None:
    """Stores, and what admits and readmits load, pending or not."""
    polled: set[tuple[str, str]] = set()
    for number in range(400):
        family = SERVING["serving"]
        run = run_example(StreamsEngine(), family, Prng(derive(7, "polls", number)), Counts()).run
        kinds = {op.id: KIND_OF[type(op)] for op in run.done}
        for op, happened in zip(run.done, run.recorded, strict=True):
            if isinstance(op, Poll):
                polled.add((kinds[op.job], happened))
    assert {("store", "acted"), ("store", "no-op")} <= polled
    assert {"store", "admit"} <= {kind for kind, _ in polled} <= {"store", "admit", "readmit"}


def of_the_prng() -> list[Program]:
    runs = [drawn(number)[1] for number in range(6)]
    return [Program(run.geometry, tuple(run.done), run.schedule) for run in runs if run.done]


def of_hypothesis() -> list[Program]:
    runs: list[Run] = []
    assert run_item(StreamsEngine(), FAMILIES[0], SEED, 4, Counts(), runs.append) is None
    return [Program(run.geometry, tuple(run.done), run.schedule) for run in runs if run.done]


def digest(program: Program) -> str:
    """Of all that a run of it shows, settled or not, and answers."""
    target = Watched()
    run, wrong = execute(target, *program)
    assert wrong is None, wrong
    return target.seen.hexdigest() + "".join(run.recorded)


@pytest.mark.parametrize("draw", [of_the_prng, of_hypothesis])
def test_one_trace_has_one_result(draw: Callable[[], list[Program]]) -> None:
    """Bit for bit, again and again, in this process and in four others."""
    programs = draw()
    assert programs
    here = [digest(program) for program in programs]
    for _ in range(REPEATS - 1):
        assert [digest(program) for program in programs] == here
    context = get_context("spawn")
    with ProcessPoolExecutor(4, context) as pool:
        assert list(pool.map(digest, programs)) == here
    assert len(set(here)) == len(programs)


@pytest.mark.parametrize("chooser", ["prng", "hypothesis"])
def test_processes_do_not_change_what_a_run_does(chooser: str, tmp_path: Path) -> None:
    told = []
    for workers in ("1", "4"):
        args = ["--target", "streams", "--family", "timed", "--chooser", chooser, "--seed", "3"]
        args += ["--max-ops", "200", "--workers", workers, "--artifacts", str(tmp_path)]
        ended = CliRunner().invoke(main, ["fuzz", *args])
        assert ended.exit_code == 0, ended.output
        told.append(ended.output.partition("streams: ")[2])
    assert told[0]
    assert told[0] == told[1]
