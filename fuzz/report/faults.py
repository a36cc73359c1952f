"""What ``kvexact power --json`` printed, for the report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from kvexact.fuzz.reading import UnreadableError, read_plain
from kvexact.fuzz.summary_file import ResultError

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class FaultRow:
    """The score of one planted fault; see `kvexact.fuzz.power.Score`."""

    name: str
    kind: str
    report: str
    engine: str
    found: _Number
    seeds: _Number
    ops_median: _Number | None
    reduced_ops: _Number | None
    known_minimum: _Number
    minimal: bool

    @property
    def missed(self) -> bool:
        """Not found from every seed, or not reduced to a minimal trace."""
        return self.found < self.seeds or not self.minimal


@dataclass(frozen=True, slots=True)
class _File:
    faults: tuple[FaultRow, ...]


def load_faults(path: Path) -> tuple[FaultRow, ...]:
    """Read the scores of all faults.

    Raises:
        ResultError: the file cannot be read, or holds something else.
    """
    try:
        return msgspec.json.decode(read_plain(path, "power"), type=_File).faults
    except UnreadableError as error:
        raise ResultError(str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(
            f"{path}: {error}; name a file that `kvexact power --json` printed"
        ) from error
