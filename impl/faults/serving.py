"""Faults of requests: what is offered, who holds what, what makes room."""

# ruff: noqa: ARG002  # an override keeps the signature of the decision that it replaces

from collections.abc import Callable, Collection, Sequence

from kvexact.impl.engine.hits import Hits, Source
from kvexact.impl.engine.manager import Manager, Request
from kvexact.impl.engine.prefixes import Blocks, Key
from kvexact.impl.engine.stored import Stored
from kvexact.impl.faults.register import planted
from kvexact.refmodel.answer import HOLE

_PARTS: dict[type, str] = {Blocks: "blocks_type", Stored: "stored_type", Hits: "hits_type"}


def _planted(
    name: str, kind: str, report: str, known_minimum: int, differences: set[str]
) -> Callable[[type], type]:
    """As `planted`, for a part of the manager."""

    def plant(part: type) -> type:
        slot = next(_PARTS[base] for base in part.__mro__ if base in _PARTS)
        manager = type(part.__name__, (Manager,), {slot: part, "__doc__": part.__doc__})
        planted(name, kind, report, known_minimum, differences)(manager)
        return part

    return plant


@_planted("free_counted_twice", "REUSE", "TRT-LLM#12834", 4, {"taken", "loaded", "free"})
class _FreeCountedTwice(Blocks):
    """A block counts as free as soon as one of two tables gives it back, and then once more."""

    def is_unused(self, references: int) -> bool:
        return references <= 1


@_planted("shared_block_counted_once", "REUSE", "LMCache#3130", 4, {"taken", "loaded", "free"})
class _SharedCountedOnce(Blocks):
    """A second table that takes a cached block does not count."""

    def hold(self, block: int) -> bool:
        was_free = super().hold(block)
        self.references[block] = 1
        return was_free

    def release(self, block: int) -> bool:
        return self.references[block] > 0 and super().release(block)


@_planted(
    "taken_block_still_offered", "STALE", "TRT-LLM#15018", 6, {"offered", "stored", "refusal"}
)
class _TakenStillOffered(Blocks):
    """A block that is taken for something else is still found under what it held."""

    def take(self) -> int:
        block = next(iter(self.free))
        self.hold(block)
        return block


@planted("hit_not_held", "REUSE", "sglang#36738", 4, {"taken", "loaded", "free"})
class _HitNotHeld(Manager):
    """A cached block that a request uses stays among the free ones."""

    def hold_hits(self, sources: list[list[Source]]) -> None:
        return


@planted("rejected_token_offered", "STALE", "no public report", 3, {"offered", "stored"})
class _RejectedOffered(Manager):
    """Blocks are offered as soon as they are written, with the rejected drafts in them."""

    def offered(self, request: Request, written: Sequence[int]) -> Sequence[int]:
        return written


@planted("sampled_token_offered", "OBO", "no public report", 3, {"offered", "stored"})
class _SampledOffered(Manager):
    """Blocks count as full with all tokens that are known, the sampled one included."""

    def offered(self, request: Request, written: Sequence[int]) -> Sequence[int]:
        return request.tokens


@_planted(
    "window_one_short", "OBO", "vllm#48959", 3, {"dropped", "offered", "read", "shape", "refusal"}
)
class _WindowOneShort(Hits):
    """The window begins one position late."""

    def first_seen(self, group: int, computed: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, computed - window + 2)


@_planted("hit_of_the_deepest_group", "MAP", "vllm#46453", 1, {"offered"})
class _DeepestGroup(Hits):
    """The first group alone says how long a hit is."""

    def sources(self, group: int, tokens: Sequence[int], hit: int) -> list[Source] | None:
        found = super().sources(group, tokens, hit)
        if found is None and group:
            return [HOLE] * (hit // self.sizes[group])
        return found


@_planted("key_of_last_tokens", "KEY", "Mooncake#4153", 3, {"offered"})
class _KeyOfLastTokens(Hits):
    """A key names the tokens of its own block, not those before them."""

    def key(self, group: int, tokens: Sequence[int], index: int) -> Key:
        size = self.sizes[group]
        return Key(group, tuple(tokens[index * size : (index + 1) * size]))


@_planted("whole_prompt_hits", "OBO", "no public report", 3, {"prefix"})
class _WholePromptHits(Hits):
    """A hit may have all tokens of a request, which leaves none to compute."""

    def longest_hit(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@_planted("batch_member_evicted", "EVICT", "vllm#35846", 3, {"batch", "refusal"})
class _BatchMemberEvicted(Stored):
    """A store may evict what the same store counts as already there."""

    def is_kept(self, key: Key, kept: Collection[Key]) -> bool:
        return False


@_planted("evicted_key_still_found", "EVICT", "LMCache#3130", 8, {"offered", "refusal"})
class _EvictedStillFound(Stored):
    """Eviction gives a slot back, but its keys are still found."""

    def forget(self, key: Key) -> None:
        return
