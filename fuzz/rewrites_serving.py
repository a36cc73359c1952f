"""Rewrites of a trace of ops on requests that many single edits would need."""

from collections.abc import Iterator
from dataclasses import replace

from kvexact.fuzz.edits import Program
from kvexact.refmodel.ops import Op
from kvexact.refmodel.serving_ops import Admit, Compute, Lookup, OnRequest


def shorter(program: Program) -> Iterator[Program]:
    """The first few tokens of all prompts gone, so that equal prefixes stay equal; most first."""
    longest = max(
        (len(op.tokens) for op in program.ops if isinstance(op, Admit | Lookup)), default=0
    )
    for gone in range(longest - 1, 0, -1):
        ops = [
            replace(op, tokens=op.tokens[gone:] or op.tokens[-1:])
            if isinstance(op, Admit | Lookup)
            else op
            for op in program.ops
        ]
        yield program._replace(ops=tuple(ops))


def known_at_once(program: Program) -> Program:
    """What is sampled of a request stands in its prompt, and is sampled no more."""
    sampled: dict[int, tuple[int, ...]] = {}
    for op in program.ops:
        if isinstance(op, Compute) and op.sampled is not None:
            sampled[op.request] = (*sampled.get(op.request, ()), op.sampled)
    ops: list[Op] = []
    for op in program.ops:
        if isinstance(op, Admit) and op.id in sampled:
            op = replace(op, tokens=op.tokens + sampled[op.id])
        elif isinstance(op, Compute):
            op = replace(op, sampled=None)
        ops.append(op)
    return program._replace(ops=tuple(ops))


def computed_at_once(program: Program) -> Iterator[Program]:
    """Two computes of a request that follow each other, as one at the second one's place."""
    last: dict[int, int] = {}
    for place, op in enumerate(program.ops):
        if not isinstance(op, OnRequest):
            continue
        before = program.ops[last[op.request]] if op.request in last else None
        if isinstance(op, Compute) and isinstance(before, Compute):
            ops = list(program.ops)
            ops[place] = replace(op, count=before.count + op.count)
            del ops[last[op.request]]
            yield program._replace(ops=tuple(ops))
        last[op.request] = place
