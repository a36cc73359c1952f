"""Whether a failure of a release of vLLM is one of order."""

from kvexact.fuzz.failure import Failure
from kvexact.fuzz.reduce import failure_of, program_of
from kvexact.fuzz.run import Run
from kvexact.impl.adapters.vllm.targets import VllmTarget


def is_of_order(run: Run, failure: Failure) -> bool:
    """Whether bytes are wrong that are not, where all work on the device is done at once."""
    target = run.target
    if not isinstance(target, VllmTarget) or target.at_once or not failure.wrong_at:
        return False
    again = failure_of(target.all_at_once()(), program_of(run))
    return again is None or again[1].wrong_at != failure.wrong_at
