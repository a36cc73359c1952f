"""Seeds, times and sizes on the command line, and the limits of an isolated target."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from kvexact.fuzz.target_process import Limits

#: A seed that fits into every file that names it.
SEED = click.IntRange(0, 2**62)

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
#: Less is not enough for an interpreter and its libraries.
_MEMORY_LEAST = 256 * 1024**2


class Duration(click.ParamType[float]):
    """Seconds: 90, 90s, 8m or 2h."""

    name = "TIME"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds of a text."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if match is None:
            self.fail(f"{value!r} is no time; write seconds, or 90s, 8m, 2h", param, ctx)
        seconds = float(match[1]) * _UNITS_S[match[2]]
        if not seconds:
            self.fail(f"{value!r} is no time; give more", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """Bytes: 3000000000, 512m or 2g."""

    name = "SIZE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bytes of a text."""
        match = re.fullmatch(r"(\d+)([kmg]?)", str(value).lower())
        if match is None:
            self.fail(f"{value!r} is no size; write bytes, or 512m, 2g", param, ctx)
        size = int(match[1]) * _UNITS_BYTES[match[2]]
        if size < _MEMORY_LEAST:
            self.fail(f"{value!r} is too little to start in; give at least 256m", param, ctx)
        return size


def limit_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --deadline and --memory-limit, as one argument ``limits``."""

    @click.option(
        "--deadline",
        type=Duration(),
        default="30s",
        show_default=True,
        help="What an op may take before its process is killed; opening takes ten times as long.",
    )
    @click.option(
        "--memory-limit",
        type=Size(),
        help="Address space of the target's process; too strict for CUDA.",
    )
    @wraps(command)
    def limited(*, deadline: float, memory_limit: int | None, **rest: Any) -> int:
        return command(limits=Limits(deadline, memory_limit), **rest)

    return limited
