"""What a run did, as lines for a person: shown under every run, in pytest and on the terminal."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from kvexact.fuzz.counts import GEOMETRIES_LEAST, Counts, vacuous
from kvexact.fuzz.families import EVERY_FAMILY
from kvexact.fuzz.features import known_features
from kvexact.fuzz.targets import NamedTarget
from kvexact.refmodel.ops import OPS

#: Counts by (target name, family name).
Merged = Mapping[tuple[str, str], Counts]

_WIDTH = 96


def merge(parts: Iterable[tuple[str, str, Counts]]) -> dict[tuple[str, str], Counts]:
    """Counts of every target and family, over all items that had a share in them."""
    merged: dict[tuple[str, str], Counts] = {}
    for target, family, counts in parts:
        merged.setdefault((target, family), Counts()).add(counts)
    return merged


def complaints(
    merged: Merged, targets: Iterable[NamedTarget], failed: Collection[str] = ()
) -> list[str]:
    """Where a run proves less than it claims, one line each; not empty means that it failed.

    A family of few geometries is judged with the others of its target, for it may meet none that
    its target accepts.

    Args:
        failed: targets that failed: a run that a failure cut short need not prove more.
    """
    found = []
    for target in targets:
        families = {name: counts for (of, name), counts in merged.items() if of == target.name}
        if target.name not in failed:
            found += [f"{target.name}: {line}" for line in _proves_nothing(families)]
        for name, counts in sorted(families.items()):
            if counts.geometries.total() < GEOMETRIES_LEAST:
                continue
            family = EVERY_FAMILY[name]
            lines = vacuous(
                counts,
                plans_only=family.plans_only,
                illegal_percent=family.illegal_percent,
                op_kinds=family.kinds(target.target_type.op_kinds),
                in_time=target.target_type.is_async,
            )
            found += [f"{target.name}, {name}: {line}" for line in lines]
    return found


def _proves_nothing(families: Mapping[str, Counts]) -> Iterator[str]:
    """What a target's families never did, all of them together."""
    total = _total(families.values())
    if not total.geometries:
        yield "no geometry was tried"
        return
    if not total.facts:
        yield "no fact was compared"
    if all(EVERY_FAMILY[name].plans_only for name in families):
        return
    if not total.compared_bytes:
        yield "no byte was compared"
    if not total.changed_bytes.total():
        yield "no content byte had to change"


def _total(counts: Iterable[Counts]) -> Counts:
    total = Counts()
    for one in counts:
        total.add(one)
    return total


def summary(merged: Merged) -> list[str]:
    """Geometries, ops and bytes of every target, and what it never met."""
    lines = []
    for target in sorted({target for target, _ in merged}):
        families = {name: counts for (of, name), counts in merged.items() if of == target}
        total = _total(families.values())
        lines.append(f"{target}: {_geometries(total, len(families))}")
        lines += [*_table(total), *_features(total), *_by_family(families)]
    return lines


def _by_family(families: Mapping[str, Counts]) -> list[str]:
    numbers = {name: families[name].geometries.total() for name in EVERY_FAMILY if name in families}
    few = [name for name, number in numbers.items() if number < GEOMETRIES_LEAST]
    lines = _wrapped("geometries", [f"{name} {number:,}" for name, number in numbers.items()])
    return lines + _wrapped(f"fewer than {GEOMETRIES_LEAST}, judged only together", few)


def _geometries(counts: Counts, families: int) -> str:
    verdicts = sorted(counts.geometries.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{n:,} {verdict.replace(':', ' ')}" for verdict, n in verdicts)
    what = "1 family" if families == 1 else f"{families} families"
    return f"{sum(counts.geometries.values()):,} geometries of {what}: {listed or 'none'}"


def _table(counts: Counts) -> list[str]:
    """A row for each kind of op, and one for all of them."""
    outcomes = ["acted", "refused", "no-op"]
    if counts.outcome("unsent"):
        outcomes.append("unsent")
    rows: list[tuple[str, ...]] = [("op", *outcomes, "bytes that had to change")]
    for kind in OPS:
        numbers = [counts.ops[kind, outcome] for outcome in outcomes]
        if any(numbers):
            rows.append((kind, *(f"{n:,}" for n in numbers), f"{counts.changed_bytes[kind]:,}"))
    if len(rows) > 1:
        totals = (f"{counts.outcome(outcome):,}" for outcome in outcomes)
        rows.append(("all", *totals, f"{sum(counts.changed_bytes.values()):,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
    else:
        lines = []
    compared = f"{counts.compared_bytes:,} bytes and {counts.facts:,} facts compared"
    if counts.free_bytes:
        compared += f", {counts.free_bytes:,} bytes declared free"
    if counts.restoring:
        compared += f"; bytes that had changed restored in {counts.restoring:,} geometries"
    return [f"  {line}" for line in (*lines, compared)]


def _features(counts: Counts) -> list[str]:
    met = {name: n for name, n in counts.features.items() if n}
    known = known_features(counts.acted_kinds)
    never = [name for name in known if name not in met]
    lines = _wrapped("features met", [f"{name} {met[name]:,}" for name in known if name in met])
    lines += _wrapped("never met", never)
    return lines + _wrapped("facts not told", _fact_names(counts))


def _fact_names(counts: Counts) -> list[str]:
    """Names of facts not told, those of all groups and layer sets together."""
    parts = (name.split(".") for name in counts.unchecked)
    return sorted({".".join(part for part in name if not part[1:].isdigit()) for name in parts})


def _wrapped(label: str, words: list[str]) -> list[str]:
    """Words after a label, in lines of at most `_WIDTH` characters; no words, no line."""
    lines: list[str] = []
    line = f"  {label}:"
    for number, word in enumerate(words):
        text = f" {word}" + ("," if number < len(words) - 1 else "")
        if len(line) + len(text) > _WIDTH:
            lines.append(line)
            line = "   "
        line += text
    return [*lines, line] if words else []
