"""The simple CPU offload: its worker, registered, and made to move blocks on its own thread."""

import inspect
import re
import uuid
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from kvexact.impl.adapters.vllm.driver.device import SimulatedDevice
from kvexact.impl.adapters.vllm.driver.facts import Map, region_facts, row_bytes
from kvexact.impl.adapters.vllm.driver.offload import POLLS_MOST
from kvexact.impl.adapters.vllm.driver.pool import Pool, in_configuration
from kvexact.impl.adapters.vllm.driver.requests import Jobs
from kvexact.impl.adapters.vllm.driver.symbols import find, need
from kvexact.impl.simulation.memory import Kind

_METADATA = "vllm.v1.simple_kv_offload.metadata:SimpleCPUOffloadMetadata"


class Simple:
    """A worker with its copy backend, for one pool; its host tier is memory, or a file.

    A geometry has no word for which: it is a file where the number of blocks is odd, in releases
    that can.
    """

    def __init__(self, pool: Pool, capacity_bytes: int) -> None:
        made = need("vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker")
        self.on_disk = is_on_disk(pool)
        path = f"{gettempdir()}/kvexact-{uuid.uuid4().hex}"
        more = disk_options(path, capacity_bytes) if self.on_disk else {}
        self._worker = made(pool.config, pool.kv_config, capacity_bytes, **more)
        self._scheduler_slots = _scheduler_slots(pool.kv_config, capacity_bytes)
        self._event = 0

    def register(self, pool: Pool, device: SimulatedDevice) -> None:
        """Hand it the pool; it allocates the host tier."""
        self._device = device
        with in_configuration(pool.config):
            self._worker.register_kv_caches(pool.views)
        backend = self._worker._backend
        tier = [self._worker.cpu_kv_caches]
        if self.on_disk:  # copies are made to what is written next, and from what was read
            tier = [backend._store_buffer_caches, backend._load_buffer_caches]
            Path(backend._disk_path).unlink()  # open as it is, it stays until it is closed
        for tensor in chain.from_iterable(of_side.values() for of_side in tier):
            device.register(tensor.data_ptr(), tensor.nbytes, "the host tier", Kind.PINNED)

    def facts(self, pool: Pool, places: Map, *, dense: bool) -> dict[str, Any]:
        """Regions, slots on both sides, and bytes of a row where no padding is in it."""
        regions = self._worker.gpu_kv_caches.values()
        registered = [(t.data_ptr(), t.shape[0], t.stride(0), t.shape[1]) for t in regions]
        found: dict[str, Any] = {
            "regions": region_facts(registered, pool, places),
            "host.worker_slots": self._worker.num_cpu_blocks,
        }
        if self._scheduler_slots is not None:
            found["host.scheduler_slots"] = self._scheduler_slots
        if dense:
            found["host.row_bytes"] = sum(t.shape[1] for t in regions)
        return found

    def move(self, jobs: Jobs, *, store: bool) -> None:
        """Move blocks to or from the host tier, each job in a step of the engine's own.

        None is waited for before the next one begins.
        """
        for _, moves in jobs:
            if moves:
                self._step(moves, store=store)
        worker = self._worker
        pending = (
            worker._pending_store_event_indices if store else worker._pending_load_event_indices
        )
        for _ in range(POLLS_MOST):
            if not pending:
                break
            self._device.turns.run()
            worker.get_finished(set())
        else:
            raise TimeoutError("transfers did not end")
        self._device.complain()

    def _step(self, moves: list[list[int]], *, store: bool) -> None:
        self._event += 1
        side = "store" if store else "load"
        worker = self._worker
        worker.bind_connector_metadata(
            need(_METADATA)(
                **{
                    f"{side}_event": self._event,
                    f"{side}_gpu_blocks": [block for block, _, _ in moves],
                    f"{side}_cpu_blocks": [slot for _, slot, _ in moves],
                }
            )
        )
        worker.start_load_kv()
        worker.wait_for_save()
        worker.get_finished(set())  # older releases start copies here, as long as there is metadata
        worker.clear_connector_metadata()

    def close(self) -> None:
        """End the copy threads."""
        self._worker._backend.shutdown()


def disk_backend() -> Any:
    """What moves blocks to and from a file; None in releases without it."""
    return find("vllm.v1.simple_kv_offload.disk_backend")


def is_on_disk(pool: Pool) -> bool:
    """Whether the host tier is a file.

    Some releases demand rows of whole disk sectors even where they go through the page cache.
    """
    backend = disk_backend()
    if backend is None or pool.geometry["blocks"] % 2 == 0:
        return False
    takes_all = re.search(r"if not use_page_cache:\s+assert", inspect.getsource(backend))
    return bool(takes_all) or row_bytes(pool) % backend._ALIGNMENT == 0


def disk_options(path: str, capacity_bytes: int) -> dict[str, Any]:
    """What a user writes for a file of this size."""
    return {
        "kv_offload_backend": "disk",
        "disk_path": path,
        "disk_capacity_bytes": capacity_bytes,
        "use_page_cache": True,
    }


def _scheduler_slots(kv_config: Any, capacity_bytes: int) -> int | None:
    """Host slots that the scheduler's side hands out, where a release counts them on their own."""
    made = find("vllm.v1.simple_kv_offload.manager:SimpleCPUOffloadScheduler")
    derive = getattr(made, "_derive_cpu_config", None)
    if derive is None:
        return None
    return int(derive(kv_config, capacity_bytes).num_blocks)
