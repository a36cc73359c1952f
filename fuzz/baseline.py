"""Known failures that a run may have until a date; everything else still fails it.

A baseline is a TOML file that a person keeps:

    [[known]]
    signature = "mismatch / restore / lost / k_scale"
    until = 2027-01-31
    why = "scales are lost where a page is padded; mended upstream, not released"
    link = "https://example.org/issues/17"
    target = "cpu"

``signature`` may have ``*`` and ``?`` for what differs; ``link`` and ``target`` may be left out.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from kvexact.fuzz.failure import Signature
from kvexact.fuzz.reading import UnreadableError, read_plain
from kvexact.fuzz.results import Accepted, Found, Result

_KEYS = ("signature", "until", "why", "link", "target")


class BaselineError(ValueError):
    """A file that is no baseline: one line that names the value, the rule and the fix."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A known failure.

    Attributes:
        signature: a pattern of `str(Signature)`.
        until: the last day on which it is accepted.
        target: a pattern of targets' names.
    """

    signature: str
    until: date
    why: str
    link: str = ""
    target: str = "*"

    def accepts(self, target: str, signature: Signature) -> bool:
        """Whether this is the failure that is known."""
        return fnmatchcase(str(signature), self.signature) and fnmatchcase(target, self.target)


@dataclass(frozen=True, slots=True)
class Baseline:
    """All entries, in the order of the file."""

    entries: tuple[Entry, ...] = ()
    path: str = ""

    def accepting(self, target: str, signature: Signature, today: date) -> Entry | None:
        """The first entry that accepts a failure and has not expired."""
        for entry in self.entries:
            if today <= entry.until and entry.accepts(target, signature):
                return entry
        return None

    def judge(self, result: Result, today: date) -> Result:
        """Mark what is known, and note entries that expired or that nothing met."""
        findings = tuple(self._marked(found, today) for found in result.findings)
        return replace(result, findings=findings, notes=tuple(self._notes(result, today)))

    def _marked(self, found: Found, today: date) -> Found:
        entry = self.accepting(found.target, found.signature, today)
        accepted = None
        if entry is not None:
            accepted = Accepted(entry.signature, entry.until.isoformat(), entry.why, entry.link)
        return replace(found, accepted=accepted)

    def _notes(self, result: Result, today: date) -> Sequence[str]:
        notes = []
        for number, entry in enumerate(self.entries, 1):
            where = f"{self.path}: entry {number}, {entry.signature!r},"
            met = any(entry.accepts(found.target, found.signature) for found in result.findings)
            if today > entry.until:
                fix = "mend the failure or move the date" if met else "remove it"
                notes.append(f"{where} expired on {entry.until}; {fix}")
            elif not met:
                notes.append(f"{where} was not met; remove it if the failure is mended")
        return notes


def load(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        BaselineError: the file is missing, or holds something else.
    """
    try:
        return Baseline(parse(read_plain(path, "baseline")), str(path))
    except UnreadableError as error:
        raise BaselineError(str(error)) from error
    except BaselineError as error:
        raise BaselineError(f"{path}: {error}") from error


def parse(data: bytes) -> tuple[Entry, ...]:
    """The entries of a TOML text."""
    try:
        raw = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BaselineError(f"no TOML ({error}); write [[known]] tables") from error
    unknown = sorted(set(raw) - {"known"})
    known = raw.get("known", [])
    if unknown or not isinstance(known, list):
        name = unknown[0] if unknown else "known"
        raise BaselineError(f"{name!r:.40} means nothing here; write [[known]] tables")
    return tuple(_entry(item, f"entry {number}") for number, item in enumerate(known, 1))


def _entry(item: object, where: str) -> Entry:
    unknown = sorted(set(item) - set(_KEYS)) if isinstance(item, dict) else []
    if unknown:
        raise BaselineError(f"{where}: unknown key {unknown[0]!r:.40}; keys are {', '.join(_KEYS)}")
    try:
        entry = msgspec.convert(item, Entry)
    except (msgspec.ValidationError, OverflowError) as error:
        raise BaselineError(f"{where}: {error}; mend the value, dates are 2027-01-31") from error
    if not entry.signature.strip("*/ "):
        raise BaselineError(
            f"{where}: signature {entry.signature!r:.40} accepts every failure; "
            f"name the outcome, the op, or the field"
        )
    if not entry.why.strip():
        raise BaselineError(f"{where}: why is empty; say in a line why this failure is accepted")
    return entry
