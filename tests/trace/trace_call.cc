// trace_call TRANSPORT BYTES: prints the functions that one all_reduce of rank 0 enters, each once, in the order of the
// first entry. Each line has the number of the function's caller in this list (0: called by main), a library, and an
// offset in it; the first line is number 1. scripts/trace-call builds the library with -finstrument-functions, so that
// every function calls the hooks below, and turns the lines into names.
//
// Two ranks, one thread each. The call is the fourth of its kind, because the first one also makes the plan.
#include <dlfcn.h>
#include <tutti/tutti.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr int kCallsBefore = 3;

thread_local bool traced = false;

struct Entry {
  void* function;
  std::size_t caller;  // index in the list of entries plus 1; 0: main
};

// The traced call. Only the traced thread uses it until that thread has ended.
struct Trace {
  std::vector<Entry> entries;
  std::unordered_map<void*, std::size_t> numbers;  // of a function: index in `entries` plus 1
  std::vector<std::size_t> stack;                  // the functions that are running, by number
};

Trace& trace() {
  static Trace only;
  return only;
}

}  // namespace

extern "C" {
// NOLINTBEGIN: the names are those of the compiler
// The hooks are off while they run, because the containers that they use are not part of the call.
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void* function, void* /*caller*/) {
  if (!traced) return;
  traced = false;
  Trace& all = trace();
  const auto [found, is_new] = all.numbers.emplace(function, all.entries.size() + 1);
  if (is_new) all.entries.push_back({function, all.stack.empty() ? 0 : all.stack.back()});
  all.stack.push_back(found->second);
  traced = true;
}
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void* /*function*/, void* /*caller*/) {
  if (!traced) return;
  traced = false;
  if (!trace().stack.empty()) trace().stack.pop_back();
  traced = true;
}
// NOLINTEND
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: trace_call TRANSPORT BYTES\n");
    return 2;
  }
  tutti::CommunicatorOptions options;
  options.transport = argv[1];
  const std::size_t count = std::strtoull(argv[2], nullptr, 10) / sizeof(float);
  auto made = tutti::Communicator::create_all(2, options);
  if (!made) {
    std::fprintf(stderr, "trace_call: %s\n", to_string(made.error()).c_str());
    return 1;
  }
  std::vector<std::thread> threads;
  std::atomic<bool> failed = false;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> data(count, 1);
      tutti::Communicator& communicator = *made.value()[rank];
      for (int call = 0; call <= kCallsBefore; ++call) {
        traced = rank == 0 && call == kCallsBefore;
        const tutti::Status status =
            communicator.all_reduce(data.data(), data.data(), count, tutti::DataType::kFloat32, tutti::ReduceOp::kSum);
        traced = false;
        if (!status.ok()) failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Entry& entry : trace().entries) {
    Dl_info place{};
    if (dladdr(entry.function, &place) == 0) continue;  // a line is missing only for code made at run time
    std::printf("%zu %s %zx\n", entry.caller, place.dli_fname,
                static_cast<std::size_t>(static_cast<char*>(entry.function) - static_cast<char*>(place.dli_fbase)));
  }
  return failed ? 1 : 0;
}
