"""The built-in engine: a compact paged KV cache, and what the fuzzer checks.

It derives every number from docs/design.md on its own. What it decides sits in small parts, class
attributes of `Engine`, so that a planted fault replaces one decision of one part.
"""

from collections.abc import Mapping
from typing import ClassVar

from kvexact.impl.engine import build, cuda
from kvexact.impl.engine.cache import Cache
from kvexact.impl.engine.copies import Copies
from kvexact.impl.engine.cpu import CpuDevice
from kvexact.impl.engine.deferred import DeferringManager
from kvexact.impl.engine.device import HOST, POOL, Device
from kvexact.impl.engine.manager import HANDLERS, Manager
from kvexact.impl.engine.order import InOrder
from kvexact.impl.engine.planner import Planner
from kvexact.impl.engine.plans import Plan
from kvexact.impl.engine.refusals import Refusals
from kvexact.impl.engine.regions import Registered, Registrar, facts
from kvexact.impl.engine.simulated import SimulatedDevice
from kvexact.impl.engine.stream_order import StreamOrder
from kvexact.impl.engine.tables import BlockTable, HostTable
from kvexact.impl.engine.transfers import Transfers
from kvexact.impl.engine.values import Codecs
from kvexact.impl.engine.views import Views
from kvexact.impl.notes import Note
from kvexact.impl.target import Allocate, Area, Bytes, Facts, Result, Rows, Target
from kvexact.refmodel.ops import BLOCK_OPS, SERVING_OPS, TIMED_OPS, Op
from kvexact.refmodel.spec import Geometry

_AREAS: dict[Area, int] = {"pool": POOL, "host": HOST}


class Engine(Target):
    """A paged KV cache on a device.

    A device is made for the first geometry and kept: it has compiled kernels and scratch memory.
    """

    op_kinds: ClassVar[frozenset[str]] = frozenset({*BLOCK_OPS, *SERVING_OPS})
    planner: ClassVar[type[Planner]] = Planner
    refusals: ClassVar[type[Refusals]] = Refusals
    registrar: ClassVar[type[Registrar]] = Registrar
    block_table: ClassVar[type[BlockTable]] = BlockTable
    host_table: ClassVar[type[HostTable]] = HostTable
    cache: ClassVar[type[Cache]] = Cache
    views: ClassVar[type[Views]] = Views
    order: ClassVar[type[InOrder]] = InOrder
    codecs: ClassVar[type[Codecs]] = Codecs
    copies: ClassVar[type[Copies]] = Copies
    transfers: ClassVar[type[Transfers]] = Transfers
    manager: ClassVar[type[Manager]] = Manager
    #: Compile-time macros of the kernels.
    macros: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._device: Device | None = None
        self._shared: dict[Area, Allocate] = {}
        self._cache: Cache | None = None
        self._manager: Manager | None = None

    def make_device(self) -> Device:
        """The device that this engine runs on.

        Raises:
            Unavailable: not on this machine.
        """
        raise NotImplementedError

    def share(self, area: Area, allocate: Allocate) -> None:
        """See `Target`."""
        self._shared[area] = allocate

    def plan(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        return facts(*self._register(geometry))

    def _register(self, geometry: Geometry) -> tuple[Plan, Registered]:
        plan = self.planner().plan(geometry)
        self.refusals().check(plan)
        logical = geometry.logical_bytes
        if logical is None:
            logical = plan.logical_bytes
        return plan, self.registrar().register(plan, plan.physical_bytes, logical)

    def open(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        self.close()
        plan, registered = self._register(geometry)
        if self._device is None:
            self._device = self.make_device()
            for area, allocate in self._shared.items():
                self._device.share(_AREAS[area], allocate)
        device = self._device
        row = plan.row_bytes
        pool = device.allocate(POOL, plan.physical_bytes, plan.physical_bytes)
        host = device.allocate(HOST, registered.worker_slots * row, registered.host_rows * row)
        views = self.views(plan, device)
        order = self.order(views, device)
        self._cache = self.cache(
            device,
            order,
            plan,
            pool,
            self.block_table(plan),
            self.host_table(plan.scheduler_slots, plan.geometry.host.chunk_blocks),
            views,
            self.codecs(plan, device, order),
            self.copies(device, pool, order),
            self.transfers(plan, registered, device, pool, host, order),
        )
        self._manager = None
        return facts(plan, registered)

    def apply(self, op: Op, rows: Rows | None) -> Result:
        """See `Target`."""
        cache = self._cache or self._live()
        if self._manager is not None:
            self._manager.before(op)
        cache.order.begin(op.id)
        if type(op) not in HANDLERS:
            return cache.apply(op, rows)
        if self._manager is None:
            self._manager = self.manager(cache)
        return self._manager.apply(op, rows)

    def _live(self) -> Cache:
        if self._cache is None:
            raise RuntimeError("no geometry is open")
        return self._cache

    def view(self, area: Area) -> Bytes:
        """See `Target`."""
        cache = self._cache or self._live()
        return cache.device.view(_AREAS[area])

    def load(self, area: Area, data: Bytes) -> None:
        """See `Target`."""
        cache = self._live()
        if self._manager is not None:
            self._manager.before(None)
        cache.order.finish()
        cache.device.load(_AREAS[area], data)

    def close(self) -> None:
        """See `Target`."""
        self._cache = None
        if self._device is not None:
            self._device.release()

    def probe(self) -> None:
        """See `Target`."""
        if self._device is not None:
            self._device.finish()

    def launches(self) -> Mapping[str, int]:
        """See `Target`: kernels by their names, copy_batch, and the paths that these took."""
        return {} if self._device is None else {**self._device.counts, **self._device.gates()}


class CpuEngine(Engine):
    """The engine on the CPU device; ``lanes`` and ``reverse`` say how it runs parallel tasks."""

    lanes: ClassVar[int] = 32
    reverse: ClassVar[bool] = False

    @classmethod
    def check_available(cls) -> None:
        """See `Target`: it needs a C++ compiler."""
        build.host_library(cls.macros)

    def make_device(self) -> Device:
        """See `Engine`."""
        return CpuDevice(self.macros, lanes=self.lanes, reverse=self.reverse)


def cpu_engine(lanes: int, *, reverse: bool) -> type[CpuEngine]:
    """A `CpuEngine` that runs parallel tasks in another way."""
    name = f"CpuEngine{lanes}{'Reverse' if reverse else ''}"
    return type(name, (CpuEngine,), {"lanes": lanes, "reverse": reverse})


class AsyncEngine(Engine):
    """An engine whose work may be pending when an op returns, on whatever device."""

    op_kinds: ClassVar[frozenset[str]] = frozenset({*Engine.op_kinds, *TIMED_OPS})
    is_async: ClassVar[bool] = True
    order: ClassVar[type[InOrder]] = StreamOrder
    manager: ClassVar[type[Manager]] = DeferringManager


class StreamsEngine(AsyncEngine):
    """The asynchronous engine on simulated streams, whose order a schedule chooses."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 1
        self._notes: list[Note] | None = None

    @classmethod
    def check_available(cls) -> None:
        """See `Target`: it needs a C++ compiler."""
        build.host_library(cls.macros)

    def make_device(self) -> Device:
        """See `Engine`."""
        return SimulatedDevice(self.macros, number=self._number, notes=self._notes)

    def schedule(self, number: int) -> None:
        """See `Target`."""
        self._number = number
        if isinstance(self._device, SimulatedDevice):
            self._device.number = number

    def take_notes(self) -> list[Note] | None:
        """See `Target`."""
        self._notes = []
        if isinstance(self._device, SimulatedDevice):
            self._device.notes = self._notes
        return self._notes

    def probe(self) -> None:
        """See `Target`: what is pending after an error runs no more."""


class CudaEngine(Engine):
    """The engine on a GPU."""

    @classmethod
    def check_available(cls) -> None:
        """See `Target`: it needs a GPU, PyTorch and nvcc."""
        cuda.check_available()

    def make_device(self) -> Device:
        """See `Engine`."""
        return cuda.CudaDevice(self.macros)


class CudaStreamsEngine(AsyncEngine, CudaEngine):
    """The asynchronous engine on a GPU: the order is what the device makes of it."""
