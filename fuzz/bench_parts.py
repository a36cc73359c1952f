"""Parts of an op, the journal, and the comparison, each on its own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from kvexact.fuzz.journal import Journal
from kvexact.fuzz.names import Names
from kvexact.fuzz.rows import rows_for
from kvexact.fuzz.run import Run
from kvexact.fuzz.shown import Known
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.target import Bytes
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import Dangling, WriteTokens, WriteValues
from kvexact.refmodel.plan import plan

_LONG_BYTES = 16 * 1024 * 1024


def parts_us(runs: Sequence[Run]) -> dict[str, float]:
    """Microseconds of an op's parts: the ops of these runs once more, on the sound engine."""
    spent = dict.fromkeys(("bind and refuse", "payload", "target", "model", "compare"), 0.0)
    target = CpuEngine()
    for run in runs:
        _replay(run, target, spent)
    target.close()
    ops = sum(len(run.done) for run in runs)
    return {part: seconds / ops * 1e6 for part, seconds in spent.items()}


def _replay(run: Run, target: CpuEngine, spent: dict[str, float]) -> None:
    """Add what each part takes in one run."""
    target.open(run.geometry)
    model = Cache(plan(run.geometry))
    pool, host = Known(model.memory["pool"]), Known(model.memory["host"])
    target.load("pool", model.areas["pool"])
    target.load("host", model.areas["host"])
    names = Names([{} for _ in run.geometry.groups])
    clock = process_time
    for op in run.done:
        start = clock()
        try:
            bound = names.bind(op)
        except Dangling:
            continue
        legal = model.refusal(bound) is None
        spent["bind and refuse"] += clock() - start
        if not legal:
            continue
        start = clock()
        rows = None
        if isinstance(bound, WriteTokens | WriteValues):
            rows = rows_for(model, bound, None)
        spent["payload"] += clock() - start
        start = clock()
        target.apply(bound, rows)
        spent["target"] += clock() - start
        start = clock()
        model.apply(bound)
        spent["model"] += clock() - start
        start = clock()
        equal = pool.equals(target.view("pool")) and host.equals(target.view("host"))
        spent["compare"] += clock() - start
        assert equal
        names.follow(bound)


def journal_us(runs: Sequence[Run]) -> float:
    """Microseconds that noting an op takes."""
    with TemporaryDirectory() as folder, Journal(Path(folder) / "journal") as journal:
        start = process_time()
        for run in runs:
            journal.begin(run.geometry)
            for op in run.done:
                journal.write(op)
        spent = process_time() - start
    return spent / sum(len(run.done) for run in runs) * 1e6


def long_arrays() -> tuple[bytearray, Bytes]:
    """The same bytes twice, as a model and a target hold them, so many that no cache does."""
    other: Bytes = np.arange(_LONG_BYTES // 8, dtype=np.uint64).view(np.uint8)
    return bytearray(other.tobytes()), other


def gb_per_s(compare: Callable[[bytearray, Bytes], bool], one: bytearray, other: Bytes) -> float:
    """How fast bytes that are equal are compared."""
    start = process_time()
    equal = compare(one, other)
    spent = process_time() - start
    assert equal
    return len(one) / spent / 1e9
