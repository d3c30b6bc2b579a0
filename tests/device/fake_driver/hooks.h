// Hooks: the code that runs before each function of the fake driver. It counts the call and returns an injected fault
// if there is one. It also returns an error if the program has not called cuInit, in a forked child, in a host function
// of a stream, and if the current context has failed. The table of functions is filled once, before the first call.
#pragma once

#include <atomic>
#include <optional>

#include "cuda/driver_api.h"

namespace tutti::cuda::fake {

// A scope in which the calling thread runs code of the fake driver (`by` is 1), or code of the program that the fake
// driver calls, i.e. a host function (`by` is -1). The watcher of Control::watch_threads is called with `by` at the
// begin of the scope and with -`by` at its end.
class DriverScope {
 public:
  explicit DriverScope(int by) : watcher_(watcher.load()), by_(by) {
    if (watcher_ != nullptr) watcher_(by_);
  }
  ~DriverScope() {
    if (watcher_ != nullptr) watcher_(-by_);
  }
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;

  using Watcher = void (*)(int by);
  inline static std::atomic<Watcher> watcher = nullptr;

 private:
  const Watcher watcher_;
  const int by_;
};

struct HookState {
  const char* name = "";
  bool anywhere = false;  // the function also works before cuInit and in a context that has failed
  std::atomic<unsigned> calls{0};

  // Counts the call. If the call must fail, returns its result; otherwise the function must be executed.
  std::optional<CUresult> enter();
};

void add_hook(void* function, HookState& state);

template <auto kFunction>
struct Hook;

template <class... Arguments, CUresult (*kFunction)(Arguments...)>
struct Hook<kFunction> {
  inline static HookState state;
  static CUresult call(Arguments... arguments) {
    const DriverScope inside(1);
    if (const auto result = state.enter()) return *result;
    return kFunction(arguments...);
  }
};

// Puts a function, with its hook, into the table of driver functions.
template <auto kFunction, class FunctionPointer>
void bind(FunctionPointer& function_pointer) {
  function_pointer = &Hook<kFunction>::call;
  add_hook(reinterpret_cast<void*>(function_pointer), Hook<kFunction>::state);
}

// Each file of the fake driver has a group of functions and puts them into the table.
void bind_devices(DriverApi& api);
void bind_memory(DriverApi& api);
void bind_streams(DriverApi& api);
void bind_work(DriverApi& api);
void bind_kernels(DriverApi& api);
void bind_graphs(DriverApi& api);
void bind_shared(DriverApi& api);
void bind_mappings(DriverApi& api);

// The functions of Control, see control.h.
void inject_fault(const char* function, unsigned nth, CUresult result);
void inject_fault_here(const char* function, CUresult result);
void forget_faults();
unsigned calls_of(const char* function);

// Functions of Control that are in work.cc, see control.h.
void hold_copy(const char* function, unsigned nth);
void release_copy();
unsigned copies_done(const char* function);

}  // namespace tutti::cuda::fake
