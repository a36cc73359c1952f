"""Source text of kvexact in a file that runs without it."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from kvexact.impl import simulation
from kvexact.impl.adapters.vllm.driver import device, turns

_LATE = """
device = SimulatedDevice()
device.open(LATE)
device.register(1, 1 << 47, "memory", Kind.DEVICE)  # any may be copied
device.turns.at_once = lambda: True
install(device)
later, finish = lambda work: device.launch([work]), device.finish
"""
#: Makes a module of its source.
_MODULE = """
def module(name, source):
    sys.modules[name] = made = ModuleType(name)
    made.__path__ = []
    exec(source, vars(made))
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, made)
"""
_PACKAGE = "kvexact.impl."


def late_device() -> Iterator[str]:
    """A device on which work is pending as long as it may be."""
    yield "# --- A simulation of streams. " + "-" * 70
    yield _MODULE.strip()
    for module in (simulation, *_imported_by(device)):
        source = inspect.getsource(module).replace(_PACKAGE, "")
        yield f"module({module.__name__.removeprefix(_PACKAGE)!r}, r'''{source}''')"
    yield "\n".join(ast.unparse(node).replace(_PACKAGE, "") for node in _imports_of(device))
    yield source_of(turns)
    yield source_of(device)
    yield _LATE.strip()


def _imported_by(module: ModuleType) -> list[ModuleType]:
    """The modules that a module needs, each behind those that it needs itself."""
    found: dict[ModuleType, None] = {}
    for node in _imports_of(module):
        origin = import_module(str(node.module))
        named = [getattr(origin, name.name) for name in node.names]
        for one in named if origin is simulation else [origin]:
            found |= dict.fromkeys([*_imported_by(one), one])
    return list(found)


def _imports_of(module: ModuleType) -> Iterator[ast.ImportFrom]:
    """What it imports of kvexact, its own neighbours apart."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            name = str(node.module)
            if name.startswith(_PACKAGE) and not name.startswith(f"{_PACKAGE}adapters"):
                yield node


def source_of(module: ModuleType) -> str:
    """A module's source without its imports and its first words."""
    text = inspect.getsource(module)
    last = max(
        node.end_lineno or 0
        for node in ast.parse(text).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return "\n".join(text.splitlines()[last:]).strip("\n")
