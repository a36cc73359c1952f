"""Traces: geometry and ops as JSON, the whole input of one run. Loading one runs no code."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from kvexact.refmodel.ops import KIND_OF, OPS, Op
from kvexact.refmodel.spec import Geometry, GeometryError

#: Version of the format; a file of another one is refused, and kept.
VERSION = 1
_BYTES_MOST = 64 * 1024 * 1024
_KEYS = {"kvexact", "target", "family", "signature", "note", "geometry", "ops", "recorded"}


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
    """

    geometry: Geometry
    ops: tuple[Op, ...]
    target: str = "cpu"
    family: str = ""
    recorded: tuple[str, ...] = ()
    signature: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """Twelve hex digits that name geometry and ops."""
        content = [asdict(self.geometry), [op_to_json(op) for op in self.ops]]
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
    lines = [f"{_json(key)}: {_json(value)}" for key, value in head.items()]
    ops = ",\n  ".join(_json(op_to_json(op)) for op in trace.ops)
    lines.append(f'"ops": [\n  {ops}\n]' if ops else '"ops": []')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def load(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        TraceError: it is missing, too large, of another version, or no trace.
    """
    try:
        if path.stat().st_size > _BYTES_MOST:
            raise TraceError(f"{path}: larger than {_BYTES_MOST:,} bytes; this is no trace")
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; name a trace file") from error
    try:
        return parse(data)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def parse(data: bytes) -> Trace:
    """A trace from JSON."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"no JSON ({error}); name a file that kvexact wrote") from error
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
    if "geometry" not in raw:
        raise TraceError("no geometry in it; name a file that kvexact wrote")
    return Trace(_convert(raw["geometry"], Geometry, "geometry"), parsed, **text)


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
