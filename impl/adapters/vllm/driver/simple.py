"""The simple CPU offload: its worker, registered, and made to move blocks on its own thread."""

import time
from typing import Any

from kvexact.impl.adapters.vllm.driver.facts import Map, region_facts
from kvexact.impl.adapters.vllm.driver.pool import Pool, in_configuration
from kvexact.impl.adapters.vllm.driver.standins import Memory
from kvexact.impl.adapters.vllm.driver.symbols import find, need

_METADATA = "vllm.v1.simple_kv_offload.metadata:SimpleCPUOffloadMetadata"
_PATIENCE_S = 20.0


class Simple:
    """A worker with its copy backend, for one pool."""

    def __init__(self, pool: Pool, capacity_bytes: int) -> None:
        made = need("vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker")
        self._worker = made(pool.config, pool.kv_config, capacity_bytes)
        self._scheduler_slots = _scheduler_slots(pool.kv_config, capacity_bytes)
        self._event = 0

    def register(self, pool: Pool, memory: Memory) -> None:
        """Hand it the pool; it allocates the host tier."""
        self._memory = memory
        with in_configuration(pool.config):
            self._worker.register_kv_caches(pool.views)
        for tensor in self._worker.cpu_kv_caches.values():
            memory.register(tensor.data_ptr(), tensor.nbytes, "the host tier")

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

    def move(self, jobs: list[tuple[int, list[list[int]]]], *, store: bool) -> None:
        """Move blocks to or from the host tier, all in one step of the engine."""
        moves = [move for _, of_group in jobs for move in of_group]
        if not moves:
            return
        made = need(_METADATA)
        self._event += 1
        side = "store" if store else "load"
        metadata = made(
            **{
                f"{side}_event": self._event,
                f"{side}_gpu_blocks": [block for block, _, _ in moves],
                f"{side}_cpu_blocks": [slot for _, slot, _ in moves],
            }
        )
        worker = self._worker
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv()
        worker.wait_for_save()
        pending = (
            worker._pending_store_event_indices if store else worker._pending_load_event_indices
        )
        worker.get_finished(set())  # older releases start copies here, as long as there is metadata
        worker.clear_connector_metadata()
        until = time.monotonic() + _PATIENCE_S
        while pending:
            if time.monotonic() > until:
                raise TimeoutError("the copy thread did not finish")
            time.sleep(0)
            worker.get_finished(set())
        self._memory.complain()

    def close(self) -> None:
        """End the copy thread."""
        self._worker._backend.shutdown()


def _scheduler_slots(kv_config: Any, capacity_bytes: int) -> int | None:
    """Host slots that the scheduler's side hands out, where a release counts them on their own."""
    made = find("vllm.v1.simple_kv_offload.manager:SimpleCPUOffloadScheduler")
    derive = getattr(made, "_derive_cpu_config", None)
    if derive is None:
        return None
    return int(derive(kv_config, capacity_bytes).num_blocks)
