"""What a run over all families ought to meet besides features: op pairs, refusals, launches."""

from collections.abc import Iterator, Mapping
from itertools import product

from kvexact.fuzz.counts import Counts
from kvexact.impl.target import Target
from kvexact.refmodel.ops import BLOCK_OPS, OPS, SERVING_OPS, TIMED_OPS

#: Why pairs of ops that acted cannot be, by the first op; the ops that may yet follow it.
_AFTER: Mapping[str, tuple[str, frozenset[str]]] = {
    "reset": ("nobody owns or holds anything after a reset", frozenset({"allocate"})),
    "fence": ("nothing is pending after a fence", frozenset(OPS) - frozenset(TIMED_OPS)),
}

#: Reasons for which each op may be refused, by docs/design.md.
_REFUSALS: Mapping[str, tuple[str, ...]] = {
    "allocate": ("range", "duplicate", "owner"),
    "free": ("range", "duplicate", "owner"),
    "write_tokens": ("range", "duplicate", "owner"),
    "write_values": ("range", "format", "duplicate", "owner"),
    "zero": ("range", "duplicate", "owner"),
    "copy_blocks": ("range", "owner"),
    "offload": ("range", "duplicate", "owner", "host"),
    "restore": ("range", "duplicate", "owner", "host"),
    "read": ("range", "owner"),
    "read_values": ("range", "format", "owner"),
    "evict": ("range", "duplicate", "host"),
}

#: Names that a line shows.
_SHOWN = 8

Name = tuple[str, str]


def pairs(target: type[Target] | Target) -> list[Name]:
    """(Op that acted, op that acted next), all that can be."""
    kinds = [kind for kind in OPS if kind in target.op_kinds]
    mixed = product(BLOCK_OPS, SERVING_OPS), product(SERVING_OPS, BLOCK_OPS)
    never = {pair for pairs in mixed for pair in pairs}
    return [p for p in product(kinds, kinds) if p not in never and why_not(p) is None]


def why_not(pair: Name) -> str | None:
    """Why two ops cannot act one after the other; None: they can."""
    why, able = _AFTER.get(pair[0], ("", frozenset(OPS)))
    return None if pair[1] in able else why


def refusals(target: type[Target] | Target) -> list[Name]:
    """(Op kind, reason), all that the target promises."""
    return [
        (kind, reason)
        for kind, reasons in _REFUSALS.items()
        if kind in target.op_kinds
        for reason in reasons
        if reason in target.op_refusals
    ]


def lines(counts: Counts, target: type[Target] | Target) -> Iterator[str]:
    """What of it was met, and by name what was not."""
    for what, wanted, met in (
        ("op pairs", pairs(target), counts.pairs),
        ("refusals", refusals(target), counts.reasons),
    ):
        never = [" ".join(name) for name in wanted if not met[name]]
        line = f"  {what} met: {len(wanted) - len(never)} of {len(wanted)}"
        if never:
            more = f", … {len(never)} in all" if len(never) > _SHOWN else ""
            line += f"; never: {', '.join(never[:_SHOWN])}{more}"
        yield line
    for kind, (why, _) in _AFTER.items():
        if kind in target.op_kinds:
            yield f"  op pairs that cannot be: {kind} and most others, as {why}"
    if counts.launches:
        told = [name for name in sorted(counts.launches) if " " not in name]
        yield f"  launches: {', '.join(f'{name} {counts.launches[name]:,}' for name in told)}"
        yield f"  paths of launches met: {len(counts.launches) - len(told)}"
