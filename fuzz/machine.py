"""The Hypothesis engine: a state machine whose one rule is a step of the fuzzer.

Hypothesis draws one number a step, and the first one decides geometry and weights. Numbers come
from the provider of `provider.py`; Hypothesis neither shrinks nor remembers. It catches what a test
raises and runs the test again, so a failure leaves as a `BaseException`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kvexact.fuzz.campaign import STEPS
from kvexact.fuzz.choose import Digits
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.draws import Draws, steps_of
from kvexact.fuzz.family import Family
from kvexact.fuzz.journal import Journal
from kvexact.fuzz.provider import BACKEND, Number
from kvexact.fuzz.run import Run
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.timed import draw_schedule
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Target

_NUMBERS = Number()
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
    started: Counter[str]


class FuzzMachine(RuleBasedStateMachine):
    """An example: a geometry that opens, and ops; where a family only plans, geometries.

    Attributes:
        salt: the run's seed, so that no two runs decode equal numbers to equal ops.
    """

    share: ClassVar[_Share]
    salt: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        # The first example of Hypothesis is all zeros in every run; the salt makes it another one.
        self._key = self.salt
        self.share.started["examples"] += 1
        self._run: Run | None = None
        self._steps: Draws | None = None
        self._op_id = 0

    @initialize(number=_NUMBERS)
    def start(self, number: int) -> None:
        """Draw geometries until one opens; those that are refused on the way count, too."""
        share, chooser = self.share, self._decode(number)
        if share.family.plans_only:
            return
        for _ in range(_OPENS_TRIED):
            run = self._new_run(chooser)
            if self._checked(run, run.open):
                self._run, self._steps = run, steps_of(chooser, share.family, run)
                return
            self._end(run)

    @rule(number=_NUMBERS)
    def step(self, number: int) -> None:
        """One op, or one geometry."""
        share, chooser = self.share, self._decode(number)
        if share.family.plans_only:
            run = self._new_run(chooser)
            self._checked(run, run.plan_only)
            share.on_example(run)
        elif self._steps is not None:
            assert self._run is not None
            op = self._steps.draw(chooser, self._op_id)
            self._op_id += 1
            try:
                self._run.step(op)
            except Wrong as wrong:
                run, self._run = self._run, None
                raise self._found(run, wrong) from None

    def _new_run(self, chooser: Digits) -> Run:
        share = self.share
        geometry = share.family.draw_fitting(chooser, share.target)
        schedule = draw_schedule(chooser, share.target)
        return Run(share.target, geometry, share.counts, share.journal, schedule)

    def _checked(self, run: Run, ask: Callable[[], bool]) -> bool:
        try:
            return ask()
        except Wrong as wrong:
            raise self._found(run, wrong) from None

    def _found(self, run: Run, wrong: Wrong) -> _Found:
        """The failure of a run, which ends here; what closing it does wrong is no news."""
        run.close()
        self.share.on_example(run)
        return _Found(run, wrong)

    def _decode(self, number: int) -> Digits:
        self._key = ((self._key ^ number) * _ODD + 1) & _MASK
        return Digits(self._key)

    def teardown(self) -> None:
        """Close the target."""
        if self._run is not None:
            self._end(self._run)

    def _end(self, run: Run) -> None:
        wrong = run.close()
        self.share.on_example(run)
        if wrong is not None:
            raise _Found(run, wrong)


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

    A failure ends Hypothesis' run; another one goes on with the examples that are left.

    Args:
        counts: what the examples did is added here.
        on_example: called at the end of each geometry that was drawn.
    """
    if journal:
        journal.family = family.name
    started: Counter[str] = Counter()
    share = _Share(target, family, counts, journal, on_example or (lambda _: None), started)
    while started["examples"] < examples:
        salt = derive(item_seed, started["examples"])
        machine = seed(salt)(type("Machine", (FuzzMachine,), {"share": share, "salt": salt}))
        try:
            run_state_machine_as_test(
                machine, settings=own_settings(examples - started["examples"])
            )
        except _Found as found:
            yield found.failed
        else:
            return


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
        backend=BACKEND,
    )
