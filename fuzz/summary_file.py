"""A result as ``summary.json``: versioned, written whole, refused in one line where it is none."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec

from kvexact.fuzz.artefacts import write_atomically
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.features import known_features
from kvexact.fuzz.reading import UnreadableError, read_plain
from kvexact.fuzz.results import Number, Part, Result

#: Version of the format; a file of another one is refused, and kept.
VERSION = 1
FILE = "summary.json"


class ResultError(ValueError):
    """A file that is no result: one line that names the value, the rule and the fix."""


def dump(result: Result) -> bytes:
    """A result as JSON. ``totals`` is for other programs to read; `load` has no use for it."""
    total = result.total
    parts = [
        {"target": part.target, "family": part.family, "counts": part.counts.to_json()}
        for part in result.parts
    ]
    known = known_features(total.acted_kinds)
    data = {
        "kvexact_summary": VERSION,
        "totals": {
            "sound": result.sound,
            "acted": total.acted,
            "geometries": total.geometries.total(),
            "failures": len(result.findings),
            "new_failures": len(result.new),
            "features_met": [name for name in known if total.features[name]],
            "features_never_met": [name for name in known if not total.features[name]],
        },
        **{item.name: getattr(result, item.name) for item in fields(result)},
        "parts": parts,
    }
    return msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n"


def save(result: Result, directory: Path) -> Path:
    """Write ``summary.json`` into a directory, whole or not at all."""
    path = directory / FILE
    write_atomically(path, dump(result))
    return path


def load(path: Path) -> Result:
    """Read a result: ``summary.json``, or the directory that holds it.

    Raises:
        ResultError: it is missing, too large, of another version, or no result.
    """
    path = path / FILE if path.is_dir() else path
    try:
        return parse(read_plain(path, "summary"))
    except UnreadableError as error:
        raise ResultError(str(error)) from error
    except ResultError as error:
        raise ResultError(f"{path}: {error}") from error


def parse(data: bytes) -> Result:
    """A result from JSON."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"no JSON ({error}); name a file that kvexact wrote") from error
    if not isinstance(raw, dict) or "kvexact_summary" not in raw:
        raise ResultError('no "kvexact_summary" version in it; name a summary.json')
    if raw["kvexact_summary"] != VERSION:
        raise ResultError(
            f"version {raw['kvexact_summary']!r:.40}; this kvexact reads version {VERSION}, "
            f"use the one that wrote it"
        )
    try:
        parts = msgspec.convert(raw.get("parts"), list[_RawPart])
        rest = {item.name: raw.get(item.name, ()) for item in fields(Result)}
        result: Result = msgspec.convert({**rest, "parts": ()}, Result)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ResultError(f"{error}; mend the value, or run again") from error
    counted = [Part(part.target, part.family, _counts(part)) for part in parts]
    return replace(result, parts=tuple(counted))


@dataclass(frozen=True, slots=True)
class _RawPart:
    target: str
    family: str
    counts: dict[str, Number | dict[str, Number] | list[tuple[str, str, Number]]]


def _counts(part: _RawPart) -> Counts:
    """Counts from plain data; each is of the kind that `Counts.to_json` writes."""
    where = f"counts of {part.family!r:.40}"
    for name, blank in Counts().to_json().items():
        if type(part.counts.get(name)) is not type(blank):
            raise ResultError(f"{where}: {name} is missing or no {type(blank).__name__}; run again")
    return Counts.from_json(part.counts)
