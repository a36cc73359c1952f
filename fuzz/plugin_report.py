"""What the pytest plugin says at the end: one summary, and one block for each distinct failure."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvexact.fuzz.artefacts import file_name, save
from kvexact.fuzz.child import Died
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.finding import Finding, block
from kvexact.fuzz.isolate import Isolation
from kvexact.fuzz.journal import recover
from kvexact.fuzz.replay import died
from kvexact.fuzz.summary import Merged, complaints, merge, summary
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace, dump
from kvexact.fuzz.worker import reduce_trace
from kvexact.impl.target import Unavailable

Part = Mapping[str, Any]


def too_little(
    parts: Sequence[Part], findings: Sequence[Part], targets: Sequence[NamedTarget]
) -> list[str]:
    """Where the run proves less than it claims; a target without a part did not run."""
    merged = _merged(parts)
    ran = [target for target in targets if any(target.name == name for name, _ in merged)]
    return complaints(merged, ran, {finding["target"] for finding in findings})


def write(
    reporter: pytest.TerminalReporter,
    parts: Sequence[Part],
    findings: Sequence[Part],
    targets: Sequence[NamedTarget],
) -> None:
    """Write the summary, then every distinct failure."""
    reporter.section("kvexact")
    for line in summary(_merged(parts)):
        reporter.line(line)
    for line in too_little(parts, findings, targets):
        reporter.line(f"proves less than it claims: {line}", red=True)
    for lines in distinct(findings):
        reporter.line("")
        reporter.line(lines[0], red=True, bold=True)
        for line in lines[1:]:
            reporter.line(line)


def distinct(findings: Sequence[Part]) -> list[list[str]]:
    """The blocks of findings, one for each target and signature: the one with the fewest ops.

    In the order of these, for workers end in no order.
    """
    same: dict[tuple[str, ...], list[Part]] = {}
    for finding in findings:
        same.setdefault((finding["target"], *finding["signature"]), []).append(finding)
    blocks = []
    for _, members in sorted(same.items()):
        first = min(members, key=lambda member: (member["ops"], member["trace"]))
        lines = list(first["block"])
        if len(members) > 1:
            lines.insert(-1, f"  met by {len(members)} items")
        blocks.append(lines)
    return blocks


def recovered(directory: Path, worker: str, targets: Sequence[NamedTarget]) -> Part | None:
    """The finding that a dead worker's journal tells of: reduced, if it shows in isolation, too."""
    trace = recover(directory / f"{worker}.journal")
    target = next((target for target in targets if trace and target.name == trace.target), None)
    if trace is None or target is None:
        return None
    finding = _again(trace, target)
    if finding is None:
        failure = died(trace, Died(None)).failure
        assert failure is not None
        finding = Finding(failure, trace, len(trace.ops), 0)
    return keep(finding, target, directory)


def _again(trace: Trace, target: NamedTarget) -> Finding | None:
    with closing(Isolation(target)) as isolation:
        try:
            return reduce_trace(isolation, trace)
        except Unavailable:
            return None


def keep(finding: Finding, target: NamedTarget, directory: Path) -> Part:
    """Save a finding, and give it as plain data, for the process that reports.

    Where there is no room for its files, its block holds the trace.
    """
    try:
        lines = block(finding, save(finding, target, directory).command)
    except OSError as error:
        trace = dump(finding.trace).decode().replace("\n", " ")
        last = f"not saved: {no_room(directory, error)}; the trace is above"
        lines = [*block(finding, "")[:-1], f"  trace  {trace}", last]
    return {
        "target": finding.trace.target,
        "signature": list(finding.failure.signature),
        "ops": len(finding.trace.ops),
        "trace": str(directory / f"{file_name(finding.trace)}.json"),
        "message": f"{finding.failure.signature}: {finding.failure.lines[0]}",
        "block": lines,
    }


def no_room(path: Path, error: OSError) -> str:
    """Why nothing can be written there, and what to do."""
    return f"{path}: {error.strerror}; free some room or name another directory by --kv-artifacts"


def _merged(parts: Sequence[Part]) -> Merged:
    return merge((p["target"], p["family"], Counts.from_json(p["counts"])) for p in parts)
