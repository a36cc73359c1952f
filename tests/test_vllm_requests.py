"""Requests of the vLLM adapter over offloading managers that need no release."""

from typing import Any

import numpy as np
import pytest

from kvexact.impl.adapters.vllm.answers import answer_of
from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.requests import Requests, VictimInUse
from kvexact.refmodel.answer import Answer
from kvexact.refmodel.ops import Job, Move

Call = dict[str, Any]


class Told:
    """A place, or what became of a store."""

    def __init__(self, **told: Any) -> None:
        vars(self).update(told)


class Manager:
    """Stores up to so many blocks; the oldest that nothing uses makes room.

    Attributes:
        protects: keeps what transfers use.
    """

    def __init__(self, slots: int, *, protects: bool = True) -> None:
        self.protects = protects
        self.unused = list(range(slots))
        self.slots: dict[bytes, int] = {}
        self.uses: dict[bytes, int] = {}
        self.stored: set[bytes] = set()
        self.finished: list[str] = []

    def on_new_request(self, context: str) -> None:
        assert context

    def on_request_finished(self, context: str) -> None:
        self.finished.append(context)

    def lookup(self, key: bytes, _context: str) -> bool:
        return key in self.stored

    def touch(self, keys: list[bytes], _context: str) -> None:
        for key in keys:
            self.slots[key] = self.slots.pop(key)

    def prepare_load(self, keys: list[bytes], _context: str) -> Told:
        for key in keys:
            self.uses[key] += 1
        return Told(block_ids=np.array([self.slots[key] for key in keys], np.int32))

    def complete_load(self, keys: list[bytes], _context: str) -> None:
        for key in keys:
            self.uses[key] -= 1

    def prepare_store(self, keys: list[bytes], _context: str) -> Told | None:
        new = [key for key in keys if key not in self.slots]
        idle = [k for k in self.slots if k not in keys and not (self.protects and self.uses[k])]
        evicted = idle[: max(0, len(new) - len(self.unused))]
        if len(new) > len(self.unused) + len(evicted):
            return None
        for key in evicted:
            self.unused.append(self.slots.pop(key))
            self.stored.discard(key)
        for key in new:
            self.slots[key], self.uses[key] = self.unused.pop(), 1
        spec = Told(block_ids=[self.slots[key] for key in new])
        return Told(keys_to_store=new, evicted_keys=evicted, store_spec=spec)

    def complete_store(self, keys: list[bytes], _context: str) -> None:
        for key in keys:
            self.uses[key] -= 1
            self.stored.add(key)


@pytest.fixture(autouse=True)
def _without_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "request_context", lambda name: name)
    key = lambda _context, digest, group, _end: digest + bytes([group])  # noqa: E731
    monkeypatch.setattr(release, "offload_key", key)


class Host:
    """Requests over a manager, and what was moved for them."""

    def __init__(self, manager: Manager, sizes: list[int], blocks: int, slots: int) -> None:
        self.moved: list[tuple[str, Any]] = []
        self.requests = Requests(manager, sizes, blocks, slots, self._move)

    def _move(self, jobs: Any, *, store: bool) -> None:
        self.moved.append(("store" if store else "load", jobs))

    def run(self, kind: str, **call: Any) -> Answer:
        found = getattr(self.requests, kind)(call)
        if kind == "extend" and found.get("accepted", True):
            self.requests.learn(call)
        self.requests.end_step()
        return answer_of(found)

    def admit(self, name: int, *tokens: int) -> Answer:
        return self.run("admit", id=name, tokens=list(tokens))

    def compute(self, name: int, count: int) -> Answer:
        return self.run("extend", request=name, count=count, drafts=[], accepted=0, sampled=None)


def test_a_hit_is_what_the_manager_has_in_every_group() -> None:
    host = Host(Manager(4), [2, 4], 8, 4)
    assert host.admit(0, 1, 2, 3, 4, 5) == Answer((8, 4), tables=((), ()))
    assert host.compute(0, 5) == Answer((3, 4), taken=((0, 1, 2), (3, 4)), dropped=((), ()))
    stored = host.run("store", request=0)
    assert stored.free == (3, 1)
    assert [len(job.moves) for job in stored.stores] == [2, 1]
    assert host.run("lookup", id=3, tokens=[1, 2, 3, 4, 5]).hit == 0  # not told of its end yet
    assert host.run("lookup", id=4, tokens=[1, 2, 3, 4]).hit == 0  # a hit leaves a token
    assert host.run("lookup", id=5, tokens=[1, 2, 3, 4, 5]).hit == 4
    assert host.run("lookup", id=6, tokens=[1, 2, 3, 5, 5]).hit == 0
    entered = host.admit(7, 1, 2, 3, 4, 6)
    assert (entered.hit, entered.tables) == (4, ((5, 6), (7,)))
    assert entered.loads == (Job(0, (Move(5, 3, 0), Move(6, 2, 0))), Job(1, (Move(7, 1, 0),)))
    assert [kind for kind, _ in host.moved] == ["store", "load"]


def test_a_hit_without_room_is_shorter_and_a_compute_without_room_is_refused() -> None:
    host = Host(Manager(4), [2], 3, 4)
    host.admit(0, 1, 2, 3, 4, 5)
    host.compute(0, 4)
    host.run("store", request=0)
    assert host.run("lookup", id=3, tokens=[1]).free == (1, 2)
    assert host.admit(4, 1, 2, 3, 4, 5).tables == ((2,),)
    assert host.compute(4, 2) == Answer((0, 2), accepted=False)
    assert host.run("preempt", request=0) == Answer((2, 2))
    assert host.run("readmit", request=0).hit == 4


def test_what_finds_no_room_is_not_stored_and_the_oldest_makes_room() -> None:
    manager = Manager(2)
    host = Host(manager, [2], 8, 2)
    host.admit(0, 1, 2, 3, 4, 5, 6)
    host.compute(0, 6)
    assert host.run("store", request=0).stores == ()
    host.admit(3, 1, 2, 9)
    host.compute(3, 3)
    assert host.run("store", request=3).stores == (Job(0, (Move(3, 1, 0),)),)
    host.admit(6, 7, 7, 8, 8)
    host.compute(6, 4)
    evicts = host.run("store", request=6)
    assert (evicts.evicted, evicts.free) == ((1,), (1, 0))
    host.run("finish", request=6)
    assert manager.finished == ["a6"]


@pytest.mark.parametrize("protects", [True, False])
def test_a_victim_that_a_load_reads_is_told(protects: bool) -> None:
    host = Host(Manager(1, protects=protects), [2], 8, 1)
    host.admit(0, 1, 2, 3)
    host.compute(0, 3)
    host.run("store", request=0)
    host.admit(3, 8, 8, 8)
    host.compute(3, 3)
    assert host.admit(5, 1, 2, 3).hit == 2
    if protects:
        assert host.run("store", request=3).stores == ()
        assert host.run("store", request=3).evicted == (0,)  # a step later nothing reads it
        return
    with pytest.raises(VictimInUse, match=r"host slots \[0\] were given away"):
        host.run("store", request=3)
