"""Scattered fields: how the elements of one head's array are permuted; docs/formats.md has them."""

from collections.abc import Callable
from typing import Any

#: Which place of the linear order, slot x size + element, holds element d of slot t: a function of
#: d, t, the slots of a kernel block and the field's elements; of ints or of arrays.
Scatter = Callable[[Any, Any, int, int], Any]


def _swizzled(d: Any, t: Any, _n: int, size: int) -> Any:
    return (t // 4 * 4 + d // (size // 4)) * size + d % (size // 4) * 4 + t % 4


def _columns(d: Any, t: Any, n: int, _size: int) -> Any:
    return d * n + t


def _pairs_of_elements(d: Any, t: Any, _n: int, size: int) -> Any:
    return (t // 16 * 16 * (size // 2) + d // 2 * 16 + t % 16) * 2 + d % 2


def _pairs_of_slots(d: Any, t: Any, n: int, _size: int) -> Any:
    return d // 16 * n * 16 + t // 2 * 32 + d % 16 * 2 + t % 2


def _pieces(x: int) -> Scatter:
    return lambda d, t, n, _size: d // x * n * x + t * x + d % x


def _tiles(x: int) -> Scatter:
    return lambda d, t, _n, size: t // x * size * x + d * x + t % x


#: By format and field; every other field lies as the linear order says.
SCATTERED: dict[tuple[str, str], Scatter] = {
    ("nvfp4_swizzled", "v_scale"): _swizzled,
    ("fp32_cpu_vec", "k"): _columns,
    ("bf16_cpu_vec", "k"): _columns,
    ("fp8_e4m3_cpu_vec", "k"): _columns,
    ("fp8_e5m2_cpu_vec", "k"): _columns,
    ("bf16_cpu_amx", "k"): _pairs_of_elements,
    ("bf16_cpu_amx", "v"): _pairs_of_slots,
    ("fp8_e4m3_cpu_amx", "k"): _pairs_of_elements,
    ("fp8_e4m3_cpu_amx", "v"): _pairs_of_slots,
    ("fp8_e5m2_cpu_amx", "k"): _pairs_of_elements,
    ("fp8_e5m2_cpu_amx", "v"): _pairs_of_slots,
    ("bf16_rocm", "k"): _pieces(8),
    ("bf16_rocm", "v"): _columns,
    ("fp8_e4m3_rocm", "k"): _pieces(16),
    ("fp8_e4m3_rocm", "v"): _columns,
    ("fp8_e4m3fnuz_rocm", "k"): _pieces(16),
    ("fp8_e4m3fnuz_rocm", "v"): _columns,
    ("bf16_aiter", "k"): _pieces(8),
    ("bf16_aiter", "v"): _tiles(8),
    ("fp8_e4m3_aiter", "k"): _pieces(16),
    ("fp8_e4m3_aiter", "v"): _tiles(16),
    ("fp8_e4m3fnuz_aiter", "k"): _pieces(16),
    ("fp8_e4m3fnuz_aiter", "v"): _tiles(16),
}
