"""How a fuzzing run shows itself: one live line."""

import time
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.text import Text

from kvexact.fuzz.console import Output
from kvexact.fuzz.features import FEATURES
from kvexact.fuzz.memory import resident_bytes
from kvexact.fuzz.tally import Tally

_REFRESH_S = 0.25
_LINE_S = 60.0


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
            self._live.update(Text(_live_line(tally)), refresh=True)
        else:
            self._console.say(_live_line(tally))


def _live_line(tally: Tally) -> str:
    return f"{progress_line(tally)}  {resident_bytes() / 1e6:,.0f} MB"


def progress_line(tally: Tally) -> str:
    """How far a run is, in one line."""
    minutes, seconds = divmod(int(tally.seconds), 60)
    rate = tally.acted / tally.seconds if tally.seconds else 0
    failures = len(tally.failures)
    met = sum(1 for name in FEATURES if any(one.features[name] for one in tally.counts.values()))
    return (
        f"{minutes}:{seconds:02}  {tally.acted:,} ops acted, {rate:,.0f} a second  "
        f"{tally.geometries:,} geometries  {met} of {len(FEATURES)} features  "
        f"{failures} kind{'' if failures == 1 else 's'} of failure"
    )
