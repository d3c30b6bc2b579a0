// Tests of a rank that cannot receive the descriptor of a peer's memory, or cannot map that memory. The exchange
// reports the loss with its cause, and the owner shares the memory again.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "shm_ranks.h"

namespace {
std::atomic<bool> forbids_descriptors = false;
}  // namespace

// Replaces the C library's recvmsg() in this whole program. If `forbids_descriptors` is set, a message arrives
// without its descriptor and with MSG_CTRUNC, as happens when a security module forbids the descriptor.
extern "C" ssize_t recvmsg(int socket, struct msghdr* message, int flags) {
  using Function = ssize_t (*)(int, struct msghdr*, int);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t bytes = next(socket, message, flags);
  cmsghdr* const header = bytes < 0 ? nullptr : CMSG_FIRSTHDR(message);
  if (!forbids_descriptors || header == nullptr || header->cmsg_type != SCM_RIGHTS) return bytes;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  close(fd);
  message->msg_controllen = 0;
  message->msg_flags |= MSG_CTRUNC;
  return bytes;
}

namespace tutti {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Lowers a resource limit of this process during the lifetime of the object.
class LowerLimit {
 public:
  LowerLimit(decltype(RLIMIT_NOFILE) which, rlim_t limit) : which_(which) {
    EXPECT_EQ(getrlimit(which_, &before_), 0);
    const rlimit lower{.rlim_cur = limit, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(which_, &lower), 0);
  }
  ~LowerLimit() { EXPECT_EQ(setrlimit(which_, &before_), 0); }
  LowerLimit(const LowerLimit&) = delete;
  LowerLimit& operator=(const LowerLimit&) = delete;

 private:
  decltype(RLIMIT_NOFILE) which_;
  rlimit before_{};
};

// With this limit no descriptor number is free, even after one has been closed: 0, 1 and 2 are in use.
constexpr rlim_t kNoFiles = 3;

// Takes every free descriptor number during the lifetime of the object.
class EveryDescriptor {
 public:
  EveryDescriptor() {
    for (int fd = dup(STDIN_FILENO); fd >= 0; fd = dup(STDIN_FILENO)) taken_.push_back(fd);
    EXPECT_EQ(errno, EMFILE) << "dup() must fail only because descriptors have run out";
  }
  ~EveryDescriptor() {
    for (const int fd : taken_) close(fd);
  }

 private:
  LowerLimit limit_{RLIMIT_NOFILE, 200};
  std::vector<int> taken_;
};

rlim_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * page_size();
}
constexpr std::size_t kFreeSpace = std::size_t{64} << 20;  // for allocations that are not part of a test
constexpr std::size_t kTooLong = 4 * kFreeSpace;
constexpr std::size_t kAdopted = std::size_t{16} << 20;

std::shared_ptr<Mapping> memory(const char* text, std::size_t bytes = 4096) {
  auto mapping = Mapping::create(bytes, false).value();
  std::strcpy(reinterpret_cast<char*>(mapping->data()), text);
  return mapping;
}

std::string text_at(const std::shared_ptr<Mapping>& mapping) {
  return mapping == nullptr ? "nothing" : reinterpret_cast<const char*>(mapping->data());
}

// The reader first asks the owner to share the memory again, and reports the loss only if that fails. The owner
// answers in pump().
std::string text_when_shared_again(SegmentExchange& owner, SegmentExchange& reader, std::uint32_t id) {
  EXPECT_TRUE(reader.loss(0, id));
  EXPECT_FALSE(reader.take_loss(0, id)) << "the reader must ask the owner again before it reports a loss";
  owner.pump();
  return text_at(reader.find(0, id));
}

TEST(LostMemory, ArrivesByTheSpareDescriptorWhenNoOtherIsFree) {
  Exchanges ranks = unix_exchanges(2);
  const auto first = memory("first");
  const auto second = memory("second");
  const EveryDescriptor taken;
  for (const auto& mapping : {first, second}) {
    const std::uint32_t id = ranks[0]->share(mapping, {});
    EXPECT_EQ(text_at(ranks[1]->find(0, id)), text_at(mapping));
    EXPECT_FALSE(ranks[1]->take_loss(0, id));
  }
}

TEST(LostMemory, ADescriptorThatCouldNotBeReceivedIsNamedOnceAndSharedAgain) {
  Exchanges ranks = unix_exchanges(2);
  const auto mapping = memory("late");
  std::uint32_t id = 0;
  {
    const LowerLimit none(RLIMIT_NOFILE, kNoFiles);
    id = ranks[0]->share(mapping, {});
    EXPECT_EQ(ranks[1]->find(0, id), nullptr);
    for (int call = 0; call < 2; ++call) {
      EXPECT_EQ(text_when_shared_again(*ranks[0], *ranks[1], id), "nothing");
      const auto loss = ranks[1]->take_loss(0, id);
      ASSERT_TRUE(loss);
      EXPECT_EQ(loss->lacked, CallArgument::kDescriptors);
      EXPECT_NE(loss->why.find("ulimit -n, now 3"), std::string::npos) << loss->why;
    }
  }
  EXPECT_EQ(text_when_shared_again(*ranks[0], *ranks[1], id), "late");
  EXPECT_FALSE(ranks[1]->loss(0, id));
  EXPECT_FALSE(ranks[1]->take_loss(0, id));
  EXPECT_FALSE(ranks[1]->peer_gone(0));
}

TEST(LostMemory, OfAMappingThatWasTakenBackNothingIsSaid) {
  Exchanges ranks = unix_exchanges(2);
  const auto mapping = memory("taken back");
  const LowerLimit none(RLIMIT_NOFILE, kNoFiles);
  const std::uint32_t id = ranks[0]->share(mapping, {});
  ranks[1]->pump();
  ranks[0]->unshare(id, {});
  ranks[1]->pump();
  EXPECT_FALSE(ranks[1]->loss(0, id));
}

TEST(LostMemory, WhatCannotBeMappedIsNamedOnceAndSharedAgain) {
  Exchanges ranks = unix_exchanges(2);
  const auto mapping = memory("long", kTooLong);
  std::uint32_t id = 0;
  {
    const LowerLimit space(RLIMIT_AS, address_space() + kFreeSpace);
    id = ranks[0]->share(mapping, {});
    EXPECT_EQ(ranks[1]->find(0, id), nullptr);
    EXPECT_EQ(text_when_shared_again(*ranks[0], *ranks[1], id), "nothing");
    const auto loss = ranks[1]->take_loss(0, id);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->lacked, CallArgument::kMappings);
    EXPECT_NE(loss->why.find("vm.max_map_count"), std::string::npos) << loss->why;
  }
  EXPECT_EQ(text_when_shared_again(*ranks[0], *ranks[1], id), "long");
}

// Adopted memory of a rank in the same process. Each rank of the process maps its own view of it.
TEST(LostMemory, OfARankInTheSameProcessIsNamedAndMappedLater) {
  Exchanges ranks = in_process_exchanges(2);
  void* data = mmap(nullptr, kAdopted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  auto adopted = Mapping::adopt(data, kAdopted).value();
  std::strcpy(static_cast<char*>(data), "adopted");
  const std::uint32_t id = ranks[0]->share(adopted, {});
  {
    const LowerLimit space(RLIMIT_AS, address_space() + kAdopted / 2);
    EXPECT_EQ(ranks[1]->find(0, id), nullptr);
    const auto loss = ranks[1]->take_loss(0, id);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->lacked, CallArgument::kMappings);
  }
  const LowerLimit files(RLIMIT_NOFILE, kNoFiles);
  EXPECT_EQ(text_at(ranks[1]->find(0, id)), "adopted") << "mapping it needs no descriptor";
  ranks[0]->unshare(id, {});
  adopted.reset();
  munmap(data, kAdopted);
}

TEST(LostMemory, AFileThatCouldNotBeReceivedIsNamed) {
  Exchanges ranks = unix_exchanges(2);
  const int fd = memfd_create("file", MFD_CLOEXEC);
  const LowerLimit none(RLIMIT_NOFILE, kNoFiles);
  const std::uint32_t id = ranks[0]->share_file(fd, {});
  EXPECT_EQ(ranks[1]->take_file(0, id), -1);
  const auto loss = ranks[1]->take_loss(0, id);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->lacked, CallArgument::kDescriptors);
}

TEST(LostMemory, ADescriptorThatTheSystemForbidsIsNotTakenForAShortage) {
  Exchanges ranks = unix_exchanges(2);
  const auto mapping = memory("forbidden");
  forbids_descriptors = true;
  const std::uint32_t id = ranks[0]->share(mapping, {});
  ranks[1]->pump();
  const auto loss = ranks[1]->loss(0, id);
  forbids_descriptors = false;
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->lacked, CallArgument::kPermission);
  EXPECT_EQ(loss->why.find("ulimit"), std::string::npos) << loss->why;
  EXPECT_NE(loss->why.find("the system forbids"), std::string::npos) << loss->why;
}

// If the rank waited until the deadline instead, the test would take 600 s.
TEST(LostMemory, DuringSetUpIsAnErrorAtOnce) {
  Exchanges ranks = unix_exchanges(2);
  const auto mine = memory("mine");
  const auto mapping = memory("peer's");
  const LowerLimit none(RLIMIT_NOFILE, kNoFiles);
  const std::uint32_t id = ranks[0]->share(mapping, {});
  SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  const auto offers = collect_offers(*ranks[1], 1, {id, 1}, mine, clock, begin_ns + 600 * kSecond);
  ASSERT_FALSE(offers.ok());
  EXPECT_EQ(offers.error().code, ErrorCode::kSystem);
  EXPECT_EQ(offers.error().rank, 1) << "the error must name this rank, because this rank lacks descriptors";
  EXPECT_NE(offers.error().message.find("ulimit -n"), std::string::npos) << offers.error().message;
}

// Rank 0 never shares its memory. If rank 1 waited until the deadline instead, the test would take 600 s.
TEST(LostMemory, IsNotAwaitedAfterTheSetUpHasFailed) {
  Exchanges ranks = unix_exchanges(2);
  SteadyClock clock;
  int asked = 0;
  const auto offers = collect_offers(*ranks[1], 1, {1, 1}, memory("mine"), clock, clock.now_ns() + 600 * kSecond,
                                     [&] { return ++asked == 3; });
  ASSERT_FALSE(offers.ok());
  EXPECT_EQ(offers.error(), set_up_has_failed(0));
}

}  // namespace
}  // namespace tutti
