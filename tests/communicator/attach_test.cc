// Tests ranks as processes that access each other's private memory with system calls (cross-memory attach). The
// results must have the same bits as without attaching, even if one rank cannot be attached to. The other tests
// check the behaviour of the peers if a rank is killed, is stopped, or loses the permission.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <filesystem>
#include <fstream>

#include "communicator/process_support.h"
#include "communicator/single_copy_support.h"
#include "model/parameters.h"

namespace {
std::atomic<int> calls_to_others = 0;  // number of calls of this process that accessed memory of other processes
}  // namespace

// These functions interpose those of the C library, to count the calls.
extern "C" ssize_t process_vm_readv(pid_t process, const iovec* local, unsigned long locals, const iovec* remote,
                                    unsigned long remotes, unsigned long flags) {
  ++calls_to_others;
  return syscall(SYS_process_vm_readv, process, local, locals, remote, remotes, flags);
}
extern "C" ssize_t process_vm_writev(pid_t process, const iovec* local, unsigned long locals, const iovec* remote,
                                     unsigned long remotes, unsigned long flags) {
  ++calls_to_others;
  return syscall(SYS_process_vm_writev, process, local, locals, remote, remotes, flags);
}

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kLong = 1 << 20;  // number of elements; long enough for attaching in every type of collective

CommunicatorOptions attached_job(std::int32_t rank, std::int32_t size, std::uint16_t port, const char* attach) {
  CommunicatorOptions options = job(rank, size, port);
  options.attach = attach;
  return options;
}

std::unique_ptr<Communicator> create(std::int32_t rank, std::int32_t size, std::uint16_t port, const char* attach) {
  auto made = Communicator::create(attached_job(rank, size, port, attach));
  if (!made.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, to_string(made.error()).c_str());
  return made.ok() ? std::move(*made) : nullptr;
}

// Returns whether any rank accesses private memory of others in a long all_gather. All ranks must call it.
bool uses_private_memory(Communicator& rank) {
  constexpr std::size_t kCount = 1 << 16;
  const std::vector<float> own(kCount);
  std::vector<float> all(kCount * static_cast<std::size_t>(rank.size()));
  const int before = calls_to_others;
  if (!rank.all_gather(own.data(), all.data(), kCount, DataType::kFloat32).ok()) std::abort();
  std::int32_t any = calls_to_others > before ? 1 : 0;
  if (!rank.all_reduce(&any, &any, 1, DataType::kInt32, ReduceOp::kMax).ok()) std::abort();
  return any != 0;
}

// The same for an all_reduce in which each of two ranks adds as many bytes as it sends in uses_private_memory().
bool sums_use_private_memory(Communicator& rank) {
  constexpr std::size_t kCount = 2 << 16;
  std::vector<float> data(kCount, 1);
  const int before = calls_to_others;
  if (!rank.all_reduce(data.data(), data.data(), kCount, DataType::kFloat32, ReduceOp::kSum).ok()) std::abort();
  std::int32_t any = calls_to_others > before ? 1 : 0;
  if (!rank.all_reduce(&any, &any, 1, DataType::kInt32, ReduceOp::kMax).ok() || data.back() != 2) std::abort();
  return any != 0;
}

bool is_fine(const std::string& problem) {
  if (!problem.empty()) std::fprintf(stderr, "%s\n", problem.c_str());
  return problem.empty();
}

bool fails_with(const Status& status, ErrorCode code, std::int32_t culprit, const char* says) {
  const bool right = !status.ok() && status.error().code == code && status.error().rank == culprit &&
                     status.error().message.find(says) != std::string::npos;
  if (!right) std::fprintf(stderr, "%s\n", status.ok() ? "no error" : to_string(status.error()).c_str());
  return right;
}

// A root process may access the memory of all processes unless it drops its capabilities.
bool drop_privileges() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0;
}

// Returns whether the kernel lets sibling processes attach to each other. Yama or a container may forbid it.
bool siblings_may_attach() {
  static char byte = 0;
  const pid_t tester = start([] {
    if (!drop_privileges()) return 1;
    const pid_t first = start([] { return pause(); });
    const pid_t second = start([&] {
      char here = 0;
      const iovec local{.iov_base = &here, .iov_len = 1};
      const iovec remote{.iov_base = &byte, .iov_len = 1};
      return process_vm_readv(first, &local, 1, &remote, 1, 0) == 1 ? 0 : 2;
    });
    const int status = status_of(second);
    kill(first, SIGKILL);
    status_of(first);
    return status;
  });
  return status_of(tester) == 0;
}

class AttachedProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (!siblings_may_attach()) GTEST_SKIP() << "this system does not let a process access the memory of a sibling";
  }
};

// Runs body(rank) in one process for each rank. Returns the exit statuses that are not 0, as text.
std::string run_ranks(std::int32_t size, const std::function<int(std::int32_t)>& body) {
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < size; ++rank) children.push_back(start([&, rank] { return body(rank); }));
  std::string problems;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    const int status = status_of(children[static_cast<std::size_t>(rank)]);
    if (status != 0) problems += "rank " + std::to_string(rank) + ": " + std::to_string(status) + "; ";
  }
  return problems;
}

TEST_F(AttachedProcesses, GiveTheBitsOfTheirPlansAndTouchNothingElse) {
  for (const std::int32_t size : {2, 3, 5}) {
    const std::uint16_t ports[] = {free_port(), free_port(), free_port()};
    EXPECT_EQ(run_ranks(size,
                        [&](std::int32_t rank) {
                          const auto off = create(rank, size, ports[0], "off");
                          const auto automatic = create(rank, size, ports[1], "auto");
                          const auto calls = create(rank, size, ports[2], "calls");
                          if (off == nullptr || automatic == nullptr || calls == nullptr) return 2;
                          if (uses_private_memory(*off)) return 3;
                          if (!uses_private_memory(*automatic) || !uses_private_memory(*calls)) return 4;
                          Communicator* const ways[] = {off.get(), automatic.get(), calls.get()};
                          return is_fine(differences(ways, parts_of(rank, size))) ? 0 : 5;
                        }),
              "")
        << size << " ranks";
  }
}

// The sizes of rank 0's file (TUTTI_TUNE_FILE) decide, on all ranks, whether calls use private memory of others.
TEST_F(AttachedProcesses, UseEachOthersMemoryFromTheSizeInTheFileOn) {
  const std::string path = ::testing::TempDir() + "tutti_attach_" + std::to_string(::getpid()) + ".json";
  constexpr std::uint64_t kBytes = std::uint64_t{4} << 16;  // length of a block in uses_private_memory()
  for (const std::uint64_t least : {std::uint64_t{0}, kBytes, kBytes + 1}) {
    Parameters parameters = default_host_parameters(2);
    for (const std::uint32_t cores : {1u, 64u})  // whether or not this machine has a core for each rank
      parameters.choices.push_back({2, cores, {8192, least, least}});
    std::ofstream(path) << to_json(parameters);
    const std::uint16_t port = free_port();
    EXPECT_EQ(run_ranks(2,
                        [&](std::int32_t number) {
                          setenv("TUTTI_TUNE_FILE", number == 0 ? path.c_str() : "/nowhere", 1);
                          auto rank = create(number, 2, port, "auto");
                          if (rank == nullptr) return 1;
                          if (uses_private_memory(*rank) != (least == kBytes)) return 2;
                          return sums_use_private_memory(*rank) == (least == kBytes) ? 0 : 3;
                        }),
              "");
  }
  std::filesystem::remove(path);
}

// Rank 2 cannot be attached to, so no rank attaches. Ranks of a split without rank 2 attach again.
TEST_F(AttachedProcesses, OneThatCannotBeAttachedToSpoilsItForAllItsPeersAlike) {
  constexpr std::int32_t kSize = 4;
  const std::uint16_t ports[] = {free_port(), free_port()};
  EXPECT_EQ(run_ranks(kSize,
                      [&](std::int32_t rank) {
                        if (!drop_privileges()) return 1;
                        if (rank == 2) prctl(PR_SET_DUMPABLE, 0);
                        const auto off = create(rank, kSize, ports[0], "off");
                        const auto automatic = create(rank, kSize, ports[1], rank == 1 ? "calls" : "auto");
                        if (off == nullptr || automatic == nullptr) return 2;
                        if (uses_private_memory(*automatic)) return 3;
                        std::vector<Part> parts = parts_of(rank, kSize);
                        Communicator* const ways[] = {off.get(), automatic.get()};
                        if (!is_fine(differences(ways, parts))) return 4;
                        auto half_off = off->split(rank / 2);
                        auto half = automatic->split(rank / 2);
                        if (!half.ok() || !half_off.ok()) return 5;
                        if (uses_private_memory(**half) != (rank < 2)) return 6;
                        Communicator* const half_ways[] = {half_off->get(), half->get()};
                        return is_fine(differences(half_ways, parts_of(rank % 2, 2))) ? 0 : 7;
                      }),
            "");
}

TEST_F(AttachedProcesses, OneThatLosesTheRightIsNoHangAndNobodysFault) {
  constexpr std::int32_t kSize = 3;
  const std::uint16_t port = free_port();
  EXPECT_EQ(run_ranks(kSize,
                      [&](std::int32_t rank) {
                        if (!drop_privileges()) return 1;
                        const auto communicator = create(rank, kSize, port, "auto");
                        if (communicator == nullptr || !uses_private_memory(*communicator)) return 2;
                        if (!sum_is_right(*communicator, kLong)) return 3;
                        if (rank == 1) prctl(PR_SET_DUMPABLE, 0);
                        if (!communicator->barrier().ok()) return 4;
                        for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
                          Buffers buffers({.kind = kind, .count = kLong}, rank, kSize);
                          buffers.draw(1);
                          const Status status = buffers.run(*communicator, directly(kind));
                          if (!fails_with(status, ErrorCode::kSystem, -1, "")) return 5;
                          const bool first = status.error().message.find("TUTTI_ATTACH=off") != std::string::npos;
                          const bool told = status.error().message.find("gave it up") != std::string::npos;
                          if (!first && !told) return 6;
                        }
                        return sum_is_right(*communicator, 100) ? 0 : 7;  // needs no private memory
                      }),
            "");
}

struct Report {
  std::atomic<int> calls;  // number of successful calls of all ranks
  std::atomic<std::int64_t> noticed_ms[8];
};

// Tests each type of collective, with long calls without pauses between them.
TEST_F(AttachedProcesses, AKilledOneIsNamedByAllSurvivorsInTheMiddleOfEveryKind) {
  constexpr std::int32_t kSize = 3;
  for (const CollectiveKind kind : direct_kinds()) {
    for (const std::int32_t victim : {0, 1}) {  // the root, and one of the others
      Report& report = shared_object<Report>();
      const std::uint16_t port = free_port();
      std::vector<pid_t> children;
      for (std::int32_t rank = 0; rank < kSize; ++rank) {
        children.push_back(start([&, rank] {
          const auto communicator = create(rank, kSize, port, "calls");
          if (communicator == nullptr) return 2;
          Buffers buffers({.kind = kind, .count = 4 * kLong, .type = DataType::kInt32}, rank, kSize);
          buffers.draw(1);
          Status status;
          while (status.ok()) {
            status = buffers.run(*communicator, directly(kind));
            ++report.calls;
          }
          report.noticed_ms[rank] = now_ms();
          return fails_with(status, ErrorCode::kPeerLost, victim, "") ? 0 : 3;
        }));
      }
      wait_for(report.calls, 2 * kSize);
      std::this_thread::sleep_for(std::chrono::microseconds(1000 * victim + 700));
      const std::int64_t killed_ms = now_ms();
      kill(children[static_cast<std::size_t>(victim)], SIGKILL);
      for (std::int32_t rank = 0; rank < kSize; ++rank) {
        const int expected = rank == victim ? 128 + SIGKILL : 0;
        EXPECT_EQ(status_of(children[static_cast<std::size_t>(rank)]), expected) << to_string(kind) << ", " << rank;
        if (rank == victim) continue;
        EXPECT_LT(report.noticed_ms[rank] - killed_ms, patience().count())
            << "the documented limit is one second on an idle machine";
      }
    }
  }
}

TEST_F(AttachedProcesses, AStoppedOneIsWaitedFor) {
  constexpr std::int32_t kSize = 3;
  Report& report = shared_object<Report>();
  const std::uint16_t ports[] = {free_port(), free_port()};
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    children.push_back(start([&, rank] {
      const auto off = create(rank, kSize, ports[0], "off");
      const auto calls = create(rank, kSize, ports[1], "calls");
      if (off == nullptr || calls == nullptr) return 2;
      Communicator* const ways[] = {off.get(), calls.get(), calls.get()};
      ++report.calls;
      if (!is_fine(differences(ways, parts_of(rank, kSize)))) return 3;
      return 0;
    }));
  }
  wait_for(report.calls, kSize);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = children[static_cast<std::size_t>(round % kSize)];
    kill(child, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(30));
    kill(child, SIGCONT);
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(status_of(children[static_cast<std::size_t>(rank)]), 0) << "rank " << rank;
  }
}

}  // namespace
}  // namespace tutti::test
