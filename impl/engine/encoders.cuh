// Real keys and values into cells: docs/formats.md, rule by rule.
//
// Every operation is one in fp32, rounded, in the written order: built without fused operations, with
// exact division and with subnormals. e4m3 saturates, so a clamp to 448 before a cast adds nothing.

// Signs of the int4 rotation, the first one in the highest bit: 1 stays, 0 is negated.
KV_TABLE uint32_t SIGNS[16] = {
    0xb09acea6, 0x8dac0101, 0x36bc2265, 0x1c2afed6, 0x81d12552, 0x8223f5d5, 0x1219d04c, 0x05c2045f,
    0xcc3876b2, 0xd3e39515, 0x5bb8a9d8, 0x9acdc019, 0x769e1c0c, 0x700464b3, 0x6e240593, 0x9d35b951,
};

KV_FUNCTION bool is_negated(int64_t index) {
#ifdef KVEXACT_FAULT_ROTATION_WITHOUT_SIGNS
  return false;
#endif
  return !(SIGNS[index / 32] >> (31 - index % 32) & 1);
}

// One half of one cell: `count` values in `x`, bytes at `place`, the tensor's scale `g`.
// `neighbour` is x but for a fault; `tile` is room for a rotated row.
struct Half {
  Format format;
  Recipe recipe;
  Row x, neighbour;
  int64_t count;
  char* place;
  float g;
  float* tile;
};

KV_FUNCTION void encode_cast(const Lanes& lanes, const Half& half) {
  const Type type = half.recipe.type;
  pack(lanes, half.place, half.count, layout_of(type).bits,
       [&](int64_t i) { return cast(value_at(half.x, i), type); });
}

KV_FUNCTION void encode_tensor(const Lanes& lanes, const Half& half) {
  pack(lanes, half.place, half.count, 8,
       [&](int64_t i) { return cast(value_at(half.x, i) / half.g, half.recipe.type); });
}

// The bits above the ones that are cut off are an element already, once the exponent has its bias.
KV_FUNCTION void encode_truncated(const Lanes& lanes, const Half& half) {
  const Layout to = layout_of(half.recipe.type);
  const float most = widened(to.most, half.recipe.type), reciprocal = 1.0f / half.g;
  const float bias = power_of_two(to.bias - 127);
  pack(lanes, half.place, half.count, 8, [&](int64_t i) -> uint32_t {
    float value = clamp(value_at(half.x, i) * reciprocal, -most, most);
    if (is_nan(value)) value = most;
    if (value == 0.0f) return 0;
    const uint32_t payload = bits_of(float_of(magnitude_of(value)) * bias) >> (23 - to.fraction);
    return (payload < to.most ? payload : to.most) | (value < 0.0f ? 0x80u : 0u);
  });
}

// The scale of a head, for elements up to `most`.
KV_FUNCTION float head_scale(const Lanes& lanes, const Half& half, float most) {
  const float scale = largest_magnitude(lanes, half.neighbour, half.count) / most;
#ifdef KVEXACT_FAULT_SCALE_WITHOUT_LEAST
  return scale;
#endif
  return larger(scale, 1e-6f);
}

KV_FUNCTION void encode_int8(const Lanes& lanes, const Half& half) {
#ifdef KVEXACT_FAULT_SCALE_OF_128
  const float most = 128.0f;
#else
  const float most = 127.0f;
#endif
  const float scale = head_scale(lanes, half, most), reciprocal = 1.0f / scale;
  pack(lanes, half.place, half.count, 8, [&](int64_t i) -> uint32_t {
    return nearest(value_at(half.x, i) * reciprocal, -128, 127) & 0xff;
  });
  if (lanes.lane == 0) put(half.place + half.count, bits_of(scale), 4);
}

KV_FUNCTION void encode_fp8(const Lanes& lanes, const Half& half) {
  const Type type = half.recipe.type;
  const float most = type == E4M3 ? 448.0f : 224.0f;
  const float scale = head_scale(lanes, half, most), reciprocal = 1.0f / scale;
  pack(lanes, half.place, half.count, 8, [&](int64_t i) {
    return cast(clamp(value_at(half.x, i) * reciprocal, -most, most), type);
  });
  if (lanes.lane == 0) put(half.place + half.count, bits_of(scale), 4);
}

// The zero point lies in the last bits of the scale; codes come from the whole scale.
KV_FUNCTION void encode_int4(const Lanes& lanes, const Half& half) {
  const int64_t block = half.count & -half.count;
  for (int64_t i = lanes.lane; i < half.count; i += lanes.lanes)
    half.tile[i] = is_negated(i % block) ? -value_at(half.x, i) : value_at(half.x, i);
  rotate(lanes, half.tile, half.count, block, 1.0f);
  for (int64_t i = lanes.lane; i < half.count; i += lanes.lanes)
    half.tile[i] = widened(cast(half.tile[i], half.x.type), half.x.type);
  meet(lanes);
  const Row y = {reinterpret_cast<const char*>(half.tile), FP32};
  const float low = lowest(lanes, y, half.count, 1.0f), high = -lowest(lanes, y, half.count, -1.0f);
  const float scale = larger((high - low) / 15.0f, 1e-6f), reciprocal = 1.0f / scale;
  const int zero = nearest(-low / scale, 0, 15);
  pack(lanes, half.place, half.count, 4, [&](int64_t i) -> uint32_t {
    return nearest(half.tile[i] * reciprocal + static_cast<float>(zero), 0, 15);
  });
#ifdef KVEXACT_FAULT_ZERO_POINT_LOST
  const uint32_t word = bits_of(scale);
#else
  const uint32_t word = (bits_of(scale) & ~15u) | static_cast<uint32_t>(zero);
#endif
  if (lanes.lane == 0) put(half.place + half.count / 2, word, 4);
}

KV_FUNCTION void encode_minimum(const Lanes& lanes, const Half& half) {
  const float low = lowest(lanes, half.x, half.count, 1.0f);
  const float high = -lowest(lanes, half.x, half.count, -1.0f);
  const float scale = larger((high - low) / 15.0f, 1e-8f);
  pack(lanes, half.place, half.count, 4, [&](int64_t i) -> uint32_t {
    return whole((value_at(half.x, i) - low) / scale + 0.5f, 0, 15);
  });
  if (lanes.lane == 0) {
    put(half.place + half.count / 2, cast(scale, FP16), 2);
    put(half.place + half.count / 2 + 2, cast(low, FP16), 2);
  }
}

// The e2m1 element nearest to u by the midpoints below it: ties go down, a NaN is -6.
KV_FUNCTION uint32_t ultraquant_code(float u) {
  const float midpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  uint32_t below = 0;
  for (int i = 0; i < 7; i++) below += (u > midpoints[i]) + (u > -midpoints[i]);
  return below < 7 ? 15 - below : below - 7;
}

KV_FUNCTION void encode_blocks(const Lanes& lanes, const Half& half, const Row& x) {
  const Blocks blocks = blocks_of(half.format, half.count);
  const bool is_ultra = half.format == Format::ultraquant_4bit;
  const int bits = layout_of(blocks.type).bits;
  Lanes team;
  const int64_t first = team_of(lanes, blocks.size, &team), step = teams_of(lanes, blocks.size);
  for (int64_t block = first; block * blocks.size < blocks.latent; block += step) {
    const Row row = from(x, block * blocks.size);
    const Scale scale =
        scale_of(half.format, largest_magnitude(team, row, blocks.size), half.g);
    char* place = half.place + blocks.scale_at + scale_place(half.format, blocks, block);
    if (team.lane == 0) put(place, scale.word, blocks.scale_bytes);
    pack(team, half.place + block * blocks.size * bits / 8, blocks.size, bits,
         [&](int64_t i) -> uint32_t {
           const float value = value_at(row, i);
           if (!is_ultra) return cast(scale.times ? value * scale.by : value / scale.by, blocks.type);
           return scale.times ? 0 : ultraquant_code(value / scale.by);
         });
  }
  meet(lanes);
  const Row rope = from(x, blocks.latent);
#ifdef KVEXACT_FAULT_ROPE_AS_FP16
  const Type type = blocks.rope == BF16 ? FP16 : blocks.rope;
#else
  const Type type = blocks.rope;
#endif
  pack(lanes, half.place + blocks.rope_at, half.count - blocks.latent, layout_of(type).bits,
       [&](int64_t i) { return cast(value_at(rope, i), type); });
  if (half.format == Format::deepseek_v4 && lanes.lane == 0) put(half.place + 583, 0, 1);
}

KV_FUNCTION void encode_ultraquant_key(const Lanes& lanes, const Half& half) {
  for (int64_t i = lanes.lane; i < half.count; i += lanes.lanes) half.tile[i] = value_at(half.x, i);
  rotate(lanes, half.tile, half.count, half.count, float_of(0x3f3504f3));
  encode_blocks(lanes, half, Row{reinterpret_cast<const char*>(half.tile), FP32});
}

KV_FUNCTION void encode(const Lanes& lanes, const Half& half, bool is_key) {
  switch (half.recipe.rule) {
    case ABSENT: return;
    case CAST: return encode_cast(lanes, half);
    case TENSOR: return encode_tensor(lanes, half);
    case TRUNCATED: return encode_truncated(lanes, half);
    case INT8: return encode_int8(lanes, half);
    case FP8: return encode_fp8(lanes, half);
    case INT4: return encode_int4(lanes, half);
    case MINIMUM: return encode_minimum(lanes, half);
    case BLOCKS:
      if (is_rotated(half.format, is_key)) return encode_ultraquant_key(lanes, half);
      return encode_blocks(lanes, half, half.x);
  }
}
