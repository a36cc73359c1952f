"""A corpus: a directory of traces in git, each named by its content, each with a note.

Traces are copied plainly, so machines share finds by any means that copies files.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kvexact.fuzz.artefacts import file_name, write_atomically
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.run import execute
from kvexact.fuzz.soak_state import FILE as STATE
from kvexact.fuzz.summary_file import FILE as SUMMARY
from kvexact.fuzz.targets import find_target
from kvexact.fuzz.trace import Trace, TraceError, dump, load

#: Where it is, from the current directory.
ROOT = Path("corpus")


def add(trace: Trace, note: str, corpus: Path) -> Path:
    """Put a trace into a corpus, with a note that says what it guards."""
    corpus.mkdir(parents=True, exist_ok=True)
    path = corpus / f"{file_name(trace)}.json"
    write_atomically(path, dump(replace(trace, note=note)))
    return path


def merge(traces: Iterable[Trace], corpus: Path) -> list[Path]:
    """Copy traces into a corpus; what is there stays as it is. The new files."""
    return [
        add(trace, trace.note, corpus)
        for trace in traces
        if not (corpus / f"{file_name(trace)}.json").exists()
    ]


def read(directory: Path) -> tuple[list[Trace], list[str]]:
    """All traces of a corpus or of a run's directory, and why other files are none."""
    traces, refused = [], []
    for path in traces_in(directory):
        try:
            traces.append(load(path))
        except TraceError as error:
            refused.append(str(error))
    return traces, refused


def traces_in(directory: Path) -> list[Path]:
    """Files of a directory that ought to be traces, in the order of their names."""
    return sorted(path for path in directory.glob("*.json") if path.name not in (SUMMARY, STATE))


#: What a trace meets.
Things = frozenset[object]


def run_all(target: str, traces: Iterable[Trace]) -> Iterator[Things]:
    """What each trace meets on a target; nothing where it fails."""
    named = find_target(target)
    for trace in traces:
        run, wrong = execute(named.make(), trace.geometry, trace.ops, trace.schedule)
        yield frozenset() if wrong else met_by(trace, run.counts)


def met_by(trace: Trace, counts: Counts) -> Things:
    """The counted things that a trace meets, and the failure that it once showed."""
    return frozenset(
        [
            ("signature", trace.signature),
            *(("geometry", verdict) for verdict in counts.geometries),
            *(("feature", name) for name in counts.features),
            *(("op", kind) for kind in counts.ops),
            *(("refusal", kind) for kind in counts.reasons),
            *(("pair", pair) for pair in counts.pairs),
            *(("launch", name) for name in counts.launches),
        ]
    )


def superfluous(met: Mapping[Path, Things], ops: Mapping[Path, int]) -> list[Path]:
    """Traces without which the others still meet everything.

    The longest traces go first, so that short ones stay; of equally long ones the last by name.
    """
    times: dict[object, int] = {}
    for things in met.values():
        for thing in things:
            times[thing] = times.get(thing, 0) + 1
    dropped = []
    for path in sorted(met, key=lambda path: (ops[path], path.name), reverse=True):
        if all(times[thing] > 1 for thing in met[path]):
            dropped.append(path)
            for thing in met[path]:
                times[thing] -= 1
    return sorted(dropped)
