"""What a cache is: frozen plain data, checked for types, ranges and known names only.

Nothing here computes a size or a place. The reference model and every implementation derive those
on their own, because two derivations that share a helper share its bugs.
"""

from dataclasses import dataclass, field
from typing import Any

#: Physical orders of layers, blocks, KV heads, token slots and content bytes, outermost first.
ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")

#: What a cell stores for one (layer, block, head, token).
CELL_FORMATS = (
    "fp32",
    "fp16",
    "bf16",
    "fp8",
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
)

#: Classes under which a geometry may be refused, in order of precedence; docs/design.md says when.
GEOMETRY_REASONS = (
    "cell",
    "page",
    "padding",
    "overlay",
    "kernel_split",
    "alignment",
    "pool_size",
    "host",
)

_SIZE_MAX = 2**62


class GeometryError(ValueError):
    """A geometry that cannot be written down: a wrong type, range or name."""


class Refused(Exception):
    """A predicted, orderly "no": nothing was changed.

    Attributes:
        reason: one of `GEOMETRY_REASONS` or `kvexact.refmodel.ops.OP_REASONS`.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text


def whole(owner: str, name: str, value: Any, least: int) -> None:
    """Check that ``value`` is an int of at least ``least`` (bool is no int here)."""
    if type(value) is not int or not least <= value <= _SIZE_MAX:
        raise GeometryError(
            f"{owner}: {name} is {value!r}; it must be a whole number from {least} to 2^62"
        )


def named(owner: str, name: str, value: Any, known: tuple[str, ...]) -> None:
    """Check that ``value`` is one of the ``known`` names."""
    if value not in known:
        raise GeometryError(f"{owner}: {name} is {value!r}; use one of {', '.join(known)}")


def tuple_of(owner: str, name: str, value: Any, kind: type) -> None:
    """Check that ``value`` is a non-empty tuple of ``kind``."""
    if type(value) is not tuple or not value or any(type(item) is not kind for item in value):
        raise GeometryError(
            f"{owner}: {name} is {value!r}; it must be a tuple of at least one {kind.__name__}"
        )


@dataclass(frozen=True, slots=True)
class LayerSet:
    """Layers of one shape that lie side by side in a group's blocks.

    Attributes:
        layers: number of layers.
        kv_heads: KV heads of a layer.
        head_size_k: elements of one head's key.
        head_size_v: elements of one head's value; 0 for a latent row that has no value.
        cell_format: one of `CELL_FORMATS`.
        page_bytes: bytes of one layer in one block with padding at its end; None: no padding.
    """

    layers: int
    kv_heads: int
    head_size_k: int
    head_size_v: int
    cell_format: str
    page_bytes: int | None = None

    def __post_init__(self) -> None:
        whole("layer set", "layers", self.layers, 1)
        whole("layer set", "kv_heads", self.kv_heads, 1)
        whole("layer set", "head_size_k", self.head_size_k, 1)
        whole("layer set", "head_size_v", self.head_size_v, 0)
        named("layer set", "cell_format", self.cell_format, CELL_FORMATS)
        if self.page_bytes is not None:
            whole("layer set", "page_bytes", self.page_bytes, 1)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table.

    Attributes:
        block_size: token slots in a manager block.
        kernel_block_size: token slots in a block as a kernel sees it.
        layer_sets: the group's layers, in the order in which they lie in a block.
    """

    block_size: int
    kernel_block_size: int
    layer_sets: tuple[LayerSet, ...]

    def __post_init__(self) -> None:
        whole("group", "block_size", self.block_size, 1)
        whole("group", "kernel_block_size", self.kernel_block_size, 1)
        tuple_of("group", "layer_sets", self.layer_sets, LayerSet)


@dataclass(frozen=True, slots=True)
class Host:
    """The host tier: rows of equal length, one chunk of one group in each.

    Attributes:
        capacity_bytes: bytes that the tier may use.
        chunk_blocks: manager blocks in a host chunk.
        row_alignment: a row's length is a multiple of this many bytes.
    """

    capacity_bytes: int
    chunk_blocks: int = 1
    row_alignment: int = 1

    def __post_init__(self) -> None:
        whole("host", "capacity_bytes", self.capacity_bytes, 0)
        whole("host", "chunk_blocks", self.chunk_blocks, 1)
        whole("host", "row_alignment", self.row_alignment, 1)


@dataclass(frozen=True, slots=True)
class Geometry:
    """One pool that all groups overlay, and one host tier.

    Attributes:
        groups: the cache groups; a block id belongs to one of them at a time.
        blocks: manager blocks in the pool.
        host: the host tier.
        order: one of `ORDERS`.
        kv_split: True for the older form, in which a page's keys all come before its values.
        base_offset_bytes: where block 0 starts in the pool's storage.
        tail_alignment: the storage's length is a multiple of this many bytes.
        logical_bytes: bytes of all blocks as a configuration declares them; None: as derived.
        physical_bytes: bytes of the storage as an allocator declares them; None: as derived.
    """

    groups: tuple[Group, ...]
    blocks: int
    host: Host
    order: str = "LBHNC"
    kv_split: bool = False
    base_offset_bytes: int = 0
    tail_alignment: int = 1
    logical_bytes: int | None = field(default=None)
    physical_bytes: int | None = field(default=None)

    def __post_init__(self) -> None:
        tuple_of("geometry", "groups", self.groups, Group)
        whole("geometry", "blocks", self.blocks, 1)
        if type(self.host) is not Host:
            raise GeometryError(f"geometry: host is {self.host!r}; it must be a Host")
        named("geometry", "order", self.order, ORDERS)
        if type(self.kv_split) is not bool:
            raise GeometryError(f"geometry: kv_split is {self.kv_split!r}; use True or False")
        whole("geometry", "base_offset_bytes", self.base_offset_bytes, 0)
        whole("geometry", "tail_alignment", self.tail_alignment, 1)
        if self.logical_bytes is not None:
            whole("geometry", "logical_bytes", self.logical_bytes, 0)
        if self.physical_bytes is not None:
            whole("geometry", "physical_bytes", self.physical_bytes, 0)
