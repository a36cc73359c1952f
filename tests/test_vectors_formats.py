"""Page formats of real systems, byte for byte, for the model and for the built-in engine.

tests/vectors/formats.json has them as data: a geometry, facts, the fields of a cell in logical
order, and maps: [field, layer, block, head, slot, piece...]; a piece is [start, length], or
[start, length, count, step] for several. What no geometry can say is there too, with the reason.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_refmodel_vectors import PLANNERS, Planner, Vector, geometry_of, plain

from kvexact.impl.engine.engine import CpuEngine
from kvexact.refmodel.layout import GroupLayout, group_layout
from kvexact.refmodel.ops import Allocate, Free, Read, Slot
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import GEOMETRY_REASONS, PAGE_FORMATS, Geometry, Host, Refused

Places = npt.NDArray[np.intp]

ROWS: list[Vector] = json.loads((Path(__file__).parent / "vectors" / "formats.json").read_text())
EXPRESSED = [row for row in ROWS if "geometry" in row]
ACCEPTED = [row for row in EXPRESSED if "maps" in row]
NOT_EXPRESSED = [row for row in ROWS if "not_expressed" in row]
#: How many layouts of real systems no geometry can say; each has its reason in the file.
NOT_EXPRESSED_COUNT = 15


def each(rows: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[row["name"] for row in rows])


def places(pieces: list[list[int]]) -> Places:
    """Addresses of all bytes of some pieces, in order."""
    found = []
    for start, length, *more in pieces:
        count, step = more or (1, 0)
        found += [np.arange(length) + start + i * step for i in range(count)]
    return np.concatenate(found).astype(np.intp)


def mapped(row: Vector) -> Iterator[tuple[tuple[int, int], str, tuple[int, int, int, int], Places]]:
    """((group, layer set), field, (layer, block, head, slot), addresses) of each line of a map."""
    for where, lines in row["maps"].items():
        group, layer_set = (int(part[1:]) for part in where.split("."))
        for field, layer, block, head, slot, *pieces in lines:
            yield (group, layer_set), field, (layer, block, head, slot), places(pieces)


def cell_range(row: Vector, where: tuple[int, int], field: str) -> slice:
    """Where a field lies in a cell."""
    start = 0
    for name, width in row["cells"][f"g{where[0]}.s{where[1]}"]:
        if name == field:
            return slice(start, start + width)
        start += width
    raise AssertionError(f"{row['name']}: no field {field}")


@each(EXPRESSED)
@pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)
def test_facts(row: Vector, planner: Planner) -> None:
    """A planner finds the sizes, views and regions, or the refusal on record."""
    geometry = geometry_of(row["geometry"])
    if "refused" in row:
        with pytest.raises(Refused) as caught:
            planner(geometry)
        assert caught.value.reason == row["refused"]
        return
    found = planner(geometry)
    assert {name: plain(found[name]) for name in row["facts"]} == row["facts"]


@each(ACCEPTED)
def test_model_puts_each_byte_there(row: Vector) -> None:
    """The model's rows, byte by byte, are the bytes of the maps."""
    planned = plan(geometry_of(row["geometry"]))
    layouts = [group_layout(planned, group) for group in range(len(planned.geometry.groups))]
    for where, field, spot, want in mapped(row):
        got = row_addresses(layouts[where[0]], where[1], cell_range(row, where, field), spot)
        assert got.tolist() == want.tolist(), (where, field, spot)


def row_addresses(
    layout: GroupLayout, layer_set: int, cell: slice, spot: tuple[int, int, int, int]
) -> Places:
    """Where a layout puts these bytes of a cell."""
    layer, block, head, slot = spot
    start = sum(layers * heads * size for layers, heads, size in layout.shapes[:layer_set])
    _, heads, size = layout.shapes[layer_set]
    first = start + (layer * heads + head) * size
    columns = np.arange(first + cell.start, first + cell.stop)
    strides = np.broadcast_to(layout.cell_strides, layout.row_bytes)
    return layout.cells[slot, columns] + block * strides[columns]


@each(ACCEPTED)
def test_engine_reads_each_byte_there(row: Vector) -> None:
    """Rows that the engine gathers from a pool of known bytes are the bytes of the maps."""
    geometry = opened(geometry_of(row["geometry"]), row["facts"]["host.row_bytes"])
    engine = CpuEngine()
    engine.open(geometry)
    pool = np.random.default_rng(7).integers(0, 256, engine.view("pool").size, np.uint8)
    engine.load("pool", pool)
    for group in range(len(geometry.groups)):
        lines = [line for line in mapped(row) if line[0][0] == group]
        slots = list(dict.fromkeys((spot[1], spot[3]) for _, _, spot, _ in lines))
        blocks = tuple(sorted({block for block, _ in slots}))
        engine.apply(Allocate(0, group, blocks), None)
        op = Read(1, group, tuple(Slot(*slot) for slot in slots))
        rows: Any = engine.apply(op, None)
        for where, field, (layer, block, head, slot), want in lines:
            cell = rows[where[1]][slots.index((block, slot)), layer, head]
            got = cell[cell_range(row, where, field)]
            assert got.tobytes() == pool[want].tobytes(), (where, field, layer, block, head, slot)
        engine.apply(Free(2, group, blocks), None)
    engine.close()


def opened(geometry: Geometry, row_bytes: int) -> Geometry:
    """The same geometry with a host tier of one row."""
    return replace(geometry, host=Host(row_bytes))


@each([row for row in ACCEPTED if "whole_pages" in row])
def test_whole_pages_are_tiled(row: Vector) -> None:
    """The maps of a whole page name each byte of its content once."""
    pages: dict[tuple[str, int, int], list[Places]] = {}
    for where, _, (layer, block, _, _), at in mapped(row):
        pages.setdefault((f"g{where[0]}.s{where[1]}", layer, block), []).append(at)
    for (name, *_), parts in pages.items():
        content = np.concatenate(parts)
        assert content.size == np.unique(content).size == row["facts"][f"{name}.content_bytes"]
    assert pages


def test_rows_are_well_formed() -> None:
    """Each row says what, since when, and either where every byte lies or why nothing can."""
    assert len({row["name"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row["name"]
        assert row["releases"]
        assert row.get("note") or row.get("not_expressed")
        assert ("geometry" in row) != ("not_expressed" in row)
    assert len(EXPRESSED) >= 230
    assert len(NOT_EXPRESSED) == NOT_EXPRESSED_COUNT


def test_every_format_has_whole_pages_and_refusals_their_reason() -> None:
    """No format lacks a whole page; the reasons that formats brought are met."""
    formats = Counter(
        layers["page_format"]
        for row in ACCEPTED
        if "whole_pages" in row
        for group in row["geometry"]["groups"]
        for layers in group["layer_sets"]
    )
    assert set(formats) == set(PAGE_FORMATS)
    refusals = {row["refused"] for row in EXPRESSED if "refused" in row}
    assert {"cell", "layout", "page", "alignment", "kernel_split"} <= refusals
    assert refusals <= set(GEOMETRY_REASONS)
