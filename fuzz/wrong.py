"""How a target is wrong: what `Wrong` says, and what a target raises as one."""

import signal
from dataclasses import dataclass, replace
from typing import Literal

from kvexact.impl.target import DeviceLost, OutOfBounds, Target, Unavailable
from kvexact.refmodel.ops import Op

#: How a failure shows. The last five are of what a target runs in, and of its process.
Outcome = Literal[
    "mismatch",
    "rows",
    "inadmissible",
    "fact",
    "refusal",
    "poll",
    "exception",
    "out_of_bounds",
    "out_of_memory",
    "device_lost",
    "signal",
    "exit",
    "hang",
]

#: Characters that are kept of what a target says.
_SAID_CHARS = 2000


@dataclass(eq=False)
class Wrong(Exception):
    """Model and target disagree.

    Attributes:
        outcome: how it showed.
        op: the op after which it showed, blocks bound to ids; None: there was none.
        text: one line for a person.
        want, got: what disagrees: reasons, fact values, bytes, or the broken rule and its cause.
        area: the area whose bytes differ.
        name: the fact's name, the exception's type, the signal, or the exit status.
        during: what ran where there was no op: "open" or "close".
    """

    outcome: Outcome
    op: Op | None
    text: str
    want: object = None
    got: object = None
    area: str = ""
    name: str = ""
    during: str = "open"


def verdicts_differ(
    what: str, op: Op | None, predicted: str | None, reason: str | None, text: str
) -> Wrong:
    """A geometry or an op is refused by one of both, or for another reason.

    Args:
        what: "geometry" or "op".
        predicted, reason: the model's reason and the target's; None: it accepts.
        text: what the target says about it.
    """
    said_so = f" ({text})" if text else ""
    line = f"the model {_verdict(predicted)} this {what}, the target {_verdict(reason)} it{said_so}"
    return Wrong("refusal", op, line, predicted, reason)


def _verdict(reason: str | None) -> str:
    return "accepts" if reason is None else f"refuses ({reason})"


def raised_by(target: Target, error: BaseException, op: Op | None, during: str = "open") -> Wrong:
    """What a target raised; a device that is lost, where a probe says so.

    Raises:
        Unavailable, KeyboardInterrupt: as `raised` says.
    """
    wrong = raised(error)
    try:
        target.probe()
    except BaseException as lost:  # noqa: BLE001 - what a broken target may raise, too
        probed = raised(lost)
        wrong = probed if probed.outcome == "device_lost" else wrong
    return replace(wrong, op=op, during=during)


def raised(error: BaseException) -> Wrong:
    """What a target raised, as a failure of it.

    Raises:
        Unavailable: the target says that it cannot run here.
        KeyboardInterrupt: somebody interrupts; a target that raises this where SIGINT does not
            has failed.
    """
    if isinstance(error, Unavailable):
        raise error
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if isinstance(error, KeyboardInterrupt) and interrupts:
        raise error
    if isinstance(error, Wrong):
        return error
    name = type(error).__name__
    outcome: Outcome = "exception"
    if isinstance(error, OutOfBounds):
        outcome = "out_of_bounds"
    elif isinstance(error, DeviceLost):
        outcome = "device_lost"
    elif isinstance(error, MemoryError) or name == "OutOfMemoryError":
        outcome = "out_of_memory"
    return Wrong(outcome, None, f"the target raised {name}: {said(error)}", name=name)


def said(value: object) -> str:
    """What a target says, as one line that is of a sane length and can be written down."""
    try:
        text = " ".join(str(value)[:_SAID_CHARS].split())
    except Exception as error:  # noqa: BLE001 - a target's own code may raise anything
        return f"(its text raises {type(error).__name__})"
    return text.encode(errors="backslashreplace").decode()
