// Scales of blocks, by the greatest magnitude of each: docs/formats.md, "Writing real values".

// The scale of a block: its bytes, and what elements are divided (or multiplied) by.
struct Scale {
  uint32_t word;
  float by;
  bool times;
};

// The least power of two not below a positive normal number.
KV_FUNCTION int exponent_above(float value) {
  if (value == float_of(KV_INFINITE)) return 127;
#ifdef KVEXACT_FAULT_EXPONENT_FLOOR
  return exponent_of(value);
#endif
  return exponent_of(value) + (bits_of(value) & 0x7fffff ? 1 : 0);
}

// The power of two nearest to 0.156 of the largest magnitude, which is not 0.
KV_FUNCTION int ultraquant_exponent(float largest) {
  const float w = 0.156f * largest;
  if (w == float_of(KV_INFINITE)) return 127;
  if (magnitude_of(w) < 0x800000) return -127;
  const int exponent = exponent_of(w) + ((bits_of(w) & 0x7fffff) >= 0x3504f4 ? 1 : 0);
  return exponent > 127 ? 127 : exponent;
}

KV_FUNCTION Scale power_scale(int exponent) {
  return Scale{static_cast<uint32_t>(exponent + 127), power_of_two(exponent), false};
}

KV_FUNCTION Scale scale_of(Format format, float largest, float g) {
  const float sixth = largest / 6.0f, least = power_of_two(-9);
  const float indexer = larger(largest, 1e-4f) / 448.0f;
  switch (format) {
    case Format::fp8_ds_mla: {
      const float scale = larger(largest / 448.0f, power_of_two(-126));
      return Scale{bits_of(scale), scale, false};
    }
    case Format::nvfp4_ds_mla: {
#ifdef KVEXACT_FAULT_SCALE_TO_NEAREST
      const uint32_t word = cast(larger(sixth, least), E4M3);
#else
      const uint32_t word = e4m3_above(larger(sixth, least));
#endif
      return Scale{word, widened(word, E4M3), false};
    }
    case Format::deepseek_v41_nvfp4: {
      const uint32_t word = cast(clamp(sixth, least, 448.0f), E4M3);
      return Scale{word, widened(word, E4M3), false};
    }
    case Format::deepseek_v4:
    case Format::deepseek_v41_mxfp8: return power_scale(exponent_above(indexer));
    case Format::indexer_fp8: return Scale{bits_of(indexer), indexer, false};
    case Format::indexer_fp8_ue8m0: {
      const float scale = power_of_two(exponent_above(indexer));
      return Scale{bits_of(scale), scale, false};
    }
    case Format::ultraquant_4bit:
      if (largest == 0.0f) return Scale{0, 0.0f, true};
      return power_scale(ultraquant_exponent(largest));
    default: {
#ifdef KVEXACT_FAULT_GLOBAL_SCALE_LOST
      const uint32_t word = cast(sixth, E4M3);
#else
      const uint32_t word = cast(largest / (6.0f * g), E4M3);
#endif
      const float scale = widened(word, E4M3);
      return Scale{word, scale == 0.0f ? 0.0f : 1.0f / (scale * g), true};
    }
  }
}
