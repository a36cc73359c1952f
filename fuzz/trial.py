"""One trial of the fuzzer's power: one planted fault, one seed.

The fault is *found* when the first disagreement, reduced, fails on the faulted engine, passes on
the sound one, and its report names a kind of difference that this fault makes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from kvexact.fuzz.campaign import campaign
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.failure import Failure
from kvexact.fuzz.favour import ROUND, favour, favoured_example
from kvexact.fuzz.items import PROFILES, Profile, families_of
from kvexact.fuzz.machine import run_item
from kvexact.fuzz.reduce import Reducer, failure_of, reduce_failure
from kvexact.fuzz.run import Run, execute
from kvexact.fuzz.seeds import derive
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.faults import Fault
from kvexact.impl.target import Target

#: Acted ops after which the PRNG gives up.
OPS_MOST = 200_000

#: Examples of a family before it is the next one's turn.
_IN_TURN = 9

#: A run that failed, and its disagreement.
Failed = tuple[Run, Wrong]


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one fault and one seed.

    Attributes:
        missed: why the fault does not count as found; empty: it does.
        ops: acted ops until it failed, or all that there were.
        executions: programs that reducing ran.
        reduced_ops: ops of the reduced trace.
        minimal: no single edit of the reduced trace keeps the failure; tried one by one.
    """

    missed: str
    ops: int
    executions: int = 0
    reduced_ops: int = 0
    minimal: bool = False

    @property
    def found(self) -> bool:
        return not self.missed


def search_prng(
    make_target: Callable[[], Target], seed: int, ops_most: int = OPS_MOST
) -> tuple[Failed | None, int]:
    """The first failure of a PRNG campaign over all families, and the acted ops until then."""
    counts = Counts()
    families = families_of(make_target())
    of_family = {family.name: counts for family in families}
    for example in campaign(make_target, families, seed, of_family):
        if example.wrong is not None:
            return (example.run, example.wrong), counts.acted
        if counts.acted >= ops_most:
            break
    return None, counts.acted


def search_soak(
    make_target: Callable[[], Target], seed: int, ops_most: int = OPS_MOST
) -> tuple[Failed | None, int]:
    """The first failure of a soak, round by round, and the acted ops until then."""
    target = make_target()
    names = [family.name for family in families_of(target)]
    counts = {name: Counts() for name in names}
    acted = 0
    for number in count():
        if number % ROUND == 0:
            acted = sum(one.acted for one in counts.values())
            if acted >= ops_most:
                break
            weights = favour(counts, names, target)
        example = favoured_example(target, names, weights, seed, number, counts)
        if example.wrong is not None:
            return (example.run, example.wrong), sum(one.acted for one in counts.values())
    return None, acted


def search_hypothesis(
    make_target: Callable[[], Target], seed: int, profile: Profile = PROFILES["default"]
) -> tuple[Failed | None, int]:
    """A profile's first failure, its families in turn, and the acted ops until then."""
    counts = Counts()
    target = make_target()
    of_family = profile.shards * profile.examples
    for first in range(0, of_family, _IN_TURN):
        for family in families_of(target):
            run_seed = derive(seed, family.name, first)
            examples = min(_IN_TURN, of_family - first)
            failed = run_item(target, family, run_seed, examples, counts)
            if failed is not None:
                return failed, counts.acted
    return None, counts.acted


def judge(fault: Fault, failed: Failed | None, ops: int) -> Trial:
    """Reduce a failure, and say whether it shows the fault."""
    if failed is None:
        return Trial(f"no failure in {ops:,} acted ops", ops)
    failure = explain_failure(*failed)
    reducer = reduce_failure(fault.target, failed[0], failure)
    executions = reducer.executions
    checker = Reducer(fault.target, failure.signature, reducer.program)
    return Trial(
        _why_missed(fault, failure, reducer),
        ops,
        executions,
        len(reducer.program.ops),
        checker.is_minimal(),
    )


def _why_missed(fault: Fault, failure: Failure, reducer: Reducer) -> str:
    program, signature = reducer.program, failure.signature
    if signature.difference not in fault.differences:
        return f"reported as {signature}, not as {' or '.join(sorted(fault.differences))}"
    again = failure_of(fault.target(), program)
    if again is None or again[1].signature != signature:
        return f"the reduced trace of {signature} does not fail again"
    sound = execute(fault.sound(), *program)[1]
    if sound is not None:
        return f"the sound engine fails, too: {sound.text}"
    return ""
