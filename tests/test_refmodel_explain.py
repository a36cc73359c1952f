"""Explanations: what a wrong byte is, whose it is, who wrote it, and where it belongs."""

import numpy as np
import pytest

from kvexact.refmodel.cache import Cache
from kvexact.refmodel.explain import Explanation, explain
from kvexact.refmodel.locate import in_words, locate
from kvexact.refmodel.ops import (
    Allocate,
    Job,
    Move,
    Offload,
    Op,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet
from kvexact.refmodel.timed_ops import Fence

INT8 = LayerSet(3, 2, 32, 32, "int8_per_token_head", page_bytes=640)
GEOMETRY = Geometry(
    (Group(4, 4, (INT8,)),), 5, Host(9000), base_offset_bytes=64, tail_alignment=4096
)
ALLOCATE = Allocate(0, 0, (3, 1))
WRITE = WriteTokens(1, 0, tuple(Slot(3, token) for token in range(4)), tag=5)
AGAIN = WriteTokens(2, 0, WRITE.slots, tag=6)
OFFLOAD = Offload(3, (Job(0, (Move(3, 1, 0),)),))


def states(*ops: Op, geometry: Geometry = GEOMETRY) -> list[dict[str, np.ndarray]]:
    """All areas at birth and after each op."""
    model = Cache(plan(geometry))
    seen = [{area: data.copy() for area, data in model.areas.items()}]
    for op in ops:
        model.apply(op)
        seen.append({area: data.copy() for area, data in model.areas.items()})
    return seen


def explained(got: np.ndarray, *ops: Op, area: str = "pool") -> Explanation:
    """The explanation where an area is ``got`` after these ops."""
    return explain(plan(GEOMETRY), ops, area, states(*ops)[-1][area], got)


def first_cell(layer: int = 0, block: int = 3) -> int:
    """Where the first cell of a page starts: base offset, layers of 5 pages, pages of 640 bytes."""
    return 64 + layer * 5 * 640 + block * 640


def test_bytes_that_did_not_arrive_are_lost():
    """A write that stores nothing leaves what was there before."""
    found = explained(states(ALLOCATE)[-1]["pool"], ALLOCATE, WRITE)

    assert found.kind == "lost"
    assert found.first == first_cell()
    assert found.owner is not None
    assert found.owner[:6] == (0, 0, 0, 3, 0, 0)
    assert (found.owner.field, found.owner.element) == ("k", 0)
    assert found.last_writer == WRITE.id
    assert found.want is not None
    assert found.want.op == WRITE.id
    assert found.got is not None
    assert found.got.op is None
    assert found.changed_bytes > 0
    assert found.defined


def test_an_older_write_of_the_same_place_is_stale():
    """The second write is lost in one place only where the first write's bytes stand again."""
    got = states(ALLOCATE, WRITE, AGAIN)[-1]["pool"]
    old = states(ALLOCATE, WRITE)[-1]["pool"]
    got[first_cell() : first_cell() + 32] = old[first_cell() : first_cell() + 32]
    third = Zero(4, 0, (3,))
    want = states(ALLOCATE, WRITE, AGAIN, third, WriteTokens(5, 0, WRITE.slots, tag=7))

    found = explain(
        plan(GEOMETRY),
        (ALLOCATE, WRITE, AGAIN, third, WriteTokens(5, 0, WRITE.slots, tag=7)),
        "pool",
        want[-1]["pool"],
        old,
    )

    assert found.kind == "stale"


def test_right_bytes_in_the_wrong_place_are_shifted():
    """A page whose values lie where keys belong is recognised, with the distance."""
    want = states(ALLOCATE, WRITE)[-1]["pool"]
    got = want.copy()
    page = slice(first_cell(), first_cell() + 576)
    got[page] = np.roll(want[page], -36)

    found = explained(got, ALLOCATE, WRITE)

    assert found.kind == "shifted"
    assert found.want is not None
    assert found.got is not None
    assert found.got.position - found.want.position == 36


def test_bytes_of_another_write_are_foreign():
    """A page that holds what another write stored elsewhere."""
    other = WriteTokens(2, 0, tuple(Slot(1, token) for token in range(4)), tag=6)
    want = states(ALLOCATE, other, WRITE)[-1]["pool"]
    got = want.copy()
    there = first_cell(block=1)
    got[first_cell() : first_cell() + 576] = want[there : there + 576]

    assert explained(got, ALLOCATE, other, WRITE).kind == "foreign"


@pytest.mark.parametrize(("byte", "kind"), [(0, "zeroed"), (0xA5, "wrong")])
def test_constant_bytes(byte, kind):
    """Zeros are named; other bytes from nowhere are just wrong."""
    got = states(ALLOCATE, WRITE)[-1]["pool"]
    got[first_cell() : first_cell() + 576] = byte

    assert explained(got, ALLOCATE, WRITE).kind == kind


def test_known_bytes_where_unknown_ones_belong_are_foreign():
    """A field of four bytes is too short to be recognised, but eight found bytes can be."""
    zero = Zero(2, 0, (3,))
    want = states(ALLOCATE, WRITE, zero)[-1]["pool"]
    got = want.copy()
    written = states(ALLOCATE, WRITE)[-1]["pool"]
    there = first_cell(layer=1)
    got[first_cell() : first_cell() + 32] = written[there : there + 32]

    assert explained(got, ALLOCATE, WRITE, zero).kind == "foreign"


@pytest.mark.parametrize(
    ("position", "place", "field"),
    [
        (0, "base", None),
        (first_cell() + 576, "padding", "padding"),
        (first_cell(layer=1, block=1) + 36, "content", "v"),
        (first_cell(block=0), "unowned", None),
        (first_cell(layer=2, block=4) + 640, "tail", None),
    ],
)
def test_bytes_that_no_op_may_touch(position, place, field):
    """A byte outside the op's extents is a frame fault, whosever it is."""
    got = states(ALLOCATE, WRITE)[-1]["pool"]
    got[position] ^= 0xFF

    found = explained(got, ALLOCATE, WRITE)

    assert (found.kind, found.place, found.wrong_bytes) == ("frame", place, 1)
    assert (found.owner.field if found.owner else None) == field
    assert found.last_writer is None


def test_a_byte_that_differs_at_birth():
    """Before any op, nobody wrote anything."""
    birth = states()[0]["pool"]
    got = birth.copy()
    got[3] ^= 1

    found = explain(plan(GEOMETRY), (), "pool", birth, got)

    assert (found.kind, found.last_writer, found.changed_bytes) == ("frame", None, 0)


def test_wrong_bytes_of_the_host_tier_name_the_page():
    """In a host row the page's layer, the part and the byte of its image are known."""
    want = states(ALLOCATE, WRITE, OFFLOAD)[-1]["host"]
    row = plan(GEOMETRY).row_bytes
    got = want.copy()
    got[row + 576 + 8] ^= 0xFF

    found = explained(got, ALLOCATE, WRITE, OFFLOAD, area="host")

    assert found.owner is not None
    assert (found.owner.layer, found.owner.field, found.owner.element) == (1, "page", 8)
    assert in_words(found.owner) == "layer 1  part 0  page byte 8"


@pytest.mark.parametrize("slot", [0, 1])
def test_wrong_bytes_of_the_host_tier_outside_all_pages(slot):
    """A row that holds nothing, and the unused end of one that does, are nobody's."""
    geometry = Geometry(GEOMETRY.groups, 5, Host(9000, row_alignment=512))
    ops = (ALLOCATE, WRITE, OFFLOAD)
    want = states(*ops, geometry=geometry)[-1]["host"]
    got = want.copy()
    got[slot * 2048 + 2000] ^= 0xFF

    found = explain(plan(geometry), ops, "host", want, got)

    assert (found.kind, found.place, found.owner) == ("frame", "host", None)


def test_words_for_owners():
    """A content byte names all its coordinates, padding only its page."""
    got = states(ALLOCATE, WRITE)[-1]["pool"]
    got[first_cell(layer=2) + 72 * 5 + 37] ^= 1
    got_padding = states(ALLOCATE, WRITE)[-1]["pool"]
    got_padding[first_cell(layer=2) + 600] ^= 1

    content = explained(got, ALLOCATE, WRITE).owner
    padding = explained(got_padding, ALLOCATE, WRITE).owner

    assert content is not None
    assert padding is not None
    assert in_words(content) == "layer 2  block 3  head 1  token 1  field v  element 1"
    assert in_words(padding) == "layer 2  block 3  padding"


def test_pads_and_repeated_content_in_the_search():
    """Pad rows hold nothing to be found, and bytes found twice prove nothing."""
    padded = WriteTokens(1, 0, (None, *WRITE.slots), tag=5)
    twice = WriteTokens(2, 0, padded.slots, tag=5)
    got = states(ALLOCATE, padded, twice)[-1]["pool"]
    got[first_cell() : first_cell() + 32] = 0

    found = explained(got, ALLOCATE, padded, twice)

    assert found.kind == "zeroed"
    assert found.want is not None
    assert found.want.op == twice.id


def test_a_pad_row_that_was_written_is_recognised():
    """Pads belong nowhere; where their bytes turn up, the explanation says so."""
    padded = WriteTokens(1, 0, (None, *WRITE.slots), tag=5)
    want = states(ALLOCATE, padded)[-1]["pool"]
    got = want.copy()
    pad = Cache(plan(GEOMETRY)).payload(padded)[0]
    got[first_cell(block=4) : first_cell(block=4) + 32] = pad[:32]

    found = explained(got, ALLOCATE, padded)

    assert found.kind == "frame"
    assert found.got is not None
    assert (found.got.op, found.got.area, found.got.owner) == (1, "pad", None)


def test_few_bytes_prove_nothing_about_where_they_came_from():
    """A scale has four bytes: too few to claim an origin, even if they are another scale's."""
    want = states(ALLOCATE, WRITE)[-1]["pool"]
    got = want.copy()
    got[first_cell() + 32 : first_cell() + 36] = want[first_cell() + 68 : first_cell() + 72]

    found = explained(got, ALLOCATE, WRITE)

    assert (found.kind, found.want, found.got) == ("wrong", None, None)
    assert found.run_bytes == 4
    assert found.owner is not None
    assert found.owner.field == "k_scale"


def test_bytes_of_another_layer_set_are_recognised():
    """Every layer set of a group is searched."""
    second = LayerSet(1, 1, 32, 32, "fp8_e4m3")
    geometry = Geometry((Group(4, 4, (LayerSet(1, 1, 32, 32, "fp8_e4m3"), second)),), 5, Host(9000))
    ops = (ALLOCATE, WRITE)
    want = states(*ops, geometry=geometry)[-1]["pool"]
    got = want.copy()
    page, there = 3 * 256, 5 * 256 + 3 * 256
    got[page : page + 256] = want[there : there + 256]

    found = explain(plan(geometry), ops, "pool", want, got)

    assert found.kind == "shifted"
    assert found.got is not None
    assert found.got.owner is not None
    assert found.got.owner.layer_set == 1


def test_a_slot_that_was_never_written_is_undefined():
    """Its bytes are known all the same, so a stray write is a fault there, too."""
    got = states(ALLOCATE, WRITE)[-1]["pool"]
    got[first_cell(block=1)] ^= 1

    found = explained(got, ALLOCATE, WRITE)

    assert (found.kind, found.place, found.defined) == ("frame", "content", False)


def of(shape: LayerSet, *others: LayerSet, block_size: int = 8) -> Geometry:
    """Five blocks of one group with these layer sets."""
    return Geometry((Group(block_size, block_size, (shape, *others)),), 5, Host(2**20))


def test_written_values_are_recognised():
    """Encoded values have origins as raw bytes have: a page of block 1 where block 3's belongs."""
    geometry = of(LayerSet(1, 2, 32, 32, "int8_per_token_head"))
    slots = [tuple(Slot(block, token) for token in range(8)) for block in (3, 1)]
    ops = (ALLOCATE, WriteValues(1, 0, slots[1], 5), WriteValues(2, 0, slots[0], 5, "bf16"))
    want = states(*ops, geometry=geometry)[-1]["pool"]
    got = want.copy()
    page = 2 * 8 * 72
    got[3 * page : 4 * page] = want[page : 2 * page]

    found = explain(plan(geometry), ops, "pool", want, got)

    assert found.kind == "foreign"
    assert found.want is not None
    assert found.got is not None
    assert (found.want.op, found.got.op) == (2, 1)
    assert found.got.owner is not None
    assert (found.got.owner.block, found.got.owner.field) == (1, "k")


def test_older_values_of_the_same_place_are_stale():
    """Two writes of the same tag are two sources where their types differ."""
    geometry = of(LayerSet(1, 1, 32, 32, "int8_per_token_head"))
    slots = tuple(Slot(3, token) for token in range(8))
    ops = (ALLOCATE, WriteValues(1, 0, slots, 5), WriteValues(2, 0, slots, 5, "bf16", "special"))
    before, want = (state["pool"] for state in states(*ops, geometry=geometry)[-2:])
    zeroed = (*ops[:2], Zero(3, 0, (3,)), ops[2])
    where = slice(3 * 8 * 72, 3 * 8 * 72 + 32)
    got = want.copy()
    got[where] = before[where]

    assert explain(plan(geometry), zeroed, "pool", want, got).kind == "stale"


def test_bytes_of_many_places_have_no_origin():
    """Zeros that values encode to are found all over, and prove nothing."""
    geometry = of(LayerSet(1, 1, 32, 32, "fp8_e4m3"), block_size=40)
    slots = tuple(Slot(block, token) for block in (1, 3) for token in range(40))
    ops = (ALLOCATE, WriteValues(1, 0, slots, 5, "fp16", "special"))
    want = states(*ops, geometry=geometry)[-1]["pool"]
    first = want.tobytes().find(bytes(8))
    got = want.copy()
    got[first : first + 8] = 0xA5

    found = explain(plan(geometry), ops, "pool", want, got)

    assert (found.kind, found.want, found.run_bytes) == ("wrong", None, 8)


def test_bytes_that_meet_at_a_gap_are_no_find():
    """What lies side by side in a list of writes, but not in memory, is no origin."""
    geometry = of(LayerSet(1, 1, 4, 4, "fp8_e4m3"), block_size=2)
    ops = (ALLOCATE, WriteTokens(1, 0, (Slot(1, 0), Slot(3, 0)), tag=5))
    want = states(*ops, geometry=geometry)[-1]["pool"]
    got = want.copy()
    got[3 * 16 : 3 * 16 + 8] = [*want[16 + 4 : 16 + 8], *want[3 * 16 : 3 * 16 + 4]]

    found = explain(plan(geometry), ops, "pool", want, got)

    assert (found.kind, found.got) == ("wrong", None)


@pytest.mark.parametrize(
    ("fmt", "field", "element"),
    [
        ("bf16_rocm", "k", 3),
        ("bf16_rocm", "v", 0),
        ("bf16_cpu_vec", "k", 3),
        ("nvfp4", "v_scale", 1),
    ],
)
def test_owners_in_formats_of_regions_and_scattered_fields(fmt, field, element):
    """Whatever the page looks like, each byte has its slot, head, field and element."""
    geometry = of(LayerSet(1, 2, 32, 32, fmt))
    model = Cache(plan(geometry))
    model.apply(ALLOCATE)
    start, unit = 0, 1
    for item in model.plan.placements[0][0].places:
        if item.field.name == field:
            unit = item.field.unit_bytes
            break
        start += item.field.width_bytes
    cell = sum(item.field.width_bytes for item in model.plan.placements[0][0].places)
    addresses = model.layout(0).of_cells(3)[5]
    position = int(addresses[cell + start + element * unit])  # of head 1

    place, owner = locate(model, "pool", position)

    assert place == "content"
    assert owner == (0, 0, 0, 3, 1, 5, field, element)


def test_bytes_of_several_slots_side_by_side_are_recognised():
    """In a scattered field neighbouring bytes belong to neighbouring slots; moved, they show."""
    geometry = of(LayerSet(1, 1, 32, 32, "bf16_cpu_vec"))
    ops = (ALLOCATE, WriteTokens(1, 0, tuple(Slot(3, token) for token in range(8)), tag=5))
    want = states(*ops, geometry=geometry)[-1]["pool"]
    got = want.copy()
    page = slice(3 * 8 * 128, 4 * 8 * 128)
    got[page] = np.roll(want[page], -16)

    found = explain(plan(geometry), ops, "pool", want, got)

    assert found.kind == "shifted"
    assert found.want is not None
    assert found.got is not None
    assert found.got.position - found.want.position == 16
    assert found.got.owner == (0, 0, 0, 3, 0, 0, "k", 1)


def test_pad_of_a_cell_belongs_to_its_slot():
    """A byte of pad is content of its own name; encoded writes must leave it alone."""
    geometry = of(LayerSet(1, 1, 4, 2, "turboquant_k8v4"))
    ops = (ALLOCATE, WriteValues(1, 0, (Slot(3, 2),), 5))
    want = states(*ops, geometry=geometry)[-1]["pool"]
    got = want.copy()
    got[3 * 80 + 2 * 10 + 9] = 0

    found = explain(plan(geometry), ops, "pool", want, got)

    assert (found.kind, found.place, found.last_writer) == ("frame", "content", None)
    assert found.owner is not None
    assert in_words(found.owner) == "layer 0  block 3  head 0  token 2  field pad  element 0"


def test_side_buffers_have_owners():
    """Behind the blocks every byte belongs to a block again; its padding, too."""
    side = LayerSet(1, 1, 128, 0, "indexer_fp8", page_bytes=1060, side=True)
    geometry = of(LayerSet(2, 1, 4, 4, "bf16"), side)
    model = Cache(plan(geometry))
    model.apply(ALLOCATE)
    behind = 5 * 2 * 8 * 16
    scale = behind + 3 * 1060 + 8 * 128 + 4 * 6

    assert locate(model, "pool", scale) == ("content", (0, 1, 0, 3, 0, 6, "scale", 0))
    assert locate(model, "pool", behind + 1060 + 1057) == (
        "padding",
        (0, 1, 0, 1, 0, 0, "padding", 0),
    )
    assert locate(model, "pool", behind) == ("unowned", None)


def test_bytes_of_a_later_write_are_newer():
    """An offload that read its source after the next write to it had run."""
    ops = (ALLOCATE, WRITE, OFFLOAD, WriteTokens(4, 0, WRITE.slots, tag=6), Fence(5))
    want = states(ALLOCATE, WRITE, OFFLOAD)[-1]["host"]
    got = states(ALLOCATE, AGAIN, OFFLOAD)[-1]["host"]

    found = explain(plan(GEOMETRY), ops, "host", want, got, in_time=True)

    assert (found.kind, found.last_writer) == ("newer", 3)
    assert found.got is not None
    assert found.got.op == 4


def test_an_op_before_the_last_one_may_be_at_fault_where_work_is_pending():
    """The second write is lost, which shows after another op; but never behind a fence."""
    aside = Zero(6, 0, (1,))
    lost = states(ALLOCATE, WRITE, aside)[-1]["pool"]
    want = states(ALLOCATE, WRITE, AGAIN, aside)[-1]["pool"]

    def kind(*ops: Op, in_time: bool = True) -> str:
        return explain(plan(GEOMETRY), ops, "pool", want, lost, in_time=in_time).kind

    assert kind(ALLOCATE, WRITE, AGAIN, aside) == "lost"
    assert kind(ALLOCATE, WRITE, AGAIN, Fence(5), aside) == "frame"
    assert kind(ALLOCATE, WRITE, AGAIN, aside, in_time=False) == "frame"


def test_a_byte_at_birth_has_no_writer_to_be_at_fault():
    """It was settled before any op came."""
    birth = states()[0]["pool"]
    got = birth.copy()
    got[0] ^= 1
    assert explain(plan(GEOMETRY), (ALLOCATE,), "pool", birth, got, in_time=True).kind == "frame"
