"""What a page stores for a slot, in which regions, and how some fields scatter over the slots.

Everything is in bytes. Sizes are closed formulas of the head sizes; where these do not divide, the
geometry is refused later, and until then any size will do.
"""

from functools import lru_cache
from typing import NamedTuple

from kvexact.refmodel.spec import LayerSet


class Field(NamedTuple):
    """A named part of a cell, and where it starts in the cell."""

    name: str
    bytes: int
    unit: int
    cell_offset: int

    @property
    def is_scale(self) -> bool:
        """True for scale, k_scale and v_scale."""
        return self.name.endswith("scale")

    @property
    def is_value(self) -> bool:
        """True for what lies in the value half of a split page."""
        return self.name[0] == "v" or self.name == "ssm"


class PageRegion(NamedTuple):
    """Fields that lie together in a page, ``bytes`` of them for each head and slot.

    Attributes:
        cell_offset: bytes of the regions before it, for each head and slot.
        per_head: heads are outermost, and within a head each field is an array over the slots;
            else each (head, slot) is one piece.
    """

    fields: tuple[Field, ...]
    bytes: int
    cell_offset: int
    per_head: bool


class Scatter(NamedTuple):
    """How a field of one head falls into pieces of ``piece`` bytes.

    Piece p of slot t begins at p // row * row_stride + p % row * piece_stride
    + t // tile * tile_stride + t % tile * (stride of a slot).
    """

    piece: int
    row: int
    row_stride: int
    piece_stride: int
    tile: int
    tile_stride: int


#: Name, bytes and unit of a field.
_Part = tuple[str, int, int]

#: Endings of formats that scatter keys or values, whatever their elements are.
_FORMS = ("_cpu_vec", "_cpu_amx", "_rocm", "_aiter")

#: Kinds of regions: a piece for each head and slot, or an array for each head and field.
_CELLS, _ARRAYS = False, True


@lru_cache
def page_regions(one: LayerSet) -> tuple[PageRegion, ...]:
    """The regions of a page that is not split; their fields follow each other as in a cell."""
    return _placed(_parts(one))


def split_regions(regions: tuple[PageRegion, ...]) -> tuple[PageRegion, ...]:
    """The key half and the value half of a page of cells, as regions."""
    halves = []
    for value in (False, True):
        fields = [field for one in regions for field in one.fields if field.is_value == value]
        if fields:
            halves.append((_CELLS, [(field.name, field.bytes, field.unit) for field in fields]))
    return _placed(halves)


def _placed(regions: list[tuple[bool, list[_Part]]]) -> tuple[PageRegion, ...]:
    placed = []
    end = 0
    for per_head, parts in regions:
        start, fields = end, []
        for name, size, unit in parts:
            if size:
                fields.append(Field(name, size, unit, end))
                end += size
        placed.append(PageRegion(tuple(fields), end - start, start, per_head))
    return tuple(placed)


def _parts(one: LayerSet) -> list[tuple[bool, list[_Part]]]:
    """The parts of each region, with the region's kind."""
    name, k, v = one.page_format, one.head_size_k, one.head_size_v
    match name:
        case "fp32":
            return [(_CELLS, [("k", 4 * k, 4), ("v", 4 * v, 4)])]
        case "fp16" | "bf16":
            return [(_CELLS, [("k", 2 * k, 2), ("v", 2 * v, 2)])]
        case "fp32_cpu_vec":
            return [(_ARRAYS, [("k", 4 * k, 4), ("v", 4 * v, 4)])]
        case "bf16_cpu_vec" | "bf16_cpu_amx":
            return [(_ARRAYS, [("k", 2 * k, 2), ("v", 2 * v, 2)])]
        case "bf16_rocm" | "bf16_aiter":
            return [(_ARRAYS, [("k", 2 * k, 2)]), (_ARRAYS, [("v", 2 * v, 2)])]
        case _ if name.startswith("fp8_e") and name.endswith(("_cpu_vec", "_cpu_amx")):
            return [(_ARRAYS, [("k", k, 1), ("v", v, 1)])]
        case _ if name.startswith("fp8_e") and name.endswith(("_rocm", "_aiter")):
            return [(_ARRAYS, [("k", k, 1)]), (_ARRAYS, [("v", v, 1)])]
        case "int8_per_token_head" | "fp8_per_token_head" | "fp8_fnuz_per_token_head":
            return [(_CELLS, _scaled(k, v, 4, 4))]
        case "int4_per_token_head":
            return [(_CELLS, _scaled(k // 2, v // 2, 4, 4))]
        case "ultraquant_4bit":
            return [(_CELLS, _scaled(k // 2, v // 2, k // 32, v // 32, 1))]
        case "nvfp4_per_head":
            return [(_ARRAYS, _scaled(k // 2, v // 2, k // 16, v // 16, 1))]
        case "nvfp4" | "nvfp4_swizzled":
            parts = _scaled(k // 2, v // 2, k // 16, v // 16, 1)
            return [(_CELLS, [part]) for part in parts]
        case "turboquant_k8v4":
            return [(_CELLS, _padded([("k", k, 1)], v // 2))]
        case "turboquant_4bit_nc":
            return [(_CELLS, _padded([("k", k // 2, 1), ("k_norm", 2, 1)], v // 2))]
        case "turboquant_k3v4_nc":
            return [(_CELLS, _padded([("k", k * 3 // 8, 1), ("k_norm", 2, 1)], v // 2))]
        case "turboquant_3bit_nc":
            return [(_CELLS, _padded([("k", k * 3 // 8, 1), ("k_norm", 2, 1)], v * 3 // 8))]
        case "turboquant_k8v4_planes":
            return _in_planes(k, v // 2)
        case "turboquant_4bit_nc_planes":
            return _in_planes(k // 2, v // 2, ("k_norm", 2, 2))
        case "turboquant_k3v4_nc_planes":
            return _in_planes(k * 3 // 8, v // 2, ("k_norm", 2, 2))
        case "turboquant_3bit_nc_planes":
            return _in_planes(k * 3 // 8, v * 3 // 8, ("k_norm", 2, 2))
        case "fp8_ds_mla":
            return [(_CELLS, [("latent", 512, 1), ("scale", 16, 4), ("rope", 128, 2)])]
        case "nvfp4_ds_mla":
            return [(_CELLS, [("latent", 256, 1), ("rope", 64, 1), ("scale", 32, 1)])]
        case "deepseek_v4":
            return [(_CELLS, [("latent", 448, 1), ("rope", 128, 2)]), (_CELLS, [("scale", 8, 1)])]
        case "deepseek_v41_mxfp8":
            return [(_CELLS, [("latent", 512, 1)]), (_CELLS, [("scale", 16, 1)])]
        case "deepseek_v41_nvfp4":
            return [(_CELLS, [("latent", 256, 1)]), (_CELLS, [("scale", 32, 1)])]
        case "indexer_fp8" | "indexer_fp8_ue8m0":
            return [(_CELLS, [("latent", 128, 1)]), (_CELLS, [("scale", 4, 4)])]
        case "state_bf16_fp32":
            return [(_CELLS, [("conv", 2 * k, 2), ("ssm", 4 * v, 4)])]
        case "state_bf16":
            return [(_CELLS, [("conv", 2 * k, 2), ("ssm", 2 * v, 2)])]
        case "state_fp32":
            return [(_CELLS, [("conv", 4 * k, 4), ("ssm", 4 * v, 4)])]
    assert name.startswith("fp8_e"), name
    return [(_CELLS, [("k", k, 1), ("v", v, 1)])]


def _scaled(k: int, v: int, k_scale: int, v_scale: int, unit: int = 4) -> list[_Part]:
    return [("k", k, 1), ("k_scale", k_scale, unit), ("v", v, 1), ("v_scale", v_scale, unit)]


def _padded(key: list[_Part], value: int) -> list[_Part]:
    parts = [*key, ("v", value, 1), ("v_scale", 2, 1), ("v_zero", 2, 1)]
    return [*parts, ("pad", sum([size for _, size, _ in parts]) % 2, 1)]


def _in_planes(key: int, value: int, *norm: _Part) -> list[tuple[bool, list[_Part]]]:
    numbers = [*norm, ("v_scale", 2, 2), ("v_zero", 2, 2)]
    return [(_CELLS, [("k", key, 1), ("v", value, 1)]), (_ARRAYS, numbers)]


def scatter(page_format: str, field: Field, slots: int, stride: int) -> tuple[int, Scatter]:
    """The stride of a slot and the pieces of a field.

    Args:
        slots: those of a kernel block.
        stride: the stride of a slot where each is one piece.
    """
    size, unit = field.bytes, field.unit
    form = next((form for form in _FORMS if page_format.endswith(form)), page_format)
    match form, field.name:
        case "nvfp4_swizzled", "v_scale":
            return 1, Scatter(1, size // 4, stride, 4, 4, 4 * stride)
        case ("_cpu_vec", "k") | ("_rocm", "v"):
            return unit, Scatter(unit, 1, unit * slots, 0, slots, 0)
        case "_cpu_amx", "k":
            pair = 2 * unit
            return pair, Scatter(pair, 1, 16 * pair, 0, 16, 16 * size)
        case "_cpu_amx", "v":
            return unit, Scatter(unit, 16, 16 * unit * slots, 2 * unit, 2, 32 * unit)
        case (("_rocm" | "_aiter"), "k"):
            return 16, Scatter(16, 1, 16 * slots, 0, slots, 0)
        case "_aiter", "v":
            return unit, Scatter(unit, 1, 16, 0, 16 // unit, 16 // unit * size)
    return stride, Scatter(size, 1, 0, 0, slots, 0)
