"""Traces: geometry and ops as JSON, the whole input of one run. Loading one runs no code."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from kvexact.fuzz.reading import UnreadableError, read_plain
from kvexact.refmodel.ops import KIND_OF, OPS, Op
from kvexact.refmodel.spec import Geometry, GeometryError

#: Version of the format; a file of another one is refused, and kept.
VERSION = 1
#: The schedule under which nothing is ever pending, and the highest number of one.
IN_ORDER, SCHEDULE_MAX = 1, 2**62
_SIGNATURE_PARTS = 4
_ID_MAX = 2**62
_KEYS = {
    *("kvexact", "target", "family", "signature", "note", "geometry", "schedule", "ops"),
    "recorded",
}


class TraceError(ValueError):
    """A file that is no trace: one line that names the value, the rule and the fix."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One run's input.

    Attributes:
        target: name of the target that it was found on.
        recorded: what happened to each op; fewer than ops where the run ended early.
        signature: of the failure that it shows; empty: it shows none.
        note: what it guards, for a trace of a regression suite.
        schedule: under which an asynchronous target runs it; docs/time.md has the numbers.
    """

    geometry: Geometry
    ops: tuple[Op, ...]
    target: str = "cpu"
    family: str = ""
    recorded: tuple[str, ...] = ()
    signature: tuple[str, ...] = ()
    note: str = ""
    schedule: int = IN_ORDER

    @property
    def name(self) -> str:
        """Twelve hex digits that name geometry, ops and schedule."""
        geometry = asdict(self.geometry)
        for group in geometry["groups"]:  # a field that came later is left out at its default
            if group["window_tokens"] is None:
                del group["window_tokens"]
        content: list[object] = [geometry, [op_to_json(op) for op in self.ops]]
        if self.schedule != IN_ORDER:
            content.append(self.schedule)
        return sha256(msgspec.json.encode(content)).hexdigest()[:12]


def op_to_json(op: Op) -> dict[str, Any]:
    """One op as plain data; a handle is [op, nth]."""
    return {"op": KIND_OF[type(op)], **msgspec.to_builtins(op)}


def dump(trace: Trace) -> bytes:
    """A trace as JSON, an op a line."""
    head = {
        "kvexact": VERSION,
        "target": trace.target,
        "family": trace.family,
        "signature": trace.signature,
        "note": trace.note,
        "geometry": asdict(trace.geometry),
        "recorded": trace.recorded,
    }
    if trace.schedule != IN_ORDER:
        head["schedule"] = trace.schedule
    lines = [f"{_json(key)}: {_json(value)}" for key, value in head.items()]
    ops = ",\n  ".join(_json(op_to_json(op)) for op in trace.ops)
    lines.append(f'"ops": [\n  {ops}\n]' if ops else '"ops": []')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def load(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        TraceError: it is missing, too large, of another version, or no trace.
    """
    data = _read(path)
    try:
        return parse(data)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def load_geometry(path: Path) -> Geometry:
    """Read a file that holds a geometry, or a trace, whose geometry it is.

    Raises:
        TraceError: it holds neither.
    """
    data = _read(path)
    try:
        raw = _decode(data)
        if isinstance(raw, dict) and "groups" in raw:
            return _geometry(raw)
        return parse(data).geometry
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return read_plain(path, "trace")
    except UnreadableError as error:
        raise TraceError(str(error)) from error


def _decode(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"no JSON ({error}); name a file that kvexact wrote") from error


def parse(data: bytes) -> Trace:
    """A trace from JSON."""
    raw = _decode(data)
    if not isinstance(raw, dict) or "kvexact" not in raw:
        raise TraceError('no "kvexact" version in it; name a file that kvexact wrote')
    if raw["kvexact"] != VERSION:
        raise TraceError(
            f"version {raw['kvexact']!r:.40}; this kvexact reads version {VERSION}, "
            f"use the one that wrote it"
        )
    unknown = sorted(set(raw) - _KEYS)
    if unknown:
        raise TraceError(f"unknown key {unknown[0]!r:.40}; keys are {', '.join(sorted(_KEYS))}")
    ops = raw.get("ops", [])
    if not isinstance(ops, list):
        raise TraceError("ops is no list; make it one")
    parsed = tuple(op_from_json(item, f"ops[{number}]") for number, item in enumerate(ops))
    _check_ids(parsed)
    text: dict[str, Any] = {
        key: _convert(raw[key], str, key) for key in ("target", "family", "note") if key in raw
    }
    for key in ("recorded", "signature"):
        text[key] = _convert(raw.get(key, ()), tuple[str, ...], key)
    if len(text["signature"]) not in (0, _SIGNATURE_PARTS):
        raise TraceError(f"signature has not {_SIGNATURE_PARTS} parts; leave it out, or mend it")
    schedule = _convert(raw.get("schedule", IN_ORDER), int, "schedule")
    if not 0 <= schedule <= SCHEDULE_MAX:
        raise TraceError(f"schedule {schedule} is out of range; use 0 to {SCHEDULE_MAX}")
    if "geometry" not in raw:
        raise TraceError("no geometry in it; name a file that kvexact wrote")
    return Trace(_geometry(raw["geometry"]), parsed, **text, schedule=schedule)


def _geometry(raw: object) -> Geometry:
    found: Geometry = _convert(raw, Geometry, "geometry")
    _check_keys(raw, found, "geometry")
    return found


def _check_keys(raw: object, found: object, where: str) -> None:
    """Refuse keys that mean nothing, at any depth: a misspelt one would be a silent default."""
    if is_dataclass(found) and isinstance(raw, dict):
        known = [item.name for item in fields(found)]
        for key, value in raw.items():
            if key not in known:
                raise TraceError(f"{where}: unknown key {key!r:.40}; keys are {', '.join(known)}")
            _check_keys(value, getattr(found, key), f"{where}.{key}")
    elif isinstance(found, tuple) and isinstance(raw, list):
        for number, (value, child) in enumerate(zip(raw, found, strict=True)):
            _check_keys(value, child, f"{where}[{number}]")


def op_from_json(item: object, where: str) -> Op:
    """The op that `op_to_json` wrote; ``where`` it stood, for the message.

    Raises:
        TraceError: it is none.
    """
    kind = item.get("op") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(kind, str) or kind not in OPS:
        raise TraceError(f"{where} is of kind {kind!r:.40}; kinds are {', '.join(OPS)}")
    op_type = OPS[kind]
    rest = {key: value for key, value in item.items() if key != "op"}
    known = op_type.__dataclass_fields__
    unknown = sorted(set(rest) - set(known))
    if unknown:
        raise TraceError(f"{where}: unknown key {unknown[0]!r:.40}; keys are {', '.join(known)}")
    op: Op = _convert(rest, op_type, where)
    return op


def _check_ids(ops: Sequence[Op]) -> None:
    seen: set[int] = set()
    for op in ops:
        if op.id in seen:
            raise TraceError(f"op id {op.id} stands twice; give every op an id of its own")
        if not 0 <= op.id <= _ID_MAX:
            raise TraceError(f"op id {op.id!s:.40} is out of range; number ops from 0")
        seen.add(op.id)


def _convert(value: object, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except GeometryError as error:
        raise TraceError(str(error)) from error
    except (msgspec.ValidationError, OverflowError) as error:
        raise TraceError(f"{where}: {error}; mend the value") from error


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
