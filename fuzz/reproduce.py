"""A trace as a test: `check` runs one, `render` writes one that needs nothing else."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass

import numpy as np

import kvexact
from kvexact.fuzz.explained import explain_failure
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.run import execute
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.trace import IN_ORDER
from kvexact.impl.target import Target
from kvexact.refmodel.ops import Op
from kvexact.refmodel.spec import Geometry

_WIDTH = 100
_OPS_MODULE = "kvexact.refmodel.ops"
#: Names that the package exports; whatever else an op is made of stands in `ops`.
_EXPORTED = {"Geometry", "Group", "Handle", "Host", "Job", "LayerSet", "Move", "Pair", "Slot"}


def check(
    target: Target | Callable[[], Target],
    geometry: Geometry,
    ops: Sequence[Op],
    schedule: int = IN_ORDER,
) -> None:
    """Run ops on a target and on the model, and compare every byte after every op.

    Args:
        target: a target, its class, or what makes one.
        schedule: under which an asynchronous target orders its pending work.

    Raises:
        AssertionError: they disagree; the message says where and how.
        ValueError: the geometry is refused, as it should be, but there are ops to run on it.
    """
    __tracebackhide__ = True
    made = target if isinstance(target, Target) else target()
    run, wrong = execute(made, geometry, ops, schedule)
    if wrong is not None:
        raise AssertionError("\n".join(explain_failure(run, wrong).lines))
    if ops and not run.done:
        verdict = next(iter(run.counts.geometries), "refused")
        raise ValueError(f"this geometry is {verdict}, so no op ran; give one that can be")


def render(finding: Finding, target: NamedTarget, failed_runs: int | None = None) -> str:
    """A test file that shows a finding: run it with pytest or with Python alone.

    Args:
        failed_runs: how many of three runs of the reduced trace failed; None: not tried.
    """
    trace = finding.trace
    place = f"{target.target_type.__module__}:{target.target_type.__qualname__}"
    often = "not run again" if failed_runs is None else f"{failed_runs} of 3 runs"
    about = {
        "target": target.name if target.name == place else f"{target.name} ({place})",
        "signature": str(finding.failure.signature),
        "failed": often,
        "ops": f"{len(trace.ops)}, reduced from {finding.original_ops}",
        "versions": f"kvexact {kvexact.__version__}, Python {sys.version.split()[0]}, "
        f"numpy {np.__version__}",
    }
    header = "\n".join(
        [
            "A failure that kvexact found. Run this file with pytest, or with Python alone.",
            "",
            *(f"{name:<11}{value}" for name, value in about.items()),
            "",
            *finding.failure.lines,
        ]
    )
    names = {"check", *_walk(trace.geometry), *_walk(trace.ops)} | ({"ops"} if trace.ops else set())
    return _FILE.format(
        header=header.replace("\\", "\\\\").replace('"""', "'''"),
        imports=", ".join(sorted(names)),
        target=target.name,
        geometry=literal(trace.geometry),
        ops=literal(trace.ops),
        schedule="" if trace.schedule == IN_ORDER else f", schedule={trace.schedule}",
    )


_FILE = '''"""{header}
"""

from kvexact import {imports}
from kvexact.fuzz.targets import find_target

TARGET = find_target("{target}").target_type

GEOMETRY = {geometry}

OPS = {ops}


def test_reproducer() -> None:
    check(TARGET, GEOMETRY, OPS{schedule})


if __name__ == "__main__":
    test_reproducer()
    print("sound: model and target agree")
'''


def literal(value: object, indent: int = 0, before: int = 10) -> str:
    """Plain data as Python source, broken where a line would be too long.

    Args:
        before: characters that stand before it on its first line, indentation apart.
    """
    flat, parts = _flat(value), _parts(value)
    if not parts or (indent + before + len(flat) < _WIDTH and not (indent == 0 and len(parts) > 1)):
        return flat
    opening = "(" if type(value) is tuple else f"{_name(value)}("
    inner = indent + 4
    lines = [f"{' ' * inner}{key}{literal(child, inner, len(key))}," for key, child in parts]
    return "\n".join([opening, *lines, " " * indent + ")"])


def _flat(value: object) -> str:
    parts = [f"{key}{_flat(child)}" for key, child in _parts(value)]
    if type(value) is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if is_dataclass(value) or isinstance(value, tuple):
        return f"{_name(value)}({', '.join(parts)})"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _parts(value: object) -> list[tuple[str, object]]:
    """(prefix, child) of everything inside a value, defaults left out; pairs do without names."""
    if isinstance(value, tuple):
        return [("", child) for child in value]
    if is_dataclass(value):
        items = [(item, getattr(value, item.name)) for item in fields(value)]
        return [(f"{item.name}=", child) for item, child in items if child != item.default]
    return []


def _name(value: object) -> str:
    name = type(value).__name__
    return name if name in _EXPORTED else f"ops.{name}"


def _walk(value: object) -> Iterator[str]:
    """Exported names that a value is made of."""
    if type(value).__name__ in _EXPORTED:
        yield type(value).__name__
    for _, child in _parts(value):
        yield from _walk(child)
