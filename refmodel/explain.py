"""From a wrong byte to its owner, its last writer, and where the bytes found there came from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvexact.refmodel.address import Addresses, Placement
from kvexact.refmodel.cache import Cache, Effect, Words
from kvexact.refmodel.content import Bytes, poison
from kvexact.refmodel.ops import Op, WriteTokens, block_id
from kvexact.refmodel.plan import Plan

#: Fewer equal bytes than this prove nothing about where they came from.
CLAIM_BYTES = 8


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


class Origin(NamedTuple):
    """Where bytes belong.

    Attributes:
        op: id of the write that stores them; None: they are an area's poison.
        area: the area in which they belong.
        position: their first byte's place in that area.
        owner: whose bytes they are; None for poison.
    """

    op: int | None
    area: str
    position: int
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is wrong, from the first wrong byte on.

    Attributes:
        kind: "lost" (still what was there before), "shifted" (right source, wrong place), "stale"
            (an older write of the same place), "foreign" (another source), "zeroed", "frame" (a
            byte that the op must not touch), "wrong" (anything else).
        first: the first wrong byte.
        wrong_bytes: how many are wrong.
        place: "content", "padding", "base", "tail", "unowned", or "host".
        owner: whose byte it is; None: nobody's, as ``place`` says.
        last_writer: id of the op that the model says wrote this byte last; None: poison.
        changed_bytes: content bytes that the op had to change.
        want, got: where the expected and the found bytes belong; None: unknown.
        run_bytes: how many bytes, from the first wrong one on, these were sought by.
    """

    kind: str
    first: int
    wrong_bytes: int
    place: str
    owner: Owner | None
    last_writer: int | None
    changed_bytes: int
    want: Origin | None
    got: Origin | None
    run_bytes: int


class _Recorder(Cache):
    """A model that remembers which op wrote each byte last."""

    def __init__(self, planned: Plan) -> None:
        super().__init__(planned)
        self.writers = {area: np.full(data.size, -1, np.int64) for area, data in self.areas.items()}
        self._op_id = -1

    def record(self, op: Op) -> Effect:
        """Apply an op and note its id where it writes."""
        self._op_id = op.id
        return self.apply(op)

    def _store(self, area: str, group: int, places: Addresses, data: Words) -> Effect:
        word = self._words[group]
        for byte in range(word):
            self.writers[area][places * word + byte] = self._op_id
        return super()._store(area, group, places, data)


def explain(planned: Plan, ops: Sequence[Op], area: str, want: Bytes, got: Bytes) -> Explanation:
    """Explain a difference that showed after the last of ``ops``.

    Args:
        ops: all ops so far that acted, blocks bound to ids, the one at fault last; none: the
            difference showed at birth.
        want, got: all bytes of the area, as they should be and as they are; different.
    """
    model = _Recorder(planned)
    for op in ops[:-1]:
        model.record(op)
    before = model.areas[area].copy()
    changed_bytes = model.record(ops[-1]).changed_bytes if ops else 0

    wrong = np.flatnonzero(want != got)
    first = int(wrong[0])
    writer = int(model.writers[area][first])
    place, owner = _locate(model, area, first)
    window = _wrong_run(want, got, model.writers[area], first)
    writes = [op for op in ops if type(op) is WriteTokens]
    want_from = _origin(model, writes, want[window])
    got_from = _origin(model, writes, got[window])
    kind = "frame"
    if ops and writer == ops[-1].id:
        differ = first + np.flatnonzero(want[window] != got[window])
        kind = _kind(before[differ], got[differ], want_from, got_from)
    return Explanation(
        kind,
        first,
        wrong.size,
        place,
        owner,
        writer if writer >= 0 else None,
        changed_bytes,
        want_from,
        got_from,
        window.stop - window.start,
    )


def _wrong_run(want: Bytes, got: Bytes, writers: Addresses, first: int) -> slice:
    """At most `CLAIM_BYTES` from the first wrong byte on, all written by the same op.

    One right byte among them may be a coincidence; two in a row end the run.
    """
    near = slice(first, first + CLAIM_BYTES + 1)
    right = want[near] == got[near]
    ends = writers[near] != writers[first]
    ends[:-1] |= right[:-1] & right[1:]
    size = int(np.argmax(ends)) if ends.any() else ends.size
    return slice(first, first + min(size, CLAIM_BYTES))


def _kind(before: Bytes, got: Bytes, want_from: Origin | None, got_from: Origin | None) -> str:
    if np.array_equal(before, got):
        return "lost"
    if not got.any():
        return "zeroed"
    if got_from is None:
        return "wrong"
    if want_from is None:
        return "foreign"
    if (want_from.op, want_from.area) == (got_from.op, got_from.area):
        return "shifted"
    same_place = want_from.owner is not None and want_from.owner == got_from.owner
    return "stale" if same_place else "foreign"


def _locate(model: Cache, area: str, position: int) -> tuple[str, Owner | None]:
    """What a byte is, and whose."""
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
                    found = _locate_in_page(placement, (group, s, block), position)
                    if found:
                        return found
    return "unowned", None


def _locate_in_page(
    placement: Placement, where: tuple[int, int, int], position: int
) -> tuple[str, Owner] | None:
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


def _origin(model: Cache, writes: Sequence[WriteTokens], window: Bytes) -> Origin | None:
    """Where these bytes belong, if there is exactly one such place."""
    if window.size < CLAIM_BYTES:
        return None
    sought = window.tobytes()
    found = {
        (op.tag, origin.owner): origin for op in writes for origin in _in_write(model, op, sought)
    }
    origins = [*found.values(), *_in_poison(model, sought)]
    return origins[0] if len(origins) == 1 else None


def _in_poison(model: Cache, sought: bytes) -> Iterator[Origin]:
    for number, (area, memory) in enumerate(model.areas.items()):
        for position in _finds(poison(number, memory.size).tobytes(), sought):
            yield Origin(None, area, position, None)


def _in_write(model: Cache, op: WriteTokens, sought: bytes) -> Iterator[Origin]:
    """Every place in a write's rows that holds these bytes."""
    layout = model.layout(op.group)
    for slot, row in zip(op.slots, model.payload(op), strict=True):
        if slot is None:
            continue
        block = block_id(slot.block)
        addresses = layout.of_slots(np.array([block], np.intp), np.array([slot.token], np.intp))[0]
        for at in _finds(row.tobytes(), sought):
            position = int(addresses[at])
            for layer_set, placement in enumerate(model.plan.placements[op.group]):
                located = _locate_in_page(placement, (op.group, layer_set, block), position)
                if located:
                    yield Origin(op.id, "pool", position, located[1])


def _finds(data: bytes, sought: bytes) -> Iterator[int]:
    at = data.find(sought)
    while at >= 0:
        yield at
        at = data.find(sought, at + 1)


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
