"""Operations in time: what a trace says about order. docs/time.md has their rules.

A synchronous target has none of them; an asynchronous one has all.
"""

from dataclasses import dataclass

from kvexact.refmodel.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Fence:
    """Return when all work is done; then every byte is settled."""

    id: int


@quick
@dataclass(frozen=True, slots=True)
class Step:
    """Time passes: pending work may go on."""

    id: int


@quick
@dataclass(frozen=True, slots=True)
class Poll:
    """Ask whether a transfer is done; the target answers True or False.

    Attributes:
        job: id of the op that began the transfer.
    """

    id: int
    job: int
