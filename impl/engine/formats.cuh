// What each page format makes of a key and of a value. A half is what a cell has of one of them; its
// data and its scales lie side by side in the cell.

#ifdef __CUDACC__
#define KV_ANYWHERE __host__ __device__ static inline
#else
#define KV_ANYWHERE static inline
#endif

// Page formats, by the same numbers as spec.py names them.
enum class Format {
  fp32, fp16, bf16, fp8_e4m3, fp8_e5m2, fp8_e4m3fnuz, fp8_e4m3_truncated, fp8_e5m2_truncated,
  int8_per_token_head, fp8_per_token_head, fp8_fnuz_per_token_head, int4_per_token_head,
  turboquant_k8v4, turboquant_4bit_nc, turboquant_k3v4_nc, turboquant_3bit_nc,
  turboquant_k8v4_planes, turboquant_4bit_nc_planes, turboquant_k3v4_nc_planes,
  turboquant_3bit_nc_planes, ultraquant_4bit, nvfp4, nvfp4_swizzled, nvfp4_per_head, fp8_ds_mla,
  nvfp4_ds_mla, deepseek_v4, deepseek_v41_mxfp8, deepseek_v41_nvfp4, indexer_fp8,
  indexer_fp8_ue8m0, state_bf16_fp32, state_bf16, state_fp32, fp32_cpu_vec, bf16_cpu_vec,
  fp8_e4m3_cpu_vec, fp8_e5m2_cpu_vec, bf16_cpu_amx, fp8_e4m3_cpu_amx, fp8_e5m2_cpu_amx,
  bf16_rocm, fp8_e4m3_rocm, fp8_e4m3fnuz_rocm, bf16_aiter, fp8_e4m3_aiter, fp8_e4m3fnuz_aiter,
};

// CAST: elements alone. TENSOR: divided by a scale that is elsewhere. TRUNCATED: likewise, as a CPU
// does it. INT8, FP8, INT4: one scale a head. MINIMUM: 4 bits above the least value. BLOCKS: a scale
// for every few elements. ABSENT: no such half.
enum Rule { ABSENT, CAST, TENSOR, TRUNCATED, INT8, FP8, INT4, MINIMUM, BLOCKS };

// One half of a format: its rule, and the type of its elements where the rule leaves it open.
struct Recipe {
  Rule rule;
  Type type;
};

KV_FUNCTION Recipe recipe_of(Format format, bool is_key) {
  const Recipe absent = {ABSENT, FP32}, blocks = {BLOCKS, E4M3};
  switch (format) {
    case Format::fp32:
    case Format::fp32_cpu_vec:
    case Format::state_fp32: return Recipe{CAST, FP32};
    case Format::fp16: return Recipe{CAST, FP16};
    case Format::bf16:
    case Format::state_bf16:
    case Format::bf16_cpu_vec:
    case Format::bf16_cpu_amx:
    case Format::bf16_rocm:
    case Format::bf16_aiter: return Recipe{CAST, BF16};
    case Format::state_bf16_fp32: return Recipe{CAST, is_key ? BF16 : FP32};
    case Format::fp8_e4m3:
    case Format::fp8_e4m3_rocm:
    case Format::fp8_e4m3_aiter: return Recipe{TENSOR, E4M3};
    case Format::fp8_e5m2: return Recipe{TENSOR, E5M2};
    case Format::fp8_e4m3fnuz:
    case Format::fp8_e4m3fnuz_rocm:
    case Format::fp8_e4m3fnuz_aiter: return Recipe{TENSOR, E4M3FNUZ};
    case Format::fp8_e4m3_cpu_vec:
    case Format::fp8_e4m3_cpu_amx:
    case Format::fp8_e4m3_truncated: return Recipe{TRUNCATED, E4M3};
    case Format::fp8_e5m2_cpu_vec:
    case Format::fp8_e5m2_cpu_amx:
    case Format::fp8_e5m2_truncated: return Recipe{TRUNCATED, E5M2};
    case Format::int8_per_token_head: return Recipe{INT8, FP32};
#ifdef KVEXACT_FAULT_FNUZ_FOR_FN
    case Format::fp8_per_token_head: return Recipe{FP8, E4M3FNUZ};
#else
    case Format::fp8_per_token_head: return Recipe{FP8, E4M3};
#endif
    case Format::fp8_fnuz_per_token_head: return Recipe{FP8, E4M3FNUZ};
    case Format::int4_per_token_head: return Recipe{INT4, FP32};
    case Format::turboquant_k8v4:
    case Format::turboquant_k8v4_planes: return is_key ? Recipe{CAST, E4M3} : Recipe{MINIMUM, FP16};
    case Format::ultraquant_4bit:
    case Format::nvfp4:
    case Format::nvfp4_swizzled:
    case Format::nvfp4_per_head: return blocks;
    case Format::fp8_ds_mla:
    case Format::nvfp4_ds_mla:
    case Format::deepseek_v4:
    case Format::deepseek_v41_mxfp8:
    case Format::deepseek_v41_nvfp4:
    case Format::indexer_fp8:
    case Format::indexer_fp8_ue8m0: return is_key ? blocks : absent;
    default: return absent;
  }
}

// A half in blocks: `latent` elements of `type`, `size` of which share a scale, then elements of
// `rope`. Places are bytes from where the half starts.
struct Blocks {
  int64_t size, latent;
  Type type, rope;
  int64_t rope_at, scale_at, scale_bytes;
};

KV_FUNCTION Blocks blocks_of(Format format, int64_t count) {
  switch (format) {
    case Format::fp8_ds_mla: return Blocks{128, 512, E4M3, BF16, 528, 512, 4};
    case Format::nvfp4_ds_mla: return Blocks{16, 512, E2M1, E4M3, 256, 320, 1};
    case Format::deepseek_v4: return Blocks{64, 448, E4M3, BF16, 448, 576, 1};
    case Format::deepseek_v41_mxfp8: return Blocks{32, 512, E4M3, BF16, 0, 512, 1};
    case Format::deepseek_v41_nvfp4: return Blocks{16, 512, E2M1, BF16, 0, 256, 1};
    case Format::indexer_fp8:
    case Format::indexer_fp8_ue8m0: return Blocks{128, 128, E4M3, BF16, 0, 128, 4};
    case Format::ultraquant_4bit: return Blocks{32, count, E2M1, BF16, 0, count / 2, 1};
    default: return Blocks{16, count, E2M1, BF16, 0, count / 2, 1};
  }
}

// Where the scale of a block lies among the scales.
KV_FUNCTION int64_t scale_place(Format format, const Blocks& blocks, int64_t block) {
#ifdef KVEXACT_FAULT_SCALES_IN_ORDER
  return block * blocks.scale_bytes;
#endif
  if (format == Format::nvfp4_ds_mla) return 8 * (block & 3) + (block >> 2);
  return block * blocks.scale_bytes;
}

KV_FUNCTION int64_t half_bytes(Format format, const Recipe& recipe, int64_t count) {
  switch (recipe.rule) {
    case ABSENT: return 0;
    case INT8:
    case FP8: return count + 4;
    case INT4: return count / 2 + 4;
    case MINIMUM: return count / 2 + 4;
    case BLOCKS: {
      const Blocks blocks = blocks_of(format, count);
      const int64_t scales = blocks.latent / blocks.size * blocks.scale_bytes;
      const int64_t rope = (count - blocks.latent) * layout_of(blocks.rope).bits / 8;
      const int64_t zero = format == Format::deepseek_v4 ? 1 : 0;
      return blocks.latent * layout_of(blocks.type).bits / 8 + rope + scales + zero;
    }
    default: return count * layout_of(recipe.type).bits / 8;
  }
}

// Whether a half is rotated before it is encoded.
KV_ANYWHERE bool is_rotated(Format format, bool is_key) {
  return format == Format::int4_per_token_head || (format == Format::ultraquant_4bit && is_key);
}

// Whether the scales of a half in blocks are relative to one of the tensor, which is elsewhere.
KV_FUNCTION bool has_tensor_scale(Format format) {
  return format == Format::nvfp4 || format == Format::nvfp4_swizzled ||
         format == Format::nvfp4_per_head;
}
