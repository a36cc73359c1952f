"""A release and target of ``kvexact vllm matrix``: its families, known findings, what was met."""

from collections.abc import Iterator
from dataclasses import replace

from kvexact.fuzz.artefacts import RunDirectory, save
from kvexact.fuzz.console import Output
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Failure
from kvexact.fuzz.finding import block
from kvexact.fuzz.items import families_of
from kvexact.fuzz.matrix import Cell, fill
from kvexact.fuzz.page_parts import behind_data
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import load
from kvexact.fuzz.vllm_met import met_lines
from kvexact.fuzz.vllm_order import is_of_order
from kvexact.impl.adapters.vllm.known import Known, Seen, known_of
from kvexact.impl.adapters.vllm.targets import VllmTarget
from kvexact.refmodel.spec import Geometry

#: Alignments of host rows and of the pool's end that connectors and platforms have.
_ALIGNMENTS = (1, 4096)

GONE = "GONE: its trace is sound; mend its releases in known.json, or the adapter"
NOT_MET = "not met in so many ops; its trace fails as ever"
UNFIT = "not met in so many ops; its trace does not fit"


def row(
    console: Output, directory: RunDirectory, target: NamedTarget, seeds: range, ops: int
) -> int:
    """Fuzz and tell; the number of findings that are new, or known and gone."""
    made = target.target_type
    assert issubclass(made, VllmTarget)
    kind, _, variant = target.name.partition("@")
    release, *mutations = variant.split("+")
    known = known_of(kind, release, mutations)
    counts, new, met = Counts(), 0, set()
    for family in families_of(made):
        cell = fill(target, family, seeds, ops, lambda run, failure: _named(known, run, failure))
        met |= set(cell.known)
        new += len(cell.new)
        counts.add(cell.counts)
        console.say(_line(target.name, cell))
        for called, finding in cell.findings:
            if called is None:
                console.say(
                    "\n".join(block(finding, save(finding, target, directory.path).command))
                )
            else:
                console.say(
                    f"  {called}: {finding.failure.signature}, {len(finding.trace.ops)} ops"
                )
    gone = 0
    for one in known:
        if one.name not in met:
            word = what_became(one, target)
            gone += word == GONE
            console.say(f"{target.name:32} {one.name}: {word}")
            met.add(one.name)
    for line in met_lines(made, counts):
        console.say(f"{target.name:32} {line}")
    return new + gone


def what_became(known: Known, target: NamedTarget) -> str:
    """What a known finding's trace says of a release in which the finding was not met."""
    trace = load(known.trace_path)
    for geometry in _likenesses(trace.geometry):
        if target.target_type.fits(geometry):
            run, wrong = execute(target.make(), geometry, trace.ops)
            if wrong is None:
                return GONE
            failure = explain_failure(run, wrong)
            is_it = known.is_it(seen(run, failure))
            return NOT_MET if is_it else f"its trace fails otherwise: {failure.signature}"
    return UNFIT


def _likenesses(geometry: Geometry) -> Iterator[Geometry]:
    """The same for connectors and platforms that align otherwise."""
    host = geometry.host
    for tail in (geometry.tail_alignment, *_ALIGNMENTS):
        for alignment in (host.row_alignment, *_ALIGNMENTS):
            capacity = host.capacity_bytes + geometry.blocks * (alignment - 1)
            aligned = replace(host, row_alignment=alignment, capacity_bytes=capacity)
            yield replace(geometry, host=aligned, tail_alignment=tail)


def _named(known: list[Known], run: Run, failure: Failure) -> str | None:
    found = seen(run, failure)
    return next((one.name for one in known if one.is_it(found)), None)


def seen(run: Run, failure: Failure) -> Seen:
    """What there is to know a failure by."""
    return Seen(
        str(failure.signature),
        run.geometry,
        behind_data(run, failure),
        is_of_order(run, failure),
    )


def _line(name: str, cell: Cell) -> str:
    geometries = sum(cell.counts.geometries.values())
    return (
        f"{name:32} {cell.family:16} {cell.summary:16} "
        f"{cell.counts.acted:,} ops acted, {geometries} geometries"
    )
