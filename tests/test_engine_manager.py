"""The engine's manager of requests: whatever it offers or attends to has the rows of its tokens."""

import random
from hashlib import blake2b

import numpy as np
import pytest

from kvexact.impl.engine.engine import CpuEngine, StreamsEngine
from kvexact.impl.target import Rows
from kvexact.refmodel.answer import Answer
from kvexact.refmodel.ops import Op
from kvexact.refmodel.serving_ops import (
    Admit,
    Attend,
    Compute,
    Finish,
    Lookup,
    Preempt,
    Readmit,
    Store,
)
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet


def group(block_size: int, window: int | None = None, layers: int = 1) -> Group:
    one = LayerSet(layers, 1, 2, 2, "fp16")
    return Group(block_size, block_size, (one,), window_tokens=window)


def row(number: int, tokens: tuple[int, ...], nbytes: int) -> bytes:
    """Bytes of the last of these tokens in a group."""
    return blake2b(bytes([number, *tokens]), digest_size=nbytes).digest()


def rows(geometry: Geometry, tokens: list[int], positions: range) -> Rows:
    found = []
    for number, one in enumerate(geometry.groups):
        (layers,) = one.layer_sets
        cell = 2 * (layers.head_size_k + layers.head_size_v)
        size = layers.layers * cell
        data = b"".join(row(number, tuple(tokens[: p + 1]), size) for p in positions)
        shape = (len(positions), layers.layers, 1, cell)
        found.append(np.frombuffer(data, np.uint8).reshape(shape))
    return tuple(found)


class Driver:
    """Sends random requests and keeps what each of them knows."""

    def __init__(self, geometry: Geometry, seed: int, schedule: int | None) -> None:
        self.geometry = geometry
        self.engine = CpuEngine() if schedule is None else StreamsEngine()
        self.engine.schedule(schedule or 0)
        self.engine.open(geometry)
        self.random = random.Random(seed)
        self.running: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.preempted: dict[int, list[int]] = {}
        self.known: list[list[int]] = [[]]
        self.met = {"hit": 0, "load": 0, "evicted": 0, "dropped": 0, "no room": 0, "stored": 0}

    def ask(self, op: Op, data: Rows | None = None) -> Answer:
        answer = self.engine.apply(op, data)
        assert isinstance(answer, Answer)
        self.met["hit"] += answer.hit > 0
        self.met["load"] += len(answer.loads) > 0
        self.met["evicted"] += len(answer.evicted) > 0
        self.met["dropped"] += any(answer.dropped)
        self.met["no room"] += not answer.accepted
        self.met["stored"] += len(answer.stores) > 0
        return answer

    def tokens(self) -> list[int]:
        base = self.random.choice(self.known)
        base = base[: self.random.randint(0, len(base))]
        return [*base, *(self.random.randrange(2) for _ in range(self.random.randint(1, 7)))]

    def step(self, number: int) -> None:
        choice = self.random.random()
        if len(self.running) > 2 and choice < 0.5:
            choice = 0.75  # one has to go
        if choice < 0.2 or not self.running:
            tokens = self.tokens()
            self.running[number] = tokens
            self.computed[number] = self.ask(Admit(number, tuple(tokens))).hit
            assert self.computed[number] < len(tokens)
            return
        request = self.random.choice(sorted(self.running))
        known, computed = self.running[request], self.computed[request]
        if choice < 0.55:
            self.compute(number, request, known, computed)
        elif choice < 0.7:
            self.ask(Store(number, request))
        elif choice < 0.8:
            self.known.append(self.running.pop(request))
            self.ask(Finish(number, request))
        elif choice < 0.88:
            self.preempted[request] = self.running.pop(request)
            self.ask(Preempt(number, request))
        elif choice < 0.95 and self.preempted:
            request, known = self.preempted.popitem()
            self.running[request] = known
            self.computed[request] = self.ask(Readmit(number, request)).hit
        else:
            tokens = self.tokens()
            assert self.ask(Lookup(number, tuple(tokens))).hit < len(tokens)

    def compute(self, number: int, request: int, known: list[int], computed: int) -> None:
        count = self.random.randint(0, len(known) - computed)
        drafts: tuple[int, ...] = ()
        if count == len(known) - computed:
            drafts = tuple(self.random.randrange(2) for _ in range(self.random.randrange(4)))
        accepted = self.random.randint(0, len(drafts))
        sampled = self.random.choice((None, 0, 1))
        end = computed + count + len(drafts)
        data = rows(self.geometry, [*known, *drafts], range(computed, end))
        if self.ask(Compute(number, request, count, drafts, accepted, sampled), data).accepted:
            self.computed[request] = computed + count + accepted
            known += [*drafts[:accepted], *([] if sampled is None else [sampled])]

    def check(self, number: int) -> None:
        """Each running request sees the rows of its own tokens."""
        for request, known in self.running.items():
            found = self.engine.apply(Attend(number, request), None)
            assert isinstance(found, tuple)
            for nth, one in enumerate(self.geometry.groups):
                end = self.computed[request]
                window = one.window_tokens or end + 1
                want = rows(self.geometry, known, range(max(0, end - window + 1), end))[nth]
                assert np.array_equal(found[nth], want)


GEOMETRIES = {
    "one group": Geometry((group(2),), 6, Host(5 * 16, 1, 1)),
    "windows": Geometry((group(2), group(1, 3), group(4, 5)), 16, Host(9 * 64, 2, 1), "BLHNC"),
    "little room": Geometry((group(2), group(2, 3, 2)), 9, Host(5 * 64, 2, 1), "BLHNC"),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize(("seed", "schedule"), [(0, None), (1, None), (2, 0), (3, 2), (4, 3)])
def test_requests_see_their_own_rows(name: str, seed: int, schedule: int | None) -> None:
    driver = Driver(GEOMETRIES[name], seed, schedule)
    for number in range(600):
        driver.step(2 * number)
        driver.check(2 * number + 1)
    assert all(count for what, count in driver.met.items() if what != "dropped"), driver.met
    assert bool(driver.met["dropped"]) == (name != "one group")
