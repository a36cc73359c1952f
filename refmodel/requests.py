"""What is known of requests, blocks and host parts: tables, references, keys."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvexact.refmodel.answer import HOLE
from kvexact.refmodel.spec import Geometry

RUNNING, PREEMPTED, ENDED = "running", "preempted", "ended"


class Key(NamedTuple):
    """What a committed block holds: entry ``entry`` of a group's table for these tokens."""

    group: int
    entry: int
    tokens: tuple[int, ...]


@dataclass(slots=True)
class Request:
    """A request.

    Attributes:
        known: its tokens.
        computed: how many of them have keys and values.
        tables: per group the blocks, by entry; `HOLE` for none.
        state: "running", "preempted" or "ended".
    """

    id: int
    known: tuple[int, ...]
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)
    state: str = RUNNING

    def key(self, group: int, entry: int, size: int) -> Key:
        """The key of an entry whose positions are all computed; ``size`` slots a block."""
        return Key(group, entry, self.known[: (entry + 1) * size])


class Requests:
    """The state that docs/serving.md describes, after all answers so far.

    Attributes:
        requests: by the id of their `Admit`.
        references: of each block of the pool, in how many tables it stands.
        keys: of blocks that have one; one without references keeps it until it is taken.
        rejected: (block, slot) of drafts that were not accepted, until they are overwritten.
        parts: what host slots hold: key by part; a slot that holds nothing is left out.
        sizes: slots of a block, by group.
        windows: `Group.window_tokens`, by group.
    """

    def __init__(self, geometry: Geometry, host_slots: int) -> None:
        self.requests: dict[int, Request] = {}
        self.references = [0] * geometry.blocks
        self.keys: dict[int, Key] = {}
        self.rejected: set[tuple[int, int]] = set()
        self.parts: dict[int, dict[int, Key]] = {}
        self.sizes = [group.block_size for group in geometry.groups]
        self.windows = [group.window_tokens for group in geometry.groups]
        self.host_slots = host_slots
        self.chunk_blocks = geometry.host.chunk_blocks

    @property
    def groups(self) -> range:
        return range(len(self.sizes))

    @property
    def free(self) -> tuple[int, int]:
        """Blocks without references, and host slots that hold nothing."""
        return self.references.count(0), self.host_slots - len(self.parts)

    def first_seen(self, group: int, position: int) -> int:
        """The first position that a token at ``position`` sees."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1)

    def is_seen(self, group: int, entry: int, position: int) -> bool:
        """Whether a token at ``position`` sees any position of an entry before it."""
        return (entry + 1) * self.sizes[group] > self.first_seen(group, position)

    def droppable(self, request: Request) -> list[tuple[int, int]]:
        """(group, entry) of the blocks that the next token does not see any more."""
        return [
            (group, entry)
            for group in self.groups
            for entry, block in enumerate(request.tables[group])
            if block != HOLE and not self.is_seen(group, entry, request.computed)
        ]

    def needed(self, request: Request, positions: int) -> list[int]:
        """By group, how many blocks a table lacks for so many positions."""
        return [
            max(0, -(-positions // size) - len(table))
            for size, table in zip(self.sizes, request.tables, strict=True)
        ]

    def committed(self, request: Request) -> set[Key]:
        """Keys of the blocks in a request's tables."""
        return {
            self.keys[block] for table in request.tables for block in table if block in self.keys
        }

    def in_host(self) -> dict[Key, None]:
        """Keys in the host tier, each once, in the order in which slots and parts were filled."""
        return dict.fromkeys(key for parts in self.parts.values() for key in parts.values())

    def why_not(self, block: int, key: Key) -> tuple[str, str]:
        """Why a block does not hold this key: a cause, and words for a person."""
        held = self.keys.get(block)
        if held is not None and held.group != key.group:
            return "other group", f"it holds a block of group {held.group}"
        if held is not None and held.entry != key.entry:
            return "other entry", f"it holds entry {held.entry}"
        if held is not None:
            pairs = zip(held.tokens, key.tokens, strict=True)
            differs = next(p for p, (one, other) in enumerate(pairs) if one != other)
            return "other tokens", f"it holds other tokens, from position {differs} on"
        return self._why_without_key(block)

    def _why_without_key(self, block: int) -> tuple[str, str]:
        for request in self.requests.values():
            for group, table in enumerate(request.tables):
                if block in table:
                    return self._why_uncommitted(request, group, table.index(block))
        rejected = [slot for holder, slot in sorted(self.rejected) if holder == block]
        if rejected:
            return "rejected", f"its slot {rejected[0]} was rejected"
        return "unwritten", "nothing that was committed is in it"

    def _why_uncommitted(self, request: Request, group: int, entry: int) -> tuple[str, str]:
        """Why an entry of a running request's table has no key."""
        size = self.sizes[group]
        position = max(request.computed, entry * size)
        slot = position - entry * size
        if (request.tables[group][entry], slot) in self.rejected:
            return "rejected", f"its slot {slot} was rejected"
        if position < len(request.known):
            why = f"the token of its slot {slot} is known without keys and values"
            return "not computed", why
        return "unwritten", f"its slot {slot} was never written"

    def why_nowhere(self, key: Key) -> tuple[str, str]:
        """Why no block and no part has this key: of a block that nearly has it, where one is."""
        start = key.entry * self.sizes[key.group]
        for request in self.requests.values():
            table = request.tables[key.group] if request.tables else []
            if key.entry < len(table) and request.known[:start] == key.tokens[:start]:
                block = table[key.entry]
                if block != HOLE and block not in self.keys:
                    cause, words = self._why_uncommitted(request, key.group, key.entry)
                    return cause, f"block {block} nearly has it, but {words}"
        return "nowhere", "no block and no part of a host slot has its key"
