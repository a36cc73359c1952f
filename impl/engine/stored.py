"""What the host tier holds for requests: keys, their places, and which slot makes room."""

from collections.abc import Collection

from kvexact.impl.engine.prefixes import Key

#: A host slot, and a part of the chunk in it.
Place = tuple[int, int]


class Stored:
    """Keys by place. A slot has parts of one group's chunks.

    Args:
        slots: host slots.
        parts: parts of a slot.
    """

    def __init__(self, slots: int, parts: int) -> None:
        self.slots = slots
        self.parts = parts
        self._places: dict[Key, Place] = {}
        #: Keys by part, of slots that hold something; the one used longest ago comes first.
        self._held: dict[int, dict[int, Key]] = {}

    def unused(self) -> int:
        """How many slots hold nothing."""
        return self.slots - len(self._held)

    def find(self, key: Key) -> Place | None:
        """Where a key is."""
        return self._places.get(key)

    def touch(self, slot: int) -> None:
        """The slot was used just now."""
        self._held[slot] = self._held.pop(slot)

    def put(self, key: Key, place: Place) -> None:
        """A key is there from now on."""
        slot, part = place
        self._places[key] = place
        self._held.setdefault(slot, {})[part] = key
        self.touch(slot)

    def place_for(self, group: int) -> Place | None:
        """A part that holds nothing: of a slot that has parts of this group, or of an empty one."""
        for slot, held in self._held.items():
            if len(held) < self.parts and next(iter(held.values())).group == group:
                return slot, next(part for part in range(self.parts) if part not in held)
        empty = [slot for slot in range(self.slots) if slot not in self._held]
        return (empty[0], 0) if empty else None

    def victim(self, kept: Collection[Key]) -> int | None:
        """The slot used longest ago that has none of these keys."""
        for slot, held in self._held.items():
            if not any(self.is_kept(key, kept) for key in held.values()):
                return slot
        return None

    def evict(self, slot: int) -> None:
        """A slot holds nothing from now on."""
        for key in self._held.pop(slot).values():
            self.forget(key)

    # Decisions.

    def is_kept(self, key: Key, kept: Collection[Key]) -> bool:
        """Whether a key of a slot forbids to evict it."""
        return key in kept

    def forget(self, key: Key) -> None:
        """A key whose slot was evicted is found no more."""
        del self._places[key]
