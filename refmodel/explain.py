"""From a wrong byte to its owner, its last writer, and where the bytes found there came from."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.content import Bytes, poison
from kvexact.refmodel.locate import Owner, content_owner, locate
from kvexact.refmodel.ops import WriteTokens, WriteValues, block_id
from kvexact.refmodel.order import Writers
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import ByteOp, WritePositions

Write = WriteTokens | WriteValues | WritePositions

#: Fewer equal bytes than this prove nothing about where they came from.
CLAIM_BYTES = 8


class Origin(NamedTuple):
    """Where bytes belong.

    Attributes:
        op: id of the write that stores them; None: they are an area's poison.
        area: the area in which they belong, or "pad": they belong nowhere.
        position: their first byte's place in that area, or in the pad row.
        owner: whose bytes they are; None for poison and pads.
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
            (an older write of the same place), "newer" (a write after the op that stores this byte
            last), "foreign" (another source), "zeroed", "frame" (a byte that no op at fault
            touches), "wrong" (anything else).
        first: the first wrong byte.
        wrong_bytes: how many are wrong.
        place: "content", "padding", "base", "tail", "unowned", or "host".
        owner: whose byte it is; None: nobody's, as ``place`` says.
        defined: its slot holds what was written, copied or restored there.
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
    defined: bool
    last_writer: int | None
    changed_bytes: int
    want: Origin | None
    got: Origin | None
    run_bytes: int


def explain(
    planned: Plan,
    ops: Sequence[ByteOp],
    area: str,
    want: Bytes,
    got: Bytes,
    *,
    in_time: bool = False,
) -> Explanation:
    """Explain a difference that showed after the last of ``ops``.

    Args:
        ops: all ops so far that acted, blocks bound to ids, the one at fault last; none: the
            difference showed at birth. An op on requests is several ops in bytes, of one id.
        want, got: all bytes of the area, as they should be and as they are; different.
        in_time: any op since the last fence may be at fault.
    """
    last = list(takewhile(lambda op: op.id == ops[-1].id, reversed(ops)))[::-1]
    model = Writers.after(planned, ops[: len(ops) - len(last)])
    unsettled = model.unsettled[area].copy()
    changed_bytes = sum(model.apply(op).changed_bytes for op in last)

    wrong = np.flatnonzero(want != got)
    first = int(wrong[0])
    writer = int(model.writers[area][first])
    place, owner = locate(model, area, first)
    window = _wrong_run(want, got, model.writers[area], first)
    writes = [op for op in ops if isinstance(op, Write)]
    want_from = _origin(model, writes, want[window])
    got_from = _origin(model, writes, got[window])
    kind = "frame"
    if ops and (writer == ops[-1].id or (in_time and unsettled[first])):
        differ = first + np.flatnonzero(want[window] != got[window])
        number = [op.id for op in ops].index(writer)
        before = Writers.after(planned, ops[:number]).areas[area]
        later = {op.id for op in ops[number:]} - {writer}
        kind = _kind(before[differ], got[differ], want_from, got_from, later)
    return Explanation(
        kind,
        first,
        wrong.size,
        place,
        owner,
        place == "content" and owner is not None and _is_defined(model, owner),
        writer if writer >= 0 else None,
        changed_bytes,
        want_from,
        got_from,
        window.stop - window.start,
    )


def _is_defined(model: Cache, owner: Owner) -> bool:
    return bool(model.written[owner.group][owner.block, owner.token])


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


def _kind(
    before: Bytes,
    got: Bytes,
    want_from: Origin | None,
    got_from: Origin | None,
    later: Collection[int],
) -> str:
    """The kind of a difference in bytes that were ``before`` their last writer stored them.

    Args:
        later: ids of the ops after that writer.
    """
    if np.array_equal(before, got):
        return "lost"
    if not got.any():
        return "zeroed"
    if got_from is None:
        return "wrong"
    if got_from.op in later:
        return "newer"
    if want_from is None:
        return "foreign"
    if (want_from.op, want_from.area) == (got_from.op, got_from.area):
        return "shifted"
    same_place = want_from.owner is not None and want_from.owner == got_from.owner
    return "stale" if same_place else "foreign"


def _origin(model: Cache, writes: Sequence[Write], window: Bytes) -> Origin | None:
    """Where these bytes belong, if there is exactly one such place."""
    if window.size < CLAIM_BYTES:
        return None
    sought = window.tobytes()
    found: dict[object, Origin] = {}
    for op in writes:
        for origin in _in_write(model, op, sought):
            found[replace(op, id=0, slots=()), origin.owner] = origin
            if len(found) > 1:
                return None
    origins = [*found.values(), *_in_poison(model, sought)]
    return origins[0] if len(origins) == 1 else None


def _in_poison(model: Cache, sought: bytes) -> Iterator[Origin]:
    for number, (area, memory) in enumerate(model.areas.items()):
        for position in _finds(poison(number, memory.size).tobytes(), sought):
            yield Origin(None, area, position, None)


def _in_write(model: Cache, op: Write, sought: bytes) -> Iterator[Origin]:
    """Every place that a write fills with these bytes, side by side, and every one in its pads."""
    rows = _rows(model, op)
    kept = [i for i, slot in enumerate(op.slots) if slot is not None]
    for pad in set(range(len(op.slots))).difference(kept):
        for at in _finds(rows[pad].tobytes(), sought):
            yield Origin(op.id, "pad", at, None)

    named = [slot for slot in op.slots if slot is not None]
    blocks = np.array([block_id(slot.block) for slot in named], np.intp)
    tokens = np.array([slot.token for slot in named], np.intp)
    layout = model.layout(op.group)
    stored = layout.data if isinstance(op, WriteValues) else slice(None)
    places = layout.of_slots(blocks, tokens)[:, stored].reshape(-1)
    order = np.argsort(places)
    places = places[order]
    data = rows[kept][:, stored].reshape(-1)[order]
    for at in _finds(data.tobytes(), sought):
        position = int(places[at])
        if places[at + len(sought) - 1] == position + len(sought) - 1:
            yield Origin(op.id, "pool", position, content_owner(model, op.group, position))


def _rows(model: Cache, op: Write) -> Bytes:
    if isinstance(op, WriteValues):
        return model.encoded(op)
    return model.payload(op) if isinstance(op, WriteTokens) else model.positions(op)


def _finds(data: bytes, sought: bytes) -> Iterator[int]:
    at = data.find(sought)
    while at >= 0:
        yield at
        at = data.find(sought, at + 1)
