"""What a run does about time: schedules, answers to polls, what is left pending.

Only asynchronous targets have any of it; docs/time.md has the rules.
"""

from kvexact.fuzz.choose import Chooser, weighted
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.trace import IN_ORDER
from kvexact.fuzz.wrong import Wrong
from kvexact.impl.target import Result, Target
from kvexact.refmodel.answers import in_short
from kvexact.refmodel.order import Ordered
from kvexact.refmodel.timed_ops import Poll

#: Id of the fence that ends every example, and of the polls behind it: of no op in a trace.
END = 2**62 + 1

#: How often a schedule is 0, 1, or another one of so many.
_LATE, _IN_ORDER, _HASHED = 5, 1, 14
_NUMBERS = 2**32


def draw_schedule(chooser: Chooser, target: type[Target] | Target) -> int:
    """The schedule of an example; for a target that is not asynchronous nothing is drawn."""
    if not target.is_async:
        return IN_ORDER
    kind = weighted(chooser, (_LATE, _IN_ORDER, _HASHED))
    return kind if kind < 2 else 2 + chooser.below(_NUMBERS)


def take_answer(model: Ordered, op: Poll, answer: Result, counts: Counts) -> None:
    """What a poll's answer means to the model.

    Raises:
        Wrong: it is none, or says that a transfer is not done of which a poll said that it is, or
            which came before a fence.
    """
    if type(answer) is not bool:
        text = f"a poll must return True or False, not {in_short(answer)}"
        raise Wrong("poll", op, text, name="answer")
    begun = op.job in model.begun
    if not answer and model.jobs[op.job]:
        known = "a poll said that it is" if begun else "a fence came after it"
        text = f"the transfer that op {op.job} began is not done, but {known}"
        raise Wrong("poll", op, text, name="not done")
    if begun:
        counts.features["poll says yes" if answer else "poll says no"] += 1
    if answer:
        model.settle(op.job)
