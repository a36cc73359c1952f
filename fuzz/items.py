"""What a whole run consists of: one item for each target, family and shard, each with its seed."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvexact.fuzz.families import EVERY_FAMILY, FAMILIES, SERVING, TIMED
from kvexact.fuzz.family import Family
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.targets import NamedTarget
from kvexact.impl.target import Target
from kvexact.refmodel.ops import OPS


@dataclass(frozen=True, slots=True)
class Profile:
    """A size: a number of examples, never of seconds, so that it means the same everywhere.

    Attributes:
        shards: items for each target and family.
        examples: examples in each item.
        draws_seed: take another seed in each run; False: seed 0.
    """

    shards: int
    examples: int
    draws_seed: bool = False


PROFILES = {
    "default": Profile(shards=8, examples=108),
    "quick": Profile(shards=1, examples=27),
    "nightly": Profile(shards=32, examples=900, draws_seed=True),
}


@dataclass(frozen=True, slots=True)
class Item:
    """One share of a run."""

    target: NamedTarget
    family: Family
    shard: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.target.name}-{self.family.name}-{self.shard}"


def items_of(target: NamedTarget, shards: int, seed: int) -> Iterator[Item]:
    """All items of a target in a run with this seed."""
    for family in families_of(target.target_type):
        for shard in range(shards):
            yield Item(target, family, shard, derive(seed, target.name, family.name, shard))


def families_of(target: type[Target] | Target, wanted: Collection[str] = ()) -> Sequence[Family]:
    """The families that mean something for a target; those of them that are wanted, if any are.

    Raises:
        ValueError: a family does not exist, is wanted in vain, or none is left; or an op kind that
            the target names does not exist, or none of its families sends it.
    """
    suiting = (*FAMILIES, *(TIMED if target.is_async else ()), *SERVING)
    able = suiting if target.families is None else target.families
    names = tuple(dict.fromkeys(wanted or able))
    unknown = [name for name in names if name not in EVERY_FAMILY]
    if unknown:
        raise ValueError(f"family {unknown[0]!r} does not exist; use {', '.join(EVERY_FAMILY)}")
    for name in wanted:
        lacking = EVERY_FAMILY[name].lacking(target.op_kinds)
        if lacking:
            raise ValueError(
                f"family {name!r} shows nothing on a target without {lacking}; leave it out, or "
                f"name these in `op_kinds`"
            )
    _check_op_kinds(target.op_kinds, () if wanted else names)
    names = tuple(name for name in names if not EVERY_FAMILY[name].lacking(target.op_kinds))
    # Where no refusal is promised, no illegal op is sent, and that family shows nothing of its own.
    if not target.op_refusals:
        if "refusals" in wanted:
            raise ValueError(
                "family 'refusals' shows nothing on a target that promises no refusal; "
                "leave it out, or name reasons in `op_refusals`"
            )
        names = tuple(name for name in names if name != "refusals")
    timed = [name for name in names if name in TIMED and not target.is_async]
    if timed:
        raise ValueError(
            f"family {timed[0]!r} is about pending work; leave it out, or declare `is_async`"
        )
    if not names:
        raise ValueError(f"no family is left to fuzz; name some of {', '.join(FAMILIES)}")
    return [EVERY_FAMILY[name] for name in names]


def _check_op_kinds(op_kinds: Collection[str], names: Sequence[str]) -> None:
    """Raise where one does not exist, or all of these families that draw it lack others."""
    strange = sorted(set(op_kinds) - set(OPS))
    if strange:
        raise ValueError(f"op kind {strange[0]!r} does not exist; use some of {', '.join(OPS)}")
    for kind in sorted(op_kinds):
        draw_it = [EVERY_FAMILY[name] for name in names if EVERY_FAMILY[name].draws(kind)]
        lacking = [family.lacking(op_kinds) for family in draw_it]
        if lacking and all(lacking):
            raise ValueError(
                f"op kind {kind!r} is never sent to a target without {lacking[0]}; name these in "
                f"`op_kinds`, too, or leave it out"
            )
