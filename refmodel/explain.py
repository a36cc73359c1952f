"""From a wrong byte to its owner, its last writer, and where the bytes found there came from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvexact.refmodel.address import Addresses, Placement
from kvexact.refmodel.cache import Cache, Effect
from kvexact.refmodel.content import Bytes, poison
from kvexact.refmodel.ops import KIND_OF, Op, WriteTokens, block_id
from kvexact.refmodel.plan import Plan

#: Fewer equal bytes than this prove nothing about where they came from.
CLAIM_BYTES = 8
_WINDOW_BYTES = 32


class Owner(NamedTuple):
    """Whose byte this is; ``field`` is "padding" where only a layer and a block are known."""

    group: int
    layer_set: int
    layer: int
    block: int
    head: int
    token: int
    field: str
    element: int


class Origin(NamedTuple):
    """Bytes of the write with id ``op`` that belong at ``owner``."""

    op: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is wrong, from the first wrong byte on.

    Attributes:
        kind: "lost" (still what was there before), "stale" (an older write of the same place),
            "shifted" (right write, wrong place), "foreign" (another write), "zeroed", "poison"
            (never written), "frame" (a byte that the op must not touch), "wrong" (anything else).
        first: the first wrong byte.
        wrong_bytes: how many are wrong.
        owner: whose byte it is; None: outside all pages, as ``place`` says.
        place: "content", "padding", "base", "tail", "unowned", or "host".
        last_writer: id of the op that the model says wrote this byte last; None: poison.
        want, got: where the expected and the found bytes come from; None: unknown.
        offsets: (expected, found) positions inside the page's content, where both are known.
    """

    kind: str
    first: int
    wrong_bytes: int
    owner: Owner | None
    place: str
    last_writer: int | None
    want: Origin | None
    got: Origin | None


class _Recorder(Cache):
    """A model that remembers which op wrote each byte last."""

    def __init__(self, planned: Plan) -> None:
        super().__init__(planned)
        self.writers = {area: np.full(data.size, -1, np.int64) for area, data in self.areas.items()}
        self.op_id = -1

    def _store(self, area: str, places: Addresses, data: Bytes | np.uint8) -> Effect:
        self.writers[area][places] = self.op_id
        return super()._store(area, places, data)


def explain(planned: Plan, ops: Sequence[Op], area: str, want: Bytes, got: Bytes) -> Explanation:
    """Explain a difference that showed after the last of ``ops``.

    Args:
        ops: all ops so far that acted, blocks bound to ids, the one at fault last; none: the
            difference showed at birth.
        want, got: all bytes of the area, as they should be and as they are; different.
    """
    model = _Recorder(planned)
    for op in ops[:-1]:
        model.op_id = op.id
        model.apply(op)
    before = model.areas[area].copy()
    if ops:
        model.op_id = ops[-1].id
        model.apply(ops[-1])

    wrong = np.flatnonzero(want != got)
    first = int(wrong[0])
    writer = int(model.writers[area][first])
    place, owner, run_end = _locate(model, area, first)
    window = slice(first, min(run_end, first + _WINDOW_BYTES))
    writes = [op for op in ops if type(op) is WriteTokens]
    want_from = _origin(model, writes, want[window])
    got_from = _origin(model, writes, got[window])
    kind = "frame"
    if ops and writer == ops[-1].id:
        kind = _kind(planned, before[window], got[window], want_from, got_from)
    last_writer = writer if writer >= 0 else None
    return Explanation(kind, first, wrong.size, owner, place, last_writer, want_from, got_from)


def _kind(
    planned: Plan, before: Bytes, got: Bytes, want_from: Origin | None, got_from: Origin | None
) -> str:
    if np.array_equal(before, got):
        return "lost"
    if not got.any():
        return "zeroed"
    if want_from and got_from:
        if want_from.op == got_from.op:
            return "shifted"
        return "stale" if want_from.owner == got_from.owner else "foreign"
    if got_from:
        return "foreign"
    return "poison" if _is_poison(planned, got) else "wrong"


def _is_poison(planned: Plan, got: Bytes) -> bool:
    sizes = (planned.physical_bytes, planned.host_slots * planned.row_bytes)
    images = (poison(area, size).tobytes() for area, size in enumerate(sizes))
    return got.size >= CLAIM_BYTES and any(got.tobytes() in image for image in images)


def _locate(model: Cache, area: str, position: int) -> tuple[str, Owner | None, int]:
    """What a byte is, whose it is, and where the run of its kind ends."""
    planned = model.plan
    if area == "host":
        return "host", *_locate_in_row(model, position)
    base = planned.geometry.base_offset_bytes
    if position < base:
        return "base", None, base
    if position >= base + planned.logical_bytes:
        return "tail", None, planned.physical_bytes
    for group, placements in enumerate(planned.placements):
        for s, placement in enumerate(placements):
            for block, owner_group in enumerate(model.ownership.owners):
                if owner_group == group:
                    found = _locate_in_page(placement, (group, s, block), position)
                    if found:
                        return found
    return "unowned", None, position + 1


def _locate_in_page(
    placement: Placement, where: tuple[int, int, int], position: int
) -> tuple[str, Owner, int] | None:
    group, layer_set, block = where
    for item in placement.places:
        start = item.offset + block * item.strides["B"]
        index = _unravel(placement, item.strides, position - start, item.field.width_bytes)
        if index:
            layer, part, head, slot, byte = index
            token = part * placement.extents["N"] + slot
            element = byte // item.field.unit_bytes
            owner = Owner(group, layer_set, layer, block, head, token, item.field.name, element)
            return "content", owner, position - byte + item.field.width_bytes
    first = placement.places[0]
    for layer in range(placement.extents["L"]):
        page = first.offset + block * first.strides["B"] + layer * first.strides["L"]
        end = page + placement.page_bytes
        if page + placement.content_bytes <= position < end:
            return "padding", Owner(group, layer_set, layer, block, 0, 0, "padding", 0), end
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


def _locate_in_row(model: Cache, position: int) -> tuple[Owner | None, int]:
    """The owner of a byte of the host tier, by the group that its slot holds."""
    slot, offset = divmod(position, model.plan.row_bytes)
    group = model.ownership.holders[slot]
    row_end = position - offset + model.plan.row_bytes
    if group is None:
        return None, row_end
    start = 0
    parts = model.plan.geometry.host.chunk_blocks
    for s, placement in enumerate(model.plan.placements[group]):
        page = placement.content_bytes
        size = placement.extents["L"] * parts * page
        if offset < start + size:
            layer, rest = divmod(offset - start, parts * page)
            part, byte = divmod(rest, page)
            owner = Owner(group, s, layer, part, 0, 0, "page", byte)
            return owner, position - byte + page
        start += size
    return None, row_end


def _origin(model: Cache, writes: Sequence[WriteTokens], window: Bytes) -> Origin | None:
    """The write and the place that these bytes belong to, if there is exactly one."""
    if window.size < CLAIM_BYTES:
        return None
    found = {
        origin[1:]: origin for op in writes for origin in _matches(model, op, window.tobytes())
    }
    if len(found) != 1:
        return None
    ((op_id, _, owner),) = found.values()
    return Origin(op_id, owner)


def _matches(model: Cache, op: WriteTokens, window: bytes) -> Iterator[tuple[int, int, Owner]]:
    """(op id, tag, owner) of every place in a write's rows that holds these bytes."""
    layout = model.layout(op.group)
    rows = model.payload(op)
    for slot, row in zip(op.slots, rows, strict=True):
        if slot is None:
            continue
        data, at = row.tobytes(), -1
        while (at := data.find(window, at + 1)) >= 0:
            address = int(
                layout.of_slots(
                    np.array([block_id(slot.block)], np.intp), np.array([slot.token], np.intp)
                )[0, at]
            )
            for s, placement in enumerate(model.plan.placements[op.group]):
                located = _locate_in_page(placement, (op.group, s, block_id(slot.block)), address)
                if located:
                    yield op.id, op.tag, located[1]


def describe(origin: Origin | None, ops: Sequence[Op]) -> str:
    """An origin in words."""
    if origin is None:
        return "unknown bytes"
    tag = next(op.tag for op in ops if op.id == origin.op and type(op) is WriteTokens)
    return f"write #{origin.op} (tag {tag}), {in_words(origin.owner)}"


def in_words(owner: Owner) -> str:
    """An owner in words, in the order of a failure message."""
    return (
        f"layer {owner.layer}  block {owner.block}  head {owner.head}  token {owner.token}  "
        f"field {owner.field}  element {owner.element}"
    )


__all__ = ["CLAIM_BYTES", "KIND_OF", "Explanation", "Origin", "Owner", "describe", "explain"]
