"""What a cache is: frozen plain data, checked for types, ranges and known names only.

Nothing here computes a size or a place. The reference model and every implementation derive those
on their own, because two derivations that share a helper share its bugs.
"""

from dataclasses import dataclass, field
from struct import pack, unpack
from typing import Any

#: Physical orders of layers, blocks, KV heads, token slots and content bytes, outermost first.
ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")

#: What a page stores for one token or state; docs/formats.md says which bytes.
PAGE_FORMATS = (
    "fp32",
    "fp16",
    "bf16",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_e4m3fnuz",
    "fp8_e4m3_truncated",
    "fp8_e5m2_truncated",
    "int8_per_token_head",
    "fp8_per_token_head",
    "fp8_fnuz_per_token_head",
    "int4_per_token_head",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "turboquant_k8v4_planes",
    "turboquant_4bit_nc_planes",
    "turboquant_k3v4_nc_planes",
    "turboquant_3bit_nc_planes",
    "ultraquant_4bit",
    "nvfp4",
    "nvfp4_swizzled",
    "nvfp4_per_head",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "deepseek_v4",
    "deepseek_v41_mxfp8",
    "deepseek_v41_nvfp4",
    "indexer_fp8",
    "indexer_fp8_ue8m0",
    "state_bf16_fp32",
    "state_bf16",
    "state_fp32",
    "fp32_cpu_vec",
    "bf16_cpu_vec",
    "fp8_e4m3_cpu_vec",
    "fp8_e5m2_cpu_vec",
    "bf16_cpu_amx",
    "fp8_e4m3_cpu_amx",
    "fp8_e5m2_cpu_amx",
    "bf16_rocm",
    "fp8_e4m3_rocm",
    "fp8_e4m3fnuz_rocm",
    "bf16_aiter",
    "fp8_e4m3_aiter",
    "fp8_e4m3fnuz_aiter",
)

#: Classes under which a geometry may be refused, in order of precedence; docs/design.md says when.
GEOMETRY_REASONS = (
    "cell",
    "layout",
    "page",
    "padding",
    "overlay",
    "kernel_split",
    "alignment",
    "pool_size",
    "host",
)

_SIZE_MAX = 2**62
_SCALE_LEAST, _SCALE_MOST = 2.0**-100, 2.0**100


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
            f"{owner}: {name} is {value!r:.60}; it must be a whole number from {least} to 2^62"
        )


def named(owner: str, name: str, value: Any, known: tuple[str, ...]) -> None:
    """Check that ``value`` is one of the ``known`` names."""
    if value not in known:
        raise GeometryError(f"{owner}: {name} is {value!r:.60}; use one of {', '.join(known)}")


def flag(owner: str, name: str, value: Any) -> None:
    """Check that ``value`` is a bool."""
    if type(value) is not bool:
        raise GeometryError(f"{owner}: {name} is {value!r:.60}; use True or False")


def scale(owner: str, name: str, value: Any) -> None:
    """Check that ``value`` is a float that fp32 holds exactly as a positive normal number."""
    if (
        type(value) is not float
        or not _SCALE_LEAST <= value <= _SCALE_MOST
        or unpack("<f", pack("<f", value)) != (value,)
    ):
        raise GeometryError(
            f"{owner}: {name} is {value!r:.60}; it must be a float from 2^-100 to 2^100 that fp32 "
            f"holds exactly, such as 0.5"
        )


def tuple_of(owner: str, name: str, value: Any, kind: type) -> None:
    """Check that ``value`` is a non-empty tuple of ``kind``."""
    if type(value) is not tuple or not value or any(type(item) is not kind for item in value):
        raise GeometryError(
            f"{owner}: {name} is {value!r:.60}; it must be a tuple of at least one {kind.__name__}"
        )


@dataclass(frozen=True, slots=True)
class LayerSet:
    """Layers of one shape that lie side by side in a group's blocks.

    Attributes:
        layers: number of layers.
        kv_heads: KV heads of a layer.
        head_size_k: elements of one head's key, or of a page's first state.
        head_size_v: elements of one head's value, or of a page's second state; 0 for a row that
            has no value.
        page_format: one of `PAGE_FORMATS`.
        page_bytes: bytes of one layer in one block with padding at its end; None: no padding.
        side: True for a side buffer, which lies behind the blocks and belongs to the same ones.
        k_scale: what formats that keep a tensor's scale outside the cache divide keys by.
        v_scale: the same for values.
    """

    layers: int
    kv_heads: int
    head_size_k: int
    head_size_v: int
    page_format: str
    page_bytes: int | None = None
    side: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        whole("layer set", "layers", self.layers, 1)
        whole("layer set", "kv_heads", self.kv_heads, 1)
        whole("layer set", "head_size_k", self.head_size_k, 1)
        whole("layer set", "head_size_v", self.head_size_v, 0)
        named("layer set", "page_format", self.page_format, PAGE_FORMATS)
        if self.page_bytes is not None:
            whole("layer set", "page_bytes", self.page_bytes, 1)
        flag("layer set", "side", self.side)
        scale("layer set", "k_scale", self.k_scale)
        scale("layer set", "v_scale", self.v_scale)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table.

    Attributes:
        block_size: tokens in a manager block.
        kernel_block_size: tokens in a block as a kernel sees it.
        layer_sets: the group's layers, in the order in which they lie in a block.
        tokens_per_state: tokens that share one slot of a page; pages of states have one slot
            whatever this is.
        window_tokens: tokens that a token sees, itself included; None: all before it. It says
            nothing about bytes; docs/serving.md says what it is for.
    """

    block_size: int
    kernel_block_size: int
    layer_sets: tuple[LayerSet, ...]
    tokens_per_state: int = 1
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        whole("group", "block_size", self.block_size, 1)
        whole("group", "kernel_block_size", self.kernel_block_size, 1)
        tuple_of("group", "layer_sets", self.layer_sets, LayerSet)
        whole("group", "tokens_per_state", self.tokens_per_state, 1)
        if self.window_tokens is not None:
            whole("group", "window_tokens", self.window_tokens, 1)


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
        flag("geometry", "kv_split", self.kv_split)
        whole("geometry", "base_offset_bytes", self.base_offset_bytes, 0)
        whole("geometry", "tail_alignment", self.tail_alignment, 1)
        if self.logical_bytes is not None:
            whole("geometry", "logical_bytes", self.logical_bytes, 0)
        if self.physical_bytes is not None:
            whole("geometry", "physical_bytes", self.physical_bytes, 0)
