"""From a byte of the pool or the host tier to its owner: layer, block, head, slot, field."""

from typing import NamedTuple

import numpy as np

from kvexact.refmodel.cache import Cache


class Owner(NamedTuple):
    """Whose byte this is.

    ``token`` is a slot of the block. ``field`` is "padding" where only a layer and a block are
    known; in the host tier it is "page", with the part of the chunk as ``block`` and the byte of
    the page's image as ``element``.
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
    for group in range(len(planned.placements)):
        for owner in (
            content_owner(model, group, position),
            _padding_owner(model, group, position),
        ):
            if owner and model.ownership.owners[owner.block] == group:
                return ("padding" if owner.field == "padding" else "content"), owner
    return "unowned", None


def content_owner(model: Cache, group: int, position: int) -> Owner | None:
    """Whose content a pool byte is for this group, whether or not it owns the block."""
    layout = model.layout(group)
    blocks, rest = np.divmod(position - layout.cells, layout.cell_strides)
    here = (rest == 0) & (blocks >= 0) & (blocks < model.plan.geometry.blocks)
    for slot, column in np.argwhere(here).tolist():
        sizes = [layers * heads * cell for layers, heads, cell in layout.shapes]
        layer_set, in_set = _part_of(sizes, column)
        _, heads, cell = layout.shapes[layer_set]
        layer, in_layer = divmod(in_set, heads * cell)
        head, in_cell = divmod(in_layer, cell)
        fields = [item.field for item in model.plan.placements[group][layer_set].places]
        number, byte = _part_of([field.width_bytes for field in fields], in_cell)
        name, element = fields[number].name, byte // fields[number].unit_bytes
        block = int(blocks[slot, column])
        return Owner(group, layer_set, layer, block, head, slot, name, element)
    return None


def _part_of(sizes: list[int], at: int) -> tuple[int, int]:
    """Of parts of these sizes, side by side: which one a place is in, and where in it."""
    number = 0
    while at >= sizes[number]:
        at -= sizes[number]
        number += 1
    return number, at


def _padding_owner(model: Cache, group: int, position: int) -> Owner | None:
    """Whose page's padding a pool byte is for this group, whether or not it owns the block."""
    blocks = range(model.plan.geometry.blocks)
    for layer_set, placement in enumerate(model.plan.placements[group]):
        for layer in range(placement.extents["L"]):
            first = placement.start + layer * placement.grid["L"]
            block, byte = divmod(position - first, placement.grid["B"])
            if block in blocks and placement.content_bytes <= byte < placement.page_bytes:
                return Owner(group, layer_set, layer, block, 0, 0, "padding", 0)
    return None


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
