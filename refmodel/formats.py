"""Cell formats: which fields a cell has, their widths, and the units of their addresses."""

from typing import NamedTuple

from kvexact.refmodel.spec import LayerSet, Refused

#: Bits of one element of key or value data.
_BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "int8_per_token_head": 8,
    "fp8_per_token_head": 8,
    "int4_per_token_head": 4,
}
_SCALED = frozenset({"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"})
_SCALE_BYTES = 4


class Field(NamedTuple):
    """A named part of a cell.

    Attributes:
        half: "k" or "v": the half of a split page in which it lies.
        width_bytes: its bytes in one cell.
        unit_bytes: every address of it must be a multiple of this.
    """

    name: str
    half: str
    width_bytes: int
    unit_bytes: int


def cell_fields(layers: LayerSet) -> tuple[Field, ...]:
    """The fields of one cell in logical order; those without bytes are left out.

    Raises:
        Refused: reason "cell", where a head's data does not fill whole bytes.
    """
    bits = _BITS[layers.page_format]
    fields = []
    for half, head_size in (("k", layers.head_size_k), ("v", layers.head_size_v)):
        if head_size * bits % 8:
            raise Refused(
                "cell",
                f"head size {head_size} of {layers.page_format} takes {head_size * bits} bits, "
                f"which are no whole bytes; use an even head size",
            )
        fields.append(Field(half, half, head_size * bits // 8, max(bits // 8, 1)))
        if layers.page_format in _SCALED:
            fields.append(Field(f"{half}_scale", half, _SCALE_BYTES, _SCALE_BYTES))
    return tuple(field for field in fields if field.width_bytes)
