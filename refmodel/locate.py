"""From a byte of the pool or the host tier to its owner: layer, block, head, token, field."""

from typing import NamedTuple

from kvexact.refmodel.address import Placement
from kvexact.refmodel.cache import Cache


class Owner(NamedTuple):
    """Whose byte this is.

    ``field`` is "padding" where only a layer and a block are known; in the host tier it is "page",
    with the part of the chunk as ``block`` and the byte of the page's image as ``element``.
    """

    group: int
    layer_set: int
    layer: int
    block: int
    head: int
    token: int
    field: str
    element: int


def locate(model: Cache, area: str, position: int) -> tuple[str, Owner | None]:
    """What a byte is ("content", "padding", "base", "tail", "unowned", "host"), and whose."""
    planned = model.plan
    if area == "host":
        return "host", _locate_in_row(model, position)
    base = planned.geometry.base_offset_bytes
    if position < base:
        return "base", None
    if position >= base + planned.logical_bytes:
        return "tail", None
    for group, placements in enumerate(planned.placements):
        for s, placement in enumerate(placements):
            for block, owner_group in enumerate(model.ownership.owners):
                if owner_group == group:
                    found = locate_in_page(placement, (group, s, block), position)
                    if found:
                        return found
    return "unowned", None


def locate_in_page(
    placement: Placement, where: tuple[int, int, int], position: int
) -> tuple[str, Owner] | None:
    """The owner of a pool byte, if it lies in a page of this (group, layer set, block)."""
    group, layer_set, block = where
    for item in placement.places:
        start = item.offset + block * item.strides["B"]
        index = _unravel(placement, item.strides, position - start, item.field.width_bytes)
        if index:
            layer, part, head, slot, byte = index
            token = part * placement.extents["N"] + slot
            element = byte // item.field.unit_bytes
            owner = Owner(group, layer_set, layer, block, head, token, item.field.name, element)
            return "content", owner
    first = placement.places[0]
    for layer in range(placement.extents["L"]):
        page = first.offset + block * first.strides["B"] + layer * first.strides["L"]
        if page + placement.content_bytes <= position < page + placement.page_bytes:
            return "padding", Owner(group, layer_set, layer, block, 0, 0, "padding", 0)
    return None


def _unravel(
    placement: Placement, strides: dict[str, int], distance: int, width: int
) -> tuple[int, int, int, int, int] | None:
    """(layer, part, head, slot, byte) at this distance from a field's first byte, if it is there.

    Strides nest: from the largest to the smallest, each takes what it can.
    """
    if distance < 0:
        return None
    index = dict.fromkeys("LPHN", 0)
    for axis in sorted(index, key=strides.__getitem__, reverse=True):
        extent = placement.extents[axis]
        if extent > 1:
            index[axis] = min(distance // strides[axis], extent - 1)
            distance -= index[axis] * strides[axis]
    if distance >= width:
        return None
    return index["L"], index["P"], index["H"], index["N"], distance


def _locate_in_row(model: Cache, position: int) -> Owner | None:
    """The owner of a byte of the host tier, by the group that its slot holds."""
    slot, offset = divmod(position, model.plan.row_bytes)
    group = model.ownership.holders[slot]
    if group is None:
        return None
    start = 0
    parts = model.plan.geometry.host.chunk_blocks
    for s, placement in enumerate(model.plan.placements[group]):
        page = placement.content_bytes
        size = placement.extents["L"] * parts * page
        if offset < start + size:
            layer, rest = divmod(offset - start, parts * page)
            part, byte = divmod(rest, page)
            return Owner(group, s, layer, part, 0, 0, "page", byte)
        start += size
    return None


def in_words(owner: Owner) -> str:
    """An owner in words, in the order of a failure message."""
    if owner.field == "page":
        return f"layer {owner.layer}  part {owner.block}  page byte {owner.element}"
    if owner.field == "padding":
        return f"layer {owner.layer}  block {owner.block}  padding"
    return (
        f"layer {owner.layer}  block {owner.block}  head {owner.head}  token {owner.token}  "
        f"field {owner.field}  element {owner.element}"
    )
