// setup_time RANKS ROUNDS [TRANSPORT]: measures how long RANKS processes need to create a communicator of all of
// them. In each round the processes start together, and each one measures its own call of Communicator::create(). The
// longest of these times counts. Prints the median and the minimum of the rounds. It uses only the public API, so that
// it can be compiled with another build of the library for comparison.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMostRanks = 512;
constexpr useconds_t kPollUs = 200;

struct Shared {  // shared by the ranks of a round
  std::atomic<int> ready_ranks;
  std::atomic<bool> go;
  std::array<std::atomic<double>, kMostRanks> ms;
};

[[noreturn]] void run_rank(Shared& shared, const tutti::CommunicatorOptions& options) {
  alarm(120);  // ends the rank if the round hangs
  ++shared.ready_ranks;
  while (!shared.go) usleep(kPollUs);
  const auto start = Clock::now();
  const auto made = tutti::Communicator::create(options);
  const std::chrono::duration<double, std::milli> lasted = Clock::now() - start;
  shared.ms[static_cast<std::size_t>(options.rank)] = lasted.count();
  if (!made) std::fprintf(stderr, "rank %d: %s\n", options.rank, to_string(made.error()).c_str());
  _exit(made ? 0 : 1);
}

// Runs one round. Returns the time of the slowest rank in milliseconds, or a negative number if a rank has failed or
// could not be started.
double round_ms(int ranks, int round, const std::string& transport) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -1;
  auto& shared = *new (memory) Shared{};
  tutti::CommunicatorOptions options;
  options.size = ranks;
  options.root = "127.0.0.1:" + std::to_string(20'000 + (getpid() * 31 + round) % 10'000);
  options.job_id = "setup_time " + std::to_string(getpid()) + "." + std::to_string(round);
  options.transport = transport;
  std::vector<pid_t> children;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    const pid_t child = fork();
    if (child == 0) run_rank(shared, options);
    if (child > 0) children.push_back(child);
  }
  while (static_cast<std::size_t>(shared.ready_ranks) < children.size()) usleep(kPollUs);
  usleep(100 * kPollUs);
  shared.go = true;
  bool good = children.size() == static_cast<std::size_t>(ranks);
  for (const pid_t child : children) {
    int status = -1;
    good &= waitpid(child, &status, 0) == child && status == 0;
  }
  double slowest = 0;
  for (int rank = 0; rank < ranks; ++rank) slowest = std::max<double>(slowest, shared.ms[std::size_t(rank)]);
  munmap(memory, sizeof(Shared));
  return good ? slowest : -1;
}

}  // namespace

int main(int count, char** arguments) {
  const int ranks = count > 1 ? std::atoi(arguments[1]) : 0;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 0;
  if (ranks < 1 || ranks > kMostRanks || rounds < 1) {
    std::fprintf(stderr, "usage: setup_time RANKS ROUNDS [TRANSPORT], 1 to %d ranks\n", kMostRanks);
    return 2;
  }
  const std::string transport = count > 3 ? arguments[3] : "auto";
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    times.push_back(round_ms(ranks, round, transport));
    if (times.back() < 0) return 1;
  }
  std::sort(times.begin(), times.end());
  std::printf("%d ranks, %s: median %.2f ms, least %.2f ms, of %d\n", ranks, transport.c_str(), times[times.size() / 2],
              times.front(), rounds);
  return 0;
}
