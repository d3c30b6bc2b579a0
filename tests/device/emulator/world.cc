#include "tests/device/emulator/world.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/assert.h"

namespace tutti::emu {
namespace {

constexpr std::uint64_t kTurnsPerLook = 256;
constexpr unsigned kWarp = 32;
constexpr unsigned kGroup = 8;
constexpr int kPrioritySamples = 7;  // a step stays cheap with thousands of threads

// How a world of the real clock waits for the others: about as long as one of them needs for a step where it has a core
// (guessed), then so that they get this one.
constexpr std::uint64_t kRestsBeforeSleep = 64;
constexpr std::chrono::microseconds kSleep{50};

// Atomic for the same reason as Tally.
thread_local std::atomic<World*> running_world = nullptr;
thread_local std::atomic<Fiber*> running_fiber = nullptr;

World* this_world() { return running_world.load(std::memory_order_relaxed); }
Fiber* this_fiber() { return running_fiber.load(std::memory_order_relaxed); }
void set_running(World* world, Fiber* fiber) {
  running_world.store(world, std::memory_order_relaxed);
  running_fiber.store(fiber, std::memory_order_relaxed);
}

}  // namespace

World& World::current() { return *this_world(); }
Fiber& World::self() { return *this_fiber(); }

Fiber::Fiber(Block& its_block, unsigned its_thread, Stack stack, std::size_t colour, void (*entry)())
    : block(its_block), thread(its_thread), context(stack, colour, entry) {}

World::World(const Options& options)
    : options_(options), random_state_(options.seed * 0x9E3779B97F4A7C15u + 1), stacks_(options.stack_bytes) {}

World::~World() {
  const Unwatched unwatched;  // threads of a world that is stuck never end
  launches_.clear();
  blocks_.clear();
}

std::uint64_t World::draw() {  // SplitMix64
  random_state_ += 0x9E3779B97F4A7C15u;
  std::uint64_t z = random_state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::uint64_t World::launch(int gpu, unsigned blocks, unsigned threads, std::function<void()> body) {
  TUTTI_ASSERT(threads > 0 && threads % kWarp == 0, "a block of {} threads", threads);
  const std::uint64_t number = next_launch_++;
  Launch& launch = launches_[number];
  launch.body = std::move(body);
  launch.gpu = gpu;
  launch.threads = threads;
  launch.blocks = launch.blocks_alive = blocks;
  const unsigned at_once = options_.resident_blocks == 0 ? blocks : std::min(blocks, options_.resident_blocks);
  for (unsigned b = 0; b < at_once; ++b) start_block(number);
  if (blocks == 0) launches_.erase(number);
  return number;
}

void World::start_block(std::uint64_t number) {
  Launch& launch = launches_.at(number);
  const unsigned threads = launch.threads;
  Block& block = *blocks_.emplace_back(std::make_unique<Block>());
  block.launch = number;
  block.gpu = launch.gpu;
  block.index = launch.next_block++;
  block.count = launch.blocks;
  block.threads = block.alive = threads;
  block.body = &launch.body;
  block.warps.resize(threads / kWarp);
  block.groups.resize(threads / kGroup);
  block.lanes.resize(threads);
  if (options_.weak) block.memory.join(neighbours_);
  for (unsigned t = 0; t < threads; ++t) {
    const std::size_t colour = next_colour_++ * 7 % 61 * 64;
    Fiber& fiber = *block.fibers.emplace_back(std::make_unique<Fiber>(block, t, stacks_.take(), colour, &thread_entry));
    fiber.priority = static_cast<std::uint32_t>(draw());
    make_ready(fiber);
  }
  alive_ += threads;
}

World::End World::run_until(const std::function<bool()>& reached) {
  World* const outer_world = this_world();
  Fiber* const outer_fiber = this_fiber();
  set_running(this, nullptr);
  runner_ = std::make_unique<Context>();
  quiet_turns_.set(0);
  End end = End::kStuck;
  while (report_.empty()) {
    acquired(&ended_);
    bury_finished();
    if (reached()) {
      end = End::kReached;
      break;
    }
    if (alive_ == 0) {
      end = End::kIdle;
      break;
    }
    Fiber* next = pick();
    if (next == nullptr) {
      report_ = describe("deadlock: every thread waits at a barrier");
      break;
    }
    turns_left_ = kTurnsPerLook;
    released(&ended_);
    switch_to(next);
  }
  set_running(outer_world, outer_fiber);
  return end;
}

void World::thread_entry() {
  World& world = current();
  acquired(&world.ended_);
  const Fiber& fiber = self();
  (*fiber.block.body)();
  released(&world.ended_);
  world.end_thread();
}

void World::end_thread() {
  {
    const Unwatched unwatched;
    Block& block = self().block;
    self().state = Fiber::State::kDone;
    quiet_turns_.set(0);
    --alive_;
    if (--block.alive == 0) {
      block.memory.write_all();  // the end of a kernel is a release
      Launch& launch = launches_.at(block.launch);
      --launch.blocks_alive;
    }
  }
  switch_away();
}

// Blocks whose threads have ended make room for others; by the runner, on whose stack no fiber stands.
void World::bury_finished() {
  std::vector<std::uint64_t> ended;  // whose launch has more to start
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    if ((*it)->alive > 0) {
      ++it;
      continue;
    }
    for (const auto& fiber : (*it)->fibers) stacks_.give_back(fiber->context.stack());
    const std::uint64_t launch = (*it)->launch;
    it = blocks_.erase(it);
    if (launches_.at(launch).next_block < launches_.at(launch).blocks) ended.push_back(launch);
    if (launches_.at(launch).blocks_alive == 0) {
      const bool others =
          std::any_of(blocks_.begin(), blocks_.end(), [&](const auto& b) { return b->launch == launch; });
      if (!others) launches_.erase(launch);
    }
  }
  for (const std::uint64_t launch : ended) {
    if (launches_.at(launch).next_block < launches_.at(launch).blocks) start_block(launch);
  }
}

void World::switch_to(Fiber* fiber) {
  Context* from_context = nullptr;
  Context* to_context = nullptr;
  bool is_finished = false;
  {
    const Unwatched unwatched;
    switches_.count_one();
    Fiber* const from = this_fiber();
    set_running(this, fiber);
    from_context = from == nullptr ? runner_.get() : &from->context;
    to_context = fiber == nullptr ? runner_.get() : &fiber->context;
    is_finished = from != nullptr && from->state == Fiber::State::kDone;
  }
  switch_contexts(*from_context, *to_context, is_finished);
}

void World::switch_away() {
  Fiber* next = nullptr;
  {
    const Unwatched unwatched;
    if (turns_left_ > 0 && report_.empty()) {
      --turns_left_;
      next = pick();
    }
  }
  if (next != this_fiber()) switch_to(next);
}

void World::make_ready(Fiber& fiber) {
  fiber.state = Fiber::State::kReady;
  if (options_.policy == Policy::kRoundRobin)
    queue_.push_back(&fiber);
  else
    ready_.push_back(&fiber);
}

Fiber* World::pick() {
  if (options_.policy == Policy::kRoundRobin) {
    if (queue_.empty()) return nullptr;
    Fiber* fiber = queue_.front();
    queue_.pop_front();
    return fiber;
  }
  if (ready_.empty()) return nullptr;
  std::size_t best = draw() % ready_.size();
  // Where nobody gets on, waiting threads of high priority may be in the way of those that they wait for.
  if (options_.policy == Policy::kPriority && quiet_turns_.get() <= alive_) {
    for (int i = 0; i < kPrioritySamples; ++i) {
      const std::size_t other = draw() % ready_.size();
      if (ready_[other]->priority > ready_[best]->priority) best = other;
    }
  }
  Fiber* fiber = ready_[best];
  ready_[best] = ready_.back();
  ready_.pop_back();
  return fiber;
}

void World::yield(Here here, bool waits) {
  {
    const Unwatched unwatched;
    Fiber& fiber = self();
    fiber.here = here;
    const std::uint64_t quiet = quiet_turns_.count_one();
    if (options_.clock == Clock::kReal) {
      if (quiet == 1) {
        next_rest_ = alive_;
        rests_ = 0;
      }
      if (waits && quiet > next_rest_) rest();
    } else if (quiet > options_.stall_factor * (alive_ + 8)) {
      report_ = describe("stall: nothing was stored for too long");
    }
    if (options_.policy == Policy::kPriority) {
      if (waits)
        fiber.priority = static_cast<std::uint32_t>(draw()) >> 12;  // a waiter sinks
      else if (draw() % 16 == 0)
        fiber.priority = static_cast<std::uint32_t>(draw());
    }
    if (options_.weak) fiber.block.memory.drift(draw());
    make_ready(fiber);
  }
  switch_away();
}

void World::rest() {
  next_rest_ = quiet_turns_.get() + ready_.size() + queue_.size();  // a turn of each that waits
  const std::uint64_t now = real_ns();
  if (rests_++ == 0) quiet_since_ns_ = now;
  if (now - quiet_since_ns_ > options_.stall_ms * 1'000'000) {
    report_ = describe("stall: nothing was stored for too long");
  } else if (rests_ <= kRestsBeforeSleep) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kSleep);
  }
}

std::uint64_t World::real_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
}

void World::access(Here here) {
  if (options_.yield_log2 >= 64) return;
  bool yields = false;
  {
    const Unwatched unwatched;
    yields = draw() % (std::uint64_t{1} << options_.yield_log2) == 0;
  }
  if (yields) yield(here, false);
}

void World::pause(Here here) { yield(here, true); }

void World::arrive(Barrier& barrier, unsigned count, Here here, const std::function<void()>& last) {
  Fiber& fiber = self();
  char* order = &barrier.order[barrier.generation & 1];
  released(order);
  bool is_last = false;
  {
    const Unwatched unwatched;
    fiber.here = here;
    is_last = ++barrier.arrived == count;
    if (!is_last) {
      fiber.state = Fiber::State::kAtBarrier;
      barrier.waiting.push_back(&fiber);
    } else if (options_.weak && &barrier == &fiber.block.whole) {
      fiber.block.memory.barrier();
    }
  }
  if (is_last) {  // no progress in the sense of yield(): LL128 looks for its data with a vote
    acquired(order);
    if (last) last();
    released(order);
    const Unwatched unwatched;
    barrier.arrived = 0;
    ++barrier.generation;
    for (Fiber* other : barrier.waiting) make_ready(*other);
    barrier.waiting.clear();
    if (options_.policy == Policy::kRoundRobin) return acquired(order);
    make_ready(fiber);
  }
  switch_away();
  acquired(order);
}

void* World::shared_memory(unsigned key, std::size_t bytes) {
  const Unwatched unwatched;
  auto& memory = self().block.shared[key];
  // Not zeros: on a GPU they are not either.
  if (memory.empty()) memory.assign((bytes + 7) / 8 + 1, 0xCDCDCDCDCDCDCDCDu);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (address % 16 == 0 ? 0 : 1);
}

std::string World::describe(const char* what) const {
  std::map<std::string, int> places;
  for (const auto& block : blocks_) {
    for (const auto& fiber : block->fibers) {
      if (fiber->state == Fiber::State::kDone) continue;
      ++places[fmt::format("  launch {} gpu {} block {}: {} {}:{}", block->launch, block->gpu, block->index,
                           fiber->state == Fiber::State::kAtBarrier ? "at barrier" : "running", fiber->here.file,
                           fiber->here.line)];
    }
  }
  std::string text = what;
  for (const auto& [place, count] : places) text += fmt::format("\n{} x{}", place, count);
  return text;
}

}  // namespace tutti::emu
