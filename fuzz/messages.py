"""What an isolated target and its parent say to each other: calls, and what came of them."""

from dataclasses import replace
from typing import Any

import msgspec

from kvexact.fuzz.segment import Shapes
from kvexact.impl.target import Area
from kvexact.refmodel.answer import Answer as Decided
from kvexact.refmodel.ops import Op
from kvexact.refmodel.spec import Geometry


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """``open`` or ``plan`` a geometry, on a new instance of the target where ``anew``.

    Attributes:
        schedule: of an asynchronous target.
    """

    what: str
    geometry: Geometry
    anew: bool
    schedule: int | None = None


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Overwrite an area with the bytes that lie in shared memory, where rows do."""

    area: Area
    shapes: Shapes


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Call ``probe``, ``launches`` or ``close``."""

    what: str


Call = Prepare | Load | Ask
#: An op to run. Where it has rows, they lie in shared memory.
Apply = tuple[Shapes | None, Op]


class Raised(msgspec.Struct, frozen=True, array_like=True):
    """What the target raised, as a `kvexact.fuzz.wrong.Wrong` has it."""

    outcome: str
    text: str
    name: str


class Odd(msgspec.Struct, frozen=True, array_like=True, tag="odd"):
    """Stands for something that is no result, and shows itself as that did."""

    text: str

    def __repr__(self) -> str:
        return self.text


class OddParts(msgspec.Struct, frozen=True, array_like=True, tag="odd parts"):
    """Stands for an answer to an op on requests of which some parts are nothing that it may hold.

    Attributes:
        plain: the answer with the other parts.
        odd: how these show themselves, by their names.
    """

    plain: Decided
    odd: dict[str, str]

    def answer(self) -> Decided:
        """The answer, with an `Odd` for each of these parts."""
        parts: dict[str, Any] = {name: Odd(text) for name, text in self.odd.items()}
        return replace(self.plain, **parts)


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of a call.

    Attributes:
        value: facts or launches.
        read: shapes of what a read returned; it lies in shared memory.
        told: what a poll found, or the answer to an op on requests.
        refused: reason and text of a refusal.
        raised: the call failed.
        unavailable: the target cannot run any more.
        sizes: bytes of the declared areas, where they are new; they lie in shared memory.
        unseen: areas whose view failed.
        kept: the target took the very memory that `load` was given for its own.
    """

    value: Any = None
    read: Shapes | None = None
    told: bool | Decided | Odd | OddParts | None = None
    refused: tuple[str, str] | None = None
    raised: Raised | None = None
    unavailable: str | None = None
    sizes: dict[Area, int] = {}
    unseen: dict[Area, Raised] = {}
    kept: bool = False


#: The answer to an op that acted, and has nothing to say about it.
DONE = Answer()
