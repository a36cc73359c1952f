"""What an operation is: frozen plain data with a stable id.

A block is an int, or a `Handle` on what an earlier `Allocate` claimed. A trace holds handles, so
that every sub-list of a trace is a trace; `bind` turns them into block ids before an op reaches a
model or a target, and says so when a handle dangles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvexact.refmodel.quick import quick
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
from kvexact.refmodel.spec import named
from kvexact.refmodel.timed_ops import Fence, Poll, Step

#: Classes under which an op may be refused, in order of precedence; docs/design.md says when.
OP_REASONS = ("range", "format", "duplicate", "owner", "host")

#: Types of the real values that `WriteValues` takes.
VALUE_TYPES = ("fp32", "fp16", "bf16")
#: How wild these values are; docs/formats.md says which each draws.
VALUE_STYLES = ("plain", "special")


class Handle(NamedTuple):
    """Block number ``nth`` of those that the `Allocate` with id ``op`` claimed."""

    op: int
    nth: int


Block = int | Handle


class Slot(NamedTuple):
    """Token slot ``token`` of a block."""

    block: Block
    token: int


class Pair(NamedTuple):
    """Copy ``source`` to ``target``."""

    source: Block
    target: Block


class Move(NamedTuple):
    """A block in the pool, and its place in the host tier: ``part`` of a host slot's chunk."""

    block: Block
    host_slot: int
    part: int


class Job(NamedTuple):
    """What one group moves in a transfer; may be empty."""

    group: int
    moves: tuple[Move, ...]


@quick
@dataclass(frozen=True, slots=True)
class Allocate:
    """Claim these free blocks for a group.

    Attributes:
        zero: set their content to zero in the same step, as `Zero` would.
    """

    id: int
    group: int
    blocks: tuple[int, ...]
    zero: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Free:
    """Give a group's blocks back. No byte changes."""

    id: int
    group: int
    blocks: tuple[Block, ...]


@quick
@dataclass(frozen=True, slots=True)
class WriteTokens:
    """Store raw bytes in all layers of these slots; None is a pad row, which writes nothing."""

    id: int
    group: int
    slots: tuple[Slot | None, ...]
    tag: int


@quick
@dataclass(frozen=True, slots=True)
class WriteValues:
    """Store real keys and values in all layers of these slots, as the page format encodes them.

    Attributes:
        slots: None is a pad row, which writes nothing.
        tag: which write this is; the values are a function of it.
        value_type: one of `VALUE_TYPES`: what the values come as.
        style: one of `VALUE_STYLES`.
    """

    id: int
    group: int
    slots: tuple[Slot | None, ...]
    tag: int
    value_type: str = "fp32"
    style: str = "plain"

    def __post_init__(self) -> None:
        named("write_values", "value_type", self.value_type, VALUE_TYPES)
        named("write_values", "style", self.style, VALUE_STYLES)


@quick
@dataclass(frozen=True, slots=True)
class Zero:
    """Set the content of these blocks to zero; padding stays as it is."""

    id: int
    group: int
    blocks: tuple[Block, ...]


@quick
@dataclass(frozen=True, slots=True)
class CopyBlocks:
    """Copy content from block to block, one pair after the other, so that a chain carries through.

    Attributes:
        tokens: copy only the first this many token slots of each block; None for all of them.
    """

    id: int
    group: int
    pairs: tuple[Pair, ...]
    tokens: int | None = None


@quick
@dataclass(frozen=True, slots=True)
class Offload:
    """Copy content from the pool to the host tier."""

    id: int
    jobs: tuple[Job, ...]


@quick
@dataclass(frozen=True, slots=True)
class Restore:
    """Copy content from the host tier to the pool."""

    id: int
    jobs: tuple[Job, ...]


@quick
@dataclass(frozen=True, slots=True)
class Read:
    """Gather the content of these slots; None is a pad row, which reads as zeros."""

    id: int
    group: int
    slots: tuple[Slot | None, ...]


@quick
@dataclass(frozen=True, slots=True)
class ReadValues:
    """Gather these slots and decode them to fp32; None is a pad row, which reads as zeros."""

    id: int
    group: int
    slots: tuple[Slot | None, ...]


@quick
@dataclass(frozen=True, slots=True)
class Evict:
    """Give host slots back. No byte changes."""

    id: int
    host_slots: tuple[int, ...]


@quick
@dataclass(frozen=True, slots=True)
class Reset:
    """Give all blocks and all host slots back. No byte changes."""

    id: int


Op = (
    Allocate
    | Free
    | WriteTokens
    | WriteValues
    | Zero
    | CopyBlocks
    | Offload
    | Restore
    | Read
    | ReadValues
    | Evict
    | Reset
    | Fence
    | Step
    | Poll
    | Admit
    | Readmit
    | Compute
    | Finish
    | Preempt
    | Store
    | Lookup
    | Attend
    | Mutate
)

#: Op kinds by the name that traces, targets and reports use: those on blocks,
BLOCK_OPS: dict[str, type[Op]] = {
    "allocate": Allocate,
    "free": Free,
    "write_tokens": WriteTokens,
    "write_values": WriteValues,
    "zero": Zero,
    "copy_blocks": CopyBlocks,
    "offload": Offload,
    "restore": Restore,
    "read": Read,
    "read_values": ReadValues,
    "evict": Evict,
    "reset": Reset,
}
#: those in time,
TIMED_OPS: dict[str, type[Op]] = {"fence": Fence, "step": Step, "poll": Poll}
#: those on requests,
SERVING_OPS: dict[str, type[Op]] = {
    "admit": Admit,
    "readmit": Readmit,
    "compute": Compute,
    "finish": Finish,
    "preempt": Preempt,
    "store": Store,
    "lookup": Lookup,
    "attend": Attend,
}
#: those that the harness does itself, so that no target is sent them,
HARNESS_OPS: dict[str, type[Op]] = {"mutate": Mutate}
#: and all of them.
OPS: dict[str, type[Op]] = {**BLOCK_OPS, **TIMED_OPS, **SERVING_OPS, **HARNESS_OPS}
KIND_OF: dict[type[Op], str] = {op_type: kind for kind, op_type in OPS.items()}


#: Makes a named tuple of its items; to call its class takes three times as long.
_made = tuple.__new__


def block_id(block: Block) -> int:
    """The block of a bound op, which is an id."""
    assert type(block) is int, f"{block} is not bound"
    return block


class Dangling(LookupError):
    """A handle whose `Allocate` is not in the trace, was refused, or claimed fewer blocks."""


class Claimed(dict[Block, int]):
    """Block ids by the handles on what was claimed, freed or not; an id stands for itself."""

    def claim(self, op: Allocate) -> list[Handle]:
        """Note the blocks of an op that was done; the handles on them."""
        handles = [_made(Handle, (op.id, nth)) for nth in range(len(op.blocks))]
        self.update(zip(handles, op.blocks, strict=True))
        return handles

    def __missing__(self, name: Block) -> int:
        if isinstance(name, int):
            return name
        raise Dangling(f"a{name.op}.{name.nth}")


def bind(op: Op, claimed: Claimed) -> Op:
    """The same op with every handle replaced by the block id that it stands for.

    Raises:
        Dangling: a handle stands for nothing.
    """
    return map_blocks(op, claimed.__getitem__)


def map_blocks(op: Op, block: Callable[[Block], Block]) -> Op:
    """The same op with ``block`` applied to every block that it names, an `Allocate` apart."""
    mapped = _MAPPED.get(type(op))
    return mapped(op, block) if mapped else op


def _map_write(op: WriteTokens, block: Callable[[Block], Block]) -> Op:
    return WriteTokens(op.id, op.group, _map_slots(op.slots, block), op.tag)


def _map_values(op: WriteValues, block: Callable[[Block], Block]) -> Op:
    slots = _map_slots(op.slots, block)
    return WriteValues(op.id, op.group, slots, op.tag, op.value_type, op.style)


def _map_read(op: Read | ReadValues, block: Callable[[Block], Block]) -> Op:
    return type(op)(op.id, op.group, _map_slots(op.slots, block))


def _map_slots(
    slots: tuple[Slot | None, ...], block: Callable[[Block], Block]
) -> tuple[Slot | None, ...]:
    return tuple([slot and _made(Slot, (block(slot[0]), slot[1])) for slot in slots])


def _map_transfer(op: Offload | Restore, block: Callable[[Block], Block]) -> Op:
    jobs = []
    for group, moves in op.jobs:
        mapped = [_made(Move, (block(name), slot, part)) for name, slot, part in moves]
        jobs.append(_made(Job, (group, tuple(mapped))))
    return type(op)(op.id, tuple(jobs))


def _map_blocks(op: Free | Zero, block: Callable[[Block], Block]) -> Op:
    return type(op)(op.id, op.group, tuple([block(name) for name in op.blocks]))


def _map_pairs(op: CopyBlocks, block: Callable[[Block], Block]) -> Op:
    pairs = [_made(Pair, (block(source), block(target))) for source, target in op.pairs]
    return CopyBlocks(op.id, op.group, tuple(pairs), op.tokens)


_MAPPED: dict[type[Op], Callable[[Any, Callable[[Block], Block]], Op]] = {
    Free: _map_blocks,
    WriteTokens: _map_write,
    WriteValues: _map_values,
    Zero: _map_blocks,
    CopyBlocks: _map_pairs,
    Offload: _map_transfer,
    Restore: _map_transfer,
    Read: _map_read,
    ReadValues: _map_read,
}
