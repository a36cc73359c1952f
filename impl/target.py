"""The interface of an implementation under test, and what it declares about itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from kvexact.impl.bounds import Bytes as Bytes  # noqa: PLC0414 - found here by all targets
from kvexact.impl.bounds import OutOfBounds as OutOfBounds  # noqa: PLC0414
from kvexact.impl.notes import Note
from kvexact.refmodel.answer import Answer
from kvexact.refmodel.ops import BLOCK_OPS, OP_REASONS, Op
from kvexact.refmodel.spec import GEOMETRY_REASONS, Geometry

#: Rows of a write or a read: per layer set one array [rows, layers, kv_heads, bytes]. Of
#: `WriteTokens` and `Read` these are cells, their fields in the logical order of docs/formats.md,
#: whatever the physical layout. Of `WriteValues` they are the elements of key and value in the
#: op's value type, of `ReadValues` the same decoded to fp32.
Rows = tuple[Bytes, ...]

#: What an implementation believes about a geometry, by the names of docs/design.md.
Facts = Mapping[str, int | tuple[int, ...] | tuple[tuple[int, ...], ...]]

#: What `apply` returns: rows of a read, the answer to an op on requests, what a `Poll` found, or
#: nothing.
Result = Rows | Answer | bool | None

Area = Literal["pool", "host"]

#: Makes memory of so many bytes, zeroed, and tells its address.
Allocate = Callable[[int], tuple[Bytes, int]]


class DeviceLost(Exception):
    """The device reports an error that sticks: nothing after it can be trusted."""


class Unavailable(Exception):
    """This target cannot run on this machine. The message says why and how to mend it."""


@dataclass(frozen=True, slots=True)
class FreeBytes:
    """Bytes that may change as they like inside the pages or rows that an op touches.

    Attributes:
        op_kind: the op's kind, of `kvexact.refmodel.ops.OPS`.
        what: "page_padding" (the end of each touched page), "block_padding" (whatever a touched
            block has beside its owner's content) or "host_padding" (the end of each touched host
            row).
        reason: why this is a choice and no fault; shown in reports.
    """

    op_kind: str
    what: Literal["page_padding", "block_padding", "host_padding"]
    reason: str


class Target(ABC):
    """An implementation under test. One instance runs one geometry after another.

    Class attributes are declarations; the defaults promise everything and excuse nothing.
    """

    #: Op kinds that it has; no other is sent.
    op_kinds: ClassVar[frozenset[str]] = frozenset(BLOCK_OPS)
    #: Op refusals that it promises. Ops that would be refused for another reason are not sent.
    op_refusals: ClassVar[frozenset[str]] = frozenset(OP_REASONS)
    #: Geometry refusals that must equal the model's. Others that the model predicts are not sent.
    geometry_refusals: ClassVar[frozenset[str]] = frozenset(GEOMETRY_REASONS)
    #: Reasons of its own for which it may refuse a geometry that the model accepts: counted.
    may_refuse: ClassVar[frozenset[str]] = frozenset()
    #: Tiers whose bytes are declared by the geometry and compared after every op.
    declared: ClassVar[frozenset[Area]] = frozenset({"pool", "host"})
    #: Bytes that may change, each with a reason.
    free: ClassVar[tuple[FreeBytes, ...]] = ()
    #: Whether `CopyBlocks` may name a number of slots; False: only whole blocks are sent.
    copies_slots: ClassVar[bool] = True
    #: Whether its work may be pending when `apply` returns; see docs/time.md. It then has all ops
    #: in time, and no bytes that are ``free``.
    is_async: ClassVar[bool] = False
    #: Families of geometries that it can mostly accept, by name; None: all that suit any target.
    families: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def variant(cls, text: str) -> "type[Target]":
        """The target that ``name@text`` stands for, such as one release of what is tested.

        Raises:
            ValueError: there is none; says what there is.
        """
        raise ValueError(f"it has no variants, so drop @{text}")

    @classmethod
    def check_available(cls) -> None:
        """Raise `Unavailable` where this target cannot run."""
        return

    @classmethod
    def remark(cls) -> str:
        """A line for a person, said as a run begins; empty: there is nothing to say."""
        return ""

    @classmethod
    def fits(cls, geometry: Geometry) -> bool:  # noqa: ARG003 - for targets to say
        """Whether to be asked about this geometry at all: families draw again until one fits.

        A geometry that does not fit is never planned or opened; it counts as one that is declined.
        For what a target does not know, such as other orders than its own; what it knows and must
        refuse belongs to `geometry_refusals`.
        """
        return True

    def share(self, area: Area, allocate: Allocate) -> None:  # noqa: B027 - targets may ignore it
        """Offer memory in which another process sees an area without a copy; before `open`.

        Only to save time: a target may ignore it. In `open` it may call ``allocate``, which ends
        the use of what that made before; then `view` must return the very array that it made.
        """

    def schedule(self, number: int) -> None:  # noqa: B027 - where nothing is ever pending
        """Order pending work as this schedule says, from the next `open` on; see docs/time.md."""

    def take_notes(self) -> list[Note] | None:
        """Note what runs when, from the next `open` on; None where nothing is ever pending."""
        return None

    @abstractmethod
    def plan(self, geometry: Geometry) -> Facts:
        """Facts of a geometry, without memory. Raises `Refused`."""

    @abstractmethod
    def open(self, geometry: Geometry) -> Facts:
        """Allocate the pool and the host tier; no block is owned, no host slot is used.

        Raises:
            Refused: this geometry cannot be.
        """

    @abstractmethod
    def apply(self, op: Op, rows: Rows | None) -> Result:
        """Run one op whose blocks are ids.

        Args:
            op: the op.
            rows: what a `WriteTokens` or `WriteValues` stores, one row a slot, pad rows included;
                what a `Compute` stores, one row a position, group after group; else None.

        Returns:
            What a `Read`, `ReadValues` or `Attend` gathered; the answer to an op on requests; what
            a `Poll` found; else None.

        Raises:
            Refused: the op is illegal; nothing was changed.
            OutOfBounds: the op would have left registered memory.
            DeviceLost: the device reports an error that sticks.
        """

    @abstractmethod
    def view(self, area: Area) -> Bytes:
        """All bytes of a declared area as they are now; no copy where possible.

        Of a target that is not asynchronous all work is done.

        "pool" is the physical storage; "host" is worker slots x row bytes. No caller writes to it.
        """

    @abstractmethod
    def load(self, area: Area, data: Bytes) -> None:
        """Overwrite a declared area: poison at birth, outside any op."""

    @abstractmethod
    def close(self) -> None:
        """Release the memory of `open`. May be called twice."""

    def probe(self) -> None:
        """Wait for the device and say whether it still works; asked after `apply` raised.

        Raises:
            DeviceLost: the device reports an error that sticks.
        """
        return

    def launches(self) -> Mapping[str, int]:
        """Launches and copies since `open`, by name; empty where they are not counted."""
        return {}
