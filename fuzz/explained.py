"""Explains the disagreement at which a run ended."""

from dataclasses import replace

from kvexact.fuzz.beliefs import believed_facts
from kvexact.fuzz.explained_bytes import explain_bytes
from kvexact.fuzz.explained_rows import explain_rows
from kvexact.fuzz.failure import Failure, Signature
from kvexact.fuzz.op_words import op_words
from kvexact.fuzz.pending import OF_PENDING, PENDING, pending_line, stored_last
from kvexact.fuzz.run import Run
from kvexact.fuzz.wrong import Wrong
from kvexact.refmodel.ops import KIND_OF


def explain_failure(run: Run, wrong: Wrong) -> Failure:
    """Explain the disagreement at which a run ended."""
    failure = _explained(run, wrong)
    if wrong.op is None or not run.target.is_async:
        return failure
    lines = (*failure.lines, pending_line(run))
    return replace(failure, signature=_in_time(run, wrong, failure), lines=lines)


def _in_time(run: Run, wrong: Wrong, failure: Failure) -> Signature:
    """The signature of an asynchronous target's failure: any pending op may be at fault."""
    outcome, _, difference, field = failure.signature
    if wrong.outcome not in OF_PENDING:
        return failure.signature
    if difference not in ("frame", "shape") and wrong.outcome in ("mismatch", "rows"):
        difference = stored_last(run, wrong) or difference
        field = wrong.area or "pool"
    return Signature(outcome, PENDING, difference, field)


def _explained(run: Run, wrong: Wrong) -> Failure:
    kind = wrong.during if wrong.op is None else KIND_OF[type(wrong.op)]
    headline = f"{kind if wrong.op is None else op_words(wrong.op)}: {wrong.text}"
    if wrong.outcome == "mismatch":
        return explain_bytes(run, wrong, kind)
    if wrong.outcome == "fact":
        name = wrong.name.split(".", 2)[-1] if wrong.name.startswith("g") else wrong.name
        detail = (f"  believed {wrong.got}", f"  expected {wrong.want}")
        signature = Signature("fact", kind, "fact", name)
        return Failure(signature, (headline, *detail), facts=believed_facts(run))
    if wrong.outcome == "refusal":
        reasons = f"{wrong.want or 'accepted'} as {wrong.got or 'accepted'}"
        return Failure(Signature("refusal", kind, "refusal", reasons), (headline,))
    if wrong.outcome == "poll":
        return Failure(Signature("poll", kind, "poll", wrong.name), (headline,))
    if wrong.outcome == "inadmissible":
        signature = Signature("inadmissible", kind, str(wrong.want), str(wrong.got))
        return Failure(signature, (headline,))
    if wrong.outcome == "rows":
        return explain_rows(run, wrong, kind, headline)
    difference = wrong.outcome.replace("_", " ")
    return Failure(Signature(wrong.outcome, kind, difference, wrong.name), (headline,))
