"""Answers to ops on requests: what is admissible, what breaks which rule, and what bytes become."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvexact.refmodel.answer import HOLE, Answer
from kvexact.refmodel.answers import Inadmissible
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.content import prefix_rows, prefixes
from kvexact.refmodel.free import page_padding
from kvexact.refmodel.ops import Allocate, Dangling, Evict, Free, Job, Move, Offload, Restore, Slot
from kvexact.refmodel.plan import plan
from kvexact.refmodel.positions import WritePositions
from kvexact.refmodel.rows import Rows
from kvexact.refmodel.serving import Answered, Serving
from kvexact.refmodel.serving_bind import bind_request
from kvexact.refmodel.serving_ops import (
    Admit,
    Attend,
    Compute,
    Finish,
    Lookup,
    Mutate,
    Preempt,
    Readmit,
    Store,
)
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

SHAPE = LayerSet(1, 1, 4, 4, "fp8_e4m3")
#: Entries of two tokens and of one; the second group sees three tokens.
GROUPS = (Group(2, 2, (SHAPE,)), Group(1, 1, (SHAPE,), window_tokens=3))
#: Eight blocks, and two host slots of two parts.
GEOMETRY = Geometry(GROUPS, 8, Host(64, chunk_blocks=2), order="BLHNC")
TOKENS = (5, 6, 7, 8)


def fresh() -> Serving:
    return Serving(GEOMETRY, 2)


def admitted() -> Serving:
    """Request a0 knows four tokens and has computed none."""
    state = fresh()
    assert state.follow(Admit(0, TOKENS), Answer((8, 2), tables=((), ()))) == []
    return state


def computed() -> Serving:
    """All four are computed: blocks 0 and 1, and of the second group blocks 2 to 5."""
    state = admitted()
    state.follow(Compute(1, 0, 4), Answer((2, 2), taken=((0, 1), (2, 3, 4, 5)), dropped=((), ())))
    return state


def stored() -> Serving:
    """Block 0 lies in the first host slot's second part, block 2 in the other's first."""
    state = computed()
    jobs = (Job(0, (Move(0, 0, 1),)), Job(1, (Move(2, 1, 0),)))
    assert state.follow(Store(2, 0), Answer((2, 0), stores=jobs)) == [Offload(2, jobs)]
    return state


def finished(state: Serving) -> Serving:
    free = (8, 2 - len(state.parts))
    assert state.follow(Finish(3, 0), Answer(free)) == []
    return state


def broken(state: Serving, op: Answered, answer: object) -> Inadmissible:
    """The rule that an answer breaks."""
    with pytest.raises(Inadmissible) as caught:
        state.follow(op, answer)
    assert str(caught.value) == f"{caught.value.rule}: {caught.value.text}"
    return caught.value


def test_a_prompt_is_computed_block_by_block() -> None:
    """Taken blocks are claimed, then written; full ones get keys."""
    state = admitted()
    answer = Answer((3, 2), taken=((0, 1), (2, 3, 4)), dropped=((), ()))
    done = state.follow(Compute(1, 0, 3), answer)
    hashes = tuple(prefixes(TOKENS[:3]).tolist())
    assert done == [
        *(Allocate(1, 0, (block,)) for block in (0, 1)),
        *(Allocate(1, 1, (block,)) for block in (2, 3, 4)),
        WritePositions(1, 0, (Slot(0, 0), Slot(0, 1), Slot(1, 0)), hashes, 3),
        WritePositions(1, 1, (Slot(2, 0), Slot(3, 0), Slot(4, 0)), hashes, 3),
    ]
    assert sorted(state.keys) == [0, 2, 3, 4]
    assert state.keys[3] == (1, 1, (5, 6))
    assert state.hashes(Compute(2, 0, 1)) == tuple(prefixes(TOKENS).tolist()[3:])


def test_rejected_drafts_are_undefined_until_overwritten() -> None:
    """Their blocks stay in the table, without a key."""
    state = computed()
    op = Compute(2, 0, 0, drafts=(1, 2), accepted=1, sampled=9)
    done = state.follow(op, Answer((1, 2), taken=((6,), (7, 2)), dropped=((), (0, 1))))
    assert done[:4] == [
        Allocate(2, 0, (6,)),
        Allocate(2, 1, (7,)),
        Free(2, 1, (2,)),
        Allocate(2, 1, (2,)),
    ]
    request = state.requests[0]
    assert (request.known, request.computed) == ((5, 6, 7, 8, 1, 9), 5)
    assert request.tables == [[0, 1, 6], [HOLE, HOLE, 4, 5, 7, 2]]
    assert state.rejected == {(6, 1), (2, 0)}
    assert 6 not in state.keys
    assert state.keys[7] == (1, 4, (5, 6, 7, 8, 1))
    state.follow(Compute(3, 0, 1), Answer((1, 2), taken=((), ()), dropped=((), ())))
    assert state.rejected == set()
    assert state.keys[6] == (0, 2, (5, 6, 7, 8, 1, 9))


def test_a_block_without_references_keeps_its_key_until_it_is_taken() -> None:
    """A cached prefix is offered again; the other blocks are nobody's."""
    state = computed()
    state.follow(Compute(2, 0, 0, sampled=9), Answer((2, 2), taken=((), ()), dropped=((), ())))
    state.follow(Compute(3, 0, 1), Answer((1, 2), taken=((6,), (2,)), dropped=((), (0,))))
    assert state.follow(Preempt(4, 0), Answer((8, 2))) == [Free(4, 0, (6,))]
    answer = Answer((4, 2), hit=4, tables=((0, 1), (HOLE, HOLE, 4, 5)))
    assert state.follow(Readmit(5, 0), answer) == []
    assert state.seen(Attend(6, 0)) == [
        (Slot(0, 0), Slot(0, 1), Slot(1, 0), Slot(1, 1)),
        (Slot(4, 0), Slot(5, 0)),
    ]
    assert state.committed(state.requests[0]) == {state.keys[block] for block in (0, 1, 4, 5)}


def test_a_hit_is_loaded_from_the_host_tier() -> None:
    """What the block held is gone; it gets the part's key."""
    state = finished(stored())
    del state.keys[2]
    del state.keys[3]
    loads = (Job(0, (Move(1, 0, 1),)), Job(1, (Move(6, 1, 0),)))
    answer = Answer((5, 0), hit=2, tables=((1,), (6, 2)), loads=loads)
    problem = broken(state, Admit(7, TOKENS), answer)
    assert (problem.rule, problem.cause) == ("offered", "unwritten")
    assert "group 1 entry 1 of request a7 was offered" in problem.text

    state = finished(stored())
    answer = Answer((5, 0), hit=2, tables=((1,), (6, 3)), loads=loads)
    assert state.follow(Admit(7, TOKENS), answer) == [
        Free(7, 0, (1,)),
        Allocate(7, 0, (1,)),
        Allocate(7, 1, (6,)),
        Restore(7, loads),
    ]
    assert state.keys[1] == state.keys[0] == (0, 0, (5, 6))


def test_a_store_may_evict() -> None:
    """A slot that is evicted may be filled again in the same store."""
    state = stored()
    jobs = (Job(1, (Move(3, 0, 0), Move(2, 0, 1))),)
    problem = broken(state, Store(4, 0), Answer((2, 1), stores=jobs, evicted=(0, 1)))
    assert problem.rule == "batch"
    assert "group 0 entry 0 of request a0" in problem.text
    state = stored()
    jobs = (Job(0, (Move(1, 0, 0),)), Job(1, (Move(2, 1, 1),)))
    assert state.follow(Store(4, 0), Answer((2, 0), stores=jobs, evicted=(1,))) == [
        Evict(4, (1,)),
        Offload(4, jobs),
    ]
    assert state.follow(Store(5, 0), Answer((2, 0), stores=(Job(0, ()),))) == []


ADMIT, COMPUTE, STORE = Admit(7, (*TOKENS, 1)), Compute(7, 0, 0, (1, 1), 1), Store(7, 0)

#: State, op, answer but `free`, rule, cause.
BROKEN: dict[str, tuple[Any, Answered, dict[str, Any], str, str]] = {
    "a hole in the window": (
        lambda: finished(computed()),
        ADMIT,
        {"hit": 4, "tables": ((0, 1), (HOLE, HOLE, HOLE, 5))},
        "offered",
        "hole",
    ),
    "too few entries": (
        lambda: finished(computed()),
        ADMIT,
        {"hit": 4, "tables": ((0,), (HOLE, HOLE, 4, 5))},
        "offered",
        "entries",
    ),
    "no multiple": (computed, ADMIT, {"hit": 1, "tables": ((), (2,))}, "prefix", "multiple"),
    "all that is known": (
        computed,
        Admit(7, TOKENS),
        {"hit": 4, "tables": ((0, 1), (HOLE, HOLE, 4, 5))},
        "prefix",
        "length",
    ),
    "negative": (computed, ADMIT, {"hit": -2, "tables": ((), ())}, "prefix", "length"),
    "of the other group": (
        computed,
        ADMIT,
        {"hit": 2, "tables": ((2,), (HOLE, 3))},
        "offered",
        "other group",
    ),
    "of another entry": (
        computed,
        ADMIT,
        {"hit": 2, "tables": ((1,), (HOLE, 3))},
        "offered",
        "other entry",
    ),
    "of other tokens": (
        computed,
        Admit(7, (5, 0, 7)),
        {"hit": 2, "tables": ((0,), (HOLE, 3))},
        "offered",
        "other tokens",
    ),
    "never taken": (
        computed,
        ADMIT,
        {"hit": 2, "tables": ((7,), (HOLE, 3))},
        "offered",
        "unwritten",
    ),
    "loaded twice": (
        stored,
        ADMIT,
        {
            "hit": 2,
            "tables": ((7,), (2, 3)),
            "loads": (Job(0, (Move(7, 0, 1), Move(7, 0, 1))),),
        },
        "loaded",
        "entry",
    ),
    "loaded into no entry": (
        stored,
        ADMIT,
        {"hit": 2, "tables": ((0,), (2, 3)), "loads": (Job(0, (Move(7, 0, 1),)),)},
        "loaded",
        "entry",
    ),
    "loaded into another group's entry": (
        stored,
        ADMIT,
        {"hit": 2, "tables": ((0,), (7, 3)), "loads": (Job(0, (Move(7, 0, 1),)),)},
        "loaded",
        "entry",
    ),
    "loaded over a block in use": (
        stored,
        ADMIT,
        {"hit": 2, "tables": ((0,), (2, 3)), "loads": (Job(0, (Move(0, 0, 1),)),)},
        "loaded",
        "references",
    ),
    "loaded from an empty part": (
        stored,
        ADMIT,
        {"hit": 2, "tables": ((7,), (2, 3)), "loads": (Job(0, (Move(7, 0, 0),)),)},
        "offered",
        "evicted",
    ),
    "loaded from another entry's part": (
        stored,
        ADMIT,
        {"hit": 2, "tables": ((7,), (2, 3)), "loads": (Job(0, (Move(7, 1, 0),)),)},
        "offered",
        "other entry",
    ),
    "loaded from other tokens' part": (
        stored,
        Admit(7, (5, 7, 7)),
        {"hit": 2, "tables": ((7,), (2, 3)), "loads": (Job(0, (Move(7, 0, 1),)),)},
        "offered",
        "other tokens",
    ),
    "a lookup beyond": (computed, Lookup(7, TOKENS), {"hit": 4}, "prefix", "length"),
    "a lookup of other tokens": (computed, Lookup(7, (6, 6, 6)), {"hit": 2}, "offered", "nowhere"),
    "too few blocks": (
        computed,
        COMPUTE,
        {"taken": ((6,), (7,)), "dropped": ((), ())},
        "taken",
        "number",
    ),
    "a block in use": (
        computed,
        COMPUTE,
        {"taken": ((6,), (7, 1)), "dropped": ((), ())},
        "taken",
        "references",
    ),
    "a block taken twice": (
        computed,
        COMPUTE,
        {"taken": ((6,), (7, 6)), "dropped": ((), ())},
        "taken",
        "references",
    ),
    "dropped too early": (
        computed,
        COMPUTE,
        {"taken": ((6,), (7, 4)), "dropped": ((), (2,))},
        "dropped",
        "",
    ),
    "dropped without a window": (
        computed,
        COMPUTE,
        {"taken": ((6,), (7, 0)), "dropped": ((0,), ())},
        "dropped",
        "",
    ),
    "dropped twice": (
        computed,
        COMPUTE,
        {"taken": ((6,), (7, 2)), "dropped": ((), (0, 0))},
        "dropped",
        "",
    ),
    "there is room": (computed, COMPUTE, {"accepted": False}, "room", ""),
    "an admit has room": (computed, ADMIT, {"accepted": False}, "room", ""),
    "an empty slot evicted": (computed, STORE, {"evicted": (0,)}, "stored", "evicted"),
    "evicted twice": (stored, STORE, {"evicted": (0, 0)}, "stored", "evicted"),
    "another group's block": (
        computed,
        STORE,
        {"stores": (Job(1, (Move(0, 0, 0),)),)},
        "stored",
        "table",
    ),
    "a part that is full": (
        stored,
        STORE,
        {"stores": (Job(0, (Move(1, 0, 1),)),)},
        "stored",
        "part",
    ),
    "a slot of another group": (
        stored,
        STORE,
        {"stores": (Job(0, (Move(1, 1, 1),)),)},
        "stored",
        "slot",
    ),
    "a wrong number of blocks": (computed, Finish(7, 0), {}, "free", "pool"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    """Each rule, broken once."""
    make, op, answer, rule, cause = BROKEN[name]
    problem = broken(make(), op, Answer((0, 0), **answer))
    assert (problem.rule, problem.cause) == (rule, cause), problem.text


@pytest.mark.parametrize(
    ("op", "answer", "cause"),
    [
        (ADMIT, None, "type"),
        (ADMIT, Answer((0,)), "free"),  # type: ignore[arg-type]
        (ADMIT, Answer((0, True), tables=((), ())), "free"),
        (ADMIT, Answer([0, 0]), "free"),  # type: ignore[arg-type]
        (ADMIT, Answer((8, 2)), "tables"),
        (ADMIT, Answer((8, 2), hit="2", tables=((), ())), "hit"),  # type: ignore[arg-type]
        (ADMIT, Answer((8, 2), tables=((), (8,))), "tables"),
        (ADMIT, Answer((8, 2), tables=((), ()), taken=((), ())), "taken"),
        (ADMIT, Answer((8, 2), tables=((), ()), loads=(Job(2, ()),)), "loads"),
        (ADMIT, Answer((8, 2), tables=((), ()), loads=(Job(0, (Move(8, 0, 0),)),)), "loads"),
        (ADMIT, Answer((8, 2), tables=((), ()), loads=(Job(0, (Move(0, 2, 0),)),)), "loads"),
        (ADMIT, Answer((8, 2), tables=((), ()), loads=(Job(0, (Move(0, 0, 2),)),)), "loads"),
        (ADMIT, Answer((8, 2), tables=((), ()), loads=(Job(0, ((0, 0, 0),)),)), "loads"),  # type: ignore[arg-type]
        (ADMIT, Answer((8, 2), tables=((), ()), loads=((0, ()),)), "loads"),  # type: ignore[arg-type]
        (ADMIT, Answer((8, 2), tables=((), ()), loads=(Job(True, ()),)), "loads"),
        (COMPUTE, Answer((8, 2), accepted=None), "accepted"),  # type: ignore[arg-type]
        (COMPUTE, Answer((8, 2), taken=((HOLE,), ()), dropped=((), ())), "taken"),
        (COMPUTE, Answer((8, 2), accepted=False, taken=((), ())), "taken"),
        (STORE, Answer((8, 2), evicted=(2,)), "evicted"),
        (STORE, Answer((8, 2), hit=0.0), "hit"),  # type: ignore[arg-type]
        (STORE, Answer((8, 2), taken=np.array([1, 2])), "taken"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_has_a_shape(op: Answered, answer: object, cause: str) -> None:
    """Types, numbers of groups and names of what exists are checked first."""
    problem = broken(computed(), op, answer)
    assert (problem.rule, problem.cause) == ("shape", cause)


class Unshown:
    """Cannot be compared, nor shown."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError

    def __repr__(self) -> str:
        raise TypeError


def test_an_answer_may_hold_anything() -> None:
    """Parts that raise when they are looked at are named like others, in one line."""
    for name in ("free", "taken"):
        answer = replace(Answer((8, 2), tables=((), ())), **{name: Unshown()})
        problem = broken(computed(), ADMIT, answer)
        assert problem.cause == name
        assert problem.text.startswith(f"{name} is a Unshown that cannot show itself; ")
    assert (
        "returned array([[0, 0], [0, 0]])" in broken(computed(), ADMIT, np.zeros((2, 2), int)).text
    )


def test_why_an_entry_was_not_to_be_offered() -> None:
    """The message says what is wrong with a slot of the block."""
    state = admitted()
    state.follow(Compute(1, 0, 2), Answer((5, 2), taken=((0,), (1, 2)), dropped=((), ())))
    state.follow(Compute(2, 0, 1), Answer((3, 2), taken=((3,), (4,)), dropped=((), ())))
    answer = Answer((0, 2), hit=4, tables=((0, 3), (HOLE, HOLE, 4, 5)))
    problem = broken(state, ADMIT, answer)
    assert problem.text == (
        "group 0 entry 1 of request a7 was offered, but the token of its slot 1 is known without "
        "keys and values (block 3)"
    )
    assert problem.cause == "not computed"
    problem = broken(state, Store(7, 0), Answer((3, 1), stores=(Job(0, (Move(3, 0, 0),)),)))
    assert (problem.rule, problem.cause) == ("stored", "not computed")


def test_why_a_rejected_draft_was_not_to_be_offered() -> None:
    """Of a block in a table and of one that was given back, and where a lookup finds none."""
    state = fresh()
    state.follow(Admit(0, (5, 6)), Answer((8, 2), tables=((), ())))
    op = Compute(1, 0, 2, drafts=(7, 8), accepted=1)
    state.follow(op, Answer((2, 2), taken=((0, 1), (2, 3, 4, 5)), dropped=((), ())))
    offered = Answer((0, 2), hit=4, tables=((0, 1), (HOLE, HOLE, 4, 5)))
    problem = broken(state, ADMIT, offered)
    assert problem.text.startswith(
        "group 0 entry 1 of request a7 was offered, but its slot 1 was rejected"
    )
    problem = broken(state, Lookup(8, (5, 6, 7, 8, 0)), Answer((2, 2), hit=4))
    assert problem.cause == "rejected"
    assert "block 1 nearly has it, but its slot 1 was rejected" in problem.text
    state.follow(Finish(3, 0), Answer((8, 2)))
    assert broken(state, ADMIT, offered).cause == "rejected"
    assert broken(state, Lookup(8, (5, 6, 7, 8, 0)), Answer((8, 2), hit=4)).cause == "nowhere"


def test_a_slot_that_nothing_wrote_is_said_so() -> None:
    """The last block of a table may have slots behind the last known token."""
    state = fresh()
    state.follow(Admit(0, (5, 6, 7)), Answer((8, 2), tables=((), ())))
    state.follow(Compute(1, 0, 3), Answer((3, 2), taken=((0, 1), (2, 3, 4)), dropped=((), ())))
    answer = Answer((0, 2), hit=4, tables=((0, 1), (HOLE, HOLE, 4, 5)))
    problem = broken(state, ADMIT, answer)
    assert (problem.cause, "its slot 1 was never written" in problem.text) == ("unwritten", True)


def test_a_compute_without_room_changes_nothing() -> None:
    """Blocks that are free, and those that the window would free, are too few."""
    state = computed()
    state.follow(Admit(2, (1, 1)), Answer((2, 2), tables=((), ())))
    state.follow(Compute(3, 2, 1), Answer((0, 2), taken=((6,), (7,)), dropped=((), ())))
    before = state.requests[0].known
    assert state.follow(Compute(4, 0, 0, (1, 1, 1), 0, 5), Answer((0, 2), accepted=False)) == []
    assert state.requests[0].known == before
    problem = broken(state, Compute(5, 0, 0, (1,)), Answer((0, 2), accepted=False))
    assert (problem.rule, "it takes 2 blocks, and there is room for 2" in problem.text) == (
        "room",
        True,
    )


def test_a_wrong_number_of_host_slots() -> None:
    """Both tiers are counted."""
    assert broken(computed(), Lookup(7, (1,)), Answer((2, 1))).cause == "host"
    lookup = Lookup(7, (*TOKENS[:2], 9))
    assert stored().follow(lookup, Answer((2, 0), hit=2)) == []


def test_ops_are_bound_to_what_may_be() -> None:
    """Clipped where a smaller op means the same, dangling where nothing does."""
    state = admitted()
    assert bind_request(Compute(1, 0, 9, (1, 2), 5, 3), state) == Compute(1, 0, 4, (1, 2), 2, 3)
    assert bind_request(Compute(1, 0, 3, (1, 2), 5, 3), state) == Compute(1, 0, 3)
    assert bind_request(Compute(1, 0, -1, (), -1), state) == Compute(1, 0, 0)
    same = (Attend(1, 0), Store(1, 0), Preempt(1, 0), Finish(1, 0), Lookup(1, (3,)), Mutate(1, 0))
    for op in same:
        assert bind_request(op, state) is op
    for op in (Readmit(1, 0), Finish(1, 5), Admit(1, ()), Lookup(1, ())):
        with pytest.raises(Dangling):
            bind_request(op, state)
    state.follow(Preempt(2, 0), Answer((8, 2)))
    assert bind_request(Readmit(3, 0), state) == Readmit(3, 0)
    with pytest.raises(Dangling, match="a0 is not running"):
        bind_request(Attend(3, 0), state)


def test_rows_are_a_function_of_all_tokens_before() -> None:
    """Equal prefixes give equal rows; another token, position or group gives others."""
    one, other = prefixes((1, 2, 3, 4)), prefixes((1, 2, 4, 4))
    assert one[:2].tolist() == other[:2].tolist()
    assert len({*one.tolist(), *other.tolist()}) == 6
    rows = prefix_rows(1, one, 13)
    assert rows.shape == (4, 13)
    assert rows[:2].tolist() == prefix_rows(1, other, 13)[:2].tolist()
    assert rows[0].tolist() != prefix_rows(0, one, 13)[0].tolist()
    assert prefixes(()).size == 0


def test_bytes_follow() -> None:
    """The model of bytes stores rows of positions, and knows which of them are defined."""
    model = Cache(plan(GEOMETRY))
    state = fresh()
    state.follow(Admit(0, (5, 6)), Answer((8, 2), tables=((), ())))
    op = Compute(1, 0, 2, drafts=(7,), accepted=0)
    for step in state.follow(op, Answer((3, 2), taken=((0, 1), (2, 3, 4)), dropped=((), ()))):
        effect = model.apply(step)
    first = Group(2, 2, (LayerSet(1, 1, 4, 4, "fp8_e4m3", page_bytes=24),))
    second = Group(1, 1, (LayerSet(1, 1, 4, 4, "fp8_e4m3", page_bytes=16),))
    padded = Rows(plan(Geometry((first, second), 8, Host(64), order="BLHNC")))
    assert effect.content_bytes == 3 * 8
    assert isinstance(step, WritePositions)
    assert page_padding(padded, step).size == 3 * 8
    assert model.written[0].tolist()[:2] == [[True, True], [False, False]]
    assert model.written[1].ravel().tolist() == [False] * 2 + [True, True] + [False] * 4


def test_undefined_bytes_are_mutated_and_no_others() -> None:
    """Slots that were rejected, and blocks of nobody."""
    model = Cache(plan(GEOMETRY))
    model.apply(Allocate(0, 0, (0, 1)))
    model.apply(Allocate(0, 1, (2,)))
    hashes = tuple(prefixes((5, 6, 7)).tolist())
    model.apply(WritePositions(1, 0, (Slot(0, 0), Slot(0, 1), Slot(1, 0)), hashes, 2))
    before = {area: data.copy() for area, data in model.areas.items()}
    written = [mask.copy() for mask in model.written]
    effect = model.apply(Mutate(2, 0))
    assert effect.acted
    size = model.plan.bytes_per_block
    changed = [
        bool(np.any(model.areas["pool"][at : at + size] != before["pool"][at : at + size]))
        for at in range(0, 8 * size, size)
    ]
    assert changed == [False] + [True] * 7
    assert model.areas["host"].tolist() == before["host"].tolist()
    assert all(np.array_equal(*pair) for pair in zip(written, model.written, strict=True))
    again = model.areas["pool"].copy()
    model.apply(Mutate(3, 1))
    assert model.areas["pool"].tolist() != again.tolist()
