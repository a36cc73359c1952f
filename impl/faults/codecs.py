"""Faults of encoding and decoding: scale rules, rounding, orders of codes, element types.

All are macros of the kernels. What a report calls wrong codes depends on what they happen to equal.
"""

from kvexact.impl.faults.register import READ, SOURCE, register

register(
    "largest_element_of_128",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "The scale of a row of int8 is its largest magnitude over 128, not 127.",
    macros=("KVEXACT_FAULT_SCALE_OF_128",),
)
register(
    "no_least_scale",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "The scale of a row has no least value, so that a row of zeros is divided by zero.",
    macros=("KVEXACT_FAULT_SCALE_WITHOUT_LEAST",),
)
register(
    "scale_of_the_next_head",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "A head is encoded with the scale of its neighbour.",
    macros=("KVEXACT_FAULT_SCALE_OF_NEIGHBOUR",),
)
register(
    "half_to_even",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "Halves are rounded to even codes instead of away from zero.",
    macros=("KVEXACT_FAULT_HALF_TO_EVEN",),
)
register(
    "truncated_for_rounded",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "Casts drop the bits that do not fit instead of rounding.",
    macros=("KVEXACT_FAULT_TRUNCATED_FOR_ROUNDED",),
)
register(
    "overflow_wraps",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "What is too large for fp8 loses its high bits instead of becoming the largest element.",
    macros=("KVEXACT_FAULT_OVERFLOW_WRAPS",),
)
register(
    "overflow_is_nan",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "What is too large for e4m3 becomes a NaN instead of the largest element.",
    macros=("KVEXACT_FAULT_OVERFLOW_IS_NAN",),
)
register(
    "fnuz_for_fn",
    "DTYPE",
    "vllm#45720",
    2,
    SOURCE | READ,
    "Rows of e4m3 are encoded and decoded as e4m3fnuz.",
    macros=("KVEXACT_FAULT_FNUZ_FOR_FN",),
)
register(
    "rope_as_fp16",
    "DTYPE",
    "no public report",
    2,
    SOURCE,
    "The rotary part of a latent row is stored as fp16 instead of bf16.",
    macros=("KVEXACT_FAULT_ROPE_AS_FP16",),
)
register(
    "high_nibble_first",
    "LAYOUT",
    "no public report",
    2,
    SOURCE | READ,
    "The even one of two 4-bit codes is stored in the high nibble.",
    macros=("KVEXACT_FAULT_HIGH_NIBBLE_FIRST",),
)
register(
    "latent_scales_in_order",
    "LAYOUT",
    "vllm#50084",
    2,
    SOURCE | READ,
    "The scales of a packed latent row are stored in the order of its elements.",
    macros=("KVEXACT_FAULT_SCALES_IN_ORDER",),
)
register(
    "rotation_without_signs",
    "CODEC",
    "llama.cpp#28498",
    2,
    SOURCE,
    "Rows are rotated without the signs that both sides agreed on.",
    macros=("KVEXACT_FAULT_ROTATION_WITHOUT_SIGNS",),
)
register(
    "rotation_one_step_short",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "The last step of a rotation is left out.",
    macros=("KVEXACT_FAULT_ROTATION_ONE_STEP_SHORT",),
)
register(
    "zero_point_lost",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "The scale's word is stored without the zero point in its lowest bits.",
    macros=("KVEXACT_FAULT_ZERO_POINT_LOST",),
)
register(
    "zero_point_in_scale",
    "CODEC",
    "no public report",
    2,
    READ,
    "The reader takes the zero point's bits for bits of the scale.",
    macros=("KVEXACT_FAULT_ZERO_POINT_IN_SCALE",),
)
register(
    "global_scale_lost",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "Block scales of nvfp4 are computed without the tensor's scale.",
    macros=("KVEXACT_FAULT_GLOBAL_SCALE_LOST",),
)
register(
    "key_scale_for_values",
    "CODEC",
    "no public report",
    2,
    SOURCE | READ,
    "Values are encoded with the tensor's scale of keys.",
    macros=("KVEXACT_FAULT_V_SCALE_OF_K",),
)
register(
    "exponent_rounded_down",
    "CODEC",
    "vllm#49435",
    2,
    SOURCE,
    "The exponent of a power-of-two scale is rounded down, so that the largest elements overflow.",
    macros=("KVEXACT_FAULT_EXPONENT_FLOOR",),
)
register(
    "scale_to_nearest",
    "CODEC",
    "no public report",
    2,
    SOURCE,
    "The scale of a packed latent block is rounded to the nearest element instead of up.",
    macros=("KVEXACT_FAULT_SCALE_TO_NEAREST",),
)
