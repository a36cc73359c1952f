// Numbers of few bits: how fp32 becomes one and back, in integers, so that every machine gets the
// same bits. Included by kernels.cu, whose KV_FUNCTION it uses.
//
// A NaN that a machine made has the sign that this machine likes. So a NaN is never stored as it is.

#define KV_INFINITE 0x7f800000u
#define KV_NAN 0x7fc00000u

// Element types; the first three are the types in which values arrive, by the same numbers.
enum Type { FP32, FP16, BF16, E4M3, E5M2, E4M3FNUZ, E2M1 };

// `most` is what overflow and infinity become. `nan_signed` tells whether a NaN keeps its sign.
struct Layout {
  int bits, fraction, bias;
  uint32_t most, nan;
  bool nan_signed, one_zero;
};

KV_FUNCTION Layout layout_of(Type type) {
  switch (type) {
    case FP16: return Layout{16, 10, 15, 0x7c00, 0x7e00, true, false};
    case BF16: return Layout{16, 7, 127, 0x7f80, 0x7fc0, true, false};
#ifdef KVEXACT_FAULT_OVERFLOW_IS_NAN
    case E4M3: return Layout{8, 3, 7, 0x7f, 0x7f, false, false};
#else
    case E4M3: return Layout{8, 3, 7, 0x7e, 0x7f, false, false};
#endif
    case E5M2: return Layout{8, 2, 15, 0x7b, 0x7f, false, false};
    case E4M3FNUZ: return Layout{8, 3, 8, 0x7f, 0x80, false, true};
    case E2M1: return Layout{4, 1, 1, 0x7, 0x0, false, false};
    default: return Layout{32, 23, 127, KV_INFINITE, KV_NAN, true, false};
  }
}

KV_FUNCTION uint32_t bits_of(float value) {
  uint32_t word;
  memcpy(&word, &value, 4);
  return word;
}

KV_FUNCTION float float_of(uint32_t word) {
  float value;
  memcpy(&value, &word, 4);
  return value;
}

KV_FUNCTION uint32_t magnitude_of(float value) { return bits_of(value) & 0x7fffffff; }

KV_FUNCTION bool is_nan(float value) { return magnitude_of(value) > KV_INFINITE; }

// 2^exponent for -149..127.
KV_FUNCTION float power_of_two(int exponent) {
  return float_of(exponent < -126 ? 1u << (exponent + 149)
                                  : static_cast<uint32_t>(exponent + 127) << 23);
}

// floor(log2 value) of a positive normal number.
KV_FUNCTION int exponent_of(float value) { return static_cast<int>(bits_of(value) >> 23) - 127; }

// a unless b is at least as large: a NaN in a gives b.
KV_FUNCTION float larger(float a, float b) { return a > b ? a : b; }

// A NaN stays what it is.
KV_FUNCTION float clamp(float value, float least, float most) {
  return value < least ? least : value > most ? most : value;
}

// Truncated to a whole number; 0 for a NaN.
KV_FUNCTION int whole(float value, int least, int most) {
  if (is_nan(value)) return 0;
  if (value <= static_cast<float>(least)) return least;
  if (value >= static_cast<float>(most)) return most;
  return static_cast<int>(value);
}

// To the nearest whole number, half away from zero.
KV_FUNCTION int nearest(float value, int least, int most) {
#ifdef KVEXACT_FAULT_HALF_TO_EVEN
  return whole(rintf(value), least, most);
#endif
  return whole(value >= 0.0f ? value + 0.5f : value - 0.5f, least, most);
}

enum Rounding { TO_NEAREST, UP, DOWN };

// The code, without sign, of a magnitude that is no NaN. What is too large gives a code above `most`.
KV_FUNCTION uint32_t rounded(uint32_t magnitude, const Layout& to, Rounding rounding) {
  int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t significand = magnitude & 0x7fffff;
  if (exponent == -127)
    exponent = -126;
  else
    significand |= 0x800000;
  // Below the least normal number the code's last bit is worth the same everywhere.
  const int least = 1 - to.bias, below = exponent < least ? least - exponent : 0;
  const int shift = 23 - to.fraction + below;
  if (shift > 25) return rounding == UP && significand ? 1 : 0;
  uint32_t code = significand >> shift;
  const uint32_t lost = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
  if (rounding == TO_NEAREST)
    code += lost > half || (lost == half && (code & 1));
  else if (rounding == UP)
    code += lost != 0;
  // The hidden bit adds one to the exponent's field, and so does a carry.
  return code + (static_cast<uint32_t>(below ? 0 : exponent - least) << to.fraction);
}

// An element, its sign in its highest bit.
KV_FUNCTION uint32_t cast(float value, Type type, Rounding rounding = TO_NEAREST) {
  const Layout to = layout_of(type);
  const uint32_t magnitude = magnitude_of(value);
  const uint32_t sign = bits_of(value) >> 31 << (to.bits - 1);
  if (magnitude > KV_INFINITE) return to.nan | (to.nan_signed ? sign : 0);
  if (type == FP32) return bits_of(value);
#ifdef KVEXACT_FAULT_TRUNCATED_FOR_ROUNDED
  if (type != FP16 && rounding == TO_NEAREST) rounding = DOWN;
#endif
  uint32_t code = rounded(magnitude, to, rounding);
#ifdef KVEXACT_FAULT_OVERFLOW_WRAPS
  if (to.bits == 8) code &= 0x7f;
#endif
  if (code > to.most) code = to.most;
  return to.one_zero && !code ? 0 : code | sign;
}

// The value of an element, exactly.
KV_FUNCTION float widened(uint32_t element, Type type) {
  if (type == FP32) return float_of(element);
  const Layout from = layout_of(type);
  const uint32_t sign = element >> (from.bits - 1), code = element & ((1u << (from.bits - 1)) - 1);
  const uint32_t field = code >> from.fraction, rest = code & ((1u << from.fraction) - 1);
  const bool ieee = type == FP16 || type == BF16 || type == E5M2;
  uint32_t word;
  if (type == E4M3FNUZ ? element == 0x80 : type == E4M3 && code == 0x7f)
    word = KV_NAN;
  else if (ieee && field == (1u << (from.bits - 1 - from.fraction)) - 1)
    word = KV_INFINITE | rest << (23 - from.fraction);
  else if (field)
    word = (field + 127 - from.bias) << 23 | rest << (23 - from.fraction);
  else
    word = bits_of(static_cast<float>(rest) * power_of_two(1 - from.bias - from.fraction));
  return float_of(word | sign << 31);
}

// The least e4m3 element not below a positive value, at most the largest.
KV_FUNCTION uint32_t e4m3_above(float value) { return cast(value, E4M3, UP); }

// A ue8m0 byte's value.
KV_FUNCTION float widened_exponent(uint32_t byte) {
  return byte == 255 ? float_of(KV_NAN) : power_of_two(static_cast<int>(byte) - 127);
}
