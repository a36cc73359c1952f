"""Rewrites of a trace that many single edits would need: the reducer's shortcuts.

Each keeps what the last op, at which a run failed, acts on, and may lose what made it fail; only an
execution tells.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from kvexact.fuzz.dimensions import VALUES
from kvexact.fuzz.edits import Program, handles_of
from kvexact.refmodel.ops import (
    Allocate,
    Block,
    CopyBlocks,
    Evict,
    Free,
    Handle,
    Job,
    Move,
    Offload,
    Op,
    Read,
    ReadValues,
    Reset,
    Restore,
    WriteTokens,
    WriteValues,
    Zero,
    map_blocks,
)


def needed(program: Program) -> Program:
    """Only the last op, the offloads that fill what it restores, and the allocations of both."""
    kept: list[Op] = []
    handles: set[int] = set()
    places: set[tuple[int, int]] = set()
    for op in reversed(program.ops):
        brings = _places(op) if type(op) is Offload else set()
        if not kept or brings & places or (type(op) is Allocate and op.id in handles):
            kept.append(op)
            handles |= {handle.op for handle in handles_of(op)}
            places = (places - brings) | (_places(op) if type(op) is Restore else set())
    return program._replace(ops=tuple(reversed(kept)))


def gathered(program: Program) -> Program:
    """One allocation for each group, of the blocks that other ops name; nothing is given back."""
    *before, last = program.ops
    claims = [op for op in before if type(op) is Allocate]
    kept = [op for op in before if type(op) not in (Allocate, Free, Reset)]
    used = {handle for op in (*kept, last) for handle in handles_of(op)}
    joined: dict[int, Allocate] = {}
    names: dict[Handle, Handle] = {}
    for claim in claims:
        one = joined.setdefault(claim.group, replace(claim, blocks=()))
        new = [b for n, b in enumerate(claim.blocks) if Handle(claim.id, n) in used]
        blocks = tuple(dict.fromkeys((*one.blocks, *new)))
        joined[claim.group] = replace(one, blocks=blocks)
        for nth, block in enumerate(claim.blocks):
            if block in blocks:
                names[Handle(claim.id, nth)] = Handle(one.id, blocks.index(block))
    first = [claim for claim in joined.values() if claim.blocks]
    ops = (*first, *(_renamed(op, names) for op in (*kept, last)))
    return program._replace(ops=ops)


def regrouped(program: Program) -> Iterator[Program]:
    """All that one group does, done by an earlier group."""
    for old in range(1, len(program.geometry.groups)):
        for new in range(old):
            ops = tuple(_of_group(op, old, new) for op in program.ops)
            yield program._replace(ops=ops)


def offloaded_at_once(program: Program) -> Program:
    """One offload, at the first one's place, of all that offloads bring."""
    *before, last = program.ops
    offloads = [op for op in before if type(op) is Offload]
    if len(offloads) < 2:
        return program
    jobs = tuple(job for op in offloads for job in op.jobs)
    ops = [replace(op, jobs=jobs) if op is offloads[0] else op for op in before]
    kept = [op for op in ops if type(op) is not Offload or op.jobs == jobs]
    return program._replace(ops=(*kept, last))


def few_blocks(program: Program) -> Program:
    """Hardly more blocks than ops name, in the same order; what lay behind the end still does."""
    count = program.geometry.blocks
    named = {block for op in program.ops for block in _ids(op)}
    inside = sorted(block for block in named if 0 <= block < count)
    new = {block: rank for rank, block in enumerate(inside)}
    enough = (fewer for fewer in VALUES["blocks"] if len(inside) <= fewer < count)
    shift = count - next(enough, count)
    new |= {block: block - shift for block in named if block >= count}

    def rename(block: Block) -> Block:
        return new.get(block, block) if isinstance(block, int) else block

    ops = tuple(_with_blocks(op, rename) for op in program.ops)
    geometry = replace(program.geometry, blocks=count - shift)
    return program._replace(geometry=geometry, ops=ops)


def plain_names(program: Program) -> Program:
    """Host slots renamed to 0, 1, ... in the order of first use; tags all 0."""
    slots: dict[int, int] = {}

    def slot(name: int) -> int:
        return slots.setdefault(name, len(slots))

    ops: list[Op] = []
    for op in program.ops:
        match op:
            case WriteTokens() | WriteValues():
                op = replace(op, tag=0)
            case Evict():
                op = replace(op, host_slots=tuple(map(slot, op.host_slots)))
            case Offload() | Restore():
                op = replace(op, jobs=tuple(_moved(job, slot) for job in op.jobs))
        ops.append(op)
    return program._replace(ops=tuple(ops))


def _of_group(op: Op, old: int, new: int) -> Op:
    match op:
        case Offload() | Restore():
            jobs = (job._replace(group=new) if job.group == old else job for job in op.jobs)
            return replace(op, jobs=tuple(jobs))
        case (
            Allocate()
            | Free()
            | WriteTokens()
            | WriteValues()
            | Zero()
            | CopyBlocks()
            | Read()
            | ReadValues()
        ):
            return replace(op, group=new) if op.group == old else op
    return op


def _moved(job: Job, slot: Callable[[int], int]) -> Job:
    moves = (Move(move.block, slot(move.host_slot), move.part) for move in job.moves)
    return Job(job.group, tuple(moves))


def _places(op: Offload | Restore) -> set[tuple[int, int]]:
    return {(move.host_slot, move.part) for job in op.jobs for move in job.moves}


def _ids(op: Op) -> list[int]:
    """Blocks that an op names by their ids."""
    found: list[int] = []

    def note(block: Block) -> Block:
        if isinstance(block, int):
            found.append(block)
        return block

    _with_blocks(op, note)
    return found


def _with_blocks(op: Op, rename: Callable[[Block], Block]) -> Op:
    """The same op with all its blocks renamed, those that an `Allocate` claims, too."""
    if type(op) is not Allocate:
        return map_blocks(op, rename)
    blocks = [block for block in map(rename, op.blocks) if isinstance(block, int)]
    return replace(op, blocks=tuple(blocks))


def _renamed(op: Op, names: dict[Handle, Handle]) -> Op:
    return map_blocks(op, lambda b: names.get(b, b) if isinstance(b, Handle) else b)
