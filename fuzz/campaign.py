"""The PRNG engine: examples of all families in turn, until a budget of ops or a stop."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from kvexact.fuzz.choose import Chooser, Prng
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.draws import steps_of
from kvexact.fuzz.family import Family
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.run import Run
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.timed import draw_schedule
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Target

T = TypeVar("T")

#: Ops in one example.
STEPS = 40


@dataclass(frozen=True, slots=True)
class Example:
    """One example that ran.

    Attributes:
        wrong: the disagreement that ended it, if any.
    """

    family: Family
    run: Run
    wrong: Wrong | None


def run_example(
    target: Target,
    family: Family,
    chooser: Chooser,
    counts: Counts,
    steps: int = STEPS,
    journal: Journal | None = None,
) -> Example:
    """Draw a geometry and ops from a chooser and run them; closes the target."""
    if journal:
        journal.family = family.name
    geometry = family.draw_fitting(chooser, target)
    schedule = draw_schedule(chooser, target)
    run = Run(target, geometry, counts, journal, schedule)
    found: Wrong | None = None
    try:
        if family.plans_only:
            run.plan_only()
        elif run.open():
            draw = steps_of(chooser, family, run).draw
            for op_id in range(steps):
                run.step(draw(chooser, op_id))
    except Wrong as wrong:
        found = wrong
    finally:
        at_close = run.close()
    return Example(family, run, found or at_close)


def place(number: int, families: Sequence[T]) -> tuple[T, int]:
    """The family of an example's number, and which one of that family's examples it is."""
    index, which = divmod(number, len(families))
    return families[which], index


def numbered_example(
    target: Target,
    family: Family,
    index: int,
    seed: int,
    counts: Counts,
    journal: Journal | None = None,
) -> Example:
    """Run a family's example of this index; seed, family and index alone decide what it draws."""
    chooser = Prng(derive(seed, family.name, index))
    return run_example(target, family, chooser, counts, journal=journal)


def campaign(
    make_target: Callable[[], Target],
    families: Sequence[Family],
    seed: int,
    counts: dict[str, Counts],
) -> Iterator[Example]:
    """Examples without end, one family after the other; what each did is added to its counts."""
    target = make_target()
    for number in count():
        family, index = place(number, families)
        yield numbered_example(target, family, index, seed, counts[family.name])
