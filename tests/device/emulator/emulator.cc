// The scheduler of the emulated GPU threads: see emulator.h.
#include "tests/device/emulator/emulator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/mix_bits.h"

namespace tutti::emu {
namespace {

constexpr std::uint64_t kTurnsPerCheck = 256;  // turns between two calls of the predicate of run_until()
constexpr unsigned kWarp = 32;
constexpr unsigned kGroup = 8;
constexpr int kPrioritySamples = 7;  // sampling keeps a turn cheap, even with thousands of threads

// How an emulator with Clock::kReal waits for others. It first only yields its core, for about as long as another
// emulator needs for a step if that has a core of its own (a guess). Then it sleeps, so that the others can use this
// core.
constexpr std::uint64_t kYieldsBeforeSleep = 64;
constexpr std::chrono::microseconds kSleep{50};

// Atomic only for ThreadSanitizer, as RelaxedCounter is.
thread_local std::atomic<Emulator*> running_emulator = nullptr;
thread_local std::atomic<Fiber*> running_fiber = nullptr;

Emulator* this_emulator() { return running_emulator.load(std::memory_order_relaxed); }
Fiber* this_fiber() { return running_fiber.load(std::memory_order_relaxed); }
void set_running(Emulator* emulator, Fiber* fiber) {
  running_emulator.store(emulator, std::memory_order_relaxed);
  running_fiber.store(fiber, std::memory_order_relaxed);
}

}  // namespace

Emulator& Emulator::current() { return *this_emulator(); }
Fiber& Emulator::self() { return *this_fiber(); }

Fiber::Fiber(Block& its_block, unsigned its_thread, Stack stack, std::size_t colour, void (*entry)())
    : block(its_block), thread(its_thread), context(stack, colour, entry) {}

Emulator::Emulator(const Options& options)
    : options_(options), random_state_(options.seed * 0x9E3779B97F4A7C15u + 1), stacks_(options.stack_bytes) {}

Emulator::~Emulator() {
  const TsanIgnoreScope
      ignore_scope;  // if the emulator is stuck, its threads never finish, so nothing orders their accesses
  launches_.clear();
  blocks_.clear();
}

std::uint64_t Emulator::draw() {  // the random number generator SplitMix64
  random_state_ += 0x9E3779B97F4A7C15u;
  return mix_bits(random_state_);
}

std::uint64_t Emulator::launch(int gpu, unsigned blocks, unsigned threads, std::function<void()> body) {
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

void Emulator::start_block(std::uint64_t number) {
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
  if (options_.weak) block.memory.join(block_memories_);
  for (unsigned t = 0; t < threads; ++t) {
    const std::size_t colour = next_colour_++ * 7 % 61 * 64;
    Fiber& fiber = *block.fibers.emplace_back(std::make_unique<Fiber>(block, t, stacks_.take(), colour, &thread_entry));
    fiber.priority = static_cast<std::uint32_t>(draw());
    make_ready(fiber);
  }
  alive_ += threads;
}

Emulator::RunResult Emulator::run_until(const std::function<bool()>& reached) {
  Emulator* const outer_emulator = this_emulator();
  Fiber* const outer_fiber = this_fiber();
  set_running(this, nullptr);
  runner_ = std::make_unique<Context>();
  quiet_turns_.set(0);
  RunResult end = RunResult::kStuck;
  while (report_.empty()) {
    annotate_acquire(&ended_);
    reap_finished_blocks();
    if (reached()) {
      end = RunResult::kReached;
      break;
    }
    if (alive_ == 0) {
      end = RunResult::kIdle;
      break;
    }
    Fiber* next = pick();
    if (next == nullptr) {
      report_ = describe("deadlock: every thread waits at a barrier");
      break;
    }
    turns_left_ = kTurnsPerCheck;
    annotate_release(&ended_);
    switch_to(next);
  }
  set_running(outer_emulator, outer_fiber);
  return end;
}

void Emulator::thread_entry() {
  Emulator& emulator = current();
  annotate_acquire(&emulator.ended_);
  const Fiber& fiber = self();
  (*fiber.block.body)();
  annotate_release(&emulator.ended_);
  emulator.end_thread();
}

void Emulator::end_thread() {
  {
    const TsanIgnoreScope ignore_scope;
    Block& block = self().block;
    self().state = Fiber::State::kDone;
    quiet_turns_.set(0);
    --alive_;
    if (--block.alive == 0) {
      block.memory.write_all();  // the end of a kernel makes all of its stores visible, as a release does
      Launch& launch = launches_.at(block.launch);
      --launch.blocks_alive;
    }
  }
  switch_away();
}

// Destroys the blocks whose threads have all finished, and starts other blocks of their launches. Only run_until() may
// call this: it runs on a stack of its own, so the stacks of finished fibers are not in use.
void Emulator::reap_finished_blocks() {
  std::vector<std::uint64_t>
      ended;  // for each finished block, its launch, if the launch has blocks that have not started
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

void Emulator::switch_to(Fiber* fiber) {
  Context* from_context = nullptr;
  Context* to_context = nullptr;
  bool is_finished = false;
  {
    const TsanIgnoreScope ignore_scope;
    turns_.count_one();
    Fiber* const from = this_fiber();
    set_running(this, fiber);
    from_context = from == nullptr ? runner_.get() : &from->context;
    to_context = fiber == nullptr ? runner_.get() : &fiber->context;
    is_finished = from != nullptr && from->state == Fiber::State::kDone;
  }
  switch_contexts(*from_context, *to_context, is_finished);
}

void Emulator::switch_away() {
  Fiber* next = nullptr;
  {
    const TsanIgnoreScope ignore_scope;
    if (turns_left_ > 0 && report_.empty()) {
      --turns_left_;
      next = pick();
    }
  }
  if (next != this_fiber())
    switch_to(next);
  else
    turns_.count_one();  // the time must also pass for a thread that waits alone
}

void Emulator::make_ready(Fiber& fiber) {
  fiber.state = Fiber::State::kReady;
  if (options_.policy == Policy::kRoundRobin)
    queue_.push_back(&fiber);
  else
    ready_.push_back(&fiber);
}

Fiber* Emulator::pick() {
  if (options_.policy == Policy::kRoundRobin) {
    if (queue_.empty()) return nullptr;
    Fiber* fiber = queue_.front();
    queue_.pop_front();
    return fiber;
  }
  if (ready_.empty()) return nullptr;
  std::size_t best = draw() % ready_.size();
  // If nothing was stored for a full round of turns, ignore the priorities. Otherwise waiting threads of high priority
  // could keep the threads that they wait for from running.
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

void Emulator::yield(Site here, bool waits) {
  {
    const TsanIgnoreScope ignore_scope;
    Fiber& fiber = self();
    fiber.here = here;
    const std::uint64_t quiet = quiet_turns_.count_one();
    if (options_.clock == Clock::kReal) {
      if (quiet == 1) {
        next_back_off_ = alive_;
        back_offs_ = 0;
      }
      if (waits && quiet > next_back_off_) back_off();
    } else if (quiet > options_.stall_factor * (alive_ + 8)) {
      report_ = describe("stall: nothing was stored for too long");
    }
    if (options_.policy == Policy::kPriority) {
      if (waits)
        fiber.priority = static_cast<std::uint32_t>(draw()) >> 12;  // a thread that waits gets a low priority
      else if (draw() % 16 == 0)
        fiber.priority = static_cast<std::uint32_t>(draw());
    }
    if (options_.weak) fiber.block.memory.step_at_random(draw());
    make_ready(fiber);
  }
  switch_away();
}

void Emulator::back_off() {
  next_back_off_ = quiet_turns_.get() + ready_.size() + queue_.size();  // first give each ready thread one more turn
  const std::uint64_t now = real_ns();
  if (back_offs_++ == 0) quiet_since_ns_ = now;
  if (now - quiet_since_ns_ > options_.stall_ms * 1'000'000) {
    report_ = describe("stall: nothing was stored for too long");
  } else if (back_offs_ <= kYieldsBeforeSleep) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kSleep);
  }
}

std::uint64_t Emulator::real_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
}

void Emulator::access(Site here) {
  if (options_.yield_log2 >= 64) return;
  bool yields = false;
  {
    const TsanIgnoreScope ignore_scope;
    yields = draw() % (std::uint64_t{1} << options_.yield_log2) == 0;
  }
  if (yields) yield(here, false);
}

void Emulator::pause(Site here) { yield(here, true); }

void Emulator::arrive(Barrier& barrier, unsigned count, Site here, const std::function<void()>& last) {
  Fiber& fiber = self();
  char* order = &barrier.order[barrier.generation & 1];
  annotate_release(order);
  bool is_last = false;
  {
    const TsanIgnoreScope ignore_scope;
    fiber.here = here;
    is_last = ++barrier.arrived == count;
    if (!is_last) {
      fiber.state = Fiber::State::kAtBarrier;
      barrier.waiting.push_back(&fiber);
    } else if (options_.weak && &barrier == &fiber.block.whole) {
      fiber.block.memory.barrier();
    }
  }
  // Passing a barrier does not count as progress (it leaves quiet_turns_ as it is), because the waiting loop of LL128
  // contains a vote, and a vote uses barriers.
  if (is_last) {
    annotate_acquire(order);
    if (last) last();
    annotate_release(order);
    const TsanIgnoreScope ignore_scope;
    barrier.arrived = 0;
    ++barrier.generation;
    for (Fiber* other : barrier.waiting) make_ready(*other);
    barrier.waiting.clear();
    if (options_.policy == Policy::kRoundRobin) return annotate_acquire(order);
    make_ready(fiber);
  }
  switch_away();
  annotate_acquire(order);
}

void* Emulator::shared_memory(const void* key, std::size_t bytes) {
  const TsanIgnoreScope ignore_scope;
  auto& memory = self().block.shared[key];
  // A GPU does not set shared memory to zero, so use a value that makes uninitialized variables visible.
  if (memory.empty()) memory.assign((bytes + 7) / 8 + 1, 0xCDCDCDCDCDCDCDCDu);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (address % 16 == 0 ? 0 : 1);  // aligned to 16 bytes
}

std::string Emulator::describe(const char* what) const {
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
