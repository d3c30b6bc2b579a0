// What every function of the double does before its own work: counts the call, fails it if a test wants that, refuses
// it before cuInit, after a fork, in a host function and in a context that is lost. Filled once, before the first call.
#pragma once

#include <atomic>
#include <optional>

#include "cuda/driver_api.h"

namespace tutti::cuda::fake {

// Tells the test (Control::watch_threads) that the calling thread is in the double's own code (`by` is 1). From within
// that code a host function is called with `by` -1, because it is the caller's. The end of the scope takes it back.
class Inside {
 public:
  explicit Inside(int by) : watcher_(watcher.load()), by_(by) {
    if (watcher_ != nullptr) watcher_(by_);
  }
  ~Inside() {
    if (watcher_ != nullptr) watcher_(-by_);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  using Watcher = void (*)(int by);
  inline static std::atomic<Watcher> watcher = nullptr;

 private:
  const Watcher watcher_;
  const int by_;
};

struct HookState {
  const char* name = "";
  bool anywhere = false;  // before cuInit and in a lost context too
  std::atomic<unsigned> calls{0};

  std::optional<CUresult> enter();  // what the call returns instead of doing its work
};

void add_hook(void* function, HookState& state);

template <auto kFunction>
struct Hook;

template <class... Arguments, CUresult (*kFunction)(Arguments...)>
struct Hook<kFunction> {
  inline static HookState state;
  static CUresult call(Arguments... arguments) {
    const Inside inside(1);
    if (const auto result = state.enter()) return *result;
    return kFunction(arguments...);
  }
};

// Puts a function into its place in the table.
template <auto kFunction, class Place>
void bind(Place& place) {
  place = &Hook<kFunction>::call;
  add_hook(reinterpret_cast<void*>(place), Hook<kFunction>::state);
}

// The groups of functions, a file each.
void bind_devices(DriverApi& api);
void bind_memory(DriverApi& api);
void bind_streams(DriverApi& api);
void bind_work(DriverApi& api);
void bind_kernels(DriverApi& api);
void bind_graphs(DriverApi& api);
void bind_shared(DriverApi& api);
void bind_mappings(DriverApi& api);

void inject_fault(const char* function, unsigned nth, CUresult result);
void forget_faults();
unsigned calls_of(const char* function);

// See control.h; in work.cc.
void hold_copy(const char* function, unsigned nth);
void release_copy();
unsigned copies_done(const char* function);

}  // namespace tutti::cuda::fake
