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
    """Offset of a field, then its strides over layer, kernel block, head and slot."""
    size, strides = placement.extents, item.strides
    parts = size["P"] > 1
    kernel_block = strides["P" if parts else "B"] if parts or size["B"] > 1 else 0
    layer, head = (strides[axis] if size[axis] > 1 else 0 for axis in "LH")
    slot = item.slot_stride(size["N"]) if size["N"] > 1 else 0
    return item.offset, layer, kernel_block, head, slot


def page_runs(placement: Placement) -> list[Run]:
    """Maximal contiguous runs (start, length) of content of layer 0 in block 0.

    What lies at one point of the page grid is contiguous. It grows over the grid's axes, from the
    smallest stride on; an axis that a run does not fill repeats it instead.
    """
    runs = [(placement.start, placement.tail_bytes)]
    strides = {axis: placement.grid[axis] for axis in "PH" if axis in placement.grid}
    for axis in sorted(strides, key=strides.__getitem__):
        stride, extent = strides[axis], placement.extents[axis]
        if extent == 1:
            continue
        if runs[0][1] == stride:
            runs = [(runs[0][0], stride * extent)]
        else:
            runs = [(start + i * stride, length) for i in range(extent) for start, length in runs]
    return runs


def _regions(placement: Placement) -> Iterator[tuple[int, ...]]:
    size, strides = placement.extents, placement.grid
    block_stride = strides["B"] if size["B"] > 1 else 0
    for start, length in page_runs(placement):
        for layer in range(size["L"]):
            yield start + layer * strides["L"], size["B"], block_stride, length
