"""Results of several runs (shards, targets, machines) as one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvexact.fuzz.results import Found, Part, Ran, Result
from kvexact.fuzz.summary import merge as merge_counts


def merge(results: Iterable[Result]) -> Result:
    """One result of several: counts added up, of each failure the one with the fewest ops."""
    results = list(results)
    runs = tuple(run for one in results for run in one.runs)
    complaints = [line for one in results for line in one.complaints]
    if len(results) > 1:  # one shard alone may be looked at, too
        complaints += _not_one(runs)
    counts = merge_counts(
        (part.target, part.family, part.counts) for one in results for part in one.parts
    )
    same: dict[tuple[str, ...], list[Found]] = {}
    for item in (item for one in results for item in one.findings):
        same.setdefault((item.target, *item.signature), []).append(item)
    return Result(
        runs,
        tuple(Part(*key, counts[key]) for key in sorted(counts)),
        tuple(_shortest(same[key]) for key in sorted(same)),
        tuple(dict.fromkeys(complaints)),
        tuple(dict.fromkeys(line for one in results for line in one.notes)),
    )


def _not_one(runs: Sequence[Ran]) -> Iterator[str]:
    """Why shards are not all of one run."""
    shards: dict[tuple[str, int, str], list[Ran]] = {}
    for run in runs:
        number, _, of = run.shard.partition("/")
        if number.isdecimal() and of.isdecimal():
            shards.setdefault((run.target, run.seed, of), []).append(run)
    for (target, seed, of), members in shards.items():
        there = {run.shard for run in members}
        if len(there) < len(members):
            yield f"{target}: a shard of seed {seed} is here twice, and counted twice"
        if len(there) < int(of):
            yield f"{target}: {len(there)} of {of} shards of seed {seed} are here"
        commits = list(dict.fromkeys(run.commit for run in members))
        if len(commits) > 1:
            yield f"{target}: shards of seed {seed} ran commits {commits[0]} and {commits[1]}"


def _shortest(same: list[Found]) -> Found:
    best = min(same, key=lambda item: (item.executions == 0, item.ops, item.trace))
    return replace(best, count=sum(item.count for item in same))
