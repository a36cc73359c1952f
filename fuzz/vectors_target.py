"""Answers of a kvexact target to vectors, from nothing but what the cases say."""

from contextlib import closing
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from kvexact.fuzz.trace import op_from_json
from kvexact.fuzz.vectors import Json, flat_rows
from kvexact.impl.target import Rows, Target
from kvexact.refmodel.content import Bytes, poison
from kvexact.refmodel.ops import Op, Read, ReadValues, WriteTokens, WriteValues
from kvexact.refmodel.spec import Geometry, Refused

_VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def answer(target: Target, case: Json) -> Json:
    """What a target answers to one case; a case without ops is only planned."""
    geometry = msgspec.convert(case["geometry"], Geometry)
    with closing(target):
        try:
            facts = (target.open if "ops" in case else target.plan)(geometry)
        except Refused as refusal:
            return {"verdict": f"refused:{refusal.reason}"}
        known = {name: _plain(facts[name]) for name in case.get("facts", ()) if name in facts}
        found: Json = {"verdict": "accepted", "facts": known}
        if "ops" in case:
            target.load("pool", poison(0, target.view("pool").size))
            target.load("host", poison(1, target.view("host").size))
            found["digests"] = _digests(target)
            found["ops"] = [_apply(target, case, geometry, item) for item in case["ops"]]
    return found


def _apply(target: Target, case: Json, geometry: Geometry, item: Json) -> Json:
    op = op_from_json(item["op"], "op")
    try:
        returned = target.apply(op, _rows(case, geometry, op, item))
    except Refused as refusal:
        return {"outcome": f"refused:{refusal.reason}", "digests": _digests(target)}
    found: Json = {"outcome": "acted", "digests": _digests(target)}
    if type(op) in (Read, ReadValues):
        assert returned is not None
        found["returns"] = [row.tobytes().hex() for row in flat_rows(returned)]
    return found


def _rows(case: Json, geometry: Geometry, op: Op, item: Json) -> Rows | None:
    """What a write is given, per layer set; zeros where a row is a pad or the op is refused."""
    if not isinstance(op, WriteTokens | WriteValues):
        return None
    sets = geometry.groups[op.group].layer_sets
    if type(op) is WriteValues:
        size = _VALUE_BYTES[op.value_type]
        widths = [(layers.head_size_k + layers.head_size_v) * size for layers in sets]
        given = item.get("values")
    else:
        here = [entry for entry in case["maps"] if entry["group"] == op.group]
        widths = [sum(field["bytes"] for field in entry["fields"]) for entry in here[: len(sets)]]
        given = item.get("stores")
    shapes = [(s.layers, s.kv_heads, width) for s, width in zip(sets, widths, strict=True)]
    ends = np.cumsum([layers * heads * width for layers, heads, width in shapes])
    rows = np.zeros((len(op.slots), int(ends[-1])), np.uint8)
    for row, text in zip(rows, given or (), strict=False):
        if text is not None:
            row[:] = np.frombuffer(bytes.fromhex(text), np.uint8)
    parts = np.split(rows, ends[:-1], axis=1)
    return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))


def _digests(target: Target) -> Json:
    def digest(view: Bytes) -> str:
        return sha256(view.tobytes()).hexdigest()

    return {"pool": digest(target.view("pool")), "host": digest(target.view("host"))}


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
