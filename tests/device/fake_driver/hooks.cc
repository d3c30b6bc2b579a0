// The table of the fake driver's functions, the hook that runs before each of them, and cuGetProcAddress_v2. The
// library exports only that function and fake_cuda_control() (control.cc), because the product looks up all others
// through it.
#include "hooks.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "driver_state.h"

namespace tutti::cuda::fake {
namespace {

struct Fault {
  std::string function;
  unsigned at = 0;  // number of the call that fails; the first call has number 1
  CUresult result = CUresult::kSuccess;
  std::optional<std::thread::id> thread = std::nullopt;  // if set: `at` is ignored, and its next call fails
};

// `all` is written only while the table is filled. The mutex guards `faults`.
struct Hooks {
  std::vector<std::pair<void*, HookState*>> all;
  std::mutex mutex;
  std::vector<Fault> faults;
  std::atomic<std::size_t> fault_count{0};
};

Hooks& hooks() {
  static Hooks& hooks = *std::make_unique<Hooks>().release();  // never destroyed, for the same reason as DriverState
  return hooks;
}

bool works_anywhere(std::string_view name) {
  return name == "cuInit" || name == "cuDriverGetVersion" || name.starts_with("cuGetError");
}

bool works_when_lost(std::string_view name) {
  return name.starts_with("cuDevice") || name.starts_with("cuCtxGet") || name.starts_with("cuCtxSet") ||
         name.starts_with("cuCtxPush") || name.starts_with("cuCtxPop");
}

// Reads one fault from FAKE_CUDA_FAIL, which has the form "function:nth:result".
void take_fault_from_environment() {
  const char* text = std::getenv("FAKE_CUDA_FAIL");
  if (text == nullptr) return;
  const std::string_view all = text;
  const std::size_t colon = all.find(':');
  char* rest = nullptr;
  const unsigned long nth = colon == all.npos ? 0 : std::strtoul(text + colon + 1, &rest, 10);
  if (nth == 0 || *rest != ':') {
    std::fprintf(stderr, "fake driver: FAKE_CUDA_FAIL is '%s' and must be function:nth:result\n", text);
    std::abort();
  }
  const auto result = static_cast<CUresult>(std::strtol(rest + 1, nullptr, 10));
  hooks().faults.push_back({std::string(all.substr(0, colon)), static_cast<unsigned>(nth), result});
  hooks().fault_count = 1;
}

DriverApi make_table() {
  DriverApi api;
  bind_devices(api);
  bind_memory(api);
  bind_streams(api);
  bind_work(api);
  bind_kernels(api);
  bind_graphs(api);
  bind_shared(api);
  bind_mappings(api);
  for_each_function(api, [](const char* name, int, auto& function) {
    bool found = false;
    for (auto& [address, state] : hooks().all) {
      if (address != reinterpret_cast<void*>(function)) continue;
      state->name = name;
      state->anywhere = works_anywhere(name);
      found = true;
    }
    if (!found) {
      std::fprintf(stderr, "fake driver: the driver's table has the function %s, which the fake does not implement\n",
                   name);
      std::abort();
    }
  });
  take_fault_from_environment();
  return api;
}

const DriverApi& table() {
  static const DriverApi api = make_table();
  return api;
}

std::optional<CUresult> take_fault(const char* name, unsigned call) {
  Hooks& own = hooks();
  if (own.fault_count.load() == 0) return std::nullopt;
  const std::lock_guard lock(own.mutex);
  for (auto fault = own.faults.begin(); fault != own.faults.end(); ++fault) {
    if (fault->function != name) continue;
    if (fault->thread ? *fault->thread != std::this_thread::get_id() : fault->at != call) continue;
    const CUresult result = fault->result;
    own.faults.erase(fault);
    own.fault_count = own.faults.size();
    return result;
  }
  return std::nullopt;
}

void report_leaks() {
  const std::string lines = leaks();
  if (!lines.empty()) std::fprintf(stderr, "fake driver: not given back:\n%s", lines.c_str());
}

}  // namespace

void add_hook(void* function, HookState& state) { hooks().all.emplace_back(function, &state); }

std::optional<CUresult> HookState::enter() {
  const unsigned call = calls.fetch_add(1) + 1;
  if (const auto fault = take_fault(name, call)) return fault;
  if (anywhere) return std::nullopt;
  DriverState& own = driver_state();
  if (own.deinitialized) return CUresult::kDeinitialized;
  if (own.process.load() != getpid()) return CUresult::kNotInitialized;
  if (in_host_function()) return CUresult::kNotPermitted;
  if (works_when_lost(name)) return std::nullopt;
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Context> context;
  // Without a current context the function itself decides whether that is an error.
  if (current_context(context) != CUresult::kSuccess) return std::nullopt;
  const CUresult lost = context->lost->load();
  if (lost != CUresult::kSuccess) return lost;
  return std::nullopt;
}

void inject_fault(const char* function, unsigned nth, CUresult result) {
  Hooks& own = hooks();
  const std::lock_guard lock(own.mutex);
  own.faults.push_back({function, calls_of(function) + nth, result});
  own.fault_count = own.faults.size();
}

void inject_fault_here(const char* function, CUresult result) {
  calls_of(function);  // ends the program if there is no such function
  Hooks& own = hooks();
  const std::lock_guard lock(own.mutex);
  own.faults.push_back({function, 0, result, std::this_thread::get_id()});
  own.fault_count = own.faults.size();
}

void forget_faults() {
  Hooks& own = hooks();
  const std::lock_guard lock(own.mutex);
  own.faults.clear();
  own.fault_count = 0;
}

unsigned calls_of(const char* function) {
  table();
  for (const auto& [address, state] : hooks().all) {
    if (std::string_view(state->name) == function) return state->calls.load();
  }
  std::fprintf(stderr, "fake driver: there is no driver function '%s'\n", function);
  std::abort();
}

// cuGetProcAddress_v2 of the fake driver. A function is not found if it is newer than `version` or newer than the
// driver, so FAKE_CUDA_VERSION simulates an old driver. FAKE_CUDA_WITHOUT names a function that is missing, and with
// FAKE_CUDA_STUB=1 the library behaves as the stub library of the CUDA toolkit.
CUresult get_proc_address(const char* name, void** function, int version, std::uint64_t, int* status) {
  constexpr int kFound = 0;
  constexpr int kUnknownSymbol = 1;
  if (name == nullptr || function == nullptr) return CUresult::kInvalidValue;
  *function = nullptr;
  if (setting("FAKE_CUDA_STUB", 0) != 0) return CUresult::kStubLibrary;
  const char* without = std::getenv("FAKE_CUDA_WITHOUT");
  for_each_function(table(), [&](const char* known, int since, const auto& function_pointer) {
    if (std::strcmp(name, known) != 0 || version < since || driver_state().version < since) return;
    if (without != nullptr && std::strcmp(name, without) == 0) return;
    *function = reinterpret_cast<void*>(function_pointer);
  });
  if (status != nullptr) *status = *function != nullptr ? kFound : kUnknownSymbol;
  if (*function == nullptr) return CUresult::kNotFound;
  static const bool reporting = setting("FAKE_CUDA_LEAKS", 0) != 0 && std::atexit(report_leaks) == 0;
  static_cast<void>(reporting);
  return CUresult::kSuccess;
}

}  // namespace tutti::cuda::fake

extern "C" __attribute__((visibility("default"))) tutti::cuda::CUresult cuGetProcAddress_v2(
    const char* name, void** function, int version, std::uint64_t flags, int* status) {
  const tutti::cuda::fake::DriverScope inside(1);
  return tutti::cuda::fake::get_proc_address(name, function, version, flags, status);
}
