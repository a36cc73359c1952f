"""The offloading connector: registered, and made to move blocks."""

import uuid
from itertools import chain
from typing import Any

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.facts import Map, region_facts
from kvexact.impl.adapters.vllm.driver.pool import REFUSALS, Pool, Unfit, in_configuration
from kvexact.impl.adapters.vllm.driver.standins import Memory, as_on_a_gpu
from kvexact.impl.adapters.vllm.driver.symbols import need

#: A run of blocks that fill parts of chunks without a gap: blocks, chunks, first part.
Run = tuple[list[int], list[int], int]


class Offload:
    """A connector with its worker, for one pool."""

    def __init__(self, pool: Pool, capacity_bytes: int) -> None:
        group, host = pool.geometry["groups"][0], pool.geometry["host"]
        self._parts: int = host["chunk_blocks"]
        extra: dict[str, Any] = {"cpu_bytes_to_use": capacity_bytes}
        if self._parts > 1:
            extra |= release.chunk_option(group["block_size"], self._parts)
        pool.config.kv_transfer_config = need("vllm.config:KVTransferConfig")(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            engine_id=uuid.uuid4().hex,
            kv_connector_extra_config=extra,
        )
        with in_configuration(pool.config), as_on_a_gpu():
            try:
                self._connector = release.connector(pool.config, pool.kv_config)
            except REFUSALS as error:
                raise Unfit(f"{type(error).__name__}: {error}") from error

    def register(self, pool: Pool, memory: Memory) -> None:
        """Hand it the pool; it allocates the host tier."""
        with in_configuration(pool.config), as_on_a_gpu():
            if pool.cross:
                self._connector.register_cross_layers_kv_cache(pool.buffer, release.backend())
            else:
                self._connector.register_kv_caches(pool.views)
        side = self._connector.connector_worker
        self._spec, self._worker = side.spec, side.worker
        store, self._load = release.handlers(self._worker)
        self._device, self._host = store.src_tensors, store.dst_tensors
        for tensor in self._host:
            storage = tensor.untyped_storage()
            memory.register(storage.data_ptr(), storage.nbytes(), "the host tier")
        self._groups = len(pool.layers)
        self._job = 0

    def facts(self, pool: Pool, places: Map, *, dense: bool) -> dict[str, Any]:
        """Regions and host slots; bytes of a row where no padding is in it."""
        registered = [(t.data_ptr(), t.shape[0], t.stride(0), t.shape[1]) for t in self._device]
        found: dict[str, Any] = {"regions": region_facts(registered, pool, places)}
        row, slots = release.host_rows(self._spec)
        found["host.scheduler_slots"] = slots
        found["host.worker_slots"] = min(tensor.shape[0] for tensor in self._host)
        if dense:
            found["host.row_bytes"] = row
        return found

    def move(self, jobs: list[tuple[int, list[list[int]]]], *, store: bool) -> None:
        """Move blocks to or from the host tier; several groups in one transfer if possible."""
        waiting = [(group, run) for group, moves in jobs for run in self._runs(moves)]
        while waiting:
            taken: dict[int, Run] = {}
            later = []
            for group, run in waiting:
                if group in taken:
                    later.append((group, run))
                else:
                    taken[group] = run
            self._transfer(taken, store=store)
            waiting = later

    def _runs(self, moves: list[list[int]]) -> list[Run]:
        """Moves (block, chunk, part) as runs."""
        runs: list[Run] = []
        last = (-1, -1)
        for block, chunk, part in moves:
            chunk_before, part_before = last
            follows = (
                part == part_before + 1 and chunk == chunk_before
                if part
                else part_before == self._parts - 1 and chunk != chunk_before
            )
            if not runs or not follows:
                runs.append(([], [], part))
            runs[-1][0].append(block)
            if part == 0 or not follows:
                runs[-1][1].append(chunk)
            last = chunk, part
        return runs

    def _transfer(self, taken: dict[int, Run], *, store: bool) -> None:
        empty: Run = ([], [], 0)
        runs = [taken.get(group, empty) for group in range(self._groups)]
        blocks = list(chain.from_iterable(run[0] for run in runs))
        chunks = list(chain.from_iterable(run[1] for run in runs))
        device = need("vllm.v1.kv_offload.base:GPULoadStoreSpec")(
            blocks, [len(run[0]) for run in runs], [run[2] for run in runs]
        )
        host = need("vllm.v1.kv_offload.cpu.common:CPULoadStoreSpec")(chunks)
        self._job += 1
        release.submit(self._worker, self._job, device, host, store=store)
        self._worker.get_finished()

    def close(self) -> None:
        """Let go of the host tier."""
        self._worker.shutdown()
