"""The offloading connector: registered, and made to move blocks."""

import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from kvexact.impl.adapters.vllm.driver import release
from kvexact.impl.adapters.vllm.driver.device import SimulatedDevice
from kvexact.impl.adapters.vllm.driver.facts import Map, region_facts
from kvexact.impl.adapters.vllm.driver.pool import REFUSALS, Pool, Unfit, in_configuration
from kvexact.impl.adapters.vllm.driver.requests import Jobs, Requests
from kvexact.impl.adapters.vllm.driver.symbols import need
from kvexact.impl.simulation.memory import Kind

#: How often a release is asked at most whether a transfer has ended.
POLLS_MOST = 10_000
#: A run of blocks that fill parts of chunks without a gap: blocks, chunks, first part.
Run = tuple[list[int], list[int], int]


class Offload:
    """A connector with its worker, for one pool."""

    def __init__(self, pool: Pool, capacity_bytes: int) -> None:
        self._parts: int = pool.geometry["host"]["chunk_blocks"]
        pool.config.kv_transfer_config = need("vllm.config:KVTransferConfig")(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            engine_id=uuid.uuid4().hex,
            kv_connector_extra_config=extra_config(pool, capacity_bytes),
        )
        with in_configuration(pool.config):
            try:
                self._connector = release.connector(pool.config, pool.kv_config)
            except REFUSALS as error:
                raise Unfit(f"{type(error).__name__}: {error}") from error

    def register(self, pool: Pool, device: SimulatedDevice) -> None:
        """Hand it the pool; it allocates the host tier."""
        with in_configuration(pool.config):
            if pool.cross:
                self._connector.register_cross_layers_kv_cache(
                    pool.buffer, pool.groups[0][0].backend
                )
            else:
                self._connector.register_kv_caches(pool.views)
        side = self._connector.connector_worker
        self._spec, self._worker = side.spec, side.worker
        store, self._load = release.handlers(self._worker)
        self._device, self._host = store.src_tensors, store.dst_tensors
        storages = (tensor.untyped_storage() for tensor in self._host)
        for start, size in sorted({(s.data_ptr(), s.nbytes()) for s in storages}):
            device.register(start, size, "the host tier", Kind.PINNED)
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

    def requests(self, pool: Pool, move: Callable[..., None]) -> Requests:
        """Requests whose host tier the release's own manager keeps; ``move`` moves for them.

        Raises:
            Unfit: host slots have several blocks; keys would be those of whole chunks.
        """
        if self._parts > 1:
            raise Unfit("requests are served with one block in a host slot")
        _, slots = release.host_rows(self._spec)
        sizes = [group["block_size"] for group in pool.geometry["groups"]]
        manager = self._spec.get_manager()
        return Requests(manager, sizes, pool.geometry["blocks"], slots, move)

    def move(self, jobs: Jobs, *, store: bool) -> None:
        """Move blocks to or from the host tier; several groups in one transfer if possible.

        All transfers are begun, as within a step of the engine, and then waited for.
        """
        running = {self._begin(taken, store=store) for taken in transfers(jobs, self._parts)}
        for _ in range(POLLS_MOST):
            running -= {result.job_id for result in self._worker.get_finished()}
            if not running:
                return
        raise TimeoutError("transfers did not end")

    def _begin(self, taken: dict[int, Run], *, store: bool) -> int:
        blocks, sizes, first, chunks = chunked(taken, self._groups)
        device = need("vllm.v1.kv_offload.base:GPULoadStoreSpec")(blocks, sizes, first)
        host = need("vllm.v1.kv_offload.cpu.common:CPULoadStoreSpec")(chunks)
        self._job += 1
        release.submit(self._worker, self._job, device, host, store=store)
        return self._job

    def close(self) -> None:
        """Let go of the host tier."""
        self._worker.shutdown()


def extra_config(pool: Pool, capacity_bytes: int) -> dict[str, Any]:
    """What a user writes for a host tier of this size, and for chunks of several blocks.

    A geometry has no word for the policy of eviction: it is the other one where blocks are odd.
    """
    parts = pool.geometry["host"]["chunk_blocks"]
    tokens = pool.geometry["groups"][0]["block_size"]
    more: dict[str, Any] = release.chunk_option(tokens, parts) if parts > 1 else {}
    if pool.geometry["blocks"] % 2:
        more["eviction_policy"] = "arc"
    return {"cpu_bytes_to_use": capacity_bytes, **more}


def transfers(jobs: Jobs, parts: int) -> Iterator[dict[int, Run]]:
    """Jobs as transfers, each of at most one run of every group."""
    waiting = [(group, run) for group, moves in jobs for run in runs(moves, parts)]
    while waiting:
        taken: dict[int, Run] = {}
        later = []
        for group, run in waiting:
            if group in taken:
                later.append((group, run))
            else:
                taken[group] = run
        yield taken
        waiting = later


def runs(moves: list[list[int]], parts: int) -> list[Run]:
    """Moves (block, chunk, part) as runs."""
    found: list[Run] = []
    last = (-1, -1)
    for block, chunk, part in moves:
        chunk_before, part_before = last
        follows = (
            part == part_before + 1 and chunk == chunk_before
            if part
            else part_before == parts - 1 and chunk != chunk_before
        )
        if not found or not follows:
            found.append(([], [], part))
        found[-1][0].append(block)
        if part == 0 or not follows:
            found[-1][1].append(chunk)
        last = chunk, part
    return found


def chunked(
    taken: dict[int, Run], groups: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """A transfer as a release is told: blocks, their number and first part by group, chunks."""
    empty: Run = ([], [], 0)
    every = [taken.get(group, empty) for group in range(groups)]
    return (
        list(chain.from_iterable(run[0] for run in every)),
        [len(run[0]) for run in every],
        [run[2] for run in every],
        list(chain.from_iterable(run[1] for run in every)),
    )
