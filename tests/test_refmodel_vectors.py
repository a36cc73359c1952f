"""Worked layouts of real systems and of real reports, for the model and for the built-in engine.

tests/vectors holds them as data: a geometry, then facts, addresses or the reason of a refusal.
Formats have a file and a form of their own: test_vectors_formats.py.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvexact.impl.engine.engine import CpuEngine
from kvexact.refmodel.facts import facts
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import ORDERS, Geometry, Group, Host, LayerSet, Refused

Planner = Callable[[Geometry], Mapping[str, Any]]
Vector = dict[str, Any]

PLANNERS: dict[str, Planner] = {
    "model": lambda geometry: facts(plan(geometry)),
    "engine": lambda geometry: CpuEngine().plan(geometry),
}
FOLDER = Path(__file__).parent / "vectors"
FILES = [FOLDER / f"{name}.json" for name in ("layouts", "pages", "reports")]
VECTORS: list[Vector] = [vector for file in FILES for vector in json.loads(file.read_text())]


def geometry_of(data: Vector) -> Geometry:
    """A geometry from its JSON form; the host tier is vast where none is given."""
    groups = [
        Group(
            group["block_size"],
            group.get("kernel_block_size", group["block_size"]),
            tuple(LayerSet(**shape) for shape in group["layer_sets"]),
            group.get("tokens_per_state", 1),
        )
        for group in data["groups"]
    ]
    host = Host(**data.get("host", {"capacity_bytes": 2**50}))
    return Geometry(**(data | {"groups": tuple(groups), "host": host}))


def address(found: Mapping[str, Any], geometry: Geometry, spot: Vector) -> int:
    """Where the view of a field puts (layer, block, head, token)."""
    group = geometry.groups[spot["group"]]
    layer, block, head, token = spot["at"]
    part, inner = divmod(token, group.kernel_block_size)
    kernel_block = block * (group.block_size // group.kernel_block_size) + part
    offset, *strides = found[f"g{spot['group']}.s{spot['layer_set']}.{spot['field']}.view"]
    steps = zip(strides, (layer, kernel_block, head, inner), strict=True)
    return int(offset + sum(stride * index for stride, index in steps))


def plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [plain(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)
@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_vector(vector: Vector, planner: Planner) -> None:
    """A planner finds the sizes, strides, regions, addresses or the refusal on record."""
    geometry = geometry_of(vector["geometry"])
    if "refused" in vector:
        with pytest.raises(Refused) as caught:
            planner(geometry)
        assert caught.value.reason == vector["refused"]
        return
    found = planner(geometry)
    assert {name: plain(found[name]) for name in vector["facts"]} == vector["facts"]
    for spot in vector.get("addresses", ()):
        assert address(found, geometry, spot) == spot["byte"], spot


def test_vectors_are_many_and_distinct() -> None:
    """Each vector claims something, and no name comes twice."""
    assert len(VECTORS) >= 110
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)
    for vector in VECTORS:
        assert vector["note"]
        assert vector.get("facts") or vector.get("refused")
        known = {"name", "note", "geometry", "facts", "addresses", "refused"}
        assert set(vector) <= known, vector["name"]


def test_vectors_cover_orders_and_refusals() -> None:
    """Every order and every refusal of real systems has a worked example; formats have a file."""
    orders = {vector["geometry"]["order"] for vector in VECTORS}
    assert orders == set(ORDERS)
    refusals = {vector.get("refused") for vector in VECTORS}
    expected = {"page", "padding", "overlay", "kernel_split", "alignment", "pool_size", "host"}
    assert expected <= refusals
