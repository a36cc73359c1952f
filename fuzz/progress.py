"""How a fuzzing run shows itself: one live line, and a summary at the end."""

import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvexact.fuzz.console import Output
from kvexact.fuzz.soak import DEATHS_MOST
from kvexact.fuzz.tally import JUDGED_LEAST, Tally
from kvexact.refmodel.ops import OPS

_REFRESH_S = 0.25
_LINE_S = 60.0
_OUTCOMES = ("acted", "refused", "no-op", "unsent")


class Progress:
    """A line that is kept up to date on a terminal, and printed once a minute elsewhere."""

    def __init__(self, console: Output) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, tally: Tally) -> None:
        """Show how far a run is."""
        terminal = self._console.is_terminal
        now = time.monotonic()
        if now - self._shown < (_REFRESH_S if terminal else _LINE_S):
            return
        self._shown = now
        if terminal:
            self._live.update(Text(progress_line(tally)), refresh=True)
        else:
            self._console.say(progress_line(tally))


def progress_line(tally: Tally) -> str:
    """How far a run is, in one line."""
    minutes, seconds = divmod(int(tally.seconds), 60)
    rate = tally.acted / tally.seconds if tally.seconds else 0
    failures = len(tally.failures)
    return (
        f"{minutes}:{seconds:02}  {tally.acted:,} ops acted, {rate:,.0f} a second  "
        f"{tally.geometries:,} geometries  {failures} kind{'' if failures == 1 else 's'} of failure"
    )


def print_summary(console: Output, tally: Tally) -> None:
    """What a run did: geometries, ops per kind, bytes, features, failures, complaints."""
    total = tally.total
    kinds = Counter[str]()
    for verdict, number in total.geometries.items():
        kinds[verdict.partition(":")[0]] += number
    listed = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(kinds.items()))
    console.say(f"\n{progress_line(tally)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("op")
    for name in (*_OUTCOMES, "bytes that had to change"):
        table.add_column(name, justify="right")
    for kind in OPS:
        numbers = [total.ops[kind, outcome] for outcome in _OUTCOMES]
        if any(numbers):
            table.add_row(kind, *(f"{n:,}" for n in (*numbers, total.changed_bytes[kind])))
    if table.row_count:
        console.print(table)
    lines = [
        ("geometries", listed or "none"),
        ("by family", _counted({n: c.geometries.total() for n, c in tally.counts.items()})),
        ("compared", f"{total.compared_bytes:,} bytes, {total.facts:,} facts"),
        ("restored", f"bytes that had changed, in {total.restoring:,} geometries"),
        ("features", _counted(total.features) or "none"),
    ]
    if total.free_bytes:
        lines.append(("skipped", f"{total.free_bytes:,} bytes that the target declares free"))
    if total.unchecked:
        lines.append(("unchecked", f"facts that the target does not offer: {_facts(tally)}"))
    for name, text in lines:
        console.say(f"{name:11}{text}")
    for signature, number in tally.failures.most_common():
        often = "once" if number == 1 else f"{number:,} times"
        text = f"failed {often}: {signature}"
        console.say(text, style="red")
    if tally.deaths >= DEATHS_MOST:
        text = f"ended early: {tally.deaths} processes died or lost their device"
        console.say(text, style="red")
    for text in tally.complaints():
        line = f"proves less than it claims: {text}"
        console.say(line, style="red")
    few = [n for n, c in tally.counts.items() if c.geometries.total() < JUDGED_LEAST]
    if few:
        text = f"too few geometries to judge: {', '.join(few)} (fewer than {JUDGED_LEAST})"
        console.say(text, style="dim")


def _counted(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(numbers.items()))


def _facts(tally: Tally) -> str:
    """Names of unchecked facts, those of all groups and layer sets together."""
    names = {
        ".".join(part for part in name.split(".") if part[1:].isdigit() is False)
        for name in tally.total.unchecked
    }
    return ", ".join(sorted(names))
