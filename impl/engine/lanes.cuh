// What the lanes of a warp do together: reduce a row, pack codes, rotate. On the host one lane does
// it all. Results do not depend on how many lanes there are.
//
// Rows of values start at a multiple of 16 and so are aligned for their type; cells are not.

#ifdef __CUDACC__
#define KV_TABLE __device__ static const
#else
#define KV_TABLE static const
#endif

// Lanes that work on one thing; `mask` names them in their warp.
struct Lanes {
  int64_t lane, lanes;
  unsigned mask;
};

#ifdef __CUDACC__
KV_FUNCTION Lanes warp() { return Lanes{threadIdx.x % 32, 32, 0xffffffffu}; }

KV_FUNCTION void meet(const Lanes& lanes) { __syncwarp(lanes.mask); }

template <class Number>
KV_FUNCTION Number across(const Lanes& lanes, Number number, int64_t step) {
  return __shfl_xor_sync(lanes.mask, number, static_cast<int>(step));
}
#elif defined(KV_WARP)
#include KV_WARP  // a test's way to run the 32 lanes of a warp on the host
#else
KV_FUNCTION void meet(const Lanes&) {}

template <class Number>
KV_FUNCTION Number across(const Lanes&, Number number, int64_t) {
  return number;
}

template <class Task>
static void as_warp(const Task& task) {
  task(Lanes{0, 1, 0});
}
#endif

// Teams of at most `size` lanes, a power of two: which of them this lane is in, and its team.
KV_FUNCTION int64_t team_of(const Lanes& lanes, int64_t size, Lanes* team) {
  *team = lanes;
  if (size >= lanes.lanes) return 0;
  const int64_t index = lanes.lane / size;
  *team = Lanes{lanes.lane % size, size, ((1u << size) - 1) << (index * size)};
  return index;
}

KV_FUNCTION int64_t teams_of(const Lanes& lanes, int64_t size) {
  return size >= lanes.lanes ? 1 : lanes.lanes / size;
}

// `bytes` low bytes of a word, 1, 2 or 4, in one access where the place is aligned.
KV_FUNCTION void put(char* place, uint32_t word, int64_t bytes) {
  const uint64_t address = reinterpret_cast<uint64_t>(place);
  if (bytes == 4 && address % 4 == 0) {
    *reinterpret_cast<uint32_t*>(place) = word;
  } else if (bytes == 2 && address % 2 == 0) {
    *reinterpret_cast<uint16_t*>(place) = static_cast<uint16_t>(word);
  } else {
    for (int64_t i = 0; i < bytes; i++) place[i] = static_cast<char>(word >> (8 * i));
  }
}

KV_FUNCTION uint32_t get(const char* place, int64_t bytes) {
  const uint64_t address = reinterpret_cast<uint64_t>(place);
  if (bytes == 4 && address % 4 == 0) return *reinterpret_cast<const uint32_t*>(place);
  if (bytes == 2 && address % 2 == 0) return *reinterpret_cast<const uint16_t*>(place);
  uint32_t word = 0;
  for (int64_t i = 0; i < bytes; i++)
    word |= static_cast<uint32_t>(static_cast<unsigned char>(place[i])) << (8 * i);
  return word;
}

// Element `index` of codes of 4, 8, 16 or 32 bits; of 4 bits the even one is the low nibble.
KV_FUNCTION uint32_t code_at(const char* codes, int64_t index, int bits) {
  if (bits == 4) return get(codes + index / 2, 1) >> (index % 2 * 4) & 15;
  return get(codes + index * (bits / 8), bits / 8);
}

// Values side by side.
struct Row {
  const char* data;
  Type type;
};

KV_FUNCTION int64_t value_bytes(Type type) { return type == FP32 ? 4 : 2; }

KV_FUNCTION float value_at(const Row& row, int64_t index) {
  return widened(code_at(row.data, index, row.type == FP32 ? 32 : 16), row.type);
}

KV_FUNCTION Row from(const Row& row, int64_t index) {
  return Row{row.data + index * value_bytes(row.type), row.type};
}

// The largest |value|; a NaN does not count, and of nothing it is 0. Among magnitudes that are no
// NaN the order of numbers is that of their bits.
KV_FUNCTION float largest_magnitude(const Lanes& lanes, const Row& row, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = lanes.lane; i < count; i += lanes.lanes) {
    const uint32_t magnitude = magnitude_of(value_at(row, i));
    if (magnitude <= KV_INFINITE && magnitude > most) most = magnitude;
  }
  for (int64_t step = lanes.lanes / 2; step; step /= 2) {
    const uint32_t other = across(lanes, most, step);
    if (other > most) most = other;
  }
  return float_of(most);
}

// The lowest of side · value, for a side of 1 or -1; a NaN does not count, and of nothing it is
// infinity. Of zeros it is the first, whose sign is stored.
KV_FUNCTION float lowest(const Lanes& lanes, const Row& row, int64_t count, float side) {
  float least = float_of(KV_INFINITE);
  int64_t where = count;
  for (int64_t i = lanes.lane; i < count; i += lanes.lanes) {
    const float value = side * value_at(row, i);
    if (value < least) {
      least = value;
      where = i;
    }
  }
  for (int64_t step = lanes.lanes / 2; step; step /= 2) {
    const float value = across(lanes, least, step);
    const int64_t index = across(lanes, where, step);
    if (value < least || (value == least && index < where)) {
      least = value;
      where = index;
    }
  }
  return least;
}

// Stores code(i) of each of `count` elements, which fill whole bytes, in words as far as the place
// is aligned.
template <class Code>
KV_FUNCTION void pack(const Lanes& lanes, char* place, int64_t count, int bits, const Code& code) {
  const int64_t unit = bits < 8 ? 1 : bits / 8, bytes = count * bits / 8;
  const int64_t words = reinterpret_cast<uint64_t>(place) % 4 ? 0 : bytes / 4;
  const int64_t units = (bytes - 4 * words) / unit;
  for (int64_t step = lanes.lane; step < words + units; step += lanes.lanes) {
    const int64_t before = step < words ? step : words, size = step < words ? 4 : unit;
    const int64_t at = 4 * before + unit * (step - before);
    int64_t element = (32 * before + 8 * unit * (step - before)) / bits;
    uint32_t word = 0;
    for (int bit = 0; bit < 8 * size; bit += bits) {
      int shift = bit;
#ifdef KVEXACT_FAULT_HIGH_NIBBLE_FIRST
      if (bits == 4) shift ^= 4;
#endif
      word |= code(element++) << shift;
    }
    put(place + at, word, size);
  }
}

// Hadamard rotation of blocks of `block` elements, a power of two, where they are; sums and
// differences are multiplied by `factor` in each step.
KV_FUNCTION void rotate(const Lanes& lanes, float* row, int64_t count, int64_t block, float factor) {
#ifdef KVEXACT_FAULT_ROTATION_ONE_STEP_SHORT
  block /= 2;
#endif
  for (int64_t step = 1; step < block; step *= 2) {
    meet(lanes);
    for (int64_t pair = lanes.lane; pair < count / 2; pair += lanes.lanes) {
      const int64_t i = pair / step * 2 * step + pair % step;
      const float a = row[i], b = row[i + step];
      row[i] = (a + b) * factor;
      row[i + step] = (a - b) * factor;
    }
  }
  meet(lanes);
}
