// many_processes RANKS: starts RANKS processes on this machine, which create a communicator and make one all_reduce
// of 8 bytes.
//
// Exit status: 0 if all ranks get the right sum; 77 with a reason if the machine has too little memory. When one
// rank fails, the program ends the others, because they would wait for it until the deadline. The ranks are forked
// without exec, so that they share the memory of the program and its libraries.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/byte_text.h"
#include "tests/support/ports.h"
#include "topology/memory.h"
#include "tutti/communicator.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSkipped = 77;
constexpr std::chrono::seconds kDeadline{600};  // 1,024 ranks take minutes on two cores
// kernel memory for each pair of ranks (sockets, page tables); measured
constexpr std::uint64_t kPairBytes = 8 << 10;
constexpr std::uint64_t kRankBytes = std::uint64_t{3} << 20;  // memory of a process; measured
constexpr rlim_t kOtherDescriptors = 64;

int run_rank(int rank, int ranks, std::uint16_t port) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(static_cast<unsigned>(2 * kDeadline.count()));
  tutti::CommunicatorOptions options;
  options.rank = rank;
  options.size = ranks;
  options.root = "127.0.0.1:" + std::to_string(port);
  options.job_id = "many-processes";
  options.setup_timeout = kDeadline;
  options.timeout = kDeadline;
  auto communicator = tutti::Communicator::create(options);
  if (!communicator) {
    std::fprintf(stderr, "rank %d: %s\n", rank, communicator.error().message.c_str());
    return 1;
  }
  const std::int64_t mine = rank;
  std::int64_t sum = 0;
  const tutti::Status done =
      (*communicator)->all_reduce(&mine, &sum, 1, tutti::DataType::kInt64, tutti::ReduceOp::kSum);
  const std::int64_t expected = std::int64_t{ranks} * (ranks - 1) / 2;
  if (done.ok() && sum == expected) return 0;
  std::fprintf(stderr, "rank %d: the sum is %lld, not %lld: %s\n", rank, static_cast<long long>(sum),
               static_cast<long long>(expected), done.ok() ? "no error" : done.error().message.c_str());
  return 1;
}

// Raises the soft limit of open files if it is too low and the hard limit allows it. Returns whether the limit
// suffices.
bool has_descriptors(int ranks) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
  const rlim_t needed = 2 * static_cast<rlim_t>(ranks) + kOtherDescriptors;
  if (files.rlim_cur >= needed) return true;
  if (files.rlim_max < needed) return false;
  files.rlim_cur = needed;
  return setrlimit(RLIMIT_NOFILE, &files) == 0;
}

void end_all(const std::vector<pid_t>& children) {
  for (const pid_t child : children) kill(child, SIGKILL);
}

// Returns the number of ranks that got the right result.
int run_all(int ranks, std::uint16_t port) {
  std::vector<pid_t> running;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(run_rank(rank, ranks, port));
    if (child < 0) {
      std::perror("fork");
      end_all(running);
      break;
    }
    running.push_back(child);
  }
  int right = 0;
  while (!running.empty()) {
    int status = 0;
    const pid_t child = waitpid(-1, &status, 0);
    if (child < 0) break;
    std::erase(running, child);
    if (status == 0) ++right;
    if (status != 0) end_all(running);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc == 2 ? std::atoi(argv[1]) : 0;
  if (ranks < 1) return 2;
  const auto count = static_cast<std::uint64_t>(ranks);
  const std::uint64_t needed = count * count * kPairBytes + count * kRankBytes;
  if (const std::uint64_t free = tutti::available_memory().shared_bytes(); free < needed) {
    std::printf("skipped: %s of memory are needed, and %s are free\n", tutti::text_of_bytes(needed).c_str(),
                tutti::text_of_bytes(free).c_str());
    return kSkipped;
  }
  if (!has_descriptors(ranks)) {
    std::puts("too few descriptors: raise the hard limit (ulimit -Hn)");
    return 1;
  }
  const std::uint16_t port = tutti::test::free_port();
  std::fflush(nullptr);
  const Clock::time_point start = Clock::now();
  const int right = run_all(ranks, port);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start);
  std::printf("%d of %d ranks have the right sum, after %lld s\n", right, ranks,
              static_cast<long long>(seconds.count()));
  return right == ranks ? 0 : 1;
}
