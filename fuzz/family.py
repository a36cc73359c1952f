"""A family: a named generator of geometries and op weights."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kvexact.fuzz.choose import Chooser
from kvexact.fuzz.shown import fits
from kvexact.impl.target import Target
from kvexact.refmodel.ops import BLOCK_OPS, HARNESS_OPS, SERVING_OPS
from kvexact.refmodel.spec import Geometry

#: How often a family draws for a target before it gives up.
_DRAWS_MOST = 200

#: How often each op is drawn, in a hundred or so, where bytes are written raw. A run without an
#: op that has a weight proves too little; 0 says that it is not drawn.
RAW_WEIGHTS: Mapping[str, int] = {
    "allocate": 15,
    "free": 9,
    "write_tokens": 20,
    "zero": 7,
    "copy_blocks": 9,
    "offload": 13,
    "restore": 13,
    "read": 7,
    "evict": 5,
    "reset": 1,
    "write_values": 0,
    "read_values": 0,
    **dict.fromkeys((*SERVING_OPS, *HARNESS_OPS), 0),
}
#: The same where most of what is written are real keys and values.
VALUE_WEIGHTS: Mapping[str, int] = {
    **RAW_WEIGHTS,
    "write_tokens": 6,
    "write_values": 16,
    "read": 3,
    "read_values": 8,
}
#: The same where ops are to meet each other's work: much is moved and given back, little is read,
#: as a read waits.
CONTENDING: Mapping[str, int] = {
    **RAW_WEIGHTS,
    "free": 12,
    "zero": 5,
    "copy_blocks": 8,
    "offload": 18,
    "restore": 18,
    "read": 3,
    "evict": 8,
}
#: How often ops in time are drawn beside these, for asynchronous targets.
TIMED_WEIGHTS: Mapping[str, int] = {"fence": 2, "step": 5, "poll": 6}
#: The same of ops on requests.
SERVING_WEIGHTS: Mapping[str, int] = {
    **dict.fromkeys(BLOCK_OPS, 0),
    "admit": 15,
    "readmit": 7,
    "compute": 34,
    "finish": 6,
    "preempt": 5,
    "store": 14,
    "lookup": 6,
    "attend": 9,
    "mutate": 4,
}


@dataclass(frozen=True, slots=True)
class Family:
    """A named generator.

    Attributes:
        draw: draws a geometry.
        weights: how often each op is drawn; empty for a family that only plans.
        illegal_percent: how often an op is drawn to be refused.
        batch_percent: how often a transfer is so large that fast paths for batches may begin.
        zero_percent: how often blocks are zeroed as they are allocated.
        summary: what this family is there to meet.
    """

    name: str
    draw: Callable[[Chooser], Geometry]
    summary: str
    weights: Mapping[str, int] = field(default_factory=lambda: RAW_WEIGHTS)
    illegal_percent: int = 4
    batch_percent: int = 5
    zero_percent: int = 5

    @property
    def plans_only(self) -> bool:
        return not self.weights

    @property
    def encodes(self) -> bool:
        """Whether it writes real values."""
        return self.draws("write_values")

    @property
    def serves(self) -> bool:
        """Whether its ops are ops on requests."""
        return self.draws("admit")

    def draws(self, kind: str) -> bool:
        """Whether ops of this kind are drawn, for targets that have it."""
        return self.weights.get(kind, 0) > 0

    def lacking(self, op_kinds: Collection[str]) -> str:
        """What a target lacks to be fuzzed with it, in words; empty: nothing."""
        if self.serves:
            return ", ".join(kind for kind in SERVING_OPS if kind not in op_kinds)
        return "" if self.plans_only or not set(BLOCK_OPS).isdisjoint(op_kinds) else "allocate"

    def kinds(self, op_kinds: Collection[str]) -> frozenset[str]:
        """Of a target's op kinds those that it is to draw."""
        harness = set(HARNESS_OPS) if self.serves else set()
        return frozenset(kind for kind in {*op_kinds, *harness} if self.weights.get(kind) != 0)

    def draw_fitting(self, chooser: Chooser, target: Target) -> Geometry:
        """The first of many geometries that fits a target, or one that does not."""
        for _ in range(_DRAWS_MOST):
            geometry = self.draw(chooser)
            if fits(target, geometry):
                break
        return geometry
