"""What a plan of a geometry consists of, from a layer set to the whole; everything is in bytes."""

from typing import NamedTuple

from kvexact.impl.engine.formats import Field, PageRegion, Scatter
from kvexact.refmodel.spec import Geometry, LayerSet


class Shape(NamedTuple):
    """The sizes of one layer set, from the cell outwards.

    ``slots`` and ``kernel_slots`` are those of a manager block and of a kernel block.
    """

    layer_set: LayerSet
    layers: int
    heads: int
    slots: int
    kernel_slots: int
    regions: tuple[PageRegion, ...]
    fields: tuple[Field, ...]
    cell_bytes: int
    head_bytes: int
    content_bytes: int
    page_bytes: int

    @property
    def plane_bytes(self) -> int:
        """What one head takes of a block in orders whose heads lie outside the page grid."""
        return self.page_bytes if self.heads == 1 else self.head_bytes


class Strides(NamedTuple):
    """Of layer and manager block, and of a head where heads lie outside the grid of pages."""

    layer: int
    block: int
    plane: int


class FieldView(NamedTuple):
    """Where a field lies in the storage; ``block`` is the stride of a kernel block.

    Strides of axes of extent 1 are as the formula gives them. ``token`` is the stride from one slot
    to the next in a tile.
    """

    field: Field
    offset: int
    layer: int
    block: int
    head: int
    token: int
    scatter: Scatter


class SetPlan(NamedTuple):
    """One layer set in the storage. A page of it is ``runs`` contiguous runs of content."""

    shape: Shape
    offset: int
    layer_stride: int
    block_stride: int
    runs: int
    run_stride: int
    views: tuple[FieldView, ...]

    @property
    def run_bytes(self) -> int:
        """Content bytes of one run."""
        return self.shape.content_bytes // self.runs


class GroupPlan(NamedTuple):
    """One group; ``parts`` is the number of kernel blocks in a manager block.

    ``slots`` and ``kernel_slots`` are those of a manager block and of a kernel block.
    """

    slots: int
    kernel_slots: int
    parts: int
    sets: tuple[SetPlan, ...]


class Plan(NamedTuple):
    """All sizes and places of a geometry; ``bytes_per_block`` counts side buffers too."""

    geometry: Geometry
    groups: tuple[GroupPlan, ...]
    bytes_per_block: int
    logical_bytes: int
    physical_bytes: int
    row_bytes: int
    scheduler_slots: int


class Area(NamedTuple):
    """Where block 0 of the blocks or of the side buffers starts, and the bytes of a block there."""

    start: int
    bytes_per_block: int
