// Emulator: runs device code on emulated GPUs, for tests. Every thread of every block of every launch is a fiber. A
// scheduler runs the fibers in the calling thread, in an order that it draws from a seed. With Clock::kEmulated, the
// same options always give the same run, so a failure can be replayed.
//
// Launches can be added while others are running. The blocks of all launches take turns, so kernels of different GPUs
// or streams can wait for each other. A run ends as stuck if nothing is stored for too long, or if every thread waits
// at a barrier. The report then has the source location of every thread.
//
// Several emulators can run at the same time, each in a thread or process of its own, and wait for each other through
// shared memory. They must use Clock::kReal, because the number of turns that one of them has waited does not show how
// far the others are. With Clock::kReal, an emulator in which every thread waits lets other programs use its core, and
// runs cannot be replayed.
//
// An emulator belongs to the thread that runs it. Device code finds the running emulator and fiber through thread-local
// pointers, because the functions of port.h have no argument for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/device/emulator/fiber.h"
#include "tests/device/emulator/weak_memory.h"

namespace tutti::emu {

// A source location. As a default argument, current() is the location of the caller.
struct Site {
  const char* file = "";
  unsigned line = 0;
  static constexpr Site current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

// Which thread runs next.
enum class Policy : std::uint8_t {
  kRoundRobin,
  kRandom,
  // The thread of the highest priority in a random sample. Priorities change at random, and a thread that waits gets a
  // low priority.
  kPriority,
};

enum class Clock : std::uint8_t {
  kEmulated,  // the time is 10 ns for each switch between threads
  kReal,      // the time is the machine's monotonic clock
};

struct Options {
  std::uint64_t seed = 1;
  Policy policy = Policy::kRoundRobin;
  unsigned yield_log2 = 64;  // another thread runs before one in 2^yield_log2 memory accesses; 64 means never
  bool weak = false;         // whether memory is weakly ordered, see weak_memory.h
  std::size_t stack_bytes = std::size_t{128} << 10;
  Clock clock = Clock::kEmulated;
  std::uint64_t stall_factor = 2000;  // kEmulated: a run is stuck after this many turns per thread without a store
  std::uint64_t stall_ms = 60'000;    // kReal: a run is stuck after this time without a store, in ms
  // The number of blocks of a launch that run at once. Another block starts when one has finished. 0 means all blocks.
  unsigned resident_blocks = 0;
};

// A counter that fibers update. It is atomic only because ThreadSanitizer regards fibers as threads and would report
// races; all fibers run in one thread.
class RelaxedCounter {
 public:
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t count_one() {
    set(get() + 1);
    return get();
  }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Emulator;
struct Block;

// One emulated GPU thread.
class Fiber {
 public:
  enum class State : std::uint8_t { kReady, kAtBarrier, kDone };

  Fiber(Block& its_block, unsigned its_thread, Stack stack, std::size_t colour, void (*entry)());

  Block& block;
  const unsigned thread;  // index in the block
  std::uint32_t priority = 0;
  State state = State::kReady;
  Site here;  // the source location of the access, wait or barrier at which it stopped last
  Context context;
};

// A barrier of a block, a warp or a group of 8 lanes. It can be used again and again; `generation` counts the uses.
struct Barrier {
  unsigned arrived = 0;
  unsigned generation = 0;
  std::vector<Fiber*> waiting;
  // Addresses for ThreadSanitizer's annotations, used alternately (index `generation` % 2). They order the arrival of
  // every thread before the return of every thread from the barrier.
  char order[2] = {};
};

// The values that a lane contributes to an operation of its warp (a vote) or of its group (moving a line).
struct Lane {
  std::uint64_t vote = 0;
  void* memory = nullptr;
  void* value = nullptr;
};

// One thread block that is running.
struct Block {
  std::uint64_t launch = 0;  // number of its launch
  int gpu = 0;
  unsigned index = 0;
  unsigned count = 0;  // number of blocks of the launch
  unsigned threads = 0;
  unsigned alive = 0;  // number of threads that have not finished
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Barrier whole;                // of all threads of the block
  std::vector<Barrier> warps;   // one for each warp of 32 threads
  std::vector<Barrier> groups;  // one for each group of 8 lanes
  std::vector<Lane> lanes;      // indexed by thread
  // Objects in shared memory. The key differs between types (BlockMemory in port_emu.h).
  std::map<const void*, std::vector<std::uint64_t>> shared;
  WeakMemory memory;
};

class Emulator {
 public:
  // How a run ended: the caller's condition holds, all launches have finished, or no thread makes progress.
  enum class RunResult : std::uint8_t { kReached, kIdle, kStuck };

  explicit Emulator(const Options& options);
  ~Emulator();
  Emulator(const Emulator&) = delete;
  Emulator& operator=(const Emulator&) = delete;

  // Adds a launch of `body`, which every thread of every block calls. It makes progress during run() and run_until().
  // `threads` is the number of threads in a block, a multiple of 32. Returns the number of the launch.
  std::uint64_t launch(int gpu, unsigned blocks, unsigned threads, std::function<void()> body);
  bool done(std::uint64_t launch) const { return !launches_.contains(launch); }

  // Runs until `reached` returns true, or until all launches have finished. `reached` is called every few turns. If the
  // result is kStuck, report() has the locations of the threads, and this emulator cannot run any more.
  RunResult run_until(const std::function<bool()>& reached);
  RunResult run() {
    return run_until([] { return false; });
  }
  const std::string& report() const { return report_; }
  std::uint64_t turns() const { return turns_.get(); }  // turns that threads have had so far
  // With Options::weak: the number of stores that an earlier load of another block might still see. A correct program
  // has none; see weak_memory.h.
  std::uint64_t overtaking() const { return block_memories_.overtaking; }

  // --- for device code: port_emu.h calls these functions ---
  static Emulator& current();
  static Fiber& self();
  const Options& options() const { return options_; }
  std::uint64_t now_ns() const { return options_.clock == Clock::kReal ? real_ns() : 10 * turns_.get(); }
  void stored() { quiet_turns_.set(0); }
  void access(Site here);  // called before a load or store; may let another thread run
  void pause(Site here);   // called in the body of a waiting loop; lets another thread run
  // Waits until `count` threads have arrived at `barrier`. The last of them runs `last`, if that is not null, before
  // any of them continues.
  void arrive(Barrier& barrier, unsigned count, Site here, const std::function<void()>& last);
  void* shared_memory(const void* key, std::size_t bytes);

 private:
  struct Launch {
    std::function<void()> body;
    int gpu = 0;
    unsigned threads = 0;  // in each block
    unsigned blocks = 0;
    unsigned next_block = 0;  // index of the next block to start
    unsigned blocks_alive = 0;
  };

  static std::uint64_t real_ns();
  static void thread_entry();
  void start_block(std::uint64_t launch);
  std::uint64_t draw();  // the next random number
  void make_ready(Fiber& fiber);
  Fiber* pick();                      // the next fiber to run; null if all of them wait at barriers
  void yield(Site here, bool waits);  // lets another thread run; `waits`: the calling thread is in a waiting loop
  void back_off();  // gives the core to other programs; called by a waiting thread if nothing was stored for some time
  void switch_away();  // switches to the next fiber, or to the function run_until()
  void switch_to(Fiber* fiber);
  void end_thread();
  void reap_finished_blocks();
  std::string describe(const char* what) const;

  const Options options_;
  std::uint64_t random_state_;
  RelaxedCounter turns_;
  RelaxedCounter quiet_turns_;        // turns since the last store
  std::uint64_t next_back_off_ = 0;   // kReal: the number of quiet turns after which to call back_off()
  std::uint64_t back_offs_ = 0;       // calls of back_off() since the last store
  std::uint64_t quiet_since_ns_ = 0;  // time of the first call of back_off() since the last store
  std::uint64_t turns_left_ = 0;      // turns until the predicate of run_until() is called
  std::size_t alive_ = 0;             // threads that have not finished
  std::uint64_t next_launch_ = 1;
  std::size_t next_colour_ = 0;
  Stacks stacks_;
  BlockMemories block_memories_;  // declared before the blocks, because it must outlive them
  std::map<std::uint64_t, Launch> launches_;
  std::deque<std::unique_ptr<Block>> blocks_;
  std::vector<Fiber*> ready_;        // threads that can run; unused with Policy::kRoundRobin
  std::deque<Fiber*> queue_;         // threads that can run, with Policy::kRoundRobin
  std::unique_ptr<Context> runner_;  // the context of run_until()
  std::string report_;               // not empty if the emulator is stuck
  // Address for ThreadSanitizer's annotations: the accesses of a launch happen before those that follow its end.
  char ended_ = 0;
};

}  // namespace tutti::emu
