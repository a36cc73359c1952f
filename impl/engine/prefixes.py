"""Pool blocks of requests: references, keys, and the order in which free ones are taken."""

from typing import NamedTuple


class Key(NamedTuple):
    """What a block holds: a group's rows of the last tokens of a prefix.

    Attributes:
        tokens: all of the prefix, to the end of the block.
    """

    group: int
    tokens: tuple[int, ...]


class Blocks:
    """All blocks of a pool. A free one keeps its key until it is taken for something else."""

    def __init__(self, count: int) -> None:
        self.references = [0] * count
        self.keys: list[Key | None] = [None] * count
        #: Free blocks, the one that has been free longest first.
        self.free: dict[int, None] = dict.fromkeys(range(count))
        self._cached: dict[Key, list[int]] = {}

    def find(self, key: Key) -> int | None:
        """A block that holds this."""
        found = self._cached.get(key)
        return found[0] if found else None

    def hold(self, block: int) -> bool:
        """One more table has this block. True: it was free."""
        self.references[block] += 1
        return self.free.pop(block, block) is None

    def release(self, block: int) -> bool:
        """One table less has it. True: it is free now."""
        self.references[block] -= 1
        is_free = self.is_unused(self.references[block])
        if is_free:
            self.free[block] = None
        return is_free

    def take(self) -> int:
        """Hold the block that has been free longest; what it held is forgotten."""
        block = next(iter(self.free))
        self.hold(block)
        self._forget(block)
        return block

    def commit(self, block: int, key: Key) -> None:
        """From now on the block may be offered under this key."""
        self._forget(block)
        self.keys[block] = key
        self._cached.setdefault(key, []).append(block)

    def _forget(self, block: int) -> None:
        key = self.keys[block]
        if key is None:
            return
        self.keys[block] = None
        self._cached[key].remove(block)
        if not self._cached[key]:
            del self._cached[key]

    # Decisions.

    def is_unused(self, references: int) -> bool:
        """Whether a block that so many tables have is free."""
        return references == 0
