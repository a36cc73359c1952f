// The engine's kernels. One source: nvcc builds it for a GPU, a host compiler for the CPU device.
//
// A kernel is a struct whose segment(task) says which bytes a task moves. Tasks of one launch run in
// parallel: on a GPU a warp takes a task; on the host `lanes` tasks advance in lockstep, all loads of a
// step before all its stores. Where several blocks take part, neighbouring tasks belong to different ones, so
// that a launch whose blocks depend on each other goes wrong on the host too.
//
// All offsets and sizes are in bytes, all integers 64 bits wide. Every entry point returns 0 or an error.

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define KV_FUNCTION __device__ static inline
#else
#include <math.h>

#include <vector>
#define KV_FUNCTION static inline
#endif

enum Area { POOL, HOST, SCRATCH, AREAS };
enum Error { NONE, OUT_OF_BOUNDS, MISALIGNED };

// Where one contiguous piece of a cell or page lies in the pool (per block and token), and, for a field
// of a cell, where in the rows of a write or read: rows_before counts a row's bytes of earlier layer sets,
// whose rows come first. Of a field whose tokens are interleaved, `tile` tokens lie token_stride apart, and
// tiles lie tile_stride apart; else a tile has all tokens of a block.
struct Strip {
  int64_t offset, block_stride, token_stride, bytes;
  int64_t rows_before, row_stride, row_offset;
  int64_t tile, tile_stride;
};

// What a task moves; no source means zeros, no bytes means nothing.
struct Segment {
  const char* source;
  char* target;
  int64_t bytes;
};

KV_FUNCTION char* locate(const Strip& strip, char* pool, int64_t slot, int64_t block_tokens) {
  int64_t block = slot / block_tokens, token = slot % block_tokens;
  char* place = pool + strip.offset + block * strip.block_stride;
  if (token >= strip.tile) {
    place += token / strip.tile * strip.tile_stride;
    token %= strip.tile;
  }
  return place + token * strip.token_stride;
}

// A slot is a token's index in the pool of kernel blocks; negative for a pad row.

struct Write {
  static const Area from = SCRATCH, to = POOL;
  static const int number = 0;
  const Strip* strips;
  const int64_t* slots;
  int64_t count, block_tokens, slots_in_pool;
  const char* rows;
  char* pool;

  KV_FUNCTION Segment segment(const Write& k, int64_t task) {
    const Strip& strip = k.strips[task / k.count];
    int64_t row = task % k.count, slot = k.slots[row];
#ifdef KVEXACT_FAULT_PAD_ROW_IN_LAST_SLOT
    if (slot < 0) slot += k.slots_in_pool;
#endif
    if (slot < 0) return Segment{nullptr, nullptr, 0};
    const char* source =
        k.rows + k.count * strip.rows_before + row * strip.row_stride + strip.row_offset;
    return Segment{source, locate(strip, k.pool, slot, k.block_tokens), strip.bytes};
  }
};

struct Read {
  static const Area from = POOL, to = SCRATCH;
  static const int number = 1;
  const Strip* strips;
  const int64_t* slots;
  int64_t count, block_tokens;
  char* rows;
  char* pool;

  KV_FUNCTION Segment segment(const Read& k, int64_t task) {
    const Strip& strip = k.strips[task / k.count];
    int64_t row = task % k.count, slot = k.slots[row];
    char* target = k.rows + k.count * strip.rows_before + row * strip.row_stride + strip.row_offset;
#ifdef KVEXACT_FAULT_PAD_ROW_NOT_CLEARED
    if (slot < 0) return Segment{nullptr, nullptr, 0};
#endif
    if (slot < 0) return Segment{nullptr, target, strip.bytes};
#ifdef KVEXACT_FAULT_READ_BY_FLAT_SLOT
    return Segment{k.pool + strip.offset + slot * strip.token_stride, target, strip.bytes};
#endif
    return Segment{locate(strip, k.pool, slot, k.block_tokens), target, strip.bytes};
  }
};

// Copies `tokens` consecutive slots from each pair's first slot on. For whole blocks strips are runs of
// pages, a slot is a block id, and block_tokens and tokens are 1.
struct Copy {
  static const Area from = POOL, to = POOL;
  static const int number = 2;
  const Strip* strips;
  const int64_t *sources, *targets;
  int64_t count, tokens, block_tokens;
  char* pool;

  KV_FUNCTION Segment segment(const Copy& k, int64_t task) {
    int64_t pair = task % k.count, token = task / k.count % k.tokens;
    const Strip& strip = k.strips[task / k.count / k.tokens];
    return Segment{locate(strip, k.pool, k.sources[pair] + token, k.block_tokens),
                   locate(strip, k.pool, k.targets[pair] + token, k.block_tokens), strip.bytes};
  }
};

struct Zero {
  static const Area from = POOL, to = POOL;
  static const int number = 3;
  const Strip* strips;
  const int64_t* blocks;
  int64_t count;
  char* pool;

  KV_FUNCTION Segment segment(const Zero& k, int64_t task) {
    const Strip& strip = k.strips[task / k.count];
    return Segment{nullptr, locate(strip, k.pool, k.blocks[task % k.count], 1), strip.bytes};
  }
};

// Moves small pieces between tiers; the host tier is pinned and mapped. Lengths count 8-byte words.
struct Transfer {
  static const Area from = HOST, to = POOL;
  static const int number = 4;
  const int64_t *targets, *sources, *words;

  KV_FUNCTION Segment segment(const Transfer& k, int64_t task) {
    return Segment{reinterpret_cast<const char*>(k.sources[task]),
                   reinterpret_cast<char*>(k.targets[task]), k.words[task] * 8};
  }
};

// Steps of a task: as many wide accesses as fit, then single bytes.
struct Task {
  Segment piece;
  int64_t width, wide, steps;
};

KV_FUNCTION Task task_of(const Segment& piece) {
  uint64_t address = reinterpret_cast<uint64_t>(piece.source);
#ifdef KVEXACT_FAULT_SOURCE_ALIGNMENT_ONLY
  if (!piece.source) address = reinterpret_cast<uint64_t>(piece.target);
#else
  address |= reinterpret_cast<uint64_t>(piece.target);
#endif
  int64_t shift = address % 16 == 0 ? 4 : address % 8 == 0 ? 3 : address % 4 == 0 ? 2 : 0;
  int64_t width = int64_t{1} << shift, wide = piece.bytes >> shift, rest = piece.bytes & (width - 1);
#ifdef KVEXACT_FAULT_REST_OF_TILE_LOST
  if (wide) rest = 0;
#endif
  return Task{piece, width, wide, wide + rest};
}

KV_FUNCTION int64_t step_offset(const Task& task, int64_t step) {
  return step < task.wide ? step * task.width : task.wide * (task.width - 1) + step;
}

#ifdef __CUDACC__

KV_FUNCTION void move(char* target, const char* source, int64_t width) {
  switch (width) {
    case 16:
      *reinterpret_cast<uint4*>(target) =
          source ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
      break;
    case 8:
      *reinterpret_cast<uint64_t*>(target) =
          source ? *reinterpret_cast<const uint64_t*>(source) : 0;
      break;
    case 4:
      *reinterpret_cast<uint32_t*>(target) =
          source ? *reinterpret_cast<const uint32_t*>(source) : 0;
      break;
    default:
      *target = source ? *source : 0;
  }
}

// One warp a task, its lanes side by side in the task's bytes.
template <class Kernel>
__global__ void grid(Kernel kernel, int64_t tasks) {
  int64_t thread = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  int64_t warps = gridDim.x * static_cast<int64_t>(blockDim.x) / 32;
  for (int64_t index = thread / 32; index < tasks; index += warps) {
    Task task = task_of(Kernel::segment(kernel, index));
    for (int64_t step = thread % 32; step < task.steps; step += 32) {
      int64_t at = step_offset(task, step);
      const char* source = task.piece.source ? task.piece.source + at : nullptr;
      move(task.piece.target + at, source, step < task.wide ? task.width : 1);
    }
  }
}

// The context is the stream.
template <class Kernel>
static int launch(void* context, const Kernel& kernel, int64_t tasks) {
  const int64_t threads = 256, most = 65535;
  int64_t blocks = (tasks + threads / 32 - 1) / (threads / 32);
  grid<<<static_cast<unsigned>(blocks < most ? blocks : most), threads, 0,
         static_cast<cudaStream_t>(context)>>>(kernel, tasks);
  return cudaGetLastError();
}

#else

// How the host runs launches, the memory that they may touch, the access that was refused, and the
// tasks that there were, by kernel, width, and how their bytes fit it: whole, with a rest, too short.
struct Context {
  int64_t lanes, reverse;
  int64_t area[AREAS][2];
  int64_t bad_address, bad_bytes;
  int64_t met[5][4][3];
};

static inline void meet(int64_t (*met)[3], const Task& task) {
  int width = task.width == 16 ? 0 : task.width == 8 ? 1 : task.width == 4 ? 2 : 3;
  met[width][!task.wide ? 2 : task.steps > task.wide]++;
}

static const int64_t MOST_LANES = 32;

static int reach(Context* context, Area area, const char* place, int64_t bytes, int64_t width) {
  int64_t address = reinterpret_cast<int64_t>(place);
  const int64_t* bounds = context->area[area];
  int error = NONE;
  if (address < bounds[0] || bytes > bounds[1] - bounds[0] || address > bounds[1] - bytes)
    error = OUT_OF_BOUNDS;
  else if (address & (width - 1))  // a width is a power of two
    error = MISALIGNED;
  if (error) {
    context->bad_address = address;
    context->bad_bytes = bytes;
  }
  return error;
}

// The one place where kernels touch memory: what is outside, or not aligned, is not touched.
static inline int access(Context* context, Area area, char* place, char* held, int64_t width, bool store) {
  int error = reach(context, area, place, width, width);
  if (error) return error;
  char* target = store ? place : held;
  const char* source = store ? held : place;
  switch (width) {
    case 16: memcpy(target, source, 16); break;
    case 8: memcpy(target, source, 8); break;
    case 4: memcpy(target, source, 4); break;
    default: *target = *source;
  }
  return NONE;
}

template <class Kernel>
static int launch(void* handle, const Kernel& kernel, int64_t tasks) {
  Context* context = static_cast<Context*>(handle);
  // All ranges first, so that a launch which leaves its memory does nothing at all.
  std::vector<Segment> pieces(static_cast<size_t>(tasks));
  for (int64_t index = 0; index < tasks; index++) {
    const Segment piece = pieces[index] = Kernel::segment(kernel, index);
    int error = NONE;
    if (piece.source) error = reach(context, Kernel::from, piece.source, piece.bytes, 1);
    if (!error && piece.target) error = reach(context, Kernel::to, piece.target, piece.bytes, 1);
    if (error) return error;
  }
  Task wave[MOST_LANES];
  char held[MOST_LANES][16];
  for (int64_t first = 0; first < tasks; first += context->lanes) {
    int64_t live = tasks - first < context->lanes ? tasks - first : context->lanes, steps = 0;
    for (int64_t lane = 0; lane < live; lane++) {
      int64_t index = context->reverse ? tasks - 1 - first - lane : first + lane;
      wave[lane] = task_of(pieces[index]);
      if (wave[lane].steps) meet(context->met[Kernel::number], wave[lane]);
      if (wave[lane].steps > steps) steps = wave[lane].steps;
    }
    for (int64_t step = 0; step < steps; step++) {
      for (int phase = 0; phase < 2; phase++) {
        for (int64_t lane = 0; lane < live; lane++) {
          const Task& task = wave[lane];
          if (step >= task.steps) continue;
          int64_t at = step_offset(task, step), width = step < task.wide ? task.width : 1;
          int error = NONE;
          if (phase)
            error = access(context, Kernel::to, task.piece.target + at, held[lane], width, true);
          else if (task.piece.source)
            error = access(context, Kernel::from, const_cast<char*>(task.piece.source) + at,
                           held[lane], width, false);
          else
            memset(held[lane], 0, 16);
          if (error) return error;
        }
      }
    }
  }
  return NONE;
}

// Copies between tiers as a driver does: in order, any alignment.
extern "C" int kv_copy_batch(void* handle, int64_t from, int64_t to, const int64_t* targets,
                             const int64_t* sources, const int64_t* bytes, int64_t count) {
  Context* context = static_cast<Context*>(handle);
  for (int64_t i = 0; i < count; i++) {
    const char* target = reinterpret_cast<const char*>(targets[i]);
    const char* source = reinterpret_cast<const char*>(sources[i]);
    int error = reach(context, static_cast<Area>(from), source, bytes[i], 1);
    if (!error) error = reach(context, static_cast<Area>(to), target, bytes[i], 1);
    if (error) return error;
  }
  for (int64_t i = 0; i < count; i++)
    memcpy(reinterpret_cast<char*>(targets[i]), reinterpret_cast<const char*>(sources[i]),
           bytes[i]);
  return NONE;
}

#endif

extern "C" int kv_write(void* context, const Strip* strips, int64_t strip_count, const int64_t* slots,
                        int64_t count, int64_t block_tokens, int64_t slots_in_pool, const char* rows,
                        char* pool) {
  Write kernel = {strips, slots, count, block_tokens, slots_in_pool, rows, pool};
  return launch(context, kernel, strip_count * count);
}

extern "C" int kv_read(void* context, const Strip* strips, int64_t strip_count, const int64_t* slots,
                       int64_t count, int64_t block_tokens, char* rows, char* pool) {
  Read kernel = {strips, slots, count, block_tokens, rows, pool};
  return launch(context, kernel, strip_count * count);
}

extern "C" int kv_copy(void* context, const Strip* strips, int64_t strip_count, const int64_t* sources,
                       const int64_t* targets, int64_t count, int64_t tokens, int64_t block_tokens,
                       char* pool) {
  Copy kernel = {strips, sources, targets, count, tokens, block_tokens, pool};
  return launch(context, kernel, strip_count * count * tokens);
}

extern "C" int kv_zero(void* context, const Strip* strips, int64_t strip_count, const int64_t* blocks,
                       int64_t count, char* pool) {
  Zero kernel = {strips, blocks, count, pool};
  return launch(context, kernel, strip_count * count);
}

extern "C" int kv_transfer(void* context, const int64_t* targets, const int64_t* sources,
                           const int64_t* words, int64_t count) {
  Transfer kernel = {targets, sources, words};
  return launch(context, kernel, count);
}

// Real values: kv_encode and kv_decode.
#include "codecs.cuh"
#include "launch_codecs.cuh"
