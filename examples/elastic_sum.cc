// A job that goes on when ranks are killed: `tutti run --elastic 2:4 -- elastic_sum 1000`, and kill -9 what you like.
//
// In every step all ranks add up numbers whose sum is known, and add that sum to what they keep. Every sum is checked,
// and what is kept, after each restore and at the end: a step that was left out or done twice would show.
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

// Of steps 0 .. steps-1.
bool is_right(const std::vector<std::uint64_t>& kept, std::uint64_t steps) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != 31 * (steps * (steps - 1) / 2) + steps * (7 * i + 1)) return false;
  }
  return true;
}

[[noreturn]] void give_up(const char* what, std::uint64_t step) {
  std::fprintf(stderr, "%s of step %llu is wrong\n", what, static_cast<unsigned long long>(step));
  std::abort();
}

// Rank r of n gives (r + 1) times the part: the sum is n (n + 1) / 2 times the part.
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
  std::vector<std::uint64_t> kept(kCount, 0);
  std::vector<std::uint64_t> spare(kCount);  // so that what fails leaves `kept` as it was
  const auto restore = [&](tutti::Communicator& communicator, std::int32_t source) {
    if (communicator.rank() == source) spare = kept;
    const tutti::Status sent =
        communicator.broadcast(spare.data(), spare.data(), kCount, tutti::DataType::kUint64, source);
    if (!sent.ok()) return sent;
    kept.swap(spare);
    if (!is_right(kept, job->step())) give_up("what was kept", job->step());
    return sent;
  };
  while (job->next(steps, restore)) {
    const tutti::Status status = add_up(job->communicator(), job->step(), spare);
    if (status.ok()) {
      for (std::size_t i = 0; i < kCount; ++i) kept[i] += part_of(job->step(), i);
      std::this_thread::sleep_for(pause);  // stands for work
    }
    job->done(status);
  }
  if (!job->status().ok()) {
    std::fprintf(stderr, "%s\n", tutti::to_string(job->status().error()).c_str());
    return 1;
  }
  if (!is_right(kept, steps)) give_up("what was kept", steps);
  std::printf("%llu steps in %d meetings, every sum right\n", static_cast<unsigned long long>(steps), job->meeting());
  return 0;
}
