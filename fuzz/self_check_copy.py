"""A second copy of the model as a target: what the check of the harness spoils."""

from typing import ClassVar

from kvexact.impl.target import Area, Bytes, Facts, Rows, Target
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.facts import facts
from kvexact.refmodel.ops import Op, Read, ReadValues
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry, Group, Host, LayerSet, Refused

_PAGES = LayerSet(2, 2, 8, 8, "int8_per_token_head", page_bytes=112)
# Long enough that areas are compared as long ones are, with the content in the middle.
GEOMETRY = Geometry(
    (Group(2, 2, (_PAGES, LayerSet(1, 1, 8, 8, "bf16"))),),
    4,
    Host(512),
    "LBNHC",
    base_offset_bytes=32_768,
    tail_alignment=65_536,
)


def run(model: Cache, op: Op) -> Rows | None:
    """Run a legal op on a model; what it gathers."""
    effect = model.apply(op)
    if effect.rows is None:
        return None
    if type(op) is ReadValues:
        return model.split_values(op, effect.rows)
    assert type(op) is Read
    return model.split_rows(op, effect.rows)


class Base(Target):
    """The model as a target; ``geometry`` is what it is tried with."""

    geometry: ClassVar[Geometry] = GEOMETRY

    def plan(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        return facts(plan(geometry))

    def open(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        self.model = Cache(plan(geometry))
        return self.plan(geometry)

    def do(self, op: Op) -> Rows | None:
        """Run an op on bytes; what it gathers."""
        reason = self.model.refusal(op)
        if reason is not None:
            raise Refused(reason, "as the model says")
        return run(self.model, op)

    def view(self, area: Area) -> Bytes:
        """See `Target`."""
        return self.model.areas[area]

    def load(self, area: Area, data: Bytes) -> None:
        """See `Target`."""
        self.model.areas[area][:] = data

    def close(self) -> None:
        """See `Target`."""


class Copy(Base):
    """Does what the model does."""

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:  # noqa: ARG002 - the model has its own
        """See `Target`."""
        return self.do(op)
