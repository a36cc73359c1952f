"""In which part of their pages wrong bytes lie."""

import numpy as np

from kvexact.fuzz.failure import Failure
from kvexact.fuzz.run import Run
from kvexact.refmodel.address import Placement


def behind_data(run: Run, failure: Failure) -> bool:
    """Whether bytes of the pool are wrong, and all of them in pages of owners, behind the data.

    That is, behind as many bytes as a page has without its scales: what stays behind where a
    transfer is as wide as the data.
    """
    if failure.area != "pool" or run.plan is None or run.geometry.order == "LHBNC":
        return False
    wrong = np.array(failure.wrong_at, np.intp)
    found = np.zeros(wrong.size, np.bool_)
    owners = np.array([-1 if o is None else o for o in run.model.ownership.owners])
    for group, placements in enumerate(run.plan.placements):
        for placement in placements:
            data = _data_bytes(placement)
            for layer in range(placement.extents["L"]):
                first = placement.start + layer * placement.grid["L"]
                block, byte = np.divmod(wrong - first, placement.grid["B"])
                inside = (block >= 0) & (block < owners.size) & (byte < placement.content_bytes)
                owned = owners[np.where(inside, block, 0)] == group
                found |= inside & owned & (byte >= data)
    return bool(wrong.size and found.all())


def _data_bytes(placement: Placement) -> int:
    """Bytes of a page's data without scales."""
    widths = {item.field.name: item.field.width_bytes for item in placement.places}
    data = sum(width for name, width in widths.items() if not name.endswith("_scale"))
    return placement.content_bytes * data // sum(widths.values())
