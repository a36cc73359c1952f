"""A small run with failures, as a directory that reports are made of."""

from functools import cache
from pathlib import Path

from kvexact.fuzz import results, summary_file
from kvexact.fuzz.artefacts import save
from kvexact.fuzz.campaign import numbered_example
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.families import FAMILIES
from kvexact.fuzz.finding import Finding, find
from kvexact.fuzz.results import Found, Part, Ran, Result, Versions
from kvexact.fuzz.run import execute
from kvexact.fuzz.targets import NamedTarget
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.faults import copy_without_scales
from kvexact.impl.target import Rows, Target
from kvexact.refmodel.ops import Allocate, CopyBlocks, Handle, Op, Pair
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

#: What a target says of itself, in the hope that a report believes it.
EVIL = "</pre></script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'"

VERSIONS = Versions("0.1.0", "3.11.7", "2.4.6", "2.13.0", "NVIDIA H200", "580.1")
GEOMETRY = Geometry((Group(1, 1, (LayerSet(1, 1, 4, 4, "int8_per_token_head"),)),), 2, Host(16))
OPS: tuple[Op, ...] = (
    Allocate(0, 0, (0,)),
    Allocate(1, 0, (1,)),
    CopyBlocks(2, 0, (Pair(Handle(1, 0), Handle(0, 0)),)),
)


class Evil(CpuEngine):
    """Raises a page of HTML."""

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is CopyBlocks:
            raise RuntimeError(EVIL)
        return super().apply(op, rows)


@cache
def failure_on(target: type[Target]) -> Finding:
    """The failure of `OPS` on a target, reduced."""
    run, wrong = execute(target(), GEOMETRY, OPS)
    assert wrong is not None
    return find(target, "cpu", "one_group", run, wrong)


def found_on(target: type[Target], directory: Path, count: int, failed_runs: int) -> Found:
    """The record of a failure, its files saved."""
    finding = failure_on(target)
    saved = save(finding, NamedTarget("cpu", CpuEngine), directory, failed_runs)
    return results.record(finding, saved, count, failed_runs)


@cache
def counted(family: str, examples: int = 2) -> Part:
    """What a few sound examples did."""
    counts = Counts()
    for index in range(examples):
        assert not numbered_example(CpuEngine(), FAMILIES[family], index, 1, counts).wrong
    return Part("cpu", family, counts)


def make_run(directory: Path, shard: str = "") -> Result:
    """Write a run with a mismatch that is sure and an exception that is flaky."""
    directory.mkdir(exist_ok=True)
    result = Result(
        (Ran("cpu", 7, VERSIONS, commit="abc123", shard=shard),),
        (counted("one_group"), counted("refusals")),
        (
            found_on(copy_without_scales, directory, 40, 3),
            found_on(Evil, directory, 2, 1),
        ),
    )
    summary_file.save(result, directory)
    return result
