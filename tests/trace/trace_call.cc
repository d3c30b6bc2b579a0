// trace_call TRANSPORT BYTES: prints the functions that one all_reduce of rank 0 enters, each once, in the order of the
// first entry: a library and an offset in it on each line. scripts/trace-call builds the library with
// -finstrument-functions, so that every function calls the hook below, and turns the lines into names.
//
// Two ranks, one thread each. The call is the fourth of its kind, because the first one also makes the plan.
#include <dlfcn.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

namespace {

constexpr int kCallsBefore = 3;

thread_local bool traced = false;
std::vector<void*> entered;  // written by the traced thread only

__attribute__((no_instrument_function)) void add(void* function) {
  traced = false;  // because the set and the vector are not part of the call
  static std::unordered_set<void*> seen;
  if (seen.insert(function).second) entered.push_back(function);
  traced = true;
}

}  // namespace

extern "C" {
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void* function, void* /*caller*/) {
  if (traced) add(function);
}
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void* /*function*/, void* /*caller*/) {}
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: trace_call TRANSPORT BYTES\n");
    return 2;
  }
  tutti::CommunicatorOptions options;
  options.transport = argv[1];
  const std::size_t count = std::strtoull(argv[2], nullptr, 10) / sizeof(float);
  auto made = tutti::Communicator::create_all(2, 1, options);
  if (!made) {
    std::fprintf(stderr, "trace_call: %s\n", to_string(made.error()).c_str());
    return 1;
  }
  std::vector<std::thread> threads;
  bool failed = false;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> data(count, 1);
      for (int call = 0; call <= kCallsBefore; ++call) {
        traced = rank == 0 && call == kCallsBefore;
        const tutti::Status status = (*made)[rank]->all_reduce(data.data(), data.data(), count,
                                                               tutti::DataType::kFloat32, tutti::ReduceOp::kSum);
        traced = false;
        if (!status.ok()) failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (void* function : entered) {
    Dl_info where{};
    if (dladdr(function, &where) == 0 || where.dli_fname == nullptr) continue;
    std::printf("%s %zx\n", where.dli_fname,
                static_cast<std::size_t>(static_cast<char*>(function) - static_cast<char*>(where.dli_fbase)));
  }
  return failed ? 1 : 0;
}
