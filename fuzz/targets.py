"""Targets by name: of the entry point group ``kvexact.targets``, or ``module:Class``.

A name may end with ``@variant``: which of several that a class stands for, such as a release.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from kvexact.fuzz.orphans import PR_SET_PDEATHSIG
from kvexact.fuzz.printing import printing_to_stderr
from kvexact.impl.target import Target, Unavailable

GROUP = "kvexact.targets"
#: What is fuzzed unless somebody says otherwise; what takes one target takes the first.
DEFAULT_TARGETS = ("cpu", "example")

#: Imports a module, and ends as nothing else does, or with the process that asked for it, however
#: that ends.
_TRIED = 87
_TRY = f"""
import ctypes, json, os, signal, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)
sys.path[:] = json.loads(sys.argv[1])
try:
    __import__(sys.argv[2])
except (Exception, SystemExit):
    pass
os._exit({_TRIED})
"""


class UnknownTarget(ValueError):
    """A name that stands for no target, or code that cannot be imported."""


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """A target class and the name that a command line takes for it."""

    name: str
    target_type: type[Target]

    @property
    def registered(self) -> bool:
        """Whether the name alone says where the class is."""
        return ":" not in self.name

    def make(self) -> Target:
        """A new instance, of a target that can run here.

        Raises:
            Unavailable: it cannot, or its own code fails at it.
        """
        try:
            with printing_to_stderr():
                self.target_type.check_available()
                return self.target_type()
        except Unavailable:
            raise
        except Exception as error:
            raise Unavailable(f"making it raised {_said(error)}") from error


def registered_names() -> list[str]:
    """Names of all registered targets."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_target(name: str) -> NamedTarget:
    """The target of a registered name or of ``module:Class``; it may still be unavailable.

    Modules are also looked for in the current directory, after all other places.

    Raises:
        UnknownTarget: nothing of that name.
    """
    base, _, variant = name.partition("@")
    place = base
    if ":" not in base:
        known = {entry.name: entry.value for entry in entry_points(group=GROUP)}
        if base not in known:
            raise UnknownTarget(
                f"target {base!r:.80} is not registered; use one of {', '.join(sorted(known))}, "
                f"or module:Class"
            )
        place = known[base]
    elif (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    module_name, _, class_name = place.partition(":")
    try:
        with printing_to_stderr():
            found: object = import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise UnknownTarget(
            f"target {name!r:.80} cannot be imported ({_said(error)}); "
            f"give module:Class of an importable module"
        ) from error
    if not isinstance(found, type) or not issubclass(found, Target):
        raise UnknownTarget(
            f"target {name!r:.80} is {found!r:.60}; it must be a subclass of kvexact.Target"
        )
    if variant:
        try:
            with printing_to_stderr():
                found = found.variant(variant)
        except ValueError as error:
            raise UnknownTarget(f"target {name!r}: {error}") from error
    return NamedTarget(name, found)


def try_import(name: str) -> None:
    """Import the module of ``module:Class`` in a process that goes away, before this one does it.

    Whatever else fails at it, `find_target` says.

    Raises:
        UnknownTarget: it ends its process.
    """
    module, colon, _ = name.partition("@")[0].partition(":")
    if not colon or module in sys.modules:
        return
    path = json.dumps([*sys.path, str(Path.cwd())])
    ended = subprocess.run(
        [sys.executable, "-c", _TRY, path, module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,  # so that Ctrl-C is none that the module raised
        check=False,
    ).returncode
    if ended != _TRIED:
        from kvexact.fuzz.target_process import as_death

        raise UnknownTarget(
            f"target {name!r:.80} cannot be imported: {module} ends the process that imports it "
            f"({as_death(ended).name}); mend the module"
        )


def why_unavailable(target: NamedTarget) -> str | None:
    """Why a target cannot run here, with the mend; None: it can."""
    try:
        with printing_to_stderr():
            target.target_type.check_available()
    except Unavailable as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a target's own code may raise anything
        return f"check_available raised {_said(error)}"
    return None


def _said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
