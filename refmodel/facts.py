"""The facts of a plan that an implementation must agree with."""

from collections.abc import Iterator

from kvexact.refmodel.address import Place, Placement
from kvexact.refmodel.plan import Plan

FactValue = int | tuple[int, ...] | tuple[tuple[int, ...], ...]
Run = tuple[int, int]


def facts(planned: Plan) -> dict[str, FactValue]:
    """Sizes, views, regions and slot counts by the names of docs/design.md."""
    found: dict[str, FactValue] = {
        "pool.bytes_per_block": planned.bytes_per_block,
        "pool.logical_bytes": planned.logical_bytes,
        "pool.physical_bytes": planned.physical_bytes,
    }
    regions: set[tuple[int, ...]] = set()
    for g, placements in enumerate(planned.placements):
        for s, placement in enumerate(placements):
            found[f"g{g}.s{s}.content_bytes"] = placement.content_bytes
            found[f"g{g}.s{s}.page_bytes"] = placement.page_bytes
            for item in placement.places:
                found[f"g{g}.s{s}.{item.field.name}.view"] = view(placement, item)
            regions.update(_regions(placement))
    found["regions"] = tuple(sorted(regions))
    found["host.row_bytes"] = planned.row_bytes
    found["host.scheduler_slots"] = planned.host_slots
    found["host.worker_slots"] = planned.host_slots
    return found


def view(placement: Placement, item: Place) -> tuple[int, ...]:
    """Offset of a field, then its strides over layer, kernel block, head and token."""
    size, strides = placement.extents, item.strides
    parts = size["P"] > 1
    kernel_block = strides["P" if parts else "B"] if parts or size["B"] > 1 else 0
    layer, head, token = (strides[axis] if size[axis] > 1 else 0 for axis in "LHN")
    return item.offset, layer, kernel_block, head, token


def page_runs(placement: Placement) -> list[Run]:
    """Maximal contiguous runs (start, length) of content of layer 0 in block 0.

    Runs grow from fields to cells to pages, axis by axis from the smallest stride; an axis that a
    run does not fill repeats the run instead.
    """
    runs: list[Run] = []
    strides: list[dict[str, int]] = []
    for half in sorted({item.field.half for item in placement.places}):
        items = [item for item in placement.places if item.field.half == half]
        runs.append((items[0].offset, sum(item.field.width_bytes for item in items)))
        strides.append(items[0].strides)
    if len(runs) == 2 and strides[0] == strides[1] and sum(runs[0]) == runs[1][0]:
        runs, strides = [(runs[0][0], runs[0][1] + runs[1][1])], strides[:1]

    grown: list[Run] = []
    for run, steps in zip(runs, strides, strict=True):
        grown += _grow(run, steps, placement.extents)
    return _merge(sorted(grown))


def _grow(run: Run, strides: dict[str, int], extents: dict[str, int]) -> list[Run]:
    """Extend one run over the axes of a page."""
    runs = [run]
    for axis in sorted("PHN", key=strides.__getitem__):
        stride, extent = strides[axis], extents[axis]
        if extent == 1:
            continue
        if len(runs) == 1 and runs[0][1] == stride:
            runs = [(runs[0][0], stride * extent)]
        else:
            runs = [(start + i * stride, length) for i in range(extent) for start, length in runs]
    return runs


def _merge(runs: list[Run]) -> list[Run]:
    """Join runs that touch."""
    joined: list[Run] = []
    for start, length in runs:
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((start, length))
    return joined


def _regions(placement: Placement) -> Iterator[tuple[int, ...]]:
    size, strides = placement.extents, placement.places[0].strides
    block_stride = strides["B"] if size["B"] > 1 else 0
    for start, length in page_runs(placement):
        for layer in range(size["L"]):
            yield start + layer * strides["L"], size["B"], block_stride, length
