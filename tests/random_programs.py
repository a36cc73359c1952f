"""Random small stream programs, for a comparison beyond the programs written by hand."""

import random

from stream_programs import (
    BLOCKING,
    LEGACY,
    NON_BLOCKING,
    Batch,
    Copy,
    Fill,
    Get,
    Host,
    Launch,
    Op,
    Program,
    Query,
    QueryStream,
    Record,
    Set,
    Sync,
    SyncEvent,
    Until,
    Wait,
)

_AREAS = "depqm"
_ON_HOST = "pqm"


def _moves(rng: random.Random, areas: str) -> tuple[tuple[str, str], ...]:
    """One or two moves that do not depend on each other."""
    chosen = rng.sample(areas, 4 if rng.random() < 0.5 else 2)
    return tuple(zip(chosen[::2], chosen[1::2], strict=True))


def _op(rng: random.Random) -> Op:
    stream = rng.choice(LEGACY + BLOCKING + NON_BLOCKING)
    event = rng.choice("EG")
    (target, source), *_ = _moves(rng, _AREAS)
    kind = rng.randrange(18)
    if kind < 5:
        return Copy(stream, target, source)
    if kind == 5:
        return Fill(stream, rng.choice("depq"), rng.choice("xy"))
    if kind == 6:
        access = rng.choice(("stream", "during", "any"))
        return Batch(rng.choice(BLOCKING + NON_BLOCKING), _moves(rng, _AREAS), access)
    if kind == 7:
        return Launch(stream, _moves(rng, "depq"))
    if kind == 8:
        return Host(stream, *rng.sample(_ON_HOST, 2))
    if kind == 9:
        return Set(rng.choice(_ON_HOST), rng.choice("xy"))
    if kind in (10, 11):
        return Record(event, stream)
    if kind in (12, 13):
        return Wait(stream, event)
    others = (Get(rng.choice(_ON_HOST)), Sync(stream), SyncEvent(event))
    return rng.choice((*others, Query(event), QueryStream(stream), Until(event)))


def program(seed: int) -> Program:
    """Three to five ops on five areas of one byte; three of them at most move bytes."""
    rng = random.Random(seed)
    ops = [_op(rng) for _ in range(rng.randint(3, 5))]
    moving = [op for op in ops if isinstance(op, Copy | Fill | Batch | Launch | Host)]
    ops = [op for op in ops if op not in moving[3:]]
    return Program(f"random {seed}", tuple(ops), _AREAS, memory={area: area for area in _AREAS})
