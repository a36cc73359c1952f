"""What a soak favours: what was met least.

Decided once a round, from all that the rounds before it counted. So an example is a function of
the seed and its number, for any number of processes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvexact.fuzz import coverage
from kvexact.fuzz.campaign import Example, run_example
from kvexact.fuzz.choose import Chooser, Prng, weighted
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.families import EVERY_FAMILY
from kvexact.fuzz.family import Family
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.seeds import derive
from kvexact.impl.target import Target

#: Examples of a round.
ROUND = 256

#: A family's weight: the first for all alike, the second shared out by what it is good for.
_EVEN, _SHARED = 10, 90
_MORE = 4
_ILLEGAL_PERCENT, _BATCH_PERCENT = 30, 40
_RARE = 1000

#: Something that an example may meet: what it is, and its name.
_Item = tuple[str, object]


@dataclass(frozen=True, slots=True)
class Favour:
    """Weights of a round.

    Attributes:
        families: of each family, in the order of the run.
        pairs, refusals: names, and how much each is wanted.
    """

    families: tuple[int, ...]
    pairs: tuple[tuple[coverage.Name, int], ...]
    refusals: tuple[tuple[coverage.Name, int], ...]

    def draw(self, names: Sequence[str], seed: int, number: int) -> tuple[Family, Chooser]:
        """The family of an example, bent to what is wanted, and where its choices come from."""
        chooser = Prng(derive(seed, "soak", number))
        family = EVERY_FAMILY[names[weighted(chooser, self.families)]]
        bend = chooser.below(4)
        if family.plans_only or bend == 0:
            return family, chooser
        if bend == 1 and self.pairs:
            kinds = _pick(chooser, self.pairs)
            return replace(family, weights=_raised(family.weights, kinds)), chooser
        if bend == 2 and self.refusals:
            kind, _ = _pick(chooser, self.refusals)
            weights = _raised(family.weights, (kind,))
            illegal = max(family.illegal_percent, _ILLEGAL_PERCENT)
            return replace(family, weights=weights, illegal_percent=illegal), chooser
        return replace(family, batch_percent=_BATCH_PERCENT), chooser


def _pick(chooser: Chooser, wanted: Sequence[tuple[coverage.Name, int]]) -> coverage.Name:
    return wanted[weighted(chooser, [weight for _, weight in wanted])][0]


def _raised(weights: Mapping[str, int], kinds: tuple[str, ...]) -> dict[str, int]:
    return {kind: weight * (_MORE if kind in kinds else 1) for kind, weight in weights.items()}


def favour(
    counts: Mapping[str, Counts], names: Sequence[str], target: type[Target] | Target
) -> Favour:
    """Weights from what was met so far, by family."""
    total = Counts()
    for name in names:
        total.add(counts[name])
    return Favour(
        _family_weights([counts[name] for name in names]),
        tuple((name, _want(total.pairs[name])) for name in coverage.pairs(target)),
        tuple((name, _want(total.reasons[name])) for name in coverage.refusals(target)),
    )


def _want(met: int) -> int:
    return 1 + _RARE // (1 + met)


def _family_weights(of_each: Sequence[Counts]) -> tuple[int, ...]:
    """A family is wanted for what it meets in an example, each thing by how rare it is in all."""
    met = [_met(counts) for counts in of_each]
    total: Counter[_Item] = Counter()
    for items in met:
        total.update(items)
    yields = []
    for counts, items in zip(of_each, met, strict=True):
        examples = max(1, counts.geometries.total())
        yields.append(sum(n / total[item] for item, n in items.items()) / examples)
    whole = sum(yields) or 1.0
    return tuple(_EVEN + round(_SHARED * one / whole) for one in yields)


def _met(counts: Counts) -> Counter[_Item]:
    """How often each thing was met."""
    found: Counter[_Item] = Counter()
    for what in ("geometries", "reasons", "features", "pairs", "launches"):
        for name, n in sorted(getattr(counts, what).items()):
            found[what, name] = n
    return found


def favoured_example(
    target: Target,
    names: Sequence[str],
    weights: Favour,
    seed: int,
    number: int,
    counts: Mapping[str, Counts],
    journal: Journal | None = None,
) -> Example:
    """Run the example of a number; what it did is added to its family's counts."""
    family, chooser = weights.draw(names, seed, number)
    return run_example(target, family, chooser, counts[family.name], journal=journal)
