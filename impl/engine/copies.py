"""Copies between blocks of the pool."""

from collections.abc import Sequence

from kvexact.impl.engine.device import COMPUTE, WORD_BYTES, Device
from kvexact.impl.engine.order import InOrder, Work
from kvexact.impl.engine.plans import GroupPlan
from kvexact.impl.named import made

IdPair = tuple[int, int]


class Copies:
    """Copies pairs of blocks one after the other, as far as that shows in parallel."""

    def __init__(self, device: Device, pool_address: int, order: InOrder) -> None:
        self.device = device
        self.pool_address = pool_address
        self.order = order

    def run(
        self, index: int, group: GroupPlan, pairs: Sequence[IdPair], tokens: int | None
    ) -> None:
        """Copy the first ``tokens`` slots of each pair, or all content for None."""
        tokens = self.tokens(tokens)
        if not pairs or tokens == 0:
            return
        if tokens is None:
            consumer, first, block_tokens, count = "copy", 1, 1, 1
        else:
            consumer = "partial_copy"
            first, block_tokens, count = group.slots, group.kernel_slots, tokens
        total = len(pairs)
        sources, targets = zip(*pairs, strict=True)
        work = made(Work, (consumer, index, sources, targets))
        scratch = self.order.stage(2 * WORD_BYTES * total)
        scratch.words[: 2 * total] = [block * first for block in (*sources, *targets)]
        self.device.push(COMPUTE, 2 * WORD_BYTES * total)
        start = scratch.device
        for size in self.waves(pairs):
            places = start, start + WORD_BYTES * total
            sizes = size, count, block_tokens
            for table in self.order.compute(work):
                self.device.launch(COMPUTE, "copy", *table, *places, *sizes, self.pool_address)
            start += WORD_BYTES * size
        self.order.computed(work)

    def tokens(self, tokens: int | None) -> int | None:
        """How many token slots of each block are copied; None for all."""
        return tokens

    def waves(self, pairs: Sequence[IdPair]) -> list[int]:
        """Lengths of consecutive parts within which pairs may run in parallel.

        A pair that reads what the wave writes, or writes what it reads or writes, starts a new one.
        """
        sizes = []
        read: set[int] = set()
        written: set[int] = set()
        size = 0
        for source, target in pairs:
            if source in written or target in written or target in read:
                sizes.append(size)
                size = 0
                read.clear()
                written.clear()
            read.add(source)
            written.add(target)
            size += 1
        sizes.append(size)
        return sizes
