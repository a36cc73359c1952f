// Cells back into fp32, by the rules under "Reading values back" in docs/formats.md.

// One half of one cell at `place`, for `count` values.
struct CodedHalf {
  Format format;
  Recipe recipe;
  const char* place;
  int64_t count;
  float g;
  float* values;
};

// Stores value(i) of each element; a NaN has one form, whatever it was made of.
template <class Value>
KV_FUNCTION void unpack(const Lanes& lanes, const CodedHalf& half, const Value& value) {
  for (int64_t i = lanes.lane; i < half.count; i += lanes.lanes) {
    const float found = value(i);
    half.values[i] = is_nan(found) ? float_of(KV_NAN) : found;
  }
}

KV_FUNCTION float element_at(const char* codes, int64_t index, Type type) {
  return widened(code_at(codes, index, layout_of(type).bits), type);
}

KV_FUNCTION void decode_cast(const Lanes& lanes, const CodedHalf& half) {
  unpack(lanes, half, [&](int64_t i) { return element_at(half.place, i, half.recipe.type); });
}

KV_FUNCTION void decode_tensor(const Lanes& lanes, const CodedHalf& half) {
  unpack(lanes, half,
         [&](int64_t i) { return element_at(half.place, i, half.recipe.type) * half.g; });
}

KV_FUNCTION void decode_int8(const Lanes& lanes, const CodedHalf& half) {
  const float scale = float_of(get(half.place + half.count, 4));
  unpack(lanes, half, [&](int64_t i) {
    return static_cast<float>(static_cast<signed char>(half.place[i])) * scale;
  });
}

KV_FUNCTION void decode_fp8(const Lanes& lanes, const CodedHalf& half) {
  const float scale = float_of(get(half.place + half.count, 4));
  unpack(lanes, half,
         [&](int64_t i) { return element_at(half.place, i, half.recipe.type) * scale; });
}

// The row stays rotated: attention takes the rotation back after the sum over tokens.
KV_FUNCTION void decode_int4(const Lanes& lanes, const CodedHalf& half) {
  const uint32_t word = get(half.place + half.count / 2, 4);
#ifdef KVEXACT_FAULT_ZERO_POINT_IN_SCALE
  const float scale = float_of(word);
#else
  const float scale = float_of(word & ~15u);
#endif
  const int zero = static_cast<int>(word & 15);
  unpack(lanes, half, [&](int64_t i) {
    return static_cast<float>(static_cast<int>(code_at(half.place, i, 4)) - zero) * scale;
  });
}

KV_FUNCTION void decode_minimum(const Lanes& lanes, const CodedHalf& half) {
  const char* scales = half.place + half.count / 2;
  const float scale = element_at(scales, 0, FP16), low = element_at(scales, 1, FP16);
  unpack(lanes, half, [&](int64_t i) {
    return static_cast<float>(code_at(half.place, i, 4)) * scale + low;
  });
}

KV_FUNCTION float block_scale(Format format, const char* place) {
  switch (format) {
    case Format::fp8_ds_mla:
    case Format::indexer_fp8:
    case Format::indexer_fp8_ue8m0: return float_of(get(place, 4));
    case Format::deepseek_v4:
    case Format::deepseek_v41_mxfp8:
    case Format::ultraquant_4bit: return widened_exponent(get(place, 1));
    default: return element_at(place, 0, E4M3);
  }
}

KV_FUNCTION void decode_blocks(const Lanes& lanes, const CodedHalf& half) {
  const Blocks blocks = blocks_of(half.format, half.count);
  const float g = has_tensor_scale(half.format) ? half.g : 1.0f;
  unpack(lanes, half, [&](int64_t i) {
    if (i >= blocks.latent)
      return element_at(half.place + blocks.rope_at, i - blocks.latent, blocks.rope);
    const int64_t at = scale_place(half.format, blocks, i / blocks.size);
    const float scale = block_scale(half.format, half.place + blocks.scale_at + at);
    return element_at(half.place, i, blocks.type) * scale * g;
  });
}

KV_FUNCTION void decode(const Lanes& lanes, const CodedHalf& half) {
  switch (half.recipe.rule) {
    case ABSENT: return;
    case CAST: return decode_cast(lanes, half);
    case TENSOR:
    case TRUNCATED: return decode_tensor(lanes, half);
    case INT8: return decode_int8(lanes, half);
    case FP8: return decode_fp8(lanes, half);
    case INT4: return decode_int4(lanes, half);
    case MINIMUM: return decode_minimum(lanes, half);
    case BLOCKS: return decode_blocks(lanes, half);
  }
}
