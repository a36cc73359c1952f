"""Writes down what a soak finds and counts, as soon as it does; also where the disk is full."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from kvexact.fuzz.about import commit
from kvexact.fuzz.artefacts import command_line, save, write_atomically
from kvexact.fuzz.cli_disk import saves
from kvexact.fuzz.console import Output
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.favour import ROUND, favour
from kvexact.fuzz.finding import Finding, block
from kvexact.fuzz.reserve import Reserve
from kvexact.fuzz.results import Found, Part, Ran, Result, beside, record, versions
from kvexact.fuzz.soak_state import State
from kvexact.fuzz.summary import complaints
from kvexact.fuzz.tally import Tally
from kvexact.fuzz.target_process import Limits
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import Trace, TraceError, dump, load
from kvexact.fuzz.workers import Workers

_EARLY = "unreduced-"
Made = TypeVar("Made")


@dataclass(slots=True)
class Keeper:
    """Keeps a soak.

    Attributes:
        reserve: room for what is under way when the disk is full.
        source: is told of rounds.
        early: files of failures that are not reduced yet.
    """

    target: NamedTarget
    limits: Limits
    state: State
    tally: Tally
    reserve: Reserve
    source: Workers
    console: Output
    early: dict[tuple[str, ...], Path] = field(default_factory=dict)

    def came(self, finding: Finding) -> None:
        """Keep a failure that is being reduced; what becomes of it takes its place."""
        path = self.state.directory / f"{_EARLY}{finding.trace.name}.json"
        if self.early.setdefault(finding.trace.signature, path) == path:
            self._keep(lambda: write_atomically(path, dump(finding.trace)), finding.trace)

    def report(self, finding: Finding, failed_runs: int | None) -> None:
        """Save a finding, then say it."""
        saved = self._keep(
            lambda: save(finding, self.target, self.state.directory, failed_runs, self.limits),
            finding.trace,
        )
        found = record(finding, saved, 1, failed_runs)
        self.state.found.append(found)
        self._keep(self.state.save)
        early = self.early.get(found.signature)
        if early:
            early.unlink(missing_ok=True)
        self.console.say("\n".join(["", *block(finding, saved.command), f"  {found.often}"]))

    def counted(self, number: int, reported: bool) -> None:  # noqa: FBT001 - as it is called
        """At the end of a round, save it and decide the next one.

        It is not saved while a failure of it is being reduced: a soak that is killed then goes on
        before that failure, and meets it again.
        """
        if number % ROUND:
            return
        if reported:
            self._keep(lambda: self.state.take(self.tally, number))
        weights = favour(self.tally.counts, self.state.plan.families, self.target.target_type)
        self.source.start_round(weights, number + ROUND)

    def _keep(self, write: Callable[[], Made], trace: Trace | None = None) -> Made:
        with saves(self.state.directory, trace):
            return self.reserve.keep(write)

    def result(self, ended: str) -> Result:
        """What the soak came to, in all its sittings.

        Args:
            ended: why it ended early; empty: as the tally says.
        """
        counts, plan = self.tally.counts, self.state.plan
        run = Ran(
            self.target.name,
            plan.seed,
            versions(),
            "soak",
            commit(),
            plan.shard,
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            self.tally.seconds,
            ended or self.tally.ended,
        )
        # A failure that was reported before the process died may not have been counted again.
        reported = [
            replace(one, count=max(1, self.tally.failures[one.signature]))
            for one in self.state.found
        ]
        found = (*reported, *self._left_behind({one.signature for one in reported}))
        merged = {(self.target.name, name): one for name, one in counts.items()}
        lines = complaints(merged, [self.target], [self.target.name] if found else [])
        return Result(
            (run,),
            tuple(Part(self.target.name, name, one) for name, one in counts.items()),
            found,
            (*lines, *self.tally.left_out),
        )

    def _left_behind(self, reported: set[Signature]) -> list[Found]:
        """Failures that a sitting met which was killed before it reported them, as they were met.

        Where they were met again since, their files go.
        """
        found = []
        for path in sorted(self.state.directory.glob(f"{_EARLY}*.json")):
            try:
                trace = load(path)
                signature = Signature(*trace.signature)
            except (TraceError, TypeError):  # somebody else's, or not of this version
                continue
            if signature in reported:
                path.unlink()
                continue
            reported.add(signature)
            command = beside(command_line(path, self.target, self.limits), path.name)
            line = "met before this soak was killed, not reduced and not met again since"
            size = len(trace.ops)
            one = Found(self.target.name, signature, trace.family, 1, size, size)
            found.append(replace(one, lines=(line,), command=command, trace=path.name))
        return found
