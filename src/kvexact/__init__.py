"""kvexact finds byte-level bugs in paged KV-cache code.

What users need, loaded when first asked for, so that the model alone needs only numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvexact.fuzz.reproduce import check
    from kvexact.impl.target import (
        DeviceLost,
        Facts,
        FreeBytes,
        OutOfBounds,
        Rows,
        Target,
        Unavailable,
    )
    from kvexact.refmodel import ops
    from kvexact.refmodel.answer import HOLE, Answer
    from kvexact.refmodel.ops import Handle, Job, Move, Pair, Slot
    from kvexact.refmodel.spec import Geometry, GeometryError, Group, Host, LayerSet, Refused

__version__ = "0.1.0"

__all__ = [
    "HOLE",
    "Answer",
    "DeviceLost",
    "Facts",
    "FreeBytes",
    "Geometry",
    "GeometryError",
    "Group",
    "Handle",
    "Host",
    "Job",
    "LayerSet",
    "Move",
    "OutOfBounds",
    "Pair",
    "Refused",
    "Rows",
    "Slot",
    "Target",
    "Unavailable",
    "__version__",
    "check",
    "ops",
]

_HOMES = {
    "kvexact.refmodel.spec": "Geometry GeometryError Group Host LayerSet Refused",
    "kvexact.refmodel.answer": "HOLE Answer",
    "kvexact.refmodel.ops": "Handle Job Move Pair Slot",
    "kvexact.impl.target": "DeviceLost Facts FreeBytes OutOfBounds Rows Target Unavailable",
    "kvexact.fuzz.reproduce": "check",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "ops":
        return import_module("kvexact.refmodel.ops")
    if name not in _HOME:
        raise AttributeError(f"module 'kvexact' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
