"""The Hypothesis engine: a state machine whose one rule is a step of the fuzzer.

Hypothesis draws one number a step, and the first one decides geometry and weights. It neither
shrinks nor remembers. Three habits of it are worked around:

* It copies parts of an example into later ones (from the eleventh on, five of six are such copies)
  and likes lowest and highest values. So a step is decoded from all numbers drawn before it, and an
  item is a row of short runs, each with its own seed.
* It likes constants that it finds in modules loaded so far, so that what is drawn would depend on
  them. Numbers are drawn where no program has constants.
* It catches what a test raises and runs the test again. So a failure leaves as a `BaseException`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kvexact.fuzz.campaign import STEPS
from kvexact.fuzz.choose import Digits
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.families import Family
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.run import Run, Wrong
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.steps import Mix, Steps
from kvexact.impl.target import Target

#: Examples of one short run.
FRESH_EXAMPLES = 9
_FAR_OFF = 10**30
_FIRST = st.integers(_FAR_OFF, _FAR_OFF + 2**24 - 1)
# Enough to make two examples part; a longer range would take Hypothesis longer to draw from.
_NUMBERS = st.integers(_FAR_OFF, _FAR_OFF + 127)
_OPENS_TRIED = 8
_MASK = 2**64 - 1
_ODD = 0xD6E8FEB86659FD93


class _Found(BaseException):
    """The failure at which a run of Hypothesis ends."""

    def __init__(self, run: Run, wrong: Wrong) -> None:
        self.failed = run, wrong


@dataclass(frozen=True, slots=True)
class _Share:
    """What the examples of an item have in common."""

    target: Target
    family: Family
    counts: Counts
    journal: Journal | None
    on_example: Callable[[Run], None]


class FuzzMachine(RuleBasedStateMachine):
    """An example: a geometry that opens, and ops; where a family only plans, geometries.

    Attributes:
        salt: the run's seed, so that no two runs decode equal numbers to equal ops.
    """

    share: ClassVar[_Share]
    salt: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self._key = self.salt
        self._run: Run | None = None
        self._steps: Steps | None = None
        self._op_id = 0

    @initialize(number=_FIRST)
    def start(self, number: int) -> None:
        """Draw geometries until one opens; those that are refused on the way count, too."""
        share, chooser = self.share, self._decode(number)
        if share.family.plans_only:
            return
        for _ in range(_OPENS_TRIED):
            run = Run(share.target, share.family.draw(chooser), share.counts, share.journal)
            if _checked(run, run.open):
                mix = Mix.draw(chooser, share.family, share.target)
                self._run, self._steps = run, Steps(run.model, run.names, mix)
                return
            self._end(run)

    @rule(number=_NUMBERS)
    def step(self, number: int) -> None:
        """One op, or one geometry."""
        share, chooser = self.share, self._decode(number)
        if share.family.plans_only:
            run = Run(share.target, share.family.draw(chooser), share.counts)
            _checked(run, run.plan_only)
            share.on_example(run)
        elif self._steps is not None:
            assert self._run is not None
            op = self._steps.draw(chooser, self._op_id)
            self._op_id += 1
            try:
                self._run.step(op)
            except Wrong as wrong:
                raise _Found(self._run, wrong) from None

    def _decode(self, number: int) -> Digits:
        self._key = ((self._key ^ (number - _FAR_OFF)) * _ODD + 1) & _MASK
        return Digits(self._key)

    def teardown(self) -> None:
        """Close the target."""
        if self._run is not None:
            self._end(self._run)

    def _end(self, run: Run) -> None:
        self.share.target.close()
        self.share.on_example(run)


def _checked(run: Run, ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except Wrong as wrong:
        raise _Found(run, wrong) from None


def failures(
    target: Target,
    family: Family,
    item_seed: int,
    examples: int,
    counts: Counts,
    on_example: Callable[[Run], None] | None = None,
    journal: Journal | None = None,
) -> Iterator[tuple[Run, Wrong]]:
    """Run examples of a family; yield each run that failed, and its disagreement.

    A failure also ends the short run that met it; the next one goes on.

    Args:
        counts: what the examples did is added here.
        on_example: called at the end of each geometry that was drawn.
    """
    if journal:
        journal.family = family.name

    class Machine(FuzzMachine):
        """This item's own."""

    Machine.share = _Share(target, family, counts, journal, on_example or (lambda _: None))
    for first in range(0, examples, FRESH_EXAMPLES):
        Machine.salt = derive(item_seed, first)
        own = own_settings(min(FRESH_EXAMPLES, examples - first))
        try:
            run_state_machine_as_test(seed(Machine.salt)(Machine), settings=own)
        except _Found as found:
            yield found.failed
        finally:
            target.close()


def run_item(
    target: Target,
    family: Family,
    item_seed: int,
    examples: int,
    counts: Counts,
    on_example: Callable[[Run], None] | None = None,
    journal: Journal | None = None,
) -> tuple[Run, Wrong] | None:
    """Run examples of a family until one fails; see `failures`."""
    found = failures(target, family, item_seed, examples, counts, on_example, journal)
    return next(found, None)


def own_settings(examples: int) -> settings:
    """Settings that no profile, least of all the one that Hypothesis loads in CI, changes."""
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS + 1,  # the first step is `start`
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        backend="hypothesis",
    )
