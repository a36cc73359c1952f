"""A release in a process of its own, as this side sees it: one round trip a call."""

import json
import mmap
import os
import select
import subprocess
import time
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kvexact.impl.adapters.vllm.home import Home
from kvexact.impl.target import Bytes, OutOfBounds, Unavailable

#: Makes a folder the package `kvexact.impl` in a process that has no kvexact.
_START = """
import json, sys, types
for name in ("kvexact", "kvexact.impl"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = []
module.__path__ = [sys.argv[1]]
from kvexact.impl.adapters.vllm.driver.main import serve
serve(json.loads(sys.argv[2]), json.loads(sys.argv[3]))
"""
#: A first start compiles what it imports.
_START_S, _CALL_S = 300.0, 60.0
_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONHASHSEED": "0",
}
_SEGMENT_BYTES = 1 << 20


class VllmRaised(Exception):
    """What a release raised; a subclass has the name of its type."""


class Unfit(Exception):
    """A geometry that a release would lay out otherwise, or refuses."""


class _Segment:
    """Memory that both processes map."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(name)
        self._bytes: Bytes = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        """The first so many bytes."""
        if size > self._bytes.size:
            length = max(size, os.fstat(self.descriptor).st_size, _SEGMENT_BYTES)
            os.ftruncate(self.descriptor, length)
            self._bytes = np.frombuffer(mmap.mmap(self.descriptor, length), np.uint8)
        return self._bytes[:size]


class Process:
    """A release, imported, that answers calls."""

    def __init__(self, home: Home, release: str, mutations: tuple[str, ...]) -> None:
        call_end, self._calls = os.pipe()
        self._answers, answer_end = os.pipe()
        self.pool, self.rows = _Segment("kvexact-pool"), _Segment("kvexact-rows")
        passed = [call_end, answer_end, self.pool.descriptor, self.rows.descriptor]
        folder = Path(__file__).parents[2]
        arguments = [str(folder), json.dumps(passed), json.dumps(mutations)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= _ENVIRONMENT | {"PYTHONPATH": str(home.release(release))}
        self._name = release
        mend = f"; if the environment is not whole, remove {home.path / 'env'} and install again"
        try:
            self._process = subprocess.Popen(
                [str(home.python), "-c", _START, *arguments],
                pass_fds=passed,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise Unavailable(f"vLLM {release} cannot be driven: {error}{mend}") from error
        os.close(call_end)
        os.close(answer_end)
        self._buffer = b""
        self.traits: dict[str, Any] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            try:
                self.version: str = self._receive(_START_S)["version"]
            except VllmRaised as error:
                raise Unavailable(f"vLLM {release} cannot be driven: {error}{mend}") from error
            undo.pop_all()

    def ask(self, do: str, **call: Any) -> dict[str, Any]:
        """Call the release.

        Raises:
            Unfit, OutOfBounds, VllmRaised: what became of it.
            Unavailable: the release lacks a symbol.
        """
        line = json.dumps({"do": do, **call}).encode() + b"\n"
        with suppress(BrokenPipeError):  # shows when the answer is due
            while line:
                line = line[os.write(self._calls, line) :]
        return self._receive(_CALL_S)

    def _receive(self, patience_s: float) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line(patience_s))
        if "gone" in answer:
            raise Unavailable(f"vLLM {self._name} cannot be driven: {answer['gone']}")
        if "unfit" in answer:
            raise Unfit(answer["unfit"])
        if "raised" in answer:
            kind, name, text = answer["raised"]
            if kind == "out_of_bounds":
                raise OutOfBounds(text)
            raise _type_named(name)(text)
        return answer

    def _line(self, patience_s: float) -> bytes:
        until = time.monotonic() + patience_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self.close()
                raise VllmRaised(f"no answer within {patience_s:g} s")
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise VllmRaised(f"its process died with status {self._process.wait()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """What it has worked so far."""
        # The number of a process' clock, as Linux makes it of the process' number.
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for number in (self._calls, self._answers):
            with suppress(OSError):
                os.close(number)


@cache
def _type_named(name: str) -> type[VllmRaised]:
    """The class that stands for a type of the release."""
    return type(name, (VllmRaised,), {})


_RUNNING: dict[tuple[str, tuple[str, ...]], Process] = {}


def process_of(release: str, mutations: tuple[str, ...]) -> Process:
    """The process of a release; one for each, as a start takes seconds."""
    key = release, mutations
    if key not in _RUNNING or not _RUNNING[key].alive:
        _RUNNING[key] = Process(Home.default(), release, mutations)
    return _RUNNING[key]


def end_all() -> None:
    """End all of them."""
    while _RUNNING:
        _RUNNING.popitem()[1].close()
