"""Faults of order: waits that are missing or for the wrong thing, memory that is used too early."""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvexact.impl.engine.cache import Cache
from kvexact.impl.engine.deferred import DeferringManager, Waiting
from kvexact.impl.engine.device import COMPUTE, Scratch
from kvexact.impl.engine.order import Transfer, Work
from kvexact.impl.engine.stream_order import Mark, StreamOrder
from kvexact.impl.faults.register import READ, planted
from kvexact.impl.target import Rows
from kvexact.refmodel.ops import Offload, Op, Restore
from kvexact.refmodel.serving_ops import Compute, Preempt

#: What stored the wrong bytes last: a transfer or what came after it; compute work, too.
_MOVED = {"offload", "restore", "copy"}
_STORED = _MOVED | {"write", "zero"}
#: Ids, rows or descriptors of another op: it may write anywhere.
_ANYWHERE = _STORED | READ | {"frame", "out of bounds"}


@planted("store_without_compute", "RACE-D2H", "vllm#45704", 2, _MOVED)
class _StoreWithoutCompute(StreamOrder):
    """A store does not wait for the compute work that writes its blocks."""

    def store_after_compute(self, blocks: Sequence[int]) -> Sequence[Mark]:
        return ()


@planted("store_without_load", "RACE-D2H", "vllm-ascend#4412", 4, _MOVED)
class _StoreWithoutLoad(StreamOrder):
    """A store does not wait for the loads that fill its blocks."""

    def store_after_loads(self, blocks: Sequence[int]) -> Sequence[Mark]:
        return ()


@planted("source_overwritten_while_stored", "REUSE", "vllm#29870", 3, _MOVED)
class _SourceOverwritten(StreamOrder):
    """Compute work overwrites blocks of which a store is pending."""

    def compute_after_stores(self, work: Work) -> Sequence[Mark]:
        return ()


@planted("source_loaded_over_while_stored", "REUSE", "vllm#46014", 4, _MOVED)
class _SourceLoadedOver(StreamOrder):
    """A load overwrites blocks of which a store is pending."""

    def load_after_stores(self, blocks: Sequence[int]) -> Sequence[Mark]:
        return ()


@planted("load_overtakes_zeroing", "RACE-H2D", "vllm#50696", 4, _MOVED)
class _LoadOvertakesZeroing(StreamOrder):
    """A load does not wait for compute work on its blocks, such as their zeroing."""

    def load_after_compute(self, blocks: Sequence[int]) -> Sequence[Mark]:
        return ()


@planted("load_and_zeroing_unordered", "RACE-H2D", "vllm#50696", 4, _MOVED)
class _LoadAndZeroingUnordered(StreamOrder):
    """Zeroing leaves no event that a load would wait for."""

    def computed(self, work: Work) -> None:
        before = dict(self.touched)
        super().computed(work)
        if work.consumer == "zero":
            self.touched = before


@planted("zeroing_behind_the_load", "RACE-H2D", "vllm#50696", 4, _MOVED)
@dataclass(slots=True)
class _ZeroingBehindTheLoad(Cache):
    """Zeroing is put off to the next op; where that is a load, it is queued behind it."""

    put_off: list[tuple[int, Sequence[int]]] = field(default_factory=list)

    def apply(self, op: Op, rows: Rows | None) -> Rows | bool | None:
        if not isinstance(op, Restore):
            self._zero_now()
            return Cache.apply(self, op, rows)
        try:
            return Cache.apply(self, op, rows)
        finally:
            self._zero_now()

    def _clear(self, group: int, blocks: Sequence[int]) -> None:
        self.put_off.append((group, blocks))

    def _zero_now(self) -> None:
        for group, blocks in self.put_off:
            Cache._clear(self, group, blocks)  # noqa: SLF001 - of the class that it extends
        self.put_off.clear()


@planted("load_waits_for_another_block", "RACE-H2D", "no public report", 4, _MOVED)
class _LoadWaitsForAnotherBlock(StreamOrder):
    """The event that a load waits for is looked up one block too low."""

    def load_after_compute(self, blocks: Sequence[int]) -> Sequence[Mark]:
        return super().load_after_compute([block - 1 for block in blocks])


@planted("load_before_earlier_readers", "RACE-H2D", "vllm#47282", 4, _MOVED)
class _LoadBeforeReaders(StreamOrder):
    """A load waits for what wrote its blocks, not for what still reads them."""

    def load_after_compute(self, blocks: Sequence[int]) -> Sequence[Mark]:
        return [self.wrote[block] for block in blocks if block in self.wrote]


@planted("compute_without_load", "RACE-H2D", "sglang#36738", 4, _STORED)
class _ComputeWithoutLoad(StreamOrder):
    """Compute work does not wait for the loads of its blocks."""

    def compute_after_loads(self, work: Work, layer: int) -> Sequence[Mark]:
        return ()


@planted("layer_before_its_load", "RACE-H2D", "sglang#22811", 4, _STORED)
class _LayerBeforeItsLoad(StreamOrder):
    """Compute work on a layer waits for the load of the layer before it."""

    def compute_after_loads(self, work: Work, layer: int) -> Sequence[Mark]:
        return super().compute_after_loads(work, max(layer - 1, 0))


@planted("host_slot_filled_while_loaded", "EVICT", "sglang#31427", 4, _MOVED)
class _SlotFilledWhileLoaded(StreamOrder):
    """A store fills a host slot, evicted meanwhile, from which a load is pending."""

    def store_after_fetches(self, slots: Sequence[int]) -> Sequence[Mark]:
        return ()


@planted("load_before_its_store", "RACE-H2D", "LMCache#207", 3, _MOVED)
class _LoadBeforeItsStore(StreamOrder):
    """A load does not wait for the store that fills its host slot."""

    def load_after_fills(self, slots: Sequence[int]) -> Sequence[Mark]:
        return ()


@planted("staging_filled_again", "STAGING", "TRT-LLM#15546", 5, _ANYWHERE)
class _StagingFilledAgain(StreamOrder):
    """A staging buffer with ids and rows is filled again before the copy from it has run."""

    def reuse(self, mark: Mark) -> None:
        return


@planted("staging_shared", "STAGING", "1Cat-vLLM#406", 2, _ANYWHERE)
class _StagingShared(StreamOrder):
    """Every op has a staging buffer of its own in the books; in memory they are one."""

    def stage(self, nbytes: int) -> Scratch:
        super().stage(nbytes)
        return self.device.scratch_of(nbytes, 0)


@planted("descriptors_filled_again", "STAGING", "TRT-LLM#15546", 7, _ANYWHERE)
class _DescriptorsFilledAgain(StreamOrder):
    """Of staging buffers only those of compute work are waited for, not those of transfers."""

    def reuse(self, mark: Mark) -> None:
        if mark.stream == COMPUTE:
            super().reuse(mark)


@planted("any_order_of_a_live_source", "RACE-H2D", "no public report", 3, _MOVED)
class _AnyOrder(StreamOrder):
    """Loads say that their sources may be read at any time, also while a store fills them."""

    def any_order(self, transfer: Transfer) -> bool:
        return transfer.to_pool


@planted("any_order_of_a_store", "RACE-D2H", "no public report", 2, _MOVED)
class _AnyOrderOfStore(StreamOrder):
    """Stores say that their sources may be read at any time, also before compute work ends."""

    def any_order(self, transfer: Transfer) -> bool:
        return super().any_order(transfer) or not transfer.to_pool


@planted("first_layers_event", "STATUS", "sglang#8901", 4, _ANYWHERE)
class _FirstLayersEvent(StreamOrder):
    """A load counts as done when its first layer is there."""

    def end_of_job(self, marks: Sequence[Mark]) -> Mark:
        return marks[0]


@planted("event_before_the_copy", "STATUS", "no public report", 3, _ANYWHERE)
class _EventBeforeTheCopy(StreamOrder):
    """The event of a transfer is recorded before its copies are queued."""

    def before(self, transfer: Transfer) -> int:
        stream = super().before(transfer)
        self.early = self.mark(stream)
        return stream

    def moved(self, transfer: Transfer, marks: Sequence[Mark]) -> None:
        super().moved(transfer, [self.early] * len(marks))


@planted("done_when_submitted", "STATUS", "kvcache-ai/vllm#3", 3, _MOVED)
class _DoneWhenSubmitted(StreamOrder):
    """A transfer is reported as done as soon as it is submitted."""

    def is_done(self, op: int) -> bool:
        return True


@planted("first_wait_alone", "RACE-H2D", "no public report", 3, _STORED)
class _FirstWaitAlone(StreamOrder):
    """Of several streams only the first is waited for."""

    def awaited(self, marks: Sequence[Mark]) -> Sequence[Mark]:
        return marks[:1]


@planted("preempted_store_dropped", "REUSE", "vllm#46014", 4, _MOVED)
class _PreemptedStoreDropped(DeferringManager):
    """A store whose request is preempted before it was submitted is dropped; its keys stay."""

    def due(self, op: Op | None) -> list[Waiting]:
        if isinstance(op, Preempt):
            for one in [one for one in self.waiting if one.request == op.request]:
                self.waiting.remove(one)
                self.cache.host.keep(self.cache.host.moves(self.cache.blocks, one.store.jobs))
        return self.waiting


@planted("stored_after_reuse", "REUSE", "vllm#42959", 4, _MOVED)
class _StoredAfterReuse(DeferringManager):
    """A store is submitted behind the work of the next step, which may reuse its blocks."""

    def due(self, op: Op | None) -> list[Waiting]:
        return [] if isinstance(op, Compute) else self.waiting

    def send(self, store: Offload) -> None:
        jobs = self.cache.host.moves(self.cache.blocks, store.jobs)
        self.cache.transfers.run(jobs, to_pool=False)
        self.cache.host.keep(jobs)
