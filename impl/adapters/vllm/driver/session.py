"""One geometry, opened for one target, and the ops that run on it."""

import ctypes
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from kvexact.impl.adapters.vllm.driver import blocks, release
from kvexact.impl.adapters.vllm.driver.device import AT_ONCE, LATE, SimulatedDevice
from kvexact.impl.adapters.vllm.driver.facts import HostRows, Map, pool_facts
from kvexact.impl.adapters.vllm.driver.fields import Fields, outside
from kvexact.impl.adapters.vllm.driver.forward import made_pending
from kvexact.impl.adapters.vllm.driver.offload import Offload
from kvexact.impl.adapters.vllm.driver.pool import Pool, in_configuration, lay_out
from kvexact.impl.adapters.vllm.driver.requests import Jobs, Requests
from kvexact.impl.adapters.vllm.driver.simple import Simple
from kvexact.impl.adapters.vllm.driver.wire import Wire
from kvexact.impl.bounds import Bytes
from kvexact.impl.simulation.memory import Kind

Answer = dict[str, Any]

_CONNECTORS: dict[str, Callable[[Pool, int], Offload | Simple]] = {
    "offload": Offload,
    "simple": Simple,
}


class ScaleOutside(Exception):
    """A scale view of a layer holds bytes of another layer or block."""


class Session:
    """One geometry, opened for one target."""

    def __init__(self, device: SimulatedDevice, wire: Wire, call: dict[str, Any]) -> None:
        self._device, self._wire = device, wire
        device.open(AT_ONCE if call["at_once"] else schedule_of(call["geometry"]))
        self._pool = pool_of(call)
        with in_configuration(self._pool.config):
            self._pool.allocate()
        self._places = Map(self._pool)
        self._storages = [self._register(storage) for storage in self._pool.storages]
        self._fields = Fields.of(self._pool)
        self._zeroer: blocks.Zeroer | None = None
        self._dense = HostRows.of(self._pool).dense
        self._offload = connector_of(call["target"], self._pool)
        if self._offload is not None:
            self._offload.register(self._pool, device)
        self._requests: Requests | None = None
        self._does: dict[str, Callable[[dict[str, Any]], Answer | None]] = {
            "zero": self._zero,
            "write_tokens": self._write,
            "read": self._read,
            "copy_blocks": lambda call: blocks.copy_blocks(self._pool, call["pairs"]),
            "offload": self._move,
            "restore": self._move,
        }

    def _register(self, storage: Any) -> Bytes:
        self._device.register(storage.data_ptr(), storage.nbytes(), "the pool", Kind.DEVICE)
        array = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
        return np.ctypeslib.as_array(array)

    def facts(self) -> Answer:
        """What the release believes."""
        found = pool_facts(self._pool, self._fields, self._places)
        if self._offload is not None:
            found |= self._offload.facts(self._pool, self._places, dense=self._dense)
        return found

    def check_views(self) -> None:
        """That no scale view leaves its layer's blocks.

        Raises:
            ScaleOutside: one does.
        """
        for layer in self._pool.every_layer:
            text = outside(layer)
            if text:
                raise ScaleOutside(text)

    @property
    def size(self) -> int:
        return self._places.size

    @property
    def met(self) -> list[str]:
        """What the release made of the geometry, in words."""
        on_disk = isinstance(self._offload, Simple) and self._offload.on_disk
        return self._pool.met + ["host tier in a file"] * on_disk

    @property
    def zeroes(self) -> bool:
        """Whether the release zeroes blocks of such layers itself."""
        return bool(self._pool.kv_config.needs_kv_cache_zeroing)

    def apply(self, call: dict[str, Any]) -> Answer:
        """Run one op."""
        self._device.begin(call.get("id", 0))
        return self._does[call["kind"]](call) or {}

    def serve(self, call: dict[str, Any]) -> Answer:
        """Run one op on requests."""
        self._device.begin(call["id"])
        if self._requests is None:
            assert isinstance(self._offload, Offload)
            self._requests = self._offload.requests(self._pool, self._transfer)
        found: Answer
        match call["kind"]:
            case "compute":
                found = self._compute(self._requests, call)
            case "attend":
                found = self._attend(self._requests, call["request"])
            case kind:
                found = getattr(self._requests, kind)(call)
        self._requests.end_step()
        return found

    def _compute(self, requests: Requests, call: dict[str, Any]) -> Answer:
        start = requests.seen(call["request"])
        found = requests.extend(call)
        if found.get("accepted", True):
            positions = range(start, start + call["count"] + len(call["drafts"]))
            for group, rows in enumerate(self._rows_by_group(len(positions))):
                slots = requests.slots(call["request"], group, positions)
                self._fields.write(group, slots, rows)
            requests.learn(call)
        return found

    def _attend(self, requests: Requests, name: int) -> Answer:
        positions = range(requests.seen(name))
        for group, rows in enumerate(self._rows_by_group(len(positions))):
            self._fields.read(group, requests.slots(name, group, positions), rows)
        return {"count": len(positions)}

    def _zero(self, call: dict[str, Any]) -> None:
        """Zero blocks as the release does; where it never does, through the views of the layers."""
        if not self.zeroes:
            self._fields.zero(call["group"], call["blocks"])
            return
        if self._zeroer is None:
            self._zeroer = blocks.Zeroer(self._pool)
        self._zeroer.zero(call["blocks"])

    def _write(self, call: dict[str, Any]) -> None:
        shapes = self._fields.row_shapes(call["group"], len(call["slots"]))
        self._fields.write(call["group"], call["slots"], self._rows(shapes))

    def _read(self, call: dict[str, Any]) -> None:
        rows = self._rows(self._fields.row_shapes(call["group"], len(call["slots"])))
        for data in rows:
            data[...] = 0
        self._fields.read(call["group"], call["slots"], rows)

    def _rows_by_group(self, count: int) -> list[list[Bytes]]:
        """So many rows of every group, one array a layer set."""
        shapes = [self._fields.row_shapes(group, count) for group in range(len(self._pool.layers))]
        rows = iter(self._rows([shape for of_group in shapes for shape in of_group]))
        return [list(islice(rows, len(of_group))) for of_group in shapes]

    def _rows(self, shapes: list[tuple[int, ...]]) -> list[Bytes]:
        """Arrays of these shapes in shared memory, one after the other."""
        sizes = [int(np.prod(shape)) for shape in shapes]
        whole, rows, start = self._wire.rows.take(sum(sizes)), [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            rows.append(whole[start : start + size].reshape(shape))
            start += size
        return rows

    def _move(self, call: dict[str, Any]) -> None:
        self._transfer(call["jobs"], store=call["kind"] == "offload")

    def _transfer(self, jobs: Jobs, *, store: bool) -> None:
        """Move blocks while work of the model on them is pending.

        When the release says that they are moved, the model goes on: what a load's blocks then have
        counts.
        """
        assert self._offload is not None
        if not self._device.at_once:
            moved = [(group, [move[0] for move in moves]) for group, moves in jobs]
            self._device.launch(made_pending(self._fields, moved))
        try:
            self._offload.move(jobs, store=store)
        finally:
            self._device.finish()

    def show(self) -> None:
        """Copy the pool to where the parent sees it."""
        area, start = self._wire.pool.take(self.size), 0
        for storage in self._storages:
            area[start : start + storage.size] = storage
            start += storage.size

    def load(self) -> None:
        """Take the pool over from the parent."""
        area, start = self._wire.pool.take(self.size), 0
        for storage in self._storages:
            storage[...] = area[start : start + storage.size]
            start += storage.size

    def close(self) -> None:
        """Let go of what connectors hold."""
        if self._offload is not None:
            self._offload.close()


def schedule_of(geometry: dict[str, Any]) -> int:
    """The schedule of a geometry, which has no word for it: it follows from the number of blocks.

    Blocks are counted in pairs, as whether they are odd says what else a geometry has no word for.
    """
    blocks: int = geometry["blocks"]
    return (LATE, AT_ONCE, blocks)[blocks // 2 % 3]


def pool_of(call: dict[str, Any]) -> Pool:
    """What a release resolves for a call's geometry and target."""
    prefers = call["target"] != "simple" and release.prefers_one_buffer()
    return lay_out(call["geometry"], prefers_one_buffer=prefers)


def connector_of(target: str, pool: Pool) -> Offload | Simple | None:
    """The connector of a target, configured."""
    made = _CONNECTORS.get(target)
    return made(pool, HostRows.of(pool).capacity_bytes) if made else None
