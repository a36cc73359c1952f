"""Scattered fields: how the elements of one head's array are permuted; docs/formats.md has them."""

from collections.abc import Callable
from typing import Any

#: Which place of the linear order, slot x size + element, holds element d of slot t: a function of
#: d, t, the slots of a kernel block and the field's elements; of ints or of arrays.
Scatter = Callable[[Any, Any, int, int], Any]

#: By format and field; every other field lies as the linear order says.
SCATTERED: dict[tuple[str, str], Scatter] = {
    ("nvfp4_swizzled", "v_scale"): lambda s, t, _n, size: (
        (t // 4 * 4 + s // (size // 4)) * size + s % (size // 4) * 4 + t % 4
    ),
    ("bf16_cpu_vec", "k"): lambda d, t, n, _size: d * n + t,
    ("bf16_cpu_amx", "k"): lambda d, t, _n, size: (
        (t // 16 * 16 * (size // 2) + d // 2 * 16 + t % 16) * 2 + d % 2
    ),
    ("bf16_cpu_amx", "v"): lambda d, t, n, _size: (
        d // 16 * n * 16 + t // 2 * 32 + d % 16 * 2 + t % 2
    ),
    ("bf16_rocm", "k"): lambda d, t, n, _size: d // 8 * n * 8 + t * 8 + d % 8,
    ("bf16_rocm", "v"): lambda d, t, n, _size: d * n + t,
    ("bf16_aiter", "k"): lambda d, t, n, _size: d // 8 * n * 8 + t * 8 + d % 8,
    ("bf16_aiter", "v"): lambda d, t, _n, size: t // 8 * size * 8 + d * 8 + t % 8,
}
