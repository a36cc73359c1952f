"""The CUDA device's bookkeeping, on a stand-in for the GPU: its memory is the host's.

This shows that tables, scratch memory, copies, guard bands and errors are handled; that kernels do
on a GPU what they do here, only a run on a GPU shows.
"""

import contextlib
import ctypes
import types
from typing import Any

import numpy as np
import pytest

from kvexact.impl.engine import build, cuda
from kvexact.impl.engine.cpu import GATES
from kvexact.impl.engine.engine import CpuEngine, CudaEngine, CudaStreamsEngine
from kvexact.impl.engine.tables import BlockTable
from kvexact.impl.engine.transfers import Transfers
from kvexact.impl.target import DeviceLost, OutOfBounds, Rows, Unavailable
from kvexact.refmodel.ops import (
    Allocate,
    CopyBlocks,
    Fence,
    Job,
    Move,
    Offload,
    Op,
    Pair,
    Poll,
    Read,
    ReadValues,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
    Zero,
)
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet

SHAPE = Geometry(
    (Group(4, 2, (LayerSet(2, 2, 8, 4, "int8_per_token_head"),)),), 20, Host(1 << 14, 2)
)
WIDE_OPEN = np.array([32, 0, *[0, 2**62] * 3, 0, 0, *[0] * len(GATES)], np.int64)


class Stream:
    """A stream whose handle is the host kernels' context, with no bounds."""

    cuda_stream = WIDE_OPEN.ctypes.data
    error: RuntimeError | None = None

    def synchronize(self) -> None:
        if self.error:
            raise self.error

    def wait_event(self, event: "Event") -> None:
        assert event.recorded


class Event:
    """An event of a stream that does all work at once."""

    recorded = False

    def record(self, stream: Stream) -> None:
        self.recorded = isinstance(stream, Stream)

    def query(self) -> bool:
        return self.recorded

    def synchronize(self) -> None:
        assert self.recorded


class Driver:
    """What the driver's copies do, by the name that a release of it has."""

    def __init__(self, name: str) -> None:
        setattr(self, name, getattr(self, f"_{name}"))
        self.calls = 0

    def _cuMemcpyAsync(self, target: Any, source: Any, size: Any, stream: Any) -> int:  # noqa: N802
        self.calls += 1
        ctypes.memmove(target, source, size.value)
        return 0

    def _cuMemcpyBatchAsync_v2(self, *words: Any) -> int:  # noqa: N802
        targets, sources, sizes, count, _, _, attribute_count, stream = words
        self.calls += 1
        assert attribute_count.value == 1
        assert stream.value == Stream.cuda_stream
        for i in range(count.value):
            target, source, size = [
                ctypes.c_int64.from_address(array.value + 8 * i).value
                for array in (targets, sources, sizes)
            ]
            ctypes.memmove(target, source, size)
        return 0

    def _cuMemcpyBatchAsync(self, *words: Any) -> int:  # noqa: N802
        *shared, _, stream = words
        return self._cuMemcpyBatchAsync_v2(*shared, stream)


@pytest.fixture(params=["cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync", "cuMemcpyAsync"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Driver:
    torch = pytest.importorskip("torch")
    stand_in = types.SimpleNamespace(
        uint8=torch.uint8,
        full=lambda size, value, *, dtype, **place: torch.full(size, value, dtype=dtype),
        from_numpy=torch.from_numpy,
        cuda=types.SimpleNamespace(
            init=lambda: None,
            Stream=Stream,
            Event=Event,
            stream=contextlib.nullcontext,
            synchronize=lambda: Stream().synchronize(),
        ),
    )
    driver = Driver(request.param)
    monkeypatch.setattr(cuda, "_torch", lambda: stand_in)
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(build, "cuda_library", build.host_library)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor.clone())
    monkeypatch.setattr(Stream, "error", None)
    return driver


MOVES = tuple([Move(block, block // 2, block % 2) for block in range(16)])
OPS: tuple[Op, ...] = (
    Allocate(0, 0, tuple(range(20))),
    WriteTokens(1, 0, (Slot(3, 1), None, Slot(4, 3)), 5),
    CopyBlocks(2, 0, (Pair(3, 7), Pair(7, 8), Pair(4, 9))),
    CopyBlocks(3, 0, (Pair(3, 5),), 3),
    Offload(4, (Job(0, MOVES),)),
    Zero(5, 0, tuple(range(10))),
    Restore(6, (Job(0, MOVES[:3]),)),
    Restore(7, (Job(0, MOVES),)),
    Read(8, 0, (Slot(5, 2), None)),
    Read(9, 0, tuple([Slot(block, token) for block in range(20) for token in range(4)] * 8)),
    WriteValues(10, 0, (Slot(6, 1), None, Slot(4, 0)), 5, "fp16"),
    ReadValues(11, 0, (Slot(4, 0), None, Slot(3, 1), Slot(6, 1))),
)


def seen(engine: CpuEngine | CudaEngine) -> list[object]:
    facts = engine.open(SHAPE)
    draw = np.random.default_rng(1)
    for area in ("pool", "host"):
        engine.load(area, draw.integers(1, 255, len(engine.view(area)), np.uint8))
    rows: dict[type[Op], Rows] = {
        WriteTokens: (draw.integers(0, 256, (3, 2, 2, 20), np.uint8),),
        WriteValues: (draw.integers(0, 256, (3, 2, 2, 2 * 12), np.uint8),),
    }
    found: list[object] = [facts]
    for op in OPS:
        read = engine.apply(op, rows.get(type(op)))
        found.append([data.tobytes() for data in read or ()])
        found.append((engine.view("pool").tobytes(), engine.view("host").tobytes()))
    return [*found, {name: n for name, n in engine.launches().items() if " by " not in name}]


def test_it_does_what_the_cpu_device_does(driver: Driver) -> None:
    engine = CudaEngine()
    assert seen(engine) == seen(CpuEngine())
    assert driver.calls
    engine.close()
    engine.close()


def test_streams_do_what_the_cpu_device_does(driver: Driver) -> None:
    engine = CudaStreamsEngine()
    assert seen(engine)[:-1] == seen(CpuEngine())[:-1]  # loads go layer by layer: more launches
    assert engine.apply(Poll(20, 7), None)
    engine.apply(Fence(21), None)
    engine.close()


def test_guard_bands_catch_a_write_behind_the_pool(driver: Driver) -> None:
    class Unsafe(CudaEngine):
        class block_table(BlockTable):  # noqa: N801
            def ids(self, blocks):
                return blocks

            def require_owned(self, group, blocks):
                pass

    engine = Unsafe()
    engine.open(SHAPE)
    with pytest.raises(OutOfBounds, match="bytes around the pool were written"):
        engine.apply(Zero(0, 0, (20,)), None)


def test_copies_are_checked_beforehand(driver: Driver) -> None:
    class Unsafe(CudaEngine):
        class transfers(Transfers):  # noqa: N801
            def places(self, job, *, to_pool):
                return job.blocks, [10**6], job.parts

    engine = Unsafe()
    engine.open(SHAPE)
    engine.apply(OPS[0], None)
    with pytest.raises(OutOfBounds, match="copy_batch: a range is outside"):
        engine.apply(Offload(1, (Job(0, MOVES[:1]),)), None)
    assert not driver.calls


def test_errors_that_stick(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CudaEngine()
    engine.open(SHAPE)
    engine.apply(OPS[0], None)
    device = engine._device
    assert isinstance(device, cuda.CudaDevice)
    device._entries["zero"] = lambda *words: 700
    with pytest.raises(RuntimeError, match="zero: CUDA error 700"):
        engine.apply(Zero(1, 0, (0,)), None)
    monkeypatch.setattr(Stream, "error", RuntimeError("an illegal memory access"))
    with pytest.raises(DeviceLost, match="zero: CUDA error 700; an illegal memory access"):
        engine.apply(Zero(1, 0, (0,)), None)
    with pytest.raises(DeviceLost, match="table: an illegal memory access"):
        engine.apply(OPS[1], (np.zeros((3, 2, 2, 20), np.uint8),))
    with pytest.raises(DeviceLost, match="finish: an illegal memory access"):
        engine.probe()


def test_cuda_engine_here() -> None:
    """On a machine with a GPU, the real thing."""
    pytest.importorskip("torch")
    try:
        CudaEngine.check_available()
    except Unavailable as reason:
        pytest.skip(f"the CUDA engine was NOT run: {reason}")
    assert seen(CudaEngine()) == seen(CpuEngine())
