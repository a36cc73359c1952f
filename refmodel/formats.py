"""Page formats: the fields of a cell, the regions in which they lie, and the slots of a page.

One table, in the words of docs/formats.md. A format is a list of regions; in a region the fields of
a (head, slot) lie side by side or, *per head*, each field is an array over the slots of its head.
"""

from functools import lru_cache
from typing import NamedTuple

from kvexact.refmodel.scatter import SCATTERED, Scatter
from kvexact.refmodel.spec import Group, LayerSet, Refused


class Field(NamedTuple):
    """A named part of a cell.

    Attributes:
        region: number of its region, or of its half where the format has halves.
        width_bytes: its bytes in one cell.
        unit_bytes: every address of it must be a multiple of this.
        scatter: how its elements, of one unit each, are permuted; None: not at all.
    """

    name: str
    region: int
    width_bytes: int
    unit_bytes: int
    scatter: Scatter | None


class Region(NamedTuple):
    """A part of a kernel block's page.

    Attributes:
        per_head: True where heads are outermost and each field of a head is an array over slots.
    """

    fields: tuple[Field, ...]
    per_head: bool


class Part(NamedTuple):
    """A field of any cell of a format: size x times / per bytes.

    Attributes:
        size: "k" or "v": the elements of key or value; "one": 1; "odd": the bytes of the fields
            before it, modulo 2.
    """

    name: str
    size: str
    times: int
    per: int = 1
    unit: int = 1


class Format(NamedTuple):
    """What a page stores.

    Attributes:
        regions: parts of each region, all together in logical order.
        per_head: numbers of the regions that are arrays per head.
        halves: the two regions are apart only where pages are split, else they are one.
    """

    regions: tuple[tuple[Part, ...], ...]
    per_head: frozenset[int] = frozenset()
    halves: bool = False

    @property
    def is_row(self) -> bool:
        """Whether a cell is one piece in a page that is not split."""
        return (self.halves or len(self.regions) == 1) and not self.per_head


def _key(times: int, per: int = 1, unit: int = 1) -> Part:
    return Part("k", "k", times, per, unit)


def _value(times: int, per: int = 1, unit: int = 1) -> Part:
    return Part("v", "v", times, per, unit)


def _fixed(name: str, count: int, unit: int = 1) -> Part:
    return Part(name, "one", count, 1, unit)


def _halves(key: tuple[Part, ...], value: tuple[Part, ...]) -> Format:
    return Format((key, value), halves=True)


def _plain(size: int) -> Format:
    return _halves((_key(size, unit=size),), (_value(size, unit=size),))


def _per_token_head(per: int) -> Format:
    return _halves(
        (_key(1, per), _fixed("k_scale", 4, 4)), (_value(1, per), _fixed("v_scale", 4, 4))
    )


def _turboquant(*parts: Part) -> Format:
    return Format(((*parts, *_value_numbers(1), Part("pad", "odd", 1)),))


def _turboquant_planes(key: Part, value: Part, *norm: Part) -> Format:
    return Format(((key, value), (*norm, *_value_numbers(2))), per_head=frozenset({1}))


def _value_numbers(unit: int) -> tuple[Part, Part]:
    return _fixed("v_scale", 2, unit), _fixed("v_zero", 2, unit)


def _regions(*regions: tuple[Part, ...]) -> Format:
    return Format(regions)


def _scaled_halves(block: int) -> tuple[Part, ...]:
    """4-bit keys and values, with a byte for each so many elements."""
    return (
        _key(1, 2),
        Part("k_scale", "k", 1, block),
        _value(1, 2),
        Part("v_scale", "v", 1, block),
    )


def _state(conv: int, ssm: int) -> Format:
    return _halves((Part("conv", "k", conv, unit=conv),), (Part("ssm", "v", ssm, unit=ssm),))


def _arrays(size: int) -> Format:
    """Keys, then values of each head, in elements of so many bytes."""
    return Format(((_key(size, unit=size), _value(size, unit=size)),), per_head=frozenset({0}))


def _planes(size: int) -> Format:
    """All keys, then all values."""
    parts = ((_key(size, unit=size),), (_value(size, unit=size),))
    return Format(parts, per_head=frozenset({0, 1}))


_KEY_NORM = _fixed("k_norm", 2)
_NORM_ARRAY = _fixed("k_norm", 2, 2)
_NVFP4 = _regions(*((part,) for part in _scaled_halves(16)))
_INDEXER = _regions((_fixed("latent", 128),), (_fixed("scale", 4, 4),))

FORMATS: dict[str, Format] = {
    "fp32": _plain(4),
    "fp16": _plain(2),
    "bf16": _plain(2),
    "fp8_e4m3": _plain(1),
    "fp8_e5m2": _plain(1),
    "fp8_e4m3fnuz": _plain(1),
    "fp8_e4m3_truncated": _plain(1),
    "fp8_e5m2_truncated": _plain(1),
    "int8_per_token_head": _per_token_head(1),
    "fp8_per_token_head": _per_token_head(1),
    "fp8_fnuz_per_token_head": _per_token_head(1),
    "int4_per_token_head": _per_token_head(2),
    "turboquant_k8v4": _turboquant(_key(1), _value(1, 2)),
    "turboquant_4bit_nc": _turboquant(_key(1, 2), _KEY_NORM, _value(1, 2)),
    "turboquant_k3v4_nc": _turboquant(_key(3, 8), _KEY_NORM, _value(1, 2)),
    "turboquant_3bit_nc": _turboquant(_key(3, 8), _KEY_NORM, _value(3, 8)),
    "turboquant_k8v4_planes": _turboquant_planes(_key(1), _value(1, 2)),
    "turboquant_4bit_nc_planes": _turboquant_planes(_key(1, 2), _value(1, 2), _NORM_ARRAY),
    "turboquant_k3v4_nc_planes": _turboquant_planes(_key(3, 8), _value(1, 2), _NORM_ARRAY),
    "turboquant_3bit_nc_planes": _turboquant_planes(_key(3, 8), _value(3, 8), _NORM_ARRAY),
    "ultraquant_4bit": _regions(_scaled_halves(32)),
    "nvfp4": _NVFP4,
    "nvfp4_swizzled": _NVFP4,
    "nvfp4_per_head": Format((_scaled_halves(16),), per_head=frozenset({0})),
    "fp8_ds_mla": _regions((_fixed("latent", 512), _fixed("scale", 16, 4), _fixed("rope", 128, 2))),
    "nvfp4_ds_mla": _regions((_fixed("latent", 256), _fixed("rope", 64), _fixed("scale", 32))),
    "deepseek_v4": _regions((_fixed("latent", 448), _fixed("rope", 128, 2)), (_fixed("scale", 8),)),
    "deepseek_v41_mxfp8": _regions((_fixed("latent", 512),), (_fixed("scale", 16),)),
    "deepseek_v41_nvfp4": _regions((_fixed("latent", 256),), (_fixed("scale", 32),)),
    "indexer_fp8": _INDEXER,
    "indexer_fp8_ue8m0": _INDEXER,
    "state_bf16_fp32": _state(2, 4),
    "state_bf16": _state(2, 2),
    "state_fp32": _state(4, 4),
    "fp32_cpu_vec": _arrays(4),
    "bf16_cpu_vec": _arrays(2),
    "fp8_e4m3_cpu_vec": _arrays(1),
    "fp8_e5m2_cpu_vec": _arrays(1),
    "bf16_cpu_amx": _arrays(2),
    "fp8_e4m3_cpu_amx": _arrays(1),
    "fp8_e5m2_cpu_amx": _arrays(1),
    "bf16_rocm": _planes(2),
    "fp8_e4m3_rocm": _planes(1),
    "fp8_e4m3fnuz_rocm": _planes(1),
    "bf16_aiter": _planes(2),
    "fp8_e4m3_aiter": _planes(1),
    "fp8_e4m3fnuz_aiter": _planes(1),
}

_RAW_ONLY = frozenset(
    {
        *("turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
        *("turboquant_4bit_nc_planes", "turboquant_k3v4_nc_planes", "turboquant_3bit_nc_planes"),
    }
)


def takes_values(page_format: str) -> bool:
    """Whether real keys and values can be encoded to this format and decoded from it."""
    return page_format not in _RAW_ONLY


def is_state(page_format: str) -> bool:
    """Whether a page is one state."""
    return page_format.startswith("state_")


def slots(group: Group, layers: LayerSet) -> int:
    """Slots of a block."""
    return 1 if is_state(layers.page_format) else group.block_size // group.tokens_per_state


def kernel_slots(group: Group, layers: LayerSet) -> int:
    """Slots of a kernel block."""
    return 1 if is_state(layers.page_format) else group.kernel_block_size // group.tokens_per_state


def regions(layers: LayerSet, *, split: bool) -> tuple[Region, ...]:
    """The regions of a page, which is split into halves or not; a region may have no fields.

    Raises:
        Refused: reason "cell", where a field does not fill whole bytes.
    """
    found = FORMATS[layers.page_format]
    fields = cell_fields(layers)
    if found.halves and not split:
        return (Region(fields, per_head=False),)
    return tuple(
        Region(tuple(field for field in fields if field.region == number), number in found.per_head)
        for number in range(len(found.regions))
    )


@lru_cache
def cell_fields(layers: LayerSet) -> tuple[Field, ...]:
    """The fields of one cell in logical order; those without bytes are left out.

    Raises:
        Refused: reason "cell", where a field does not fill whole bytes.
    """
    name = layers.page_format
    fields: list[Field] = []
    for number, parts in enumerate(FORMATS[name].regions):
        for part in parts:
            width = _width(layers, part, sum(field.width_bytes for field in fields))
            scatter = SCATTERED.get((name, part.name))
            fields.append(Field(part.name, number, width, part.unit, scatter))
    return tuple(field for field in fields if field.width_bytes)


def _width(layers: LayerSet, part: Part, before: int) -> int:
    sizes = {"k": layers.head_size_k, "v": layers.head_size_v, "one": 1, "odd": before % 2}
    size = sizes[part.size]
    if size * part.times % part.per:
        raise Refused(
            "cell",
            f"{part.name} of {layers.page_format} with a head size of {size} takes "
            f"{size * part.times}/{part.per} bytes, which are no whole bytes; "
            f"use a multiple of {part.per}",
        )
    return size * part.times // part.per
