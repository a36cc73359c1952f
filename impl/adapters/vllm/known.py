"""Findings that are known: which target shows them in which releases, and who can meet them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from kvexact.impl.adapters.vllm.home import age
from kvexact.refmodel.spec import Geometry

Reach = Literal["by default", "by a user's setting", "latent"]


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
        mutation: only with this mend undone.
        orders: physical orders in which it shows; none: all.
        formats: how page formats end in which it shows; none: all.
        groups: the fewest groups with which it shows.
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

    def covers(self, target: str, release: str, mutations: tuple[str, ...]) -> bool:
        """Whether this target has it in that release."""
        in_range = age(self.first) <= age(release) <= age(self.last)
        return self.target == target and in_range and self.mutation in (*mutations, "")

    def is_it(self, signature: str, geometry: Geometry) -> bool:
        """Whether a failure on this geometry is this finding."""
        names = [shape.page_format for group in geometry.groups for shape in group.layer_sets]
        return (
            any(fnmatchcase(signature, one) for one in self.signatures)
            and len(geometry.groups) >= self.groups
            and (not self.orders or geometry.order in self.orders)
            and (not self.formats or any(name.endswith(self.formats) for name in names))
        )


@cache
def known_findings() -> tuple[Known, ...]:
    """All of them, from `known.json`."""
    text = (files(__package__) / "known.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[Known]))


def known_of(target: str, release: str, mutations: Sequence[str]) -> list[Known]:
    """Those that a target has in a release."""
    return [one for one in known_findings() if one.covers(target, release, tuple(mutations))]
