"""A failing trace as one Python file that needs a release of vLLM and no kvexact.

On a machine without a GPU a preamble stands in for what only a GPU has; it is the driver's own,
word for word. The scenario behind it calls vLLM alone, and is all there is where a GPU is.
"""

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any, Literal

from kvexact.impl.adapters.vllm.driver import mutations, standins, symbols
from kvexact.impl.adapters.vllm.process import Process, Unfit
from kvexact.refmodel import ops
from kvexact.refmodel.spec import Geometry, Refused

Device = Literal["cpu", "cuda"]

#: What a facts' or an exception's name says where scale views are wrong.
_OF_SCALES = ("k_scale.view", "v_scale.view", "ScaleOutside")
_ENVIRONMENT = """
os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
"""
_START = """
Memory._check = lambda *_: None  # any memory may be copied
install(Memory())
"""


def scenario(
    process: Process,
    target: str,
    geometry: Geometry,
    bound: Sequence[ops.Op],
    signature: Sequence[str],
    host_slots: int,
    device: Device,
) -> dict[str, list[str]]:
    """Imports and scenario, in the release's own words.

    Args:
        target: which of the driver's sessions.
        bound: the ops, with block ids in them.
        host_slots: how many the host tier has.

    Raises:
        Refused: this failure cannot be told in this way.
    """
    _, op, _, field = signature
    if op not in ("open", "offload", "restore", "copy_blocks"):
        raise Refused("unsupported", f"a failure of {op} is not told with vLLM alone")
    told = list(_told(bound)) if op != "open" else list(_round_trips(geometry))
    try:
        return process.ask(
            "script",
            target=target,
            geometry=asdict(geometry),
            ops=told,
            shows="scales" if field in _OF_SCALES else "ops",
            host_slots=host_slots,
            device=device,
        )
    except Unfit as error:
        raise Refused("unsupported", str(error)) from error


def _told(bound: Sequence[ops.Op]) -> Iterator[tuple[str, Any]]:
    """What moves bytes; all else is random bytes in the program."""
    for op in bound:
        match op:
            case ops.Offload(jobs=jobs):
                yield "offload", jobs
            case ops.Restore(jobs=jobs):
                yield "restore", jobs
            case ops.CopyBlocks(group=group, pairs=pairs):
                yield "copy_blocks", (group, pairs)


def _round_trips(geometry: Geometry) -> Iterator[tuple[str, Any]]:
    """A block of each group, stored and loaded into the next."""
    for group in range(len(geometry.groups)):
        yield "offload", [(group, [(0, 0, 0)])]
        yield "restore", [(group, [(geometry.blocks - 1, 0, 0)])]


def program(
    about: Sequence[str], told: dict[str, list[str]], undone: Sequence[str], device: Device
) -> str:
    """The whole file.

    Args:
        about: what it shows, for its first lines.
        told: what `scenario` gives.
        undone: mends to undo.
    """
    text = "\n".join(about).replace("\\", "\\\\").replace('"""', "'''")
    parts = [f'"""{text}\n"""', _plain_imports(), f'DEVICE = "{device}"']
    if device == "cpu":
        parts += [
            "# --- Stand-ins for a GPU: not needed where there is one. " + "-" * 42,
            _ENVIRONMENT.strip(),
            _source(symbols),
            _source(standins),
            _START.strip(),
        ]
    elif undone:
        parts.append(_source(symbols))
    for name in undone:
        undo = mutations.MUTATIONS[name].apply
        parts += [
            f"# --- A mend is undone: {name}. " + "-" * 60,
            inspect.getsource(undo).rstrip(),
            f"{undo.__name__}()",
        ]
    parts += [
        "# --- The scenario: vLLM alone. " + "-" * 68,
        "\n".join(told["imports"]),
        "\n".join(told["scenario"]),
    ]
    return "\n\n".join(parts) + "\n"


def _plain_imports() -> str:
    """Whatever the parts use that comes with Python or torch."""
    lines = (
        "import ctypes, os, sys, uuid",
        "from contextlib import ExitStack",
        "from dataclasses import replace",
        "from functools import wraps",
        "from importlib import import_module",
        "from itertools import product",
        "from types import SimpleNamespace",
        "from typing import Any",
        "from unittest.mock import patch",
        "",
        "import numpy as np",
        "import torch",
    )
    return "\n".join(lines)


def _source(module: ModuleType) -> str:
    """A module's source without its imports and its first words."""
    text = inspect.getsource(module)
    last = max(
        node.end_lineno or 0
        for node in ast.parse(text).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return "\n".join(text.splitlines()[last:]).strip("\n")
