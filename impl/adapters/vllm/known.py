"""Findings that are known: which target shows them in which releases, and who can meet them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from kvexact.impl.adapters.vllm.home import age
from kvexact.refmodel.spec import Geometry

#: A word after a release: sizes only are told, and no fact of views and regions.
BY_BYTES = "bytes"
#: Another: all work on the device is done within the call that asks for it.
AT_ONCE = "at-once"
#: A reduced trace of each.
FINDINGS = Path(__file__).parent / "findings"

Reach = Literal["by default", "by a user's setting", "latent"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A failure, as far as it is looked at to know it.

    Attributes:
        signature: what it is signed with.
        behind_data: bytes are wrong, and each of them lies in a page of its block's owner behind
            as many bytes as the page has data without scales.
        of_order: with all work on the device done at once it passes, or other bytes are wrong.
    """

    signature: str
    geometry: Geometry
    behind_data: bool = False
    of_order: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """A finding that is known.

    Attributes:
        name: what it is called.
        target: the target that shows it.
        signatures: what its failures are signed with, such as "mismatch / restore / lost / *".
        first, last: the oldest and the newest release that have it.
        reach: who meets it.
        upstream: the number of an issue or a pull request; empty: none is known.
        text: what is wrong.
        mutation: only with this word after the release: a mend undone, or "bytes".
        orders: physical orders in which it shows; none: all.
        formats: how page formats end in which it shows; none: all.
        groups: the fewest groups with which it shows.
        layer_sets: the fewest layer sets of a group with which it shows.
        split: whether it shows only where blocks are split for the kernels.
        behind_data: only bytes of pages behind as many as they have data without scales are wrong.
        of_order: whether it shows only where work on the device is pending.
        mend: not with this word after the release, which mends it.
        trace: the file in `findings` that shows it; empty: the one with its name.
    """

    name: str
    target: str
    signatures: tuple[str, ...]
    first: str
    last: str
    reach: Reach
    upstream: str
    text: str
    mutation: str = ""
    orders: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    groups: int = 1
    layer_sets: int = 1
    split: bool = False
    behind_data: bool = False
    of_order: bool = False
    mend: str = ""
    trace: str = ""

    @property
    def trace_path(self) -> Path:
        """The trace that shows it."""
        return FINDINGS / f"{self.trace or self.name}.json"

    def covers(self, target: str, release: str, mutations: tuple[str, ...]) -> bool:
        """Whether this target has it in that release, and can show it."""
        if BY_BYTES in mutations and all(one.startswith("fact / ") for one in self.signatures):
            return False
        if (AT_ONCE in mutations and self.of_order) or self.mend in mutations:
            return False
        in_range = age(self.first) <= age(release) <= age(self.last)
        return self.target == target and in_range and self.mutation in (*mutations, "")

    def is_it(self, seen: Seen) -> bool:
        """Whether a failure is this finding."""
        groups = seen.geometry.groups
        names = [shape.page_format for group in groups for shape in group.layer_sets]
        return (
            any(fnmatchcase(seen.signature, one) for one in self.signatures)
            and len(groups) >= self.groups
            and max(len(group.layer_sets) for group in groups) >= self.layer_sets
            and (not self.split or any(g.kernel_block_size < g.block_size for g in groups))
            and (not self.orders or seen.geometry.order in self.orders)
            and (not self.formats or any(name.endswith(self.formats) for name in names))
            and (seen.behind_data or not self.behind_data)
            and (seen.of_order or not self.of_order)
        )


@cache
def known_findings() -> tuple[Known, ...]:
    """All of them, from `known.json`."""
    text = (files(__package__) / "known.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[Known]))


def known_of(target: str, release: str, mutations: Sequence[str]) -> list[Known]:
    """Those that a target has in a release."""
    return [one for one in known_findings() if one.covers(target, release, tuple(mutations))]
