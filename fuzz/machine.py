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

from collections.abc import Callable
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

_FRESH_EXAMPLES = 9
_FAR_OFF = 10**30
_NUMBERS = st.integers(_FAR_OFF, _FAR_OFF + 2**24 - 1)
_OPENS_TRIED = 8
_MASK = 2**64 - 1
_ODD = 0xD6E8FEB86659FD93


class _Found(BaseException):
    """The failure at which an item ends."""

    def __init__(self, run: Run, wrong: Wrong) -> None:
        self.run = run
        self.wrong = wrong


class FuzzMachine(RuleBasedStateMachine):
    """An example: a geometry that opens, and ops; where a family only plans, geometries.

    Attributes:
        salt: the run's seed, so that no two runs decode equal numbers to equal ops.
    """

    target: ClassVar[Target]
    family: ClassVar[Family]
    counts: ClassVar[Counts]
    journal: ClassVar[Journal | None]
    on_example: ClassVar[Callable[[Run], None]]
    salt: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self._key = self.salt
        self._run: Run | None = None
        self._steps: Steps | None = None
        self._op_id = 0

    @initialize(number=_NUMBERS)
    def start(self, number: int) -> None:
        """Draw geometries until one opens; those that are refused on the way count, too."""
        chooser = self._decode(number)
        if self.family.plans_only:
            return
        for _ in range(_OPENS_TRIED):
            run = Run(self.target, self.family.draw(chooser), self.counts, self.journal)
            if _checked(run, run.open):
                mix = Mix.draw(chooser, self.family, self.target)
                self._run, self._steps = run, Steps(run.model, run.names, mix)
                return
            self._end(run)

    @rule(number=_NUMBERS)
    def step(self, number: int) -> None:
        """One op, or one geometry."""
        chooser = self._decode(number)
        if self.family.plans_only:
            run = Run(self.target, self.family.draw(chooser), self.counts)
            _checked(run, run.plan_only)
            self.on_example(run)
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
        self.target.close()
        self.on_example(run)


def _checked(run: Run, ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except Wrong as wrong:
        raise _Found(run, wrong) from None


def run_item(
    target: Target,
    family: Family,
    item_seed: int,
    examples: int,
    counts: Counts,
    on_example: Callable[[Run], None] | None = None,
    journal: Journal | None = None,
) -> tuple[Run, Wrong] | None:
    """Run examples of a family until one fails; what they did is added to ``counts``.

    Args:
        on_example: called at the end of each geometry that was drawn.

    Returns:
        The run that failed and its disagreement; None: there was none.
    """
    if journal:
        journal.family = family.name
    body = {
        "target": target,
        "family": family,
        "counts": counts,
        "journal": journal,
        "on_example": staticmethod(on_example or (lambda _: None)),
    }
    machine = type("Machine", (FuzzMachine,), body)
    try:
        for first in range(0, examples, _FRESH_EXAMPLES):
            machine.salt = derive(item_seed, first)
            run_state_machine_as_test(
                seed(machine.salt)(machine),
                settings=_settings(min(_FRESH_EXAMPLES, examples - first)),
            )
    except _Found as found:
        return found.run, found.wrong
    finally:
        target.close()
    return None


def _settings(examples: int) -> settings:
    """Settings that no profile, least of all the one that Hypothesis loads in CI, changes."""
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS + 1,  # the first step is `start`
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        backend="hypothesis",
    )
