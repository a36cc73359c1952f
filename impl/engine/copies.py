"""Copies between blocks of the pool."""

from collections.abc import Sequence

from kvexact.impl.engine.device import WORD_BYTES, Device
from kvexact.impl.engine.plans import GroupPlan
from kvexact.impl.engine.views import Views

IdPair = tuple[int, int]


class Copies:
    """Copies pairs of blocks one after the other, as far as that shows in parallel."""

    def __init__(self, device: Device, views: Views, pool_address: int) -> None:
        self.device = device
        self.views = views
        self.pool_address = pool_address

    def run(
        self, index: int, group: GroupPlan, pairs: Sequence[IdPair], tokens: int | None
    ) -> None:
        """Copy the first ``tokens`` slots of each pair, or all content for None."""
        tokens = self.tokens(tokens)
        if not pairs or tokens == 0:
            return
        if tokens is None:
            table, first, block_tokens, count = self.views.table("copy", index), 1, 1, 1
        else:
            table = self.views.table("partial_copy", index)
            first, block_tokens, count = group.slots, group.kernel_slots, tokens
        total = len(pairs)
        scratch = self.device.scratch_of(2 * WORD_BYTES * total)
        scratch.words[:total] = [pair[0] * first for pair in pairs]
        scratch.words[total : 2 * total] = [pair[1] * first for pair in pairs]
        self.device.push(2 * WORD_BYTES * total)
        source = scratch.device
        for size in self.waves(pairs):
            target = source + WORD_BYTES * total
            self.device.launch(
                "copy", *table, source, target, size, count, block_tokens, self.pool_address
            )
            source += WORD_BYTES * size

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
