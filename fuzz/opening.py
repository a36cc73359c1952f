"""What model and target say to a geometry: verdicts, reasons and facts, side by side."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvexact.fuzz.counts import Counts
from kvexact.fuzz.features import features_of
from kvexact.fuzz.shown import as_facts, fits
from kvexact.fuzz.wrong import Wrong, raised_by, said, verdicts_differ
from kvexact.impl.target import Facts, Target
from kvexact.refmodel.facts import FactValue, facts
from kvexact.refmodel.plan import Plan, plan
from kvexact.refmodel.spec import Geometry, Refused


@dataclass(slots=True)
class Opening:
    """A geometry, planned by the model, and asked of a target.

    Attributes:
        plan: the model's; None: it refuses, or nothing was asked yet.
        facts: what the target believes; empty where it refuses.
    """

    target: Target
    geometry: Geometry
    counts: Counts
    plan: Plan | None = None
    facts: Facts = field(default_factory=dict)

    def compare(self, ask: Callable[[Geometry], Facts]) -> bool:
        """Ask both and compare; the verdict is counted.

        Args:
            ask: the target's ``open`` or ``plan``.

        Returns:
            Whether both accept. False, too: the target was not asked, as a geometry that does not
            fit it never is, or may refuse it.

        Raises:
            Wrong: the verdicts, the reasons or the facts differ.
        """
        predicted = None
        try:
            self.plan = plan(self.geometry)
        except Refused as refusal:
            predicted = refusal.reason
        if predicted is not None and predicted not in self.target.geometry_refusals:
            return self._verdict("unsent", accepted=False)
        if not fits(self.target, self.geometry):
            return self._verdict("declined:unfit", accepted=False)
        refused = self._ask(ask)
        if refused is not None and predicted is None and refused.reason in self.target.may_refuse:
            return self._verdict(f"declined:{refused.reason}", accepted=False)
        _compare_verdicts(predicted, refused)
        if self.plan is None:
            return self._verdict(f"refused:{predicted}", accepted=False)
        self._compare_facts(facts(self.plan))
        self.counts.features.update(features_of(self.plan))
        return self._verdict("accepted", accepted=True)

    def _ask(self, ask: Callable[[Geometry], Facts]) -> Refused | None:
        """The target's refusal, or None and its facts."""
        try:
            answer = ask(self.geometry)
        except Refused as refusal:
            return refusal
        except BaseException as error:
            raise raised_by(self.target, error, None) from error
        self.facts = as_facts(answer)
        return None

    def _verdict(self, name: str, *, accepted: bool) -> bool:
        self.counts.geometries[name] += 1
        return accepted

    def _compare_facts(self, expected: dict[str, FactValue]) -> None:
        for name, want in expected.items():
            if name not in self.facts:
                self.counts.unchecked[name] += 1
                continue
            self.counts.facts += 1
            got: object = self.facts[name]
            if not isinstance(got, int | tuple) or got != want:
                raise Wrong("fact", None, f"fact {name} is {got}, not {want}", want, got, name=name)


def _compare_verdicts(predicted: str | None, refused: Refused | None) -> None:
    reason = refused.reason if refused else None
    if reason != predicted:
        text = said(refused.text) if refused else ""
        raise verdicts_differ("geometry", None, predicted, reason, text)
