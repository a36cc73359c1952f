"""What a planted fault is, and how one is planted: a class for a part of the engine, or a macro."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvexact.impl.engine.cache import Cache
from kvexact.impl.engine.copies import Copies
from kvexact.impl.engine.deferred import DeferringManager
from kvexact.impl.engine.engine import CpuEngine, Engine, StreamsEngine
from kvexact.impl.engine.manager import Manager
from kvexact.impl.engine.planner import Planner
from kvexact.impl.engine.refusals import Refusals
from kvexact.impl.engine.regions import Registrar
from kvexact.impl.engine.stream_order import StreamOrder
from kvexact.impl.engine.tables import BlockTable, HostTable
from kvexact.impl.engine.transfers import Transfers
from kvexact.impl.engine.views import Views
from kvexact.impl.target import Target


@dataclass(frozen=True)
class Fault:
    """A fault that can be told from the sound engine in some geometry of at most 64 KiB.

    Attributes:
        name: what reports and tests call it.
        kind: one of the kinds in the package's text.
        report: the public report that it is modelled on, or "no public report".
        summary: what is decided wrongly.
        known_minimum: fewest ops of a trace that fails; 0 where planning or opening already fails.
        differences: what a report may call the first difference that it makes: its kind; of an
            engine in time, what stored the wrong bytes last.
        target: makes an engine that has the fault.
        sound: makes the same engine without it.
    """

    name: str
    kind: str
    report: str
    summary: str
    known_minimum: int
    differences: frozenset[str]
    target: Callable[[], Target]
    sound: Callable[[], Target]


#: All faults by name.
FAULTS: dict[str, Fault] = {}


_PARTS: dict[type, str] = {
    Planner: "planner",
    Refusals: "refusals",
    Registrar: "registrar",
    BlockTable: "block_table",
    HostTable: "host_table",
    Views: "views",
    Copies: "copies",
    Transfers: "transfers",
    Manager: "manager",
    StreamOrder: "order",
    Cache: "cache",
}
#: Parts whose faults are planted into the asynchronous engine.
_IN_TIME = (StreamOrder, DeferringManager, Cache)


# What a difference may be called, by what is decided wrongly: sizes and places on paper, a verdict,
# room, how much is moved, what a reader walks, from where content comes, where it lies. Content
# that comes in pieces of fewer than eight bytes cannot be named: it is "wrong".
PLANNED = {"fact", "refusal"}
VERDICT = {"refusal"}
BOUNDS = {"out of bounds"}
LOST = {"lost"}
READ = {"read"}
SOURCE = {"lost", "shifted", "stale", "foreign", "zeroed", "wrong"}
PLACED = SOURCE | {"frame"}


def register(
    name: str,
    kind: str,
    report: str,
    known_minimum: int,
    differences: set[str],
    summary: str,
    base: type[Engine] = CpuEngine,
    **part: Any,
) -> None:
    named = {**part, "__doc__": summary, "__module__": "kvexact.impl.faults"}
    engine: type[Engine] = type(name, (base,), named)
    kinds = frozenset(differences)
    FAULTS[name] = Fault(name, kind, report, summary, known_minimum, kinds, engine, base)


def planted(
    name: str, kind: str, report: str, known_minimum: int, differences: set[str]
) -> Callable[[type], type]:
    """Register an engine that has the decorated class for a part; its docstring is the summary."""

    def plant(part: type) -> type:
        summary = str(part.__doc__)
        slot = next(_PARTS[base] for base in part.__mro__ if base in _PARTS)
        base = StreamsEngine if issubclass(part, _IN_TIME) else CpuEngine
        register(name, kind, report, known_minimum, differences, summary, base, **{slot: part})
        return part

    return plant
