"""All schedules of a small program, for tests.

The program is run again and again, each time along another path of choices. A path ends early where
the state of host and device was met before: what can follow from there has been or will be seen.
"""

from collections.abc import Callable, Hashable, Sequence

from kvexact.impl.simulation.actions import Key, Part, Piece, Step
from kvexact.impl.simulation.schedules import Point, Schedule

#: What the host has seen so far; it must hold all that the host's later calls depend on.
Seen = list[Hashable]


class _Known(BaseException):
    """The state was met before. No error, so that a program does not catch it."""


class _Path(Schedule):
    """Takes the choices of a path, then first choices, which it adds to the path."""

    def __init__(self, path: list[int], met: set[Hashable], seen: Seen) -> None:
        self.path = path
        self.widths: list[int] = []
        self._met = met
        self._seen = seen

    def split(self, key: Key, sizes: Sequence[int]) -> list[Part]:  # noqa: ARG002
        """Every byte on its own: any other way to split is one of the orders of these parts."""
        return [[Piece(item, at, at + 1)] for item, size in enumerate(sizes) for at in range(size)]

    def lingers(self, key: Key) -> bool:  # noqa: ARG002
        """Everything does: only then is every order of ends seen."""
        return True

    def choose(self, point: Point) -> Sequence[Step]:
        options: list[list[Step]] = [[step] for step in point.steps()]
        if not point.forced:
            options.append([])
        depth = len(self.widths)
        if depth == len(self.path):
            # A call asks at most once while it waits and once while it does not, each time until
            # nothing runs: so with what the host has seen this says where the program is.
            state = (point.key, point.forced, tuple(self._seen), point.state())
            if state in self._met:
                raise _Known
            self._met.add(state)
            self.path.append(0)
        self.widths.append(len(options))
        return options[self.path[depth]]


def outcomes(program: Callable[[Schedule, Seen], None]) -> set[tuple[Hashable, ...]]:
    """What the host can see in a program, over all schedules.

    Args:
        program: runs from the beginning under a schedule and adds what the host sees to a list. It
            calls nothing that the list, the calls so far and memory do not determine. An endless
            loop of queries is no problem if each round starts with the same `Runtime.begin`.

    Returns:
        The lists of all runs that came to their end.
    """
    found: set[tuple[Hashable, ...]] = set()
    met: set[Hashable] = set()
    path: list[int] = []
    while True:
        seen: Seen = []
        walk = _Path(path, met, seen)
        try:
            program(walk, seen)
            found.add(tuple(seen))
        except _Known:
            pass
        del path[len(walk.widths) :]
        while path and path[-1] + 1 == walk.widths[len(path) - 1]:
            path.pop()
        if not path:
            return found
        path[-1] += 1
