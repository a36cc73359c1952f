"""Operations on requests. docs/serving.md has their rules.

Blocks are the target's choice: it answers with them. A request is named by the id of the `Admit`
that began it.
"""

from dataclasses import dataclass

from kvexact.refmodel.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Admit:
    """A new request with these tokens; whatever prefix is cached may be used."""

    id: int
    tokens: tuple[int, ...]


@quick
@dataclass(frozen=True, slots=True)
class Readmit:
    """A preempted request goes on, with all tokens that it knows."""

    id: int
    request: int


@quick
@dataclass(frozen=True, slots=True)
class Compute:
    """Compute keys and values of tokens that a request knows, then of drafts.

    Attributes:
        count: known tokens that are computed, the next ones.
        drafts: tokens computed behind them; only where no known token is left.
        accepted: how many of the drafts become known; the slots of the others are undefined.
        sampled: a token that becomes known without keys and values; None: there is none.
    """

    id: int
    request: int
    count: int
    drafts: tuple[int, ...] = ()
    accepted: int = 0
    sampled: int | None = None


@quick
@dataclass(frozen=True, slots=True)
class Finish:
    """A request ends."""

    id: int
    request: int


@quick
@dataclass(frozen=True, slots=True)
class Preempt:
    """A request gives its blocks back, and may be readmitted."""

    id: int
    request: int


@quick
@dataclass(frozen=True, slots=True)
class Store:
    """Copy committed blocks of a request to the host tier, under their keys."""

    id: int
    request: int


@quick
@dataclass(frozen=True, slots=True)
class Lookup:
    """Ask how many of these tokens are cached; nothing changes."""

    id: int
    tokens: tuple[int, ...]


@quick
@dataclass(frozen=True, slots=True)
class Attend:
    """Read what the next token of a request would see, through the target's own tables."""

    id: int
    request: int


#: Ops that name a request.
OnRequest = Readmit | Compute | Finish | Preempt | Store | Attend


@quick
@dataclass(frozen=True, slots=True)
class Mutate:
    """Change bytes of the pool that are undefined; no target is sent it.

    Attributes:
        tag: what they become is a function of it.
    """

    id: int
    tag: int
