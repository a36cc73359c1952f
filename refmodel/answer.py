"""What a target answers to an operation on requests; docs/serving.md has the rules for it."""

from dataclasses import dataclass

from kvexact.refmodel.ops import Job

#: Stands in a table for a block that lies outside the window.
HOLE = -1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a target decided.

    Attributes:
        free: pool blocks in no request's table, and host slots that hold nothing, after the op.
        accepted: False: no room, nothing has changed.
        hit: tokens that are cached.
        tables: per group the blocks of the hit, by their index in the request; `HOLE` for none.
        loads: which blocks of the hit come from where in the host tier.
        taken: per group the blocks that a `Compute` appended to the request's table, in order.
        dropped: per group the indexes of the blocks that it took out, as they left the window.
        stores: which blocks go where in the host tier.
        evicted: host slots given back before these stores.
    """

    free: tuple[int, int]
    accepted: bool = True
    hit: int = 0
    tables: tuple[tuple[int, ...], ...] = ()
    loads: tuple[Job, ...] = ()
    taken: tuple[tuple[int, ...], ...] = ()
    dropped: tuple[tuple[int, ...], ...] = ()
    stores: tuple[Job, ...] = ()
    evicted: tuple[int, ...] = ()
