// The 32 lanes of a warp on the host, for lanes.cuh: each lane is a fibre that runs until it meets
// others. Lanes start in an order that changes from task to task, so that one which reads what
// another has not yet written goes wrong.

#include <ucontext.h>

#include <functional>
#include <map>

struct Fibres {
  static const int64_t COUNT = 32, STACK_BYTES = 64 * 1024;
  ucontext_t main, lanes[COUNT];
  std::vector<char> stacks = std::vector<char>(COUNT * STACK_BYTES);
  std::function<void(const Lanes&)> task;
  int64_t running = 0, rounds = 0;
  bool done[COUNT];
  uint64_t offered[COUNT];
  std::map<unsigned, std::pair<int, int64_t>> arrived;  // by mask: how many, and how often all did
};

static Fibres fibres;

static inline void wait() { swapcontext(&fibres.lanes[fibres.running], &fibres.main); }

static inline void meet(const Lanes& lanes) {
  std::pair<int, int64_t>& here = fibres.arrived[lanes.mask];
  const int64_t round = here.second;
  if (++here.first == static_cast<int>(lanes.lanes)) {
    here.first = 0;
    here.second++;
  }
  while (here.second == round) wait();
}

template <class Number>
static inline Number across(const Lanes& lanes, Number number, int64_t step) {
  const int64_t self = fibres.running;
  memcpy(&fibres.offered[self], &number, sizeof number);
  meet(lanes);
  memcpy(&number, &fibres.offered[self ^ step], sizeof number);
  meet(lanes);
  return number;
}

static inline void run_lane() {
  fibres.task(Lanes{fibres.running, Fibres::COUNT, 0xffffffffu});
  fibres.done[fibres.running] = true;
}

template <class Task>
static void as_warp(const Task& task) {
  fibres.task = task;
  for (int64_t lane = 0; lane < Fibres::COUNT; lane++) {
    ucontext_t& context = fibres.lanes[lane];
    getcontext(&context);
    context.uc_stack.ss_sp = &fibres.stacks[lane * Fibres::STACK_BYTES];
    context.uc_stack.ss_size = Fibres::STACK_BYTES;
    context.uc_link = &fibres.main;
    makecontext(&context, run_lane, 0);
    fibres.done[lane] = false;
  }
  const int64_t first = fibres.rounds++ * 7;
  for (int64_t left = Fibres::COUNT; left;) {
    left = Fibres::COUNT;
    for (int64_t i = 0; i < Fibres::COUNT; i++) {
      fibres.running = (fibres.rounds % 2 ? first + i : first + Fibres::COUNT * 64 - i) % Fibres::COUNT;
      if (!fibres.done[fibres.running]) swapcontext(&fibres.main, &fibres.lanes[fibres.running]);
      left -= fibres.done[fibres.running];
    }
  }
}
