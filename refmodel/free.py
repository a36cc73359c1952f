"""Bytes that a target may declare free: paddings inside the pages and rows that an op touches."""

from collections.abc import Iterator

import numpy as np

from kvexact.refmodel.address import Addresses
from kvexact.refmodel.ops import (
    Allocate,
    Block,
    CopyBlocks,
    Offload,
    Op,
    Restore,
    WriteTokens,
    WriteValues,
    Zero,
    block_id,
)
from kvexact.refmodel.plan import Plan

_NONE: Addresses = np.empty(0, np.intp)


def page_padding(planned: Plan, op: Op) -> Addresses:
    """Addresses in the pool of the padding of every page that a legal op writes."""
    match op:
        case Zero(group=group, blocks=blocks) | Allocate(group=group, blocks=blocks, zero=True):
            touched = [(group, block) for block in blocks]
        case WriteTokens(group=group, slots=slots) | WriteValues(group=group, slots=slots):
            touched = [(group, slot.block) for slot in slots if slot is not None]
        case CopyBlocks(group=group, pairs=pairs, tokens=tokens) if tokens != 0:
            touched = [(group, pair.target) for pair in pairs]
        case Restore(jobs=jobs):
            touched = [(job.group, move.block) for job in jobs for move in job.moves]
        case _:
            return _NONE
    parts = [
        padding for group, block in touched for padding in _block_padding(planned, group, block)
    ]
    return np.concatenate([_NONE, *parts])


def host_padding(planned: Plan, op: Op) -> Addresses:
    """Addresses in the host tier of the unused end of every row that a legal offload writes."""
    if type(op) is not Offload:
        return _NONE
    parts = [_NONE]
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
