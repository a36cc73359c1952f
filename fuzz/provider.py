"""Draws of Hypothesis, uniform and the same wherever they run.

Left to itself, Hypothesis likes lowest and highest values, constants that it finds in whatever
modules are loaded, and, from the eleventh example on, copies of earlier examples. All of that helps
where an input is simple to begin with; here it repeats steps, and makes a run depend on what else
is imported. So the machine brings its own provider, which is Hypothesis' hook for another source of
choices.
"""

from random import Random
from typing import Any

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider
from hypothesis.strategies import SearchStrategy

#: What `settings(backend=...)` calls it.
BACKEND = "kvexact"


class Number(SearchStrategy[int]):
    """A number of 32 bits.

    `integers` would draw the same, but give each draw weights for the ends of its range, which
    `Uniform` ignores: that takes longer than the draw itself.
    """

    def do_draw(self, data: Any) -> int:
        """See `SearchStrategy`."""
        number: int = data.draw_integer(0, 2**32 - 1)
        return number


class Uniform(PrimitiveProvider):
    """Uniform integers and booleans from the run's seed; the machine draws nothing else."""

    lifetime = "test_case"

    def __init__(self, conjecturedata: Any) -> None:
        super().__init__(conjecturedata)
        # The run's seeded source, which nothing public hands out.
        self._random: Random = conjecturedata and conjecturedata._random  # noqa: SLF001

    def draw_boolean(self, p: float = 0.5) -> bool:
        """True with probability ``p``."""
        return self._random.random() < p

    def draw_integer(self, min_value: Any = None, max_value: Any = None, **_: Any) -> int:
        """An integer between two bounds."""
        return self._random.randint(min_value, max_value)

    def draw_float(self, *_: Any, **__: Any) -> float:
        """Not drawn by the machine."""
        raise NotImplementedError

    def draw_string(self, *_: Any, **__: Any) -> str:
        """Not drawn by the machine."""
        raise NotImplementedError

    def draw_bytes(self, *_: Any, **__: Any) -> bytes:
        """Not drawn by the machine."""
        raise NotImplementedError


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{Uniform.__name__}"
