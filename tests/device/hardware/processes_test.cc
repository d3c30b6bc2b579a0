// Tests of ranks in several processes that share one GPU: they map each other's memory, run calls in rounds of short
// kernels, and use registered memory in place. A process that has used the driver must not fork, so a test starts its
// own program again, once for each rank.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/device/hardware/support.h"

namespace tutti::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr const char* kRank = "GPU_TEST_RANK";  // the rank of this process; not set in the process that starts the test
constexpr int kDone = 42;                       // exit status of a rank if all checks passed and nothing was skipped

class GpuProcesses : public GpuCalls {
 protected:
  // Calls body(communicator, resources) in `ranks` processes. `settings` are environment variables of these processes,
  // in the form "NAME=VALUE".
  void in_processes(std::int32_t ranks, std::size_t bytes, const std::vector<std::string>& settings,
                    const std::function<void(Communicator&, const RankResources&)>& body) {
    const char* const rank = std::getenv(kRank);
    if (rank == nullptr) return start(ranks, settings);
    {
      CommunicatorOptions options;
      options.rank = std::atoi(rank);
      options.size = ranks;
      auto communicator = Communicator::create(options);
      if (!communicator.ok()) {
        fprintf(stderr, "rank %s: %s\n", rank, to_string(communicator.error()).c_str());
        _exit(1);
      }
      const RankResources resources(gpu(), bytes);
      body(**communicator, resources);
      const Status last = (*communicator)->barrier();  // no rank frees memory before the others are done with it
      EXPECT_TRUE(last.ok()) << to_string(last.error());
      communicator->reset();
    }
    _exit(HasFailure() ? 1 : kDone);
  }

 private:
  static void start(std::int32_t ranks, const std::vector<std::string>& settings) {
    const int listening = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&address), length), 0);
    ASSERT_EQ(listen(listening, 64), 0);
    ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length), 0);
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    const std::string filter = std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
    std::vector<pid_t> processes;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> variables = settings;
      variables.push_back(std::string(kRank) + "=" + std::to_string(rank));
      variables.push_back("TUTTI_ROOT=127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
      variables.emplace_back("TUTTI_JOB_ID=gpu processes");
      if (rank == 0) variables.push_back("TUTTI_ROOT_FD=" + std::to_string(listening));
      processes.push_back(spawn(filter, std::move(variables)));
    }
    close(listening);
    for (std::size_t i = 0; i < processes.size(); ++i) {
      int status = 0;
      ASSERT_EQ(waitpid(processes[i], &status, 0), processes[i]);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kDone) << "rank " << i << " ended with " << status;
    }
  }

  static pid_t spawn(std::string filter, std::vector<std::string> variables) {
    std::string program = "/proc/self/exe";
    std::string brief = "--gtest_brief=1";
    std::vector<char*> arguments = {program.data(), filter.data(), brief.data(), nullptr};
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    pid_t process = 0;
    EXPECT_EQ(posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments.data(), environment.data()), 0);
    return process;
  }
};

Bytes gathered(std::int32_t ranks, std::size_t bytes, int first) {
  Bytes all;
  for (std::int32_t r = 0; r < ranks; ++r) all.insert(all.end(), bytes, static_cast<std::byte>(first + r));
  return all;
}

// Runs and checks a call that adds (all_reduce) and a call that only moves data (all_gather).
void check_calls(Communicator& rank, const RankResources& resources, std::size_t bytes, int round) {
  const auto ranks = static_cast<int>(rank.size());
  resources.put(resources.memory(), Bytes(bytes, static_cast<std::byte>(round + rank.rank())));
  Status status =
      rank.all_reduce(resources.data(), resources.data(), bytes, DataType::kUint8, ReduceOp::kSum, resources.options());
  ASSERT_TRUE(status.ok()) << to_string(status.error());
  EXPECT_EQ(resources.get(resources.memory(), bytes),
            Bytes(bytes, static_cast<std::byte>(ranks * round + ranks * (ranks - 1) / 2)))
      << bytes << " bytes";
  resources.put(resources.memory(), Bytes(bytes, static_cast<std::byte>(round + rank.rank())));
  std::byte* const output = bench::pointer_to(resources.other());
  status = rank.all_gather(resources.data(), output, bytes, DataType::kUint8, resources.options());
  ASSERT_TRUE(status.ok()) << to_string(status.error());
  EXPECT_EQ(resources.get(resources.other(), bytes * rank.size()), gathered(rank.size(), bytes, round))
      << bytes << " bytes";
}

TEST_F(GpuProcesses, ShareTheGpu) {
  constexpr std::size_t kMost = 30'000;
  in_processes(3, 3 * kMost, {}, [this](Communicator& rank, const RankResources& resources) {
    int round = 0;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{5'000}, kMost})
      check_calls(rank, resources, bytes, ++round);
    EXPECT_TRUE(rank.async_status().ok());
    expect_on_the_gpu(rank, 6);
  });
}

void check_registered(Communicator& rank, const RankResources& resources) {
  constexpr std::size_t kBytes = 20'000;
  if (!rank.runs_on_devices()) return;  // without device code, the host carries out the calls and registration fails
  auto input = rank.register_memory(resources.data(), resources.memory().bytes());
  ASSERT_TRUE(input.ok()) << to_string(input.error());
  auto output = rank.register_memory(bench::pointer_to(resources.other()), resources.other().bytes());
  ASSERT_TRUE(output.ok()) << to_string(output.error());
  for (int round = 1; round < 6; ++round) check_calls(rank, resources, kBytes, round);
  EXPECT_TRUE(rank.async_status().ok());
  EXPECT_TRUE(rank.barrier().ok());
}

TEST_F(GpuProcesses, UseRegisteredMemoryInPlace) {
  in_processes(2, 64 << 10, {}, [this](Communicator& rank, const RankResources& resources) {
    check_registered(rank, resources);
    expect_on_the_gpu(rank, 10);
  });
}

// The all_gather calls are carried out by copies of the driver from the peers' registered inputs.
TEST_F(GpuProcesses, CopyOutOfRegisteredMemory) {
  in_processes(2, 64 << 10, {"TUTTI_DEVICE_COPIES=1"}, [this](Communicator& rank, const RankResources& resources) {
    check_registered(rank, resources);
    expect_on_the_gpu(rank, 10);
  });
}

}  // namespace
}  // namespace tutti::test
