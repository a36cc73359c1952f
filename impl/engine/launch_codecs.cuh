// Launches of encoders and decoders: one half of one cell is a task, both its sides are in scratch
// memory.

#ifdef __CUDACC__

// One warp a task, and a tile of shared memory for each warp.
template <class Codec>
__global__ void codec_grid(Cells cells, int64_t tile_floats) {
  extern __shared__ float tiles[];
  const int64_t warps = blockDim.x / 32, in_block = threadIdx.x / 32;
  for (int64_t task = blockIdx.x * warps + in_block; task < 2 * cells.count; task += gridDim.x * warps) {
    Codec::run(warp(), cells, task, tiles + in_block * tile_floats);
    meet(warp());  // the next task writes into the tile that lanes may still read
  }
}

template <class Codec>
static int launch_codec(void* context, const Cells& cells, int64_t tile_floats) {
  // Shared memory that a block gets without asking; a row beyond it has a block of its own.
  const int64_t shared = 48 * 1024, tile = tile_floats * 4, most = 65535;
  int64_t warps = tile * 8 <= shared ? 8 : shared / tile;
  if (warps < 1) {
    warps = 1;
    int error = cudaFuncSetAttribute(codec_grid<Codec>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(tile));
    if (error) return error;
  }
  const int64_t blocks = (2 * cells.count + warps - 1) / warps;
  codec_grid<Codec><<<static_cast<unsigned>(blocks < most ? blocks : most),
                      static_cast<unsigned>(32 * warps), static_cast<size_t>(warps * tile),
                      static_cast<cudaStream_t>(context)>>>(cells, tile_floats);
  return cudaGetLastError();
}

#else

// Tasks share nothing that one of them changes, so of the context only their order has a say.
template <class Codec>
static int launch_codec(void* handle, const Cells& cells, int64_t tile_floats) {
  Context* context = static_cast<Context*>(handle);
  const int64_t tasks = 2 * cells.count, width = value_bytes(cells.type);
  for (int64_t task = 0; task < tasks; task++) {
    const Work work = work_of(cells, task);
    int error = reach(context, SCRATCH, work.values.data, work.count * width, width);
    if (!error) error = reach(context, SCRATCH, work.place, work.bytes, 1);
    if (error) return error;
  }
  std::vector<float> tile(static_cast<size_t>(tile_floats));
  for (int64_t i = 0; i < tasks; i++) {
    const int64_t task = context->reverse ? tasks - 1 - i : i;
    as_warp([&](const Lanes& lanes) { Codec::run(lanes, cells, task, tile.data()); });
  }
  return NONE;
}

#endif

static float scale_from(int64_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits);
  float value;
  memcpy(&value, &word, 4);
  return value;
}

extern "C" int kv_encode(void* context, int64_t format, int64_t type, int64_t dk, int64_t dv,
                         int64_t k_scale, int64_t v_scale, int64_t cell_bytes, int64_t count,
                         char* values, char* cells) {
  Cells work = {static_cast<Format>(format), static_cast<Type>(type), dk, dv, scale_from(k_scale),
                scale_from(v_scale), cell_bytes, count, values, cells};
  const bool rotated = is_rotated(work.format, true);
  return launch_codec<Encode>(context, work, !rotated ? 0 : dk > dv ? dk : dv);
}

extern "C" int kv_decode(void* context, int64_t format, int64_t dk, int64_t dv, int64_t k_scale,
                         int64_t v_scale, int64_t cell_bytes, int64_t count, char* cells,
                         char* values) {
  Cells work = {static_cast<Format>(format), FP32, dk, dv, scale_from(k_scale),
                scale_from(v_scale), cell_bytes, count, values, cells};
  return launch_codec<Decode>(context, work, 0);
}
