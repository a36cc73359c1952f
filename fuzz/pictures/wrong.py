"""Wrong bytes of an area, and what the first of them is."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvexact.fuzz.pictures.maps import Kind, PoolMap, Run, host_runs
from kvexact.fuzz.pictures.page import PageMap, Spot, page_map

Positions = npt.NDArray[np.intp]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class WrongBytes:
    """Bytes of one area that differ from the model's.

    Attributes:
        area: "pool", the physical storage, or "host", all rows of the host tier.
        positions: where, counted from the area's start; sorted.
        want: what the model holds there.
        got: what the target holds there.
        group: the owner of the page, or the holder of the host row, where known; it decides how
            bytes that groups overlay are read.
    """

    area: Literal["pool", "host"]
    positions: Positions
    want: Bytes
    got: Bytes
    group: int | None = None

    def within(self, start: int, end: int) -> Positions:
        """Positions in [start, end), counted from ``start``."""
        low, high = np.searchsorted(self.positions, (start, end))
        return self.positions[low:high] - start


@dataclass(frozen=True, slots=True)
class Finding:
    """What one byte of an area is.

    Attributes:
        kind: of the run that it lies in.
        group: as which group's byte it is read.
        layer_set: of the page; None where the byte is in no page. So are the next ones.
        layer: of the page.
        block: of a page in the pool.
        slot: of a byte in the host tier: the row.
        part: of a page in a host row: which manager block of the chunk.
        start: byte of the area at which the page's bytes start.
        spot: what the byte is inside of the page; None in padding.
    """

    kind: Kind
    group: int
    layer_set: int | None = None
    layer: int | None = None
    block: int | None = None
    slot: int | None = None
    part: int | None = None
    start: int = 0
    spot: Spot | None = None

    def words(self, page: PageMap | None) -> str:
        """Where the byte is: "layer 2 block 11 head 0 token 0 field v byte 3"."""
        names = ("slot", "layer", "block", "part")
        values = [(name, getattr(self, name)) for name in names]
        places = [f"{name} {value}" for name, value in values if value is not None]
        if page is None or self.spot is None:
            return " ".join([*places, self.kind])
        return " ".join([*places, page.words(self.spot)])


def find(pool: PoolMap, wrong: WrongBytes, byte: int) -> Finding:
    """What byte ``byte`` of the wrong bytes' area is."""
    return _in_host(pool, wrong, byte) if wrong.area == "host" else _in_pool(pool, wrong, byte)


def page_of(pool: PoolMap, finding: Finding) -> PageMap | None:
    """The page map of the layer set that a finding is in."""
    if finding.layer_set is None:
        return None
    placement = pool.planned.placements[finding.group][finding.layer_set]
    return page_map(pool.planned.geometry, placement)


def _in_pool(pool: PoolMap, wrong: WrongBytes, byte: int) -> Finding:
    groups = range(pool.groups) if wrong.group is None else [wrong.group]
    runs = [(group, pool.run_at(byte, group)) for group in groups]
    group, run = next(((g, r) for g, r in runs if r.kind == "content"), runs[0])
    if run.piece is None or run.block is None:
        return Finding(run.kind, group)
    piece = run.piece
    start = page_start(pool, run)
    page = page_map(pool.planned.geometry, pool.planned.placements[group][piece.layer_set])
    spot = page.spot(byte - start) if run.kind == "content" else None
    return Finding(run.kind, group, piece.layer_set, piece.layer, run.block, start=start, spot=spot)


def page_start(pool: PoolMap, run: Run) -> int:
    """Byte of the storage at which the page of a run in a page starts."""
    assert run.piece is not None
    assert run.block is not None
    page = pool.planned.placements[run.piece.group][run.piece.layer_set]
    return page.start + run.piece.layer * page.grid["L"] + run.block * page.grid["B"]


def _in_host(pool: PoolMap, wrong: WrongBytes, byte: int) -> Finding:
    group = wrong.group or 0
    slot, inside = divmod(byte, pool.planned.row_bytes)
    run = next(run for run in host_runs(pool.planned, group) if inside < run.end)
    if run.kind == "unused":
        return Finding(run.kind, group, slot=slot)
    page = page_map(pool.planned.geometry, pool.planned.placements[group][run.layer_set])
    spot = page.spot_of_content(inside - run.start)
    return Finding(
        run.kind, group, run.layer_set, run.layer, slot=slot, part=run.part,
        start=byte - inside + run.start, spot=spot,
    )  # fmt: skip
