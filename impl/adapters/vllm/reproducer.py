"""A failing trace as one Python file that needs a release of vLLM and no kvexact.

On a machine without a GPU a preamble stands in for what only a GPU has; it is the driver's own,
word for word. For a failure of order it has the simulation of streams, too. The scenario behind it
calls vLLM alone, and is all there is where a GPU is.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal

from kvexact.impl.adapters.vllm.driver import mutations, standins, symbols
from kvexact.impl.adapters.vllm.embedded import late_device, source_of
from kvexact.impl.adapters.vllm.process import Process, Unfit
from kvexact.refmodel import ops
from kvexact.refmodel.spec import Geometry, Refused

Device = Literal["cpu", "cuda"]

#: What a facts' or an exception's name says where scale views are wrong.
_OF_SCALES = ("k_scale.view", "v_scale.view", "ScaleOutside")
_ENVIRONMENT = """
os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
"""
_AT_ONCE = """
install(Device())
"""


def scenario(
    process: Process,
    target: str,
    geometry: Geometry,
    bound: Sequence[ops.Op],
    signature: Sequence[str],
    host_slots: int,
    device: Device,
    *,
    of_order: bool,
) -> dict[str, list[str]]:
    """Imports and scenario, in the release's own words.

    Args:
        target: which of the driver's sessions.
        bound: the ops, with block ids in them.
        host_slots: how many the host tier has.
        of_order: loads begin while work on their blocks is pending.

    Raises:
        Refused: this failure cannot be told in this way.
    """
    _, op, _, field = signature
    if op not in ("open", "offload", "restore", "copy_blocks", "zero"):
        raise Refused("unsupported", f"a failure of {op} is not told with vLLM alone")
    told = list(_told(bound, op)) if op != "open" else list(_round_trips(geometry))
    try:
        return process.ask(
            "script",
            target=target,
            geometry=asdict(geometry),
            ops=told,
            shows="scales" if field in _OF_SCALES else "ops",
            host_slots=host_slots,
            device=device,
            of_order=of_order,
        )
    except Unfit as error:
        raise Refused("unsupported", str(error)) from error


def _told(bound: Sequence[ops.Op], failed: str) -> Iterator[tuple[str, Any]]:
    """What moves bytes, or zeroes if that failed; all else is random bytes in the program."""
    for op in bound:
        match op:
            case ops.Offload(jobs=jobs):
                yield "offload", jobs
            case ops.Restore(jobs=jobs):
                yield "restore", jobs
            case ops.CopyBlocks(group=group, pairs=pairs):
                yield "copy_blocks", (group, pairs)
            case ops.Zero(group=group, blocks=blocks) if failed == "zero":
                yield "zero", (group, blocks)


def _round_trips(geometry: Geometry) -> Iterator[tuple[str, Any]]:
    """A block of each group, stored and loaded into the next."""
    for group in range(len(geometry.groups)):
        yield "offload", [(group, [(0, 0, 0)])]
        yield "restore", [(group, [(geometry.blocks - 1, 0, 0)])]


def program(
    about: Sequence[str],
    told: dict[str, list[str]],
    undone: Sequence[str],
    device: Device,
    *,
    of_order: bool,
) -> str:
    """The whole file.

    Args:
        about: what it shows, for its first lines.
        told: what `scenario` gives.
        undone: mends to undo, or to add.
        of_order: work on the device is pending.
    """
    text = "\n".join(about).replace("\\", "\\\\").replace('"""', "'''")
    runner = 'os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # asks more of a model'
    parts = [f'"""{text}\n"""', _plain_imports(), f'{runner}\nDEVICE = "{device}"']
    if device == "cpu":
        parts += [
            "# --- Stand-ins for a GPU: not needed where there is one. " + "-" * 42,
            _ENVIRONMENT.strip(),
            source_of(symbols),
            source_of(standins),
            *(late_device() if of_order else [_AT_ONCE.strip()]),
        ]
    elif undone:
        parts.append(source_of(symbols))
    for name in undone:
        mutation = mutations.MUTATIONS[name]
        options = ", ".join(f"{option}={value}" for option, value in mutation.options.items())
        parts += [
            f"# --- A mend is undone, or added: {name}. " + "-" * 50,
            inspect.getsource(mutation.apply).rstrip(),
            f"{mutation.apply.__name__}({options})",
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
        "import ctypes, os, sys, threading, uuid",
        "from collections import deque",
        "from collections.abc import Callable, Iterator, Sequence",
        "from contextlib import ExitStack, contextmanager, suppress",
        "from dataclasses import replace",
        "from functools import wraps",
        "from importlib import import_module",
        "from itertools import count, product",
        "from types import ModuleType, SimpleNamespace",
        "from typing import Any, ClassVar",
        "from unittest.mock import patch",
        "",
        "import numpy as np",
        "import torch",
    )
    return "\n".join(lines)
