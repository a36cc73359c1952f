"""What a target believes about its geometry, beside what is so."""

from kvexact.fuzz.run import Run
from kvexact.refmodel.facts import FactValue, facts, view

#: A fact may list thousands of regions.
_FACT_CHARS = 400


def believed_facts(run: Run, concerned: str | None = None) -> tuple[tuple[str, str, str], ...]:
    """Facts that differ, and those whose name starts like this: believed beside expected."""
    assert run.plan is not None
    rows = []
    for name, want in facts(run.plan).items():
        got: object = run.facts.get(name, "not told")
        if (name in run.facts and got != want) or (concerned and name.startswith(concerned)):
            rows.append((name, f"{got!s:.{_FACT_CHARS}}", f"{want!s:.{_FACT_CHARS}}"))
    return tuple(rows)


def view_line(run: Run, group: int, layer_set: int, field: str) -> str:
    """The believed view of a field beside the expected one."""
    assert run.plan is not None
    name = f"g{group}.s{layer_set}.{field}.view"
    placement = run.plan.placements[group][layer_set]
    item = next(item for item in placement.places if item.field.name == field)
    believed = _view_words(run.facts[name]) if name in run.facts else "not told"
    return f"  view  believed {believed}    expected {_view_words(view(placement, item))}"


def _view_words(value: FactValue) -> str:
    """Strides over layer, kernel block, head and token, then the offset."""
    assert isinstance(value, tuple)
    offset, *strides = value
    return f"strides ({', '.join(map(str, strides))}) + {offset:,}"
