"""Test vectors: cases that another language can read, each with all that must come of it.

A case is JSON: a geometry, the verdict on it, its facts, where each byte of a cell lies, and ops
with what they store, what they return and the digest of all bytes after each. docs/vectors.md says
what each key means. A case is a function of its name, its geometry and its ops alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvexact.fuzz.trace import op_to_json
from kvexact.refmodel.address import Addresses
from kvexact.refmodel.cache import AREAS, Cache
from kvexact.refmodel.content import Bytes
from kvexact.refmodel.facts import facts
from kvexact.refmodel.ops import Op, Read, ReadValues, WriteTokens, WriteValues
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry, Refused

#: Version of the form of cases, index and answers; another one is refused.
VERSION = 1
INDEX = "index.json"

Json = dict[str, Any]
#: Yields ops whose blocks are ids; each is applied to the model before the next is asked for.
Source = Callable[[Cache], Iterator[Op]]


@dataclass(frozen=True, slots=True)
class Case:
    """What a case is made from.

    Attributes:
        name: of its file too, so lower case, digits and dashes.
        note: what it is there for.
        source: its ops; None: it is only planned.
    """

    name: str
    note: str
    geometry: Geometry
    source: Source | None


def write(cases: list[Case], seed: int, folder: Path) -> int:
    """Write one file a case and the index; the bytes of all files.

    Raises:
        OSError: a file cannot be written.
    """
    written = 0
    listed = []
    for case in cases:
        data = _dump(build(case))
        (folder / f"{case.name}.json").write_bytes(data)
        written += len(data)
        listed.append({"name": case.name, "file": f"{case.name}.json", "note": case.note})
    index = _dump({"kvexact_vectors": VERSION, "seed": seed, "cases": listed})
    (folder / INDEX).write_bytes(index)
    return written + len(index)


def build(case: Case) -> Json:
    """A case with all that must come of it."""
    found: Json = {
        "kvexact_vectors": VERSION,
        "name": case.name,
        "note": case.note,
        "geometry": asdict(case.geometry),
    }
    try:
        planned = plan(case.geometry)
    except Refused as refusal:
        return found | {"verdict": f"refused:{refusal.reason}"}
    found |= {"verdict": "accepted", "facts": facts(planned)}
    if case.source is not None:
        model = Cache(planned)
        found |= {"maps": list(_maps(model)), "digests": _digests(model)}
        found["ops"] = [_op(model, op) for op in case.source(model)]
    return found


def _op(model: Cache, op: Op) -> Json:
    """Apply an op and say what it stores, what becomes of it and what it returns."""
    found: Json = {"op": op_to_json(op)}
    reason = model.refusal(op)
    if reason is not None:
        return found | {"outcome": f"refused:{reason}", "digests": _digests(model)}
    match op:
        case WriteTokens():
            found["stores"] = _hex_of_slots(op, model.payload(op))
        case WriteValues():
            found["values"] = _hex_of_slots(op, flat_rows(model.values(op)))
    effect = model.apply(op)
    found["outcome"] = "acted"
    if type(op) is WriteValues:
        # The pad bytes of these cells are what was there before, so that all may be stored.
        after = model.apply(Read(op.id, op.group, op.slots)).rows
        assert after is not None
        found["stores"] = _hex_of_slots(op, after)
    if type(op) in (Read, ReadValues):
        assert effect.rows is not None
        found["returns"] = [row.tobytes().hex() for row in effect.rows]
    return found | {"digests": _digests(model)}


def _hex_of_slots(op: WriteTokens | WriteValues, rows: Bytes) -> list[str | None]:
    """Each row in hex; None for a pad, which stores nothing."""
    return [
        None if slot is None else row.tobytes().hex()
        for slot, row in zip(op.slots, rows, strict=True)
    ]


def flat_rows(parts: tuple[Bytes, ...]) -> Bytes:
    """Rows of all layer sets side by side, [row, byte]."""
    rows = [part.reshape(len(part), int(np.prod(part.shape[1:]))) for part in parts]
    return np.concatenate(rows, axis=1)


def _digests(model: Cache) -> Json:
    return {area: sha256(model.areas[area].tobytes()).hexdigest() for area in AREAS}


def _maps(model: Cache) -> Iterator[Json]:
    """Of each layer set, in block 0 and the last block, where the fields of each cell lie."""
    planned = model.plan
    for group, placements in enumerate(planned.placements):
        layout = model.layout(group)
        strides = np.broadcast_to(layout.cell_strides, layout.row_bytes)
        for block in dict.fromkeys((0, planned.geometry.blocks - 1)):
            start = 0
            for layer_set, (placement, shape) in enumerate(
                zip(placements, layout.shapes, strict=True)
            ):
                end = start + shape[0] * shape[1] * shape[2]
                addresses = layout.cells[:, start:end] + block * strides[start:end]
                fields = [(item.field.name, item.field.width_bytes) for item in placement.places]
                yield {
                    "group": group,
                    "layer_set": layer_set,
                    "block": block,
                    "fields": list(_fields(addresses.reshape(-1, *shape), fields)),
                }
                start = end


def _fields(cells: Addresses, fields: list[tuple[str, int]]) -> Iterator[Json]:
    """Pieces [layer][head][slot] of each field, from addresses [slot, layer, head, cell byte]."""
    start = 0
    for name, width in fields:
        of_field = cells[..., start : start + width]
        start += width
        pieces = [
            [list(map(_pieces, of_head)) for of_head in of_layer]
            for of_layer in of_field.transpose(1, 2, 0, 3)
        ]
        yield {"field": name, "bytes": width, "pieces": pieces}


def _pieces(addresses: Addresses) -> list[tuple[int, int]]:
    """(start, length) of each contiguous piece, in the order of the field's bytes."""
    ends = np.flatnonzero(np.diff(addresses) != 1) + 1
    return [(int(part[0]), len(part)) for part in np.split(addresses, ends)]


def _dump(data: Json) -> bytes:
    """JSON, a line for each key and for each item of a list of objects."""
    lines = []
    for key, value in data.items():
        text = _json(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n  " + ",\n  ".join(map(_json, value)) + "\n]"
        lines.append(f"{_json(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
