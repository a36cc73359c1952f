"""Answers of a kvexact target to vectors, from nothing but what the cases say."""

from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from kvexact.fuzz.rows import values_shape
from kvexact.fuzz.trace import op_from_json
from kvexact.fuzz.vectors import Json, flat_rows
from kvexact.impl.target import Rows, Target
from kvexact.refmodel.cache import AREAS
from kvexact.refmodel.content import poison
from kvexact.refmodel.ops import Op, WriteTokens, WriteValues
from kvexact.refmodel.spec import Geometry, Refused


def answer(target: Target, case: Json) -> Json:
    """What a target answers to one case; a case without ops is only planned.

    What it does not promise is not asked: a geometry that does not fit it, and all ops from the
    first one that it lacks on, or that would be refused for a reason of which it says nothing.
    """
    geometry = msgspec.convert(case["geometry"], Geometry)
    if not target.fits(geometry) or not _promised(case["verdict"], target.geometry_refusals):
        return {}
    with closing(target):
        try:
            facts = (target.open if "ops" in case else target.plan)(geometry)
        except Refused as refusal:
            declined = case["verdict"] == "accepted" and refusal.reason in target.may_refuse
            return {} if declined else {"verdict": f"refused:{refusal.reason}"}
        except Exception as error:  # noqa: BLE001 - a target's own code may raise anything
            return {"verdict": f"raised:{type(error).__name__}"}
        known = {name: _plain(facts[name]) for name in case.get("facts", ()) if name in facts}
        found: Json = {"verdict": "accepted", "facts": known}
        if "ops" in case:
            for area in target.declared:
                target.load(area, poison(AREAS.index(area), target.view(area).size))
            found["digests"] = _digests(target)
            found["ops"] = list(_apply_all(target, case, geometry))
    return found


def _promised(outcome: str, refusals: frozenset[str]) -> bool:
    verdict, _, reason = outcome.partition(":")
    return verdict != "refused" or reason in refusals


def _apply_all(target: Target, case: Json, geometry: Geometry) -> Iterator[Json]:
    """Answers to ops, up to the first that is not asked or at which the target fails."""
    for item in case["ops"]:
        kind = item["op"]["op"]
        if kind not in target.op_kinds or not _promised(item["outcome"], target.op_refusals):
            return
        op = op_from_json(item["op"], "op")
        try:
            returned = target.apply(op, _rows(case, geometry, op, item))
        except Refused as refusal:
            yield {"outcome": f"refused:{refusal.reason}", "digests": _digests(target)}
            continue
        except Exception as error:  # noqa: BLE001 - as above
            yield {"outcome": f"raised:{type(error).__name__}"}
            return
        found: Json = {"outcome": "acted", "digests": _digests(target)}
        if isinstance(returned, tuple):
            found["returns"] = [row.tobytes().hex() for row in flat_rows(returned)]
        yield found


def _rows(case: Json, geometry: Geometry, op: Op, item: Json) -> Rows | None:
    """What a write is given, per layer set; zeros where a row is a pad or the op is refused."""
    if not isinstance(op, WriteTokens | WriteValues):
        return None
    sets = geometry.groups[op.group].layer_sets
    if type(op) is WriteValues:
        shapes = [values_shape(layers, op.value_type) for layers in sets]
        given = item.get("values")
    else:
        here = [entry for entry in case["maps"] if entry["group"] == op.group]
        widths = [sum(field["bytes"] for field in entry["fields"]) for entry in here[: len(sets)]]
        shapes = [(s.layers, s.kv_heads, width) for s, width in zip(sets, widths, strict=True)]
        given = item.get("stores")
    ends = np.cumsum([layers * heads * width for layers, heads, width in shapes])
    rows = np.zeros((len(op.slots), int(ends[-1])), np.uint8)
    for row, text in zip(rows, given or (), strict=False):
        if text is not None:
            row[:] = np.frombuffer(bytes.fromhex(text), np.uint8)
    parts = np.split(rows, ends[:-1], axis=1)
    return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))


def _digests(target: Target) -> Json:
    return {area: sha256(target.view(area).tobytes()).hexdigest() for area in target.declared}


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
