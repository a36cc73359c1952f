"""The model's bytes after each op, worked out by hand on one small pool.

Group 0 has blocks of 2 tokens of 3 bytes (key 2, value 1) in pages of 8: token t of block b lies at
1 + 8 b + 3 t, and 2 bytes of padding follow the two tokens. Group 1 lies over the same bytes: one
token of 4 bytes at 1 + 8 b, 4 bytes of padding. A host row of 16 bytes holds a chunk of two blocks:
part p of slot s lies at 16 s + 6 p (group 0) or 16 s + 4 p (group 1).
"""

import numpy as np
import pytest

from kvexact.refmodel.cache import Cache, Effect
from kvexact.refmodel.codecs import decode, encode
from kvexact.refmodel.content import slot_rows, slot_values
from kvexact.refmodel.free import host_padding, page_padding
from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Evict,
    Free,
    Handle,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Read,
    ReadValues,
    Reset,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.plan import plan
from kvexact.refmodel.rows import Rows
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

GEOMETRY = Geometry(
    groups=(
        Group(2, 2, (LayerSet(1, 1, 2, 1, "fp8_e4m3", page_bytes=8),)),
        Group(1, 1, (LayerSet(1, 1, 4, 0, "fp8_e4m3", page_bytes=8),)),
    ),
    blocks=5,
    host=Host(capacity_bytes=50, chunk_blocks=2, row_alignment=16),
    base_offset_bytes=1,
    tail_alignment=16,
)


class Bench:
    """A cache and a picture of its bytes that the tests change by hand."""

    def __init__(self, *ops: Op) -> None:
        self.cache = Cache(plan(GEOMETRY))
        for op in ops:
            self.do(op)
        self.pool = self.cache.areas["pool"].copy()
        self.host = self.cache.areas["host"].copy()

    def do(self, op: Op) -> Effect:
        """Apply a legal op."""
        assert self.cache.refusal(op) is None, op
        return self.cache.apply(op)

    def same(self) -> None:
        """The cache's bytes are those of the picture."""
        assert self.cache.areas["pool"].tolist() == self.pool.tolist()
        assert self.cache.areas["host"].tolist() == self.host.tolist()

    def written(self, group: int = 0) -> list[list[bool]]:
        found: list[list[bool]] = self.cache.written[group].tolist()
        return found


def row(tag: int, block: int, token: int) -> list[int]:
    """What write ``tag`` of group 0 stores in one slot."""
    cache = Cache(plan(GEOMETRY))
    (found,) = cache.payload(WriteTokens(0, 0, (Slot(block, token),), tag)).tolist()
    return [int(byte) for byte in found]


TAKE = Allocate(0, 0, (0, 1, 2))
TAKE_1 = Allocate(1, 1, (3,))
FILL = WriteTokens(2, 0, (Slot(0, 0), Slot(0, 1), Slot(1, 1)), tag=5)


def test_birth() -> None:
    """A pool of 41 bytes in 48, three host rows of 16, all poison; nobody owns anything."""
    bench = Bench()
    assert bench.pool.size == 48
    assert bench.host.size == 48
    assert np.count_nonzero(bench.pool) > 40
    assert np.count_nonzero(bench.host) > 40
    assert bench.pool.tolist() != bench.host.tolist()
    assert bench.cache.ownership.owners == [None] * 5
    assert bench.cache.ownership.holders == [None] * 3
    assert not np.any(bench.cache.written[0])
    assert not np.any(bench.cache.written[1])
    other = Cache(plan(GEOMETRY))
    assert other.areas["pool"].tolist() == bench.pool.tolist()


def test_allocate_and_free_change_no_byte() -> None:
    """Owners change, bytes do not; a freed block can go to another group."""
    bench = Bench()
    assert bench.do(Allocate(0, 0, (3, 1))) == Effect(acted=True)
    assert bench.cache.ownership.owners == [None, 0, None, 0, None]
    assert bench.do(Free(1, 0, (3,))) == Effect(acted=True)
    assert bench.cache.ownership.owners == [None, 0, None, None, None]
    bench.do(Allocate(2, 1, (3,)))
    assert bench.cache.ownership.owners == [None, 0, None, 1, None]
    bench.same()


def test_write() -> None:
    """Each slot gets its row, a pad writes nothing, and padding and neighbours stay."""
    bench = Bench(TAKE)
    op = WriteTokens(3, 0, (Slot(2, 1), None, Slot(0, 0)), tag=9)
    rows = bench.cache.payload(op)
    assert rows.shape == (3, 3)
    effect = bench.do(op)
    before = bench.pool.copy()
    bench.pool[1 + 16 + 3 : 1 + 16 + 6] = rows[0]
    bench.pool[1:4] = rows[2]
    bench.same()
    changed = int(np.count_nonzero(before != bench.pool))
    assert effect == Effect(acted=True, content_bytes=6, changed_bytes=changed)
    assert 1 <= changed <= 6
    assert bench.written()[:3] == [[True, False], [False, False], [False, True]]


def test_write_again_changes_nothing() -> None:
    """The same write twice acts, and its second effect says that no byte had another value."""
    bench = Bench(TAKE, FILL)
    assert bench.do(FILL) == Effect(acted=True, content_bytes=9, changed_bytes=0)
    bench.same()


def test_payload_names_slot_and_tag() -> None:
    """A slot's row does not depend on its place in the list; tag, slot and group change it."""
    cache = Bench().cache
    rows = cache.payload(WriteTokens(0, 0, (Slot(1, 0), Slot(1, 1)), 4)).tolist()
    assert cache.payload(WriteTokens(7, 0, (Slot(1, 1), Slot(1, 0)), 4)).tolist() == rows[::-1]
    assert rows[0] != rows[1]
    assert cache.payload(WriteTokens(0, 0, (Slot(1, 0),), 5)).tolist() != rows[:1]
    (wide,) = cache.payload(WriteTokens(0, 1, (Slot(2, 0),), 4)).tolist()
    assert len(wide) == 4
    assert wide[:3] != rows[0]  # slot number 2 in both groups


def test_payload_by_slot_number() -> None:
    """A row is the content of slot block x block size + token of its group."""
    cache = Bench().cache
    slots = [Slot(block, token) for block in range(5) for token in range(2)]
    rows = cache.payload(WriteTokens(0, 0, (*slots, None), 4))
    numbers = [*range(10), -1]
    assert rows.tolist() == slot_rows(4, 0, numbers, 3).tolist()
    other = cache.payload(WriteTokens(0, 1, tuple([Slot(b, 0) for b in range(5)]), 4))
    assert other.tolist() == slot_rows(4, 1, range(5), 4).tolist()


def test_zero() -> None:
    """Content becomes 0, padding stays; the slots are undefined again."""
    bench = Bench(TAKE, FILL)
    effect = bench.do(Zero(3, 0, (0, 2)))
    changed = np.count_nonzero(bench.pool[1:7]) + np.count_nonzero(bench.pool[17:23])
    bench.pool[1:7] = 0
    bench.pool[17:23] = 0
    bench.same()
    assert effect == Effect(acted=True, content_bytes=12, changed_bytes=int(changed))
    assert bench.written()[:3] == [[False, False], [False, True], [False, False]]


def test_allocate_with_zero() -> None:
    """Content of the claimed blocks becomes 0 in the same step; padding stays."""
    bench = Bench(TAKE, FILL, Free(3, 0, (0, 2)))
    effect = bench.do(Allocate(4, 0, (2, 0), zero=True))
    changed = np.count_nonzero(bench.pool[1:7]) + np.count_nonzero(bench.pool[17:23])
    bench.pool[1:7] = 0
    bench.pool[17:23] = 0
    bench.same()
    assert effect == Effect(acted=True, content_bytes=12, changed_bytes=int(changed))
    assert bench.cache.ownership.owners == [0, 0, 0, None, None]
    assert bench.written()[:3] == [[False, False], [False, True], [False, False]]


VALUES = WriteValues(3, 0, (Slot(2, 1), None, Slot(0, 0)), tag=9, value_type="bf16")


def test_write_values() -> None:
    """Each slot gets its cell, encoded; a pad writes nothing, padding and neighbours stay."""
    bench = Bench(TAKE)
    (values,) = bench.cache.values(VALUES)
    assert values.shape == (3, 1, 1, 6)
    numbers = [5, -1, 0]
    assert np.array_equal(values, slot_values(9, 0, 0, numbers, (1, 1, 2, 1), "bf16", "plain"))
    cells = encode(GEOMETRY.groups[0].layer_sets[0], "bf16", values)
    assert bench.cache.encoded(VALUES).tolist() == cells.reshape(3, 3).tolist()
    effect = bench.do(VALUES)
    before = bench.pool.copy()
    bench.pool[1 + 16 + 3 : 1 + 16 + 6] = cells[0, 0, 0]
    bench.pool[1:4] = cells[2, 0, 0]
    bench.same()
    changed = int(np.count_nonzero(before != bench.pool))
    assert effect == Effect(acted=True, content_bytes=6, changed_bytes=changed)
    assert bench.written()[:3] == [[True, False], [False, False], [False, True]]


def test_read_values() -> None:
    """Rows come decoded to fp32, in the order asked for, pads as zeros."""
    bench = Bench(TAKE, VALUES)
    op = ReadValues(4, 0, (Slot(0, 0), None, Slot(2, 1), Slot(0, 0)))
    effect = bench.do(op)
    assert (effect.acted, effect.content_bytes, effect.changed_bytes) == (True, 9, 0)
    assert effect.rows is not None
    (split,) = bench.cache.split_values(op, effect.rows)
    assert split.shape == (4, 1, 1, 12)
    for row, at in ((split[0], 1), (split[2], 20), (split[3], 1)):
        cell = bench.pool[at : at + 3].reshape(1, 1, 3)
        assert row.tolist() == decode(GEOMETRY.groups[0].layer_sets[0], cell).tolist()
    assert not split[1].any()
    bench.same()


def test_values_by_layer_set() -> None:
    """Every layer set has values of its own shape, and rows are joined in their order."""
    first = LayerSet(2, 1, 2, 1, "fp16", side=True)
    group = Group(4, 4, (first, LayerSet(1, 3, 1, 0, "fp32")), tokens_per_state=2)
    cache = Cache(plan(Geometry((group,), 2, Host(999))))
    cache.apply(TAKE_2)
    assert cache.slots(0) == 2
    op = WriteValues(1, 0, (Slot(1, 1), None), 3, "fp32", "special")
    one, other = cache.values(op)
    assert one.shape == (2, 2, 1, 12)
    assert other.shape == (2, 1, 3, 4)
    assert cache.apply(op).content_bytes == 2 * 6 + 3 * 4
    back = ReadValues(2, 0, (None, Slot(1, 1)))
    effect = cache.apply(back)
    assert effect.rows is not None
    halves, words = cache.split_values(back, effect.rows)
    assert halves.shape == (2, 2, 1, 12)
    assert words.shape == (2, 1, 3, 4)
    numbers = words.view("<f4")
    assert np.array_equal(numbers[1], other.view("<f4")[0], equal_nan=True)
    assert not halves[0].any()
    assert not words[0].any()
    none = ReadValues(3, 0, ())
    rows = cache.apply(none).rows
    assert rows is not None
    assert [part.shape for part in cache.split_values(none, rows)] == [(0, 2, 1, 12), (0, 1, 3, 4)]
    assert cache.encoded(WriteValues(3, 0, (), 1)).shape == (0, 24)


TAKE_2 = Allocate(0, 0, (0, 1))


def test_encoded_writes_leave_pad_alone() -> None:
    """A cell of 9 bytes has one byte of pad: raw writes and zero set it, encoded writes do not."""
    group = Group(2, 2, (LayerSet(1, 1, 4, 2, "turboquant_k8v4"),))
    cache = Cache(plan(Geometry((group,), 2, Host(99))))
    cache.apply(TAKE_2)
    raw = WriteTokens(1, 0, (Slot(1, 0),), 7)
    cache.apply(raw)
    assert cache.areas["pool"][20:30].tolist() == cache.payload(raw)[0].tolist()
    op = WriteValues(2, 0, (Slot(1, 0),), 7)
    assert cache.apply(op).content_bytes == 9
    cell = cache.encoded(op)[0].tolist()
    assert cell[9] == 0
    assert cache.areas["pool"][20:29].tolist() == cell[:9]
    assert cache.areas["pool"][29] == cache.payload(raw)[0, 9] != 0
    assert cache.apply(Zero(3, 0, (1,))).content_bytes == 20
    assert not cache.areas["pool"][20:40].any()


def test_ranges_count_slots() -> None:
    """Where tokens share a slot, ops name slots; a state has one, whatever the block size."""
    shared = Group(7, 7, (LayerSet(1, 1, 4, 4, "bf16", page_bytes=64),), tokens_per_state=3)
    state = Group(7, 7, (LayerSet(1, 1, 4, 4, "state_fp32", page_bytes=64),), tokens_per_state=3)
    cache = Cache(plan(Geometry((shared, state), 3, Host(999))))
    assert [cache.slots(group) for group in range(2)] == [2, 1]
    for group, slots in ((0, 2), (1, 1)):
        cache.apply(Allocate(group, group, (group,)))
        last, behind = Slot(group, slots - 1), Slot(group, slots)
        for op in (Read(5, group, (last,)), ReadValues(5, group, (last,))):
            assert cache.refusal(op) is None
        for op in (Read(5, group, (behind,)), WriteTokens(5, group, (behind,), 1)):
            assert cache.refusal(op) == "range"
        whole = CopyBlocks(6, group, (Pair(group, group),), slots)
        assert cache.refusal(whole) is None
        assert cache.refusal(CopyBlocks(6, group, (), slots + 1)) == "range"
        assert cache.apply(whole).content_bytes == (32, 32)[group]


def test_formats_that_take_no_values() -> None:
    """A group with a layer set of indices into codebooks takes raw bytes only."""
    sets = (LayerSet(1, 1, 16, 16, "turboquant_4bit_nc"), LayerSet(1, 1, 4, 4, "bf16"))
    groups = (Group(2, 2, sets), Group(2, 2, sets[:1]), Group(2, 2, sets[1:]))
    cache = Cache(plan(Geometry(groups, 3, Host(999), order="BLHNC")))
    for group in range(3):
        cache.apply(Allocate(group, group, (group,)))
    for group, reason in ((0, "format"), (1, "format"), (2, None)):
        slot = Slot(group, 0)
        assert cache.refusal(WriteValues(9, group, (slot,), 1)) == reason
        assert cache.refusal(ReadValues(9, group, (slot, None, slot))) == reason
        assert cache.refusal(WriteValues(9, group, (), 1)) == reason
        assert cache.refusal(ReadValues(9, group, (None,))) == reason
        twice = WriteValues(9, group, (slot, slot), 1)
        assert cache.refusal(twice) == (reason or "duplicate")
        assert cache.refusal(WriteValues(9, group, (Slot((group + 1) % 3, 0),), 1)) == (
            reason or "owner"
        )
        assert cache.refusal(WriteValues(9, group, (Slot(group, 2),), 1)) == "range"
        assert cache.refusal(WriteTokens(9, group, (slot,), 1)) is None
        assert cache.refusal(Read(9, group, (slot,))) is None


def test_copy_chain() -> None:
    """Pairs go one after the other: what the first brings, the second carries on."""
    bench = Bench(TAKE, FILL)
    effect = bench.do(CopyBlocks(3, 0, (Pair(0, 1), Pair(1, 2))))
    content = bench.pool[1:7].copy()
    changed = np.count_nonzero(bench.pool[9:15] != content)
    changed += np.count_nonzero(bench.pool[17:23] != content)
    bench.pool[9:15] = content
    bench.pool[17:23] = content
    bench.same()
    assert effect == Effect(acted=True, content_bytes=12, changed_bytes=int(changed))
    assert bench.written()[:3] == [[True, True]] * 3


def test_copy_against_the_chain() -> None:
    """The other way round the second pair still finds the old content."""
    bench = Bench(TAKE, FILL)
    bench.do(CopyBlocks(3, 0, (Pair(1, 2), Pair(0, 1))))
    bench.pool[17:23] = bench.pool[9:15]
    bench.pool[9:15] = bench.pool[1:7]
    bench.same()
    assert bench.written()[:3] == [[True, True], [True, True], [False, True]]


def test_copy_first_tokens() -> None:
    """With a count only the first slots travel, and only their definedness."""
    bench = Bench(TAKE, FILL)
    effect = bench.do(CopyBlocks(3, 0, (Pair(0, 1),), tokens=1))
    bench.pool[9:12] = bench.pool[1:4]
    bench.same()
    assert (effect.acted, effect.content_bytes) == (True, 3)
    assert bench.written()[1] == [True, True]
    bench.do(CopyBlocks(4, 0, (Pair(2, 1),), tokens=1))
    bench.pool[9:12] = bench.pool[17:20]
    bench.same()
    assert bench.written()[1] == [False, True]


@pytest.mark.parametrize("pairs", [(Pair(0, 0),), (Pair(0, 1), Pair(1, 0))])
def test_copy_onto_itself(pairs: tuple[Pair, ...]) -> None:
    """A block onto itself, and there and back, leave the source as it was."""
    bench = Bench(TAKE, FILL)
    assert bench.do(CopyBlocks(3, 0, pairs)).acted
    assert bench.cache.areas["pool"][1:9].tolist() == bench.pool[1:9].tolist()
    assert bench.written()[0] == [True, True]


def test_offload() -> None:
    """Content goes to its part of its row; the row's end and other parts stay."""
    bench = Bench(TAKE, FILL)
    effect = bench.do(Offload(3, (Job(0, (Move(1, 2, 0), Move(0, 0, 1))),)))
    before = bench.host.copy()
    bench.host[32:38] = bench.pool[9:15]
    bench.host[6:12] = bench.pool[1:7]
    bench.same()
    changed = int(np.count_nonzero(before != bench.host))
    assert effect == Effect(acted=True, content_bytes=12, changed_bytes=changed)
    assert bench.cache.ownership.holders == [0, None, 0]
    assert bench.cache.ownership.parts == [{1}, set(), {0}]


def test_offload_adds_parts() -> None:
    """A slot that holds one part of a group's chunk takes the other, and a part anew."""
    bench = Bench(TAKE, FILL, Offload(3, (Job(0, (Move(1, 1, 0),)),)))
    bench.do(Offload(4, (Job(0, (Move(0, 1, 1), Move(2, 1, 0))),)))
    bench.host[22:28] = bench.pool[1:7]
    bench.host[16:22] = bench.pool[17:23]
    bench.same()
    assert bench.cache.ownership.parts[1] == {0, 1}


def test_transfers_of_two_groups() -> None:
    """Jobs of one op may name several groups, one group twice, and a group with nothing to move."""
    bench = Bench(TAKE, TAKE_1, FILL)
    jobs = (
        Job(0, (Move(0, 0, 0),)),
        Job(1, (Move(3, 1, 1),)),
        Job(1, ()),
        Job(0, (Move(0, 0, 1),)),
    )
    assert bench.do(Offload(4, jobs)).content_bytes == 6 + 4 + 6
    bench.host[0:6] = bench.pool[1:7]
    bench.host[20:24] = bench.pool[25:29]
    bench.host[6:12] = bench.pool[1:7]
    bench.same()
    assert bench.cache.ownership.holders == [0, 1, None]

    back = (Job(1, (Move(3, 1, 1),)), Job(0, (Move(2, 0, 1),)), Job(0, (Move(1, 0, 0),)))
    assert bench.do(Restore(5, back)).content_bytes == 4 + 6 + 6
    bench.pool[17:23] = bench.pool[9:15] = bench.pool[1:7]
    bench.same()
    assert bench.written()[:3] == [[True, True]] * 3
    assert bench.written(1)[3] == [False]


def test_restore_elsewhere() -> None:
    """What was offloaded comes back into another block, with its definedness, after reuse."""
    bench = Bench(TAKE, FILL, Offload(3, (Job(0, (Move(1, 2, 1),)),)))
    content = bench.pool[9:15].copy()
    bench.do(Zero(4, 0, (1,)))
    bench.do(Free(5, 0, (1,)))
    bench.do(Allocate(6, 0, (4,)))
    assert bench.written()[4] == [False, False]
    effect = bench.do(Restore(7, (Job(0, (Move(4, 2, 1),)),)))
    bench.pool[9:15] = 0
    changed = int(np.count_nonzero(bench.pool[33:39] != content))
    bench.pool[33:39] = content
    bench.same()
    assert effect == Effect(acted=True, content_bytes=6, changed_bytes=changed)
    assert bench.written()[4] == [False, True]
    assert bench.cache.ownership.parts[2] == {1}


def test_what_is_offloaded_stays_as_it_was() -> None:
    """Later writes reach neither the row nor the definedness that it keeps."""
    bench = Bench(TAKE, FILL, Offload(3, (Job(0, (Move(1, 0, 0),)),)))
    bench.do(WriteTokens(4, 0, (Slot(1, 0),), tag=6))
    assert bench.written()[1] == [True, True]
    bench.do(Restore(5, (Job(0, (Move(1, 0, 0),)),)))
    bench.same()
    assert bench.written()[1] == [False, True]
    bench.do(WriteTokens(6, 0, (Slot(1, 0),), tag=7))
    bench.do(Restore(7, (Job(0, (Move(2, 0, 0),)),)))
    assert bench.written()[2] == [False, True]


def test_read() -> None:
    """Rows come in the order asked for, twice where asked twice, pads as zeros."""
    bench = Bench(TAKE, FILL)
    effect = bench.do(Read(3, 0, (Slot(1, 1), None, Slot(0, 0), Slot(1, 1), Slot(2, 0))))
    assert (effect.acted, effect.content_bytes, effect.changed_bytes) == (True, 12, 0)
    assert effect.rows is not None
    last, first = row(5, 1, 1), row(5, 0, 0)
    undefined = bench.pool[17:20].tolist()
    assert effect.rows.tolist() == [last, [0, 0, 0], first, last, undefined]
    bench.same()
    effect.rows[:] = 0
    bench.same()


def test_rows_by_layer_set() -> None:
    """A row is cut into layer sets, each [slot, layer, head, cell byte], in a buffer of its own."""
    group = Group(2, 2, (LayerSet(2, 1, 2, 1, "fp8_e4m3"), LayerSet(1, 3, 1, 0, "fp8_e4m3")))
    cache = Cache(plan(Geometry((group,), 2, Host(99))))
    op = WriteTokens(0, 0, (Slot(0, 1), None), 3)
    rows = cache.payload(op)
    assert rows.shape == (2, 9)
    first, second = cache.split_rows(op, rows)
    assert first.shape == (2, 2, 1, 3)
    assert second.shape == (2, 1, 3, 1)
    assert first.reshape(2, 6).tolist() == rows[:, :6].tolist()
    assert second.reshape(2, 3).tolist() == rows[:, 6:].tolist()
    assert first.flags.c_contiguous
    assert second.flags.c_contiguous
    none = WriteTokens(0, 0, (), 3)
    assert [part.shape for part in cache.split_rows(none, cache.payload(none))] == [
        (0, 2, 1, 3),
        (0, 1, 3, 1),
    ]


def test_evict_and_reset_change_no_byte() -> None:
    """Slots and blocks are given back; content stays where it is, held by nobody."""
    transfer = Offload(3, (Job(0, (Move(0, 0, 0), Move(1, 1, 1))),))
    bench = Bench(TAKE, FILL, transfer)
    assert bench.do(Evict(4, (1,))) == Effect(acted=True)
    assert bench.cache.ownership.holders == [0, None, None]
    assert bench.cache.ownership.parts == [{0}, set(), set()]
    assert bench.cache.refusal(Restore(5, (Job(0, (Move(2, 1, 1),)),))) == "host"
    assert bench.do(Reset(6)) == Effect(acted=True)
    assert bench.cache.ownership.owners == [None] * 5
    assert bench.cache.ownership.holders == [None] * 3
    assert bench.cache.ownership.parts == [set(), set(), set()]
    bench.same()


def test_evicted_slots_take_other_groups() -> None:
    """An evicted slot may hold another group's chunk, and only the parts that came since."""
    bench = Bench(TAKE, TAKE_1, Offload(3, (Job(0, (Move(0, 1, 0), Move(1, 1, 1))),)))
    other = Offload(4, (Job(1, (Move(3, 1, 1),)),))
    assert bench.cache.refusal(other) == "host"
    bench.do(Evict(5, (1,)))
    bench.do(other)
    bench.host[20:24] = bench.pool[25:29]
    bench.same()
    assert bench.cache.refusal(Restore(6, (Job(1, (Move(3, 1, 0),)),))) == "host"


@pytest.mark.parametrize("give_back", [Free(9, 0, (0, 1, 2)), Reset(9)])
def test_reuse_forgets_what_was_written(give_back: Op) -> None:
    """A block that is claimed again holds its old bytes, but nothing in it is defined."""
    bench = Bench(TAKE, FILL, give_back)
    bench.do(Allocate(10, 0, (0,)))
    bench.same()
    assert bench.written()[0] == [False, False]


@pytest.mark.parametrize(
    "op",
    [
        Allocate(3, 0, ()),
        Free(3, 0, ()),
        WriteTokens(3, 0, (), 1),
        WriteTokens(3, 0, (None, None), 1),
        WriteValues(3, 0, (), 1),
        WriteValues(3, 0, (None, None), 1),
        Allocate(3, 0, (), zero=True),
        Zero(3, 0, ()),
        CopyBlocks(3, 0, ()),
        CopyBlocks(3, 0, (), tokens=1),
        CopyBlocks(3, 0, (Pair(0, 1),), tokens=0),
        Offload(3, ()),
        Offload(3, (Job(0, ()), Job(1, ()))),
        Restore(3, ()),
        Restore(3, (Job(1, ()),)),
        Evict(3, ()),
    ],
    ids=str,
)
def test_nothing_to_act_on(op: Op) -> None:
    """An op that names nothing is legal, changes nothing and says so."""
    bench = Bench(TAKE, FILL)
    written = bench.written()
    assert bench.do(op) == Effect(acted=False)
    bench.same()
    assert bench.written() == written
    assert page_padding(bench.cache, op).size == 0
    assert host_padding(bench.cache, op).size == 0


@pytest.mark.parametrize("slots", [(), (None,), (None, None)])
def test_reading_nothing(slots: tuple[None, ...]) -> None:
    """A read of pads alone acts on nothing and gives rows of zeros."""
    effect = Bench(TAKE).do(Read(3, 0, slots))
    assert (effect.acted, effect.content_bytes) == (False, 0)
    assert effect.rows is not None
    assert effect.rows.tolist() == [[0, 0, 0]] * len(slots)


def test_reset_of_nothing() -> None:
    """A reset acts where a block is owned or a host slot is held, else on nothing."""
    bench = Bench()
    assert bench.do(Reset(0)) == Effect(acted=False)
    bench.do(TAKE)
    bench.do(Offload(3, (Job(0, (Move(0, 0, 0),)),)))
    bench.do(Free(4, 0, (0, 1, 2)))
    assert bench.do(Reset(5)) == Effect(acted=True)
    assert bench.do(Reset(6)) == Effect(acted=False)


# Refusals. Blocks 0, 1, 2 are group 0's, block 3 is group 1's, block 4 is free. Host slot 0 holds
# part 0 of group 0, slot 1 part 1 of group 1, slot 2 nothing.
BIG = 2**31
REFUSALS: list[tuple[Op, str | None]] = [
    (Allocate(9, 0, (4,)), None),
    (Allocate(9, 0, (4, 0), zero=True), "owner"),
    (Allocate(9, 2, (4,)), "range"),
    (Allocate(9, -1, ()), "range"),
    (Allocate(9, 0, (5,)), "range"),
    (Allocate(9, 0, (-1,)), "range"),
    (Allocate(9, 0, (BIG,)), "range"),
    (Allocate(9, 0, (5, 5, 0)), "range"),
    (Allocate(9, 0, (4, 4)), "duplicate"),
    (Allocate(9, 0, (0, 0)), "duplicate"),
    (Allocate(9, 0, (4, 0)), "owner"),
    (Allocate(9, 0, (3,)), "owner"),
    (Free(9, 0, (2, 0)), None),
    (Free(9, 2, (0,)), "range"),
    (Free(9, 0, (0, 5)), "range"),
    (Free(9, 0, (0, 0, -1)), "range"),
    (Free(9, 0, (0, 0)), "duplicate"),
    (Free(9, 0, (4, 4)), "duplicate"),
    (Free(9, 0, (0, 4)), "owner"),
    (Free(9, 0, (0, 3)), "owner"),
    (Zero(9, 1, (3,)), None),
    (Zero(9, 2, ()), "range"),
    (Zero(9, 1, (BIG,)), "range"),
    (Zero(9, 1, (3, 3)), "duplicate"),
    (Zero(9, 1, (3, 0)), "owner"),
    (Zero(9, 1, (4,)), "owner"),
    (WriteTokens(9, 0, (Slot(0, 0), None, Slot(0, 1), None), 1), None),
    (WriteTokens(9, 2, (), 1), "range"),
    (WriteTokens(9, -1, (Slot(0, 0),), 1), "range"),
    (WriteTokens(9, 0, (Slot(5, 0),), 1), "range"),
    (WriteTokens(9, 0, (Slot(0, 2),), 1), "range"),
    (WriteTokens(9, 0, (Slot(0, -1),), 1), "range"),
    (WriteTokens(9, 1, (Slot(3, 1),), 1), "range"),
    (WriteTokens(9, 0, (Slot(0, 0), Slot(0, 0), Slot(0, 2)), 1), "range"),
    (WriteTokens(9, 0, (Slot(0, 0), None, Slot(0, 0)), 1), "duplicate"),
    (WriteTokens(9, 0, (Slot(4, 0), Slot(4, 0)), 1), "duplicate"),
    (WriteTokens(9, 0, (Slot(0, 0), Slot(3, 0)), 1), "owner"),
    (WriteTokens(9, 0, (Slot(4, 0),), 1), "owner"),
    (WriteValues(9, 0, (Slot(0, 0), None, Slot(0, 1), None), 1), None),
    (WriteValues(9, 2, (), 1), "range"),
    (WriteValues(9, 0, (Slot(0, 2),), 1), "range"),
    (WriteValues(9, 0, (Slot(0, 0), Slot(0, 0)), 1), "duplicate"),
    (WriteValues(9, 0, (Slot(0, 0), Slot(3, 0)), 1), "owner"),
    (ReadValues(9, 0, (Slot(0, 0), None, Slot(0, 0))), None),
    (ReadValues(9, 2, (None,)), "range"),
    (ReadValues(9, 0, (Slot(5, 0),)), "range"),
    (ReadValues(9, 1, (Slot(0, 0),)), "owner"),
    (Read(9, 0, (Slot(0, 0), None, Slot(0, 0))), None),
    (Read(9, 2, (None,)), "range"),
    (Read(9, 0, (Slot(-1, 0),)), "range"),
    (Read(9, 0, (Slot(0, 2), Slot(4, 0))), "range"),
    (Read(9, 0, (Slot(4, 0),)), "owner"),
    (Read(9, 1, (Slot(0, 0),)), "owner"),
    (CopyBlocks(9, 0, (Pair(0, 1), Pair(0, 1), Pair(1, 1)), tokens=2), None),
    (CopyBlocks(9, 2, ()), "range"),
    (CopyBlocks(9, 0, (Pair(0, 5),)), "range"),
    (CopyBlocks(9, 0, (Pair(-1, 0),)), "range"),
    (CopyBlocks(9, 0, (Pair(0, 1),), tokens=3), "range"),
    (CopyBlocks(9, 0, (Pair(0, 1),), tokens=-1), "range"),
    (CopyBlocks(9, 0, (), tokens=3), "range"),
    (CopyBlocks(9, 1, (Pair(3, 3),), tokens=2), "range"),
    (CopyBlocks(9, 0, (Pair(0, 4),), tokens=3), "range"),
    (CopyBlocks(9, 0, (Pair(0, 4),)), "owner"),
    (CopyBlocks(9, 0, (Pair(3, 0),)), "owner"),
    (CopyBlocks(9, 0, (Pair(4, 4),), tokens=0), "owner"),
    (Offload(9, (Job(0, (Move(0, 0, 0), Move(0, 0, 1), Move(0, 2, 0))),)), None),
    (Offload(9, (Job(0, (Move(0, 0, 1),)), Job(1, (Move(3, 1, 1),)))), None),
    (Offload(9, (Job(2, ()),)), "range"),
    (Offload(9, (Job(0, ()), Job(-1, (Move(0, 2, 0),)))), "range"),
    (Offload(9, (Job(0, (Move(5, 2, 0),)),)), "range"),
    (Offload(9, (Job(0, (Move(0, 3, 0),)),)), "range"),
    (Offload(9, (Job(0, (Move(0, -1, 0),)),)), "range"),
    (Offload(9, (Job(0, (Move(0, 2, 2),)),)), "range"),
    (Offload(9, (Job(0, (Move(0, 2, -1),)),)), "range"),
    (Offload(9, (Job(0, (Move(0, 2, 0), Move(4, 2, 0), Move(0, 1, 9))),)), "range"),
    (Offload(9, (Job(0, (Move(0, 2, 0), Move(1, 2, 0))),)), "duplicate"),
    (Offload(9, (Job(0, (Move(0, 2, 0),)), Job(1, (Move(3, 2, 0),)))), "duplicate"),
    (Offload(9, (Job(0, (Move(4, 1, 0), Move(4, 1, 0))),)), "duplicate"),
    (Offload(9, (Job(0, (Move(4, 2, 0),)),)), "owner"),
    (Offload(9, (Job(1, (Move(0, 1, 0),)),)), "owner"),
    (Offload(9, (Job(0, (Move(0, 1, 0), Move(3, 2, 0))),)), "owner"),
    (Offload(9, (Job(0, (Move(0, 1, 0),)),)), "host"),
    (Offload(9, (Job(1, (Move(3, 0, 1),)),)), "host"),
    (Offload(9, (Job(0, (Move(0, 2, 0),)), Job(1, (Move(3, 2, 1),)))), "host"),
    (Offload(9, (Job(1, (Move(3, 2, 1),)), Job(0, (Move(0, 2, 0),)))), "host"),
    (Restore(9, (Job(0, (Move(1, 0, 0), Move(2, 0, 0))), Job(1, (Move(3, 1, 1),)))), None),
    (Restore(9, (Job(2, ()),)), "range"),
    (Restore(9, (Job(0, (Move(BIG, 0, 0),)),)), "range"),
    (Restore(9, (Job(0, (Move(1, 3, 0),)),)), "range"),
    (Restore(9, (Job(0, (Move(1, 0, 2),)),)), "range"),
    (Restore(9, (Job(0, (Move(1, 0, 0), Move(1, 0, 0), Move(0, 9, 0))),)), "range"),
    (Restore(9, (Job(0, (Move(1, 0, 0),)), Job(0, (Move(1, 0, 0),)))), "duplicate"),
    (Restore(9, (Job(0, (Move(4, 2, 0), Move(4, 2, 1))),)), "duplicate"),
    (Restore(9, (Job(0, (Move(4, 0, 0),)),)), "owner"),
    (Restore(9, (Job(0, (Move(3, 2, 0),)),)), "owner"),
    (Restore(9, (Job(0, (Move(1, 0, 1),)),)), "host"),
    (Restore(9, (Job(0, (Move(1, 1, 1),)),)), "host"),
    (Restore(9, (Job(0, (Move(1, 2, 0),)),)), "host"),
    (Restore(9, (Job(0, (Move(1, 0, 0), Move(2, 0, 1))),)), "host"),
    (Evict(9, (1, 0)), None),
    (Evict(9, (3,)), "range"),
    (Evict(9, (-1,)), "range"),
    (Evict(9, (0, 0, BIG)), "range"),
    (Evict(9, (0, 0)), "duplicate"),
    (Evict(9, (2, 2)), "duplicate"),
    (Evict(9, (0, 2)), "host"),
    (Reset(9), None),
]


@pytest.mark.parametrize(("op", "reason"), REFUSALS, ids=str)
def test_refusals(op: Op, reason: str | None) -> None:
    """Each op is refused for the first reason that any of its elements meets, and nothing moves."""
    transfer = Offload(7, (Job(0, (Move(0, 0, 0),)), Job(1, (Move(3, 1, 1),))))
    bench = Bench(TAKE, TAKE_1, FILL, transfer)
    assert bench.cache.refusal(op) == reason
    assert bench.cache.ownership.owners == [0, 0, 0, 1, None]
    assert bench.cache.ownership.holders == [0, 1, None]
    assert bench.cache.ownership.parts == [{0}, {1}, set()]
    bench.same()
    if reason is None:
        assert bench.cache.apply(op).acted


def test_refusals_meet_every_reason_of_every_op() -> None:
    """The table above has each op legal and refused for each reason that it can have."""
    seen = {(type(op), reason) for op, reason in REFUSALS}
    reasons: dict[type[Op], str] = {
        Allocate: "range duplicate owner",
        Free: "range duplicate owner",
        Zero: "range duplicate owner",
        WriteTokens: "range duplicate owner",
        WriteValues: "range duplicate owner",
        Read: "range owner",
        ReadValues: "range owner",
        CopyBlocks: "range owner",
        Offload: "range duplicate owner host",
        Restore: "range duplicate owner host",
        Evict: "range duplicate host",
        Reset: "",
    }
    wanted = {(kind, reason) for kind, text in reasons.items() for reason in (*text.split(), None)}
    assert seen == wanted


def test_handles_are_no_blocks() -> None:
    """An op must be bound to block ids before it is judged."""
    bench = Bench(TAKE)
    assert bench.cache.refusal(Free(3, 0, (Handle(0, 0),))) == "range"


def test_page_padding() -> None:
    """Padding of the pages that an op writes: two bytes a block of group 0, four of group 1."""
    rows = Rows(plan(GEOMETRY))
    first, third = [7, 8], [23, 24]
    slots = (Slot(2, 0), None, Slot(0, 1))
    moves = (Move(2, 0, 0), Move(0, 1, 0))
    last = [29, 30, 31, 32]
    for op, expected in (
        (Zero(0, 0, (0, 2)), first + third),
        (WriteTokens(0, 0, slots, 1), first + third),
        (WriteValues(0, 0, slots, 1), first + third),
        (Allocate(0, 0, (0, 2), zero=True), first + third),
        (CopyBlocks(0, 0, (Pair(1, 0), Pair(1, 2))), first + third),
        (CopyBlocks(0, 0, (Pair(1, 0),), tokens=1), first),
        (Restore(0, (Job(0, moves), Job(1, (Move(3, 2, 0),)))), first + third + last),
        (Offload(0, (Job(0, moves),)), []),
        (Read(0, 0, slots), []),
        (ReadValues(0, 0, slots), []),
        (Allocate(0, 0, (0,)), []),
        (Free(0, 0, (0,)), []),
        (Evict(0, (0,)), []),
        (Reset(0), []),
    ):
        assert sorted(page_padding(rows, op).tolist()) == expected, op


def test_host_padding() -> None:
    """The end of each row that an offload writes: 4 of 16 bytes of group 0, 8 of group 1."""
    rows = Rows(plan(GEOMETRY))
    jobs = (Job(0, (Move(0, 2, 1),)), Job(1, (Move(3, 0, 0),)))
    assert sorted(host_padding(rows, Offload(0, jobs)).tolist()) == [
        *range(8, 16),
        *range(44, 48),
    ]
    for op in (Restore(0, jobs), Zero(0, 0, (0,)), Reset(0)):
        assert host_padding(rows, op).size == 0


def test_page_padding_of_layers() -> None:
    """Every layer of a touched block has its own padding, in each layer set."""
    shape = LayerSet(2, 1, 3, 0, "fp8_e4m3", page_bytes=5)
    tight = LayerSet(1, 1, 4, 0, "fp8_e4m3")
    group = Group(1, 1, (shape, tight, shape))
    for order, expected in (
        ("LBHNC", [8, 9, 18, 19, 20 + 8 + 8, 20 + 8 + 9, 20 + 8 + 18, 20 + 8 + 19]),
        ("BLHNC", [24 + 3, 24 + 4, 24 + 8, 24 + 9, 24 + 17, 24 + 18, 24 + 22, 24 + 23]),
    ):
        rows = Rows(plan(Geometry((group,), 2, Host(99), order=order)))
        assert sorted(page_padding(rows, Zero(0, 0, (1,))).tolist()) == expected, order
