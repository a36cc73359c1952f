"""Which prefix of a request is cached, and where its blocks come from."""

from collections.abc import Sequence
from math import lcm

from kvexact.impl.engine.prefixes import Blocks, Key
from kvexact.impl.engine.stored import Place, Stored
from kvexact.refmodel.answer import HOLE
from kvexact.refmodel.spec import Group

#: Where an entry of a hit comes from: a block of the pool, or a place in the host tier.
Source = int | Place


class Hits:
    """Looks for prefixes in both tiers."""

    def __init__(self, groups: Sequence[Group], blocks: Blocks, stored: Stored) -> None:
        self.sizes = [group.block_size for group in groups]
        self.windows = [group.window_tokens for group in groups]
        self.unit = lcm(*self.sizes)
        self.blocks = blocks
        self.stored = stored

    def longest(self, tokens: Sequence[int], *, limited: bool) -> tuple[int, list[list[Source]]]:
        """The longest hit, and per group where its entries come from.

        Args:
            limited: there must be room for what is loaded.
        """
        most = self.longest_hit(tokens)
        for hit in range(most - most % self.unit, 0, -self.unit):
            found = [self.sources(group, tokens, hit) for group in range(len(self.sizes))]
            sources = [entries for entries in found if entries is not None]
            whole = len(sources) == len(found)
            if whole and (not limited or self._has_room(sources)):
                return hit, sources
        return 0, [[] for _ in self.sizes]

    def _has_room(self, sources: list[list[Source]]) -> bool:
        flat = [source for entries in sources for source in entries]
        loads = sum(isinstance(source, tuple) for source in flat)
        return loads <= len(self.blocks.free) - sum(source in self.blocks.free for source in flat)

    # Decisions.

    def key(self, group: int, tokens: Sequence[int], index: int) -> Key:
        """What a full block of a request holds."""
        return Key(group, tuple(tokens[: (index + 1) * self.sizes[group]]))

    def longest_hit(self, tokens: Sequence[int]) -> int:
        """The most tokens that a hit may have: one at least is left to compute."""
        return len(tokens) - 1

    def first_seen(self, group: int, computed: int) -> int:
        """The first position that the next token sees."""
        window = self.windows[group]
        return 0 if window is None else max(0, computed - window + 1)

    def sources(self, group: int, tokens: Sequence[int], hit: int) -> list[Source] | None:
        """Where the entries of a hit come from; None: some are nowhere."""
        size = self.sizes[group]
        found: list[Source] = []
        first = self.first_seen(group, hit) // size
        for index in range(hit // size):
            source: Source | None = HOLE
            if index >= first:
                key = self.key(group, tokens, index)
                source = self.blocks.find(key)
                if source is None:
                    source = self.stored.find(key)
            if source is None:
                return None
            found.append(source)
        return found
