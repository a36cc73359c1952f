// Encoding and decoding of a layer set's cells. A task is one half of one cell.

#include "numbers.cuh"
#include "lanes.cuh"
#include "formats.cuh"
#include "scales.cuh"
#include "encoders.cuh"
#include "decoders.cuh"

// The cells of one layer set, side by side in logical order, and the values that belong to them.
struct Cells {
  Format format;
  Type type;
  int64_t dk, dv;
  float k_scale, v_scale;
  int64_t cell_bytes, count;
  char* values;
  char* cells;
};

// What a task works on: so many values and bytes, and where they are.
struct Work {
  Recipe recipe;
  bool is_key;
  int64_t count, bytes;
  Row values;
  char* place;
  float g;
};

KV_FUNCTION Work work_of(const Cells& k, int64_t task) {
  const int64_t cell = task / 2;
  const bool is_key = task % 2 == 0;
  const Recipe key = recipe_of(k.format, true), recipe = recipe_of(k.format, is_key);
  const int64_t count = is_key ? k.dk : k.dv;
  const Row row = from(Row{k.values, k.type}, cell * (k.dk + k.dv) + (is_key ? 0 : k.dk));
  char* place = k.cells + cell * k.cell_bytes + (is_key ? 0 : half_bytes(k.format, key, k.dk));
#ifdef KVEXACT_FAULT_V_SCALE_OF_K
  const float g = k.k_scale;
#else
  const float g = is_key ? k.k_scale : k.v_scale;
#endif
  return Work{recipe, is_key, count, half_bytes(k.format, recipe, count), row, place, g};
}

struct Encode {
  KV_FUNCTION void run(const Lanes& lanes, const Cells& k, int64_t task, float* tile) {
    const Work work = work_of(k, task);
#ifdef KVEXACT_FAULT_SCALE_OF_NEIGHBOUR
    const int64_t other = (task ^ 2) < 2 * k.count ? task ^ 2 : task;
#else
    const int64_t other = task;
#endif
    encode(lanes, Half{k.format, work.recipe, work.values, work_of(k, other).values, work.count,
                       work.place, work.g, tile}, work.is_key);
  }
};

struct Decode {
  KV_FUNCTION void run(const Lanes& lanes, const Cells& k, int64_t task, float*) {
    const Work work = work_of(k, task);
    float* values = reinterpret_cast<float*>(const_cast<char*>(work.values.data));
    decode(lanes, CodedHalf{k.format, work.recipe, work.place, work.count, work.g, values});
  }
};
