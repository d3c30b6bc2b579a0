// A job that continues when ranks are killed: run `tutti run --elastic 2:4 -- elastic_sum 1000`, and kill -9 some of
// its processes.
//
// In every step the ranks all-reduce numbers with a known sum, and each rank adds known numbers of the step to its
// state. Every sum is checked, and the state is checked after each restore and at the end. So a step that was skipped
// or repeated would be noticed.
#include <tutti/tutti.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kCount = 5000;

std::uint64_t part_of(std::uint64_t step, std::size_t i) { return 31 * step + 7 * i + 1; }

// Whether `state` is the correct state after steps 0 .. steps-1.
bool is_right(const std::vector<std::uint64_t>& state, std::uint64_t steps) {
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (state[i] != 31 * (steps * (steps - 1) / 2) + steps * (7 * i + 1)) return false;
  }
  return true;
}

[[noreturn]] void give_up(const char* what, std::uint64_t step) {
  std::fprintf(stderr, "%s of step %llu is wrong\n", what, static_cast<unsigned long long>(step));
  std::abort();
}

// Rank r of n contributes (r + 1) * part_of(step, i) to element i, so the sum is n * (n + 1) / 2 * part_of(step, i).
tutti::Status add_up(tutti::Communicator& communicator, std::uint64_t step, std::vector<std::uint64_t>& sums) {
  const auto factor = static_cast<std::uint64_t>(communicator.rank() + 1);
  for (std::size_t i = 0; i < kCount; ++i) sums[i] = factor * part_of(step, i);
  const tutti::Status status =
      communicator.all_reduce(sums.data(), sums.data(), kCount, tutti::DataType::kUint64, tutti::ReduceOp::kSum);
  if (!status.ok()) return status;
  const auto ranks = static_cast<std::uint64_t>(communicator.size());
  for (std::size_t i = 0; i < kCount; ++i) {
    if (sums[i] != ranks * (ranks + 1) / 2 * part_of(step, i)) give_up("the sum", step);
  }
  return {};
}

}  // namespace

int main(int count, char** arguments) {
  const std::uint64_t steps = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1000;
  const std::chrono::microseconds pause(count > 2 ? std::strtoll(arguments[2], nullptr, 10) : 1000);
  auto job = tutti::Elastic::join();
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", tutti::to_string(job.error()).c_str());
    return 1;
  }
  std::vector<std::uint64_t> state(kCount, 0);
  // The calls write their results to this buffer and not to `state`, so that a failed call does not change the state.
  std::vector<std::uint64_t> spare(kCount);
  const auto restore = [&](tutti::Communicator& communicator, std::int32_t source) {
    if (communicator.rank() == source) spare = state;
    const tutti::Status sent =
        communicator.broadcast(spare.data(), spare.data(), kCount, tutti::DataType::kUint64, source);
    if (!sent.ok()) return sent;
    state.swap(spare);
    if (!is_right(state, job->step())) give_up("the state", job->step());
    return sent;
  };
  // next() returns true as long as a step is left to do. Whenever the ranks have formed a new communicator, next()
  // first calls restore(), in which rank `source` sends its state to the others.
  while (job->next(steps, restore)) {
    const tutti::Status status = add_up(job->communicator(), job->step(), spare);
    if (status.ok()) {
      for (std::size_t i = 0; i < kCount; ++i) state[i] += part_of(job->step(), i);
      std::this_thread::sleep_for(pause);  // represents the application's work
    }
    job->done(status);
  }
  if (!job->status().ok()) {
    std::fprintf(stderr, "%s\n", tutti::to_string(job->status().error()).c_str());
    return 1;
  }
  if (!is_right(state, steps)) give_up("the state", steps);
  std::printf("%llu steps in %d meetings, every sum right\n", static_cast<unsigned long long>(steps), job->meeting());
  return 0;
}
