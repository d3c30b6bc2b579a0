// A world of emulated GPUs, for tests: every thread of every block of every launch is a fiber, and one scheduler runs
// them in an order drawn from a seed, all in the calling thread. A run is a function of its options.
//
// Several worlds may run at once, in threads and processes of their own, and wait for each other through the memory
// that they share. They need Clock::kReal, since what one does while it waits says nothing of what the others do: time
// is the machine's then, a world in which everybody waits gives its core away, and no run is like another.
//
// Launches may be added while others are under way: blocks of all launches take turns, so kernels of different GPUs, or
// of different streams, can wait for each other. A run ends as stuck, with the places of all threads, when nothing is
// stored for too long or when every thread waits at a barrier.
//
// The world belongs to the thread that runs it. Device code finds the running world and fiber in thread-local pointers:
// the functions of port.h have no argument to pass them in.
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

// A place in the source.
struct Here {
  const char* file = "";
  unsigned line = 0;
  static constexpr Here current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

enum class Policy : std::uint8_t {
  kRoundRobin,
  kRandom,
  kPriority,  // the thread of the highest priority, which changes now and then; whoever waits sinks
};

enum class Clock : std::uint8_t {
  kEmulated,  // counts turns
  kReal,
};

struct Options {
  std::uint64_t seed = 1;
  Policy policy = Policy::kRoundRobin;
  unsigned yield_log2 = 64;  // a thread gives up its turn at one access in 2^yield_log2; 64: never
  bool weak = false;         // see weak_memory.h
  std::size_t stack_bytes = std::size_t{128} << 10;
  Clock clock = Clock::kEmulated;
  std::uint64_t stall_factor = 2000;  // kEmulated: stuck after so many turns of every thread without a store
  std::uint64_t stall_ms = 60'000;    // kReal: stuck after so long without one
  unsigned resident_blocks = 0;       // of a launch that run at once, the others after them; 0: all
};

// A number that fibers count in without any order among them. Atomic for ThreadSanitizer's sake alone, to which fibers
// are threads.
class Tally {
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

class World;
struct Block;

class Fiber {
 public:
  enum class State : std::uint8_t { kReady, kAtBarrier, kDone };

  Fiber(Block& its_block, unsigned its_thread, Stack stack, std::size_t colour, void (*entry)());

  Block& block;
  const unsigned thread;
  std::uint32_t priority = 0;
  State state = State::kReady;
  Here here;
  Context context;
};

struct Barrier {
  unsigned arrived = 0;
  unsigned generation = 0;
  std::vector<Fiber*> waiting;
  char order[2] = {};  // by generation: whoever passes comes after all who have arrived
};

// What a lane brings to an exchange of its warp or group.
struct Lane {
  std::uint64_t vote = 0;
  void* memory = nullptr;
  void* value = nullptr;
};

struct Block {
  std::uint64_t launch = 0;
  int gpu = 0;
  unsigned index = 0;
  unsigned count = 0;  // of the launch
  unsigned threads = 0;
  unsigned alive = 0;
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Barrier whole;
  std::vector<Barrier> warps;
  std::vector<Barrier> groups;                            // of 8 lanes
  std::vector<Lane> lanes;                                // by thread
  std::map<unsigned, std::vector<std::uint64_t>> shared;  // by the line that declares it
  WeakMemory memory;
};

class World {
 public:
  enum class End : std::uint8_t { kReached, kIdle, kStuck };

  explicit World(const Options& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Adds a launch, which runs while the world does; `threads` is a multiple of 32. Returns its number.
  std::uint64_t launch(int gpu, unsigned blocks, unsigned threads, std::function<void()> body);
  bool done(std::uint64_t launch) const { return !launches_.contains(launch); }

  // Runs until `reached` holds, which is looked at every few turns, or until no launch is left. kStuck: report() says
  // where the threads stand, and the world runs no more.
  End run_until(const std::function<bool()>& reached);
  End run() {
    return run_until([] { return false; });
  }
  const std::string& report() const { return report_; }
  std::uint64_t switches() const { return switches_.get(); }
  // Of weak memory: stores that loads of other blocks may still see, though they stand behind these; see weak_memory.h.
  std::uint64_t overtaking() const { return neighbours_.overtaking; }

  // --- for device code, by port_emu.h ---
  static World& current();
  static Fiber& self();
  const Options& options() const { return options_; }
  std::uint64_t now_ns() const { return options_.clock == Clock::kReal ? real_ns() : 10 * switches_.get(); }
  void stored() { quiet_turns_.set(0); }
  void access(Here here);  // before a load or store
  void pause(Here here);   // of a waiting loop
  // Returns when `count` threads are at `barrier`; the last of them runs `last` before any goes on.
  void arrive(Barrier& barrier, unsigned count, Here here, const std::function<void()>& last);
  void* shared_memory(unsigned key, std::size_t bytes);

 private:
  struct Launch {
    std::function<void()> body;
    int gpu = 0;
    unsigned threads = 0;  // of a block
    unsigned blocks = 0;
    unsigned next_block = 0;  // to be started
    unsigned blocks_alive = 0;
  };

  static std::uint64_t real_ns();
  static void thread_entry();
  void start_block(std::uint64_t launch);
  std::uint64_t draw();
  void make_ready(Fiber& fiber);
  Fiber* pick();
  void yield(Here here, bool waits);
  void rest();         // by a waiting thread of a world in which nothing was stored of late
  void switch_away();  // to the next fiber, or to whoever runs the world
  void switch_to(Fiber* fiber);
  void end_thread();
  void bury_finished();
  std::string describe(const char* what) const;

  const Options options_;
  std::uint64_t random_state_;
  Tally switches_;
  Tally quiet_turns_;
  std::uint64_t next_rest_ = 0;  // kReal: at so many quiet turns
  std::uint64_t rests_ = 0;      // since the last store
  std::uint64_t quiet_since_ns_ = 0;
  std::uint64_t turns_left_ = 0;  // until the predicate is looked at
  std::size_t alive_ = 0;         // threads
  std::uint64_t next_launch_ = 1;
  std::size_t next_colour_ = 0;
  Stacks stacks_;
  Neighbours neighbours_;  // outlives the blocks
  std::map<std::uint64_t, Launch> launches_;
  std::deque<std::unique_ptr<Block>> blocks_;
  std::vector<Fiber*> ready_;
  std::deque<Fiber*> queue_;  // the same for round robin
  std::unique_ptr<Context> runner_;
  std::string report_;
  char ended_ = 0;  // for ThreadSanitizer: what a launch did comes before what follows its end
};

}  // namespace tutti::emu
