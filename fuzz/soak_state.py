"""What a soak keeps on disk, so that the same command goes on where the last one ended or died."""

import fcntl
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvexact.fuzz.artefacts import write_atomically
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.failure import Signature
from kvexact.fuzz.reading import UnreadableError, read_plain
from kvexact.fuzz.results import Found
from kvexact.fuzz.tally import Tally

FILE = "state.json"
_VERSION = 1


class StateError(ValueError):
    """A file that is no state of this soak: one line that names the value, the rule and the fix."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What must be the same for a soak to go on."""

    target: str
    families: tuple[str, ...]
    seed: int
    shard: str


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All that was counted when a round ended."""

    next: int = 0
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: tuple[tuple[Signature, int], ...] = ()
    examples: int = 0
    geometries: int = 0
    acted: int = 0
    deaths: int = 0
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class State:
    """A soak on disk: the last whole round, and each finding as soon as it is reported.

    Attributes:
        found: in the order in which they were reported.
    """

    directory: Path
    plan: Plan
    found: list[Found] = field(default_factory=list)
    snapshot: _Snapshot = field(default_factory=_Snapshot)

    def save(self) -> None:
        """Write it, whole or not at all."""
        data = {
            "kvexact_soak": _VERSION,
            "plan": self.plan,
            "found": self.found,
            "snapshot": asdict(self.snapshot),
        }
        write_atomically(self.directory / FILE, msgspec.json.encode(data) + b"\n")

    def take(self, tally: Tally, next_number: int) -> None:
        """Take over what was counted, at the end of a round, and save it."""
        self.snapshot = _Snapshot(
            next_number,
            {name: counts.to_json() for name, counts in tally.counts.items()},
            tuple(tally.failures.items()),
            tally.examples,
            tally.geometries,
            tally.acted,
            tally.deaths,
            tally.seconds,
            tuple(tally.left_out),
        )
        self.save()

    def tally(self) -> Tally:
        """What was counted until the last whole round."""
        kept = self.snapshot
        counts = {name: Counts() for name in self.plan.families}
        counts |= {name: Counts.from_json(one) for name, one in kept.counts.items()}
        tally = Tally(counts, Counter(dict(kept.failures)), left_out=[*kept.left_out])
        for name in ("examples", "geometries", "acted", "deaths", "seconds"):
            setattr(tally, name, getattr(kept, name))
        return tally


@contextmanager
def sole(directory: Path) -> Iterator[None]:
    """Keep other soaks out of a directory; its end, or the process's, lets them in.

    Raises:
        OSError: it cannot be opened.
        StateError: another one runs in it.
    """
    place = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"{directory}: another soak runs there; wait for its end or name another --out"
            raise StateError(text) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(place)


def resume(
    directory: Path, target: str, families: tuple[str, ...], shard: str, seed: int | None
) -> State:
    """The state in a directory; a new one where there is none.

    Args:
        seed: None: the one of the state; drawn, where there is none.

    Raises:
        StateError: there is one of another soak, or what is there is none.
    """
    path = directory / FILE
    if not path.exists():
        seed = secrets.randbits(32) if seed is None else seed
        return State(directory, Plan(target, families, seed, shard))
    try:
        raw = msgspec.json.decode(read_plain(path, "state of a soak"))
        version = raw.get("kvexact_soak") if isinstance(raw, dict) else None
        if version != _VERSION:
            raise StateError(f"{path}: no state of a soak of this version; name another --out")
        before = msgspec.convert(raw.get("plan"), Plan)
        found = msgspec.convert(raw.get("found"), list[Found])
        state = State(directory, before, found, msgspec.convert(raw.get("snapshot"), _Snapshot))
        state.tally()
    except UnreadableError as error:
        raise StateError(str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, *_ODD) as error:
        raise StateError(f"{path}: no state of a soak ({error}); name another --out") from error
    plan = Plan(target, families, before.seed if seed is None else seed, shard)
    for name, was in asdict(before).items():
        now = getattr(plan, name)
        if was != now:
            raise StateError(
                f"{path}: the soak there has {name} {_words(was)}, not {_words(now)}; "
                f"name another --out, or go on with that one"
            )
    return state


#: What plain data of the wrong shape makes of `Counts.from_json`.
_ODD = (TypeError, KeyError, AttributeError, OverflowError)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else repr(value)
