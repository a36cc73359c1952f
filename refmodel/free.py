"""Bytes that a target may declare free: paddings inside the pages and rows that an op touches."""

from collections.abc import Iterator

import numpy as np

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.ops import (
    Allocate,
    Block,
    CopyBlocks,
    Offload,
    Restore,
    WriteTokens,
    WriteValues,
    Zero,
    block_id,
)
from kvexact.refmodel.plan import Plan
from kvexact.refmodel.positions import ByteOp, WritePositions
from kvexact.refmodel.rows import Rows

_NONE: Addresses = np.empty(0, np.intp)


def page_padding(rows: Rows, op: ByteOp) -> Addresses:
    """Addresses in the pool of the padding of every page that a legal op writes."""
    parts = [
        padding
        for group, block in _written(op)
        for padding in _block_padding(rows.plan, group, block)
    ]
    return np.concatenate([_NONE, *parts])


def block_padding(rows: Rows, op: ByteOp) -> Addresses:
    """Addresses in the pool of what each block that a legal op writes has beside its content.

    That is the padding of its pages, its end where blocks are outermost, and what it would hold if
    another group owned it.
    """
    parts = [_beside_content(rows, group, block_id(block)) for group, block in _written(op)]
    return np.concatenate([_NONE, *parts])


def _written(op: ByteOp) -> list[tuple[int, Block]]:
    """Groups and blocks into which a legal op writes."""
    match op:
        case Zero(group=group, blocks=blocks) | Allocate(group=group, blocks=blocks, zero=True):
            return [(group, block) for block in blocks]
        case (
            WriteTokens(group=group, slots=slots)
            | WriteValues(group=group, slots=slots)
            | WritePositions(group=group, slots=slots)
        ):
            return [(group, slot.block) for slot in slots if slot is not None]
        case CopyBlocks(group=group, pairs=pairs, tokens=tokens) if tokens != 0:
            return [(group, pair.target) for pair in pairs]
        case Restore(jobs=jobs):
            return [(job.group, move.block) for job in jobs for move in job.moves]
    return []


def _beside_content(rows: Rows, group: int, block: int) -> Addresses:
    """Addresses of all bytes of a block that are not the group's content."""
    planned = rows.plan
    block_of = np.zeros(planned.physical_bytes, np.bool_)
    for other in range(len(planned.placements)):
        block_of[rows.layout(other).of_block(block)] = True
        for padding in _block_padding(planned, other, block):
            block_of[padding] = True
    if planned.geometry.order[0] == "B":
        main = planned.placements[group][0].grid["B"] * (planned.geometry.blocks > 1)
        start = planned.geometry.base_offset_bytes + block * main
        block_of[start : start + (main or planned.bytes_per_block)] = True
    block_of[rows.layout(group).of_block(block)] = False
    return np.flatnonzero(block_of)


def host_padding(rows: Rows, op: ByteOp) -> Addresses:
    """Addresses in the host tier of the unused end of every row that a legal offload writes."""
    if type(op) is not Offload:
        return _NONE
    planned, parts = rows.plan, [_NONE]
    for job in op.jobs:
        placements = planned.placements[job.group]
        block = sum(p.extents["L"] * p.content_bytes for p in placements)
        unused = np.arange(
            block * planned.geometry.host.chunk_blocks, planned.row_bytes, dtype=np.intp
        )
        parts += [move.host_slot * planned.row_bytes + unused for move in job.moves]
    return np.concatenate(parts)


def _block_padding(planned: Plan, group: int, block: Block) -> Iterator[Addresses]:
    for placement in planned.placements[group]:
        padding = np.arange(placement.content_bytes, placement.page_bytes, dtype=np.intp)
        layers = np.arange(placement.extents["L"], dtype=np.intp) * placement.grid["L"]
        start = placement.start + block_id(block) * placement.grid["B"]
        yield np.add.outer(layers, padding).reshape(-1) + start


#: What a target may declare free, by the name that it uses.
PADDINGS = {
    "page_padding": page_padding,
    "block_padding": block_padding,
    "host_padding": host_padding,
}
