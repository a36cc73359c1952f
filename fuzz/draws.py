"""Where the ops of an example come from: ops on blocks or ops on requests, as its family says."""

from kvexact.fuzz.choose import Chooser
from kvexact.fuzz.family import Family
from kvexact.fuzz.run import Run
from kvexact.fuzz.serving_steps import ServingSteps
from kvexact.fuzz.steps import Mix, Steps

Draws = Steps | ServingSteps


def steps_of(chooser: Chooser, family: Family, run: Run) -> Draws:
    """What draws the ops of an open run."""
    if family.serves:
        return ServingSteps(chooser, family, run)
    return Steps(run.model, run.names, Mix.draw(chooser, family, run.target))
