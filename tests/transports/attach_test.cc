// Tests of cross-memory attach (CMA): reading and writing another process's memory with process_vm_readv() and
// process_vm_writev(). The peers are forked children, so at first their memory is a copy of ours at the same
// addresses.
#include "transports/shm/attach.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/support/patience.h"

namespace tutti {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 80;  // more than the kernel pins in one batch
constexpr std::size_t kBytes = kPages * kPage;

// Anonymous pages, private by default. Children that are forked later have them at the same address.
class Pages {
 public:
  explicit Pages(int kind = MAP_PRIVATE)
      : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(data_, kBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::byte* page(std::size_t index) const { return data() + index * kPage; }
  std::uint64_t address(std::size_t byte = 0) const { return reinterpret_cast<std::uintptr_t>(data_) + byte; }

 private:
  void* data_;
};

// Time limit of a child, in seconds, so that no child outlives a broken test.
const unsigned kLongestChildS = static_cast<unsigned>(2 * test::patience() / std::chrono::seconds(1));

// A forked child. The constructor returns when the child has run body(). The child then does nothing until it is
// killed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    int done[2];
    EXPECT_EQ(pipe(done), 0);
    process_ = fork();
    if (process_ == 0) {
      alarm(kLongestChildS);
      body();
      static_cast<void>(!write(done[1], "", 1));
      while (true) pause();
    }
    char byte = 1;
    EXPECT_EQ(read(done[0], &byte, 1), 1);
    close(done[0]);
    close(done[1]);
  }
  ~Child() {
    kill();
    reap();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t process() const { return process_; }
  // The process number stays in use until reap() is called.
  void kill() const { ::kill(process_, SIGKILL); }
  void reap() {
    if (!std::exchange(reaped_, true)) waitpid(process_, nullptr, 0);
  }

 private:
  pid_t process_ = 0;
  bool reaped_ = false;
};

// Returns the exit status of a child that runs body(), for actions that must not change the test's own process.
int in_a_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLongestChildS);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Root may trace any process, so permission checks do not apply to it unless it drops its capabilities.
bool drop_privileges() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0;
}

// From now on this system call fails with EPERM in this process, as it does in many containers.
bool forbid(unsigned call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = 4, .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

std::byte pattern(std::size_t i, unsigned seed) { return static_cast<std::byte>(i * 31 + i / kPage + seed); }

void fill(const Pages& pages, unsigned seed) {
  for (std::size_t i = 0; i < kBytes; ++i) pages.data()[i] = pattern(i, seed);
}

// Whether this system lets us access the memory of a child at all. Some kernels and containers forbid it for every
// process.
bool attaching_is_allowed() {
  const Pages pages;
  const Child child([] {});
  std::byte byte{};
  return read_process(child.process(), pages.address(), &byte, 1) == MemoryAccess::kDone;
}

class Attach : public testing::Test {
 protected:
  void SetUp() override {
    if (!attaching_is_allowed()) GTEST_SKIP() << "this system does not permit access to the memory of other processes";
  }
};

TEST_F(Attach, ReadsAndWritesTheOtherProcessAndNotItsOwnCopy) {
  const Pages pages;
  fill(pages, 1);
  const Child child([&] { fill(pages, 2); });
  for (const std::size_t start : {std::size_t{0}, std::size_t{1}, kPage - 1}) {
    for (const std::size_t bytes : {std::size_t{1}, kPage - 1, kPage, kPage + 1, kBytes - kPage}) {
      std::vector<std::byte> here(bytes + 1, std::byte{0xee});
      ASSERT_EQ(read_process(child.process(), pages.address(start), here.data(), bytes), MemoryAccess::kDone);
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(here[i], pattern(start + i, 2)) << start << " " << i;
      EXPECT_EQ(here[bytes], std::byte{0xee});
    }
  }
  const std::vector<std::byte> there(kPage + 2, std::byte{0x5a});
  ASSERT_EQ(write_process(child.process(), pages.address(kPage - 1), there.data(), there.size()), MemoryAccess::kDone);
  std::vector<std::byte> back(kBytes);
  ASSERT_EQ(read_process(child.process(), pages.address(), back.data(), kBytes), MemoryAccess::kDone);
  for (std::size_t i = 0; i < kBytes; ++i) {
    const bool written = i >= kPage - 1 && i < 2 * kPage + 1;
    ASSERT_EQ(back[i], written ? std::byte{0x5a} : pattern(i, 2)) << i;
    ASSERT_EQ(pages.data()[i], pattern(i, 1)) << i;
  }
}

TEST_F(Attach, RefusesARangeThatIsNotAllMemory) {
  const Pages pages;
  for (const std::size_t hole : {std::size_t{0}, std::size_t{1}, std::size_t{40}, kPages - 1}) {
    const Child child([&] { munmap(pages.page(hole), kPage); });
    std::vector<std::byte> here(kBytes);
    EXPECT_EQ(read_process(child.process(), pages.address(), here.data(), kBytes), MemoryAccess::kRefused) << hole;
    EXPECT_EQ(write_process(child.process(), pages.address(), here.data(), kBytes), MemoryAccess::kRefused) << hole;
    EXPECT_EQ(read_process(child.process(), pages.address(), here.data(), hole * kPage), MemoryAccess::kDone) << hole;
    const std::uint64_t edge = pages.address(hole * kPage) - 1;
    EXPECT_EQ(read_process(child.process(), edge, here.data(), 2), MemoryAccess::kRefused) << hole;
  }
}

TEST_F(Attach, RefusesToWriteWhatItsOwnerMayOnlyRead) {
  const Pages pages;
  fill(pages, 3);
  const Child child([&] { mprotect(pages.page(1), kPage, PROT_READ); });
  std::vector<std::byte> here(3 * kPage, std::byte{0x11});
  EXPECT_EQ(write_process(child.process(), pages.address(), here.data(), here.size()), MemoryAccess::kRefused);
  ASSERT_EQ(read_process(child.process(), pages.address(), here.data(), here.size()), MemoryAccess::kDone);
  for (std::size_t i = kPage; i < here.size(); ++i) ASSERT_EQ(here[i], pattern(i, 3)) << i;
}

// The kernel returns the same error for bad memory on either side, so the code must find out whose memory is bad.
TEST_F(Attach, TellsItsOwnBadMemoryFromThePeers) {
  const Pages pages;
  const Child child([&] { munmap(pages.page(3), kPage); });
  const Pages here;
  mprotect(here.page(2), kPage, PROT_NONE);
  EXPECT_EQ(read_process(child.process(), pages.address(), here.data(), kBytes), MemoryAccess::kOwnRefused);
  EXPECT_EQ(write_process(child.process(), pages.address(), here.data(), kBytes), MemoryAccess::kOwnRefused);
  mprotect(here.page(2), kPage, PROT_READ);
  EXPECT_EQ(read_process(child.process(), pages.address(), here.data(), kBytes), MemoryAccess::kOwnRefused);
  EXPECT_EQ(write_process(child.process(), pages.address(), here.data(), kBytes), MemoryAccess::kRefused);
  mprotect(here.page(2), kPage, PROT_READ | PROT_WRITE);
  EXPECT_EQ(read_process(child.process(), pages.address(), here.data(), kBytes), MemoryAccess::kRefused);
}

TEST_F(Attach, SaysThatAProcessHasEnded) {
  const Pages pages;
  Child child([] {});
  child.kill();
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.process()), &ended, WEXITED | WNOWAIT), 0);
  std::byte byte{};
  EXPECT_EQ(read_process(child.process(), pages.address(), &byte, 1), MemoryAccess::kGone) << "not reaped";
  EXPECT_EQ(write_process(child.process(), pages.address(), &byte, 1), MemoryAccess::kGone);
  child.reap();
  EXPECT_EQ(read_process(child.process(), pages.address(), &byte, 1), MemoryAccess::kGone);
}

TEST_F(Attach, FindsTheOwnerOfASegmentAndNobodyElse) {
  const Pages shared(MAP_SHARED);
  auto* header = reinterpret_cast<SegmentHeader*>(shared.data());
  Child child([&] {
    auto segment = Segment::create({.ranks = 2}, 1);
    if (segment.ok()) *header = segment->header();
    new Segment(std::move(*segment));  // leaked on purpose: it must exist as long as the child
  });
  ASSERT_TRUE(can_attach(child.process(), *header));
  EXPECT_FALSE(can_attach(getpid(), *header)) << "at that address we have something else or nothing";
  EXPECT_FALSE(can_attach(0, *header));
  EXPECT_FALSE(can_attach(-1, *header));
  SegmentHeader other = *header;
  other.nonce[1] ^= 1;
  EXPECT_FALSE(can_attach(child.process(), other));
  other = *header;
  other.address += kPage;
  EXPECT_FALSE(can_attach(child.process(), other));
  other = *header;
  other.address = ~std::uint64_t{0} - 8;
  EXPECT_FALSE(can_attach(child.process(), other));
  other = *header;
  other.address = shared.address(kPage);
  std::memcpy(shared.page(1), &other, sizeof other);
  EXPECT_TRUE(can_attach(child.process(), other));
  other.nonce = {};
  std::memcpy(shared.page(1), &other, sizeof other);
  EXPECT_FALSE(can_attach(child.process(), other)) << "anybody's header could be this one";
  child.kill();
  child.reap();
  EXPECT_FALSE(can_attach(child.process(), *header));
}

TEST_F(Attach, IsForbiddenByAnUndumpableOwner) {
  const Pages pages;
  EXPECT_EQ(in_a_child([&] {
              if (!drop_privileges()) return 1;
              const Child open([] {});
              const Child closed([] { prctl(PR_SET_DUMPABLE, 0); });
              std::byte byte{};
              if (read_process(open.process(), pages.address(), &byte, 1) != MemoryAccess::kDone) return 2;
              if (read_process(closed.process(), pages.address(), &byte, 1) != MemoryAccess::kForbidden) return 3;
              if (write_process(closed.process(), pages.address(), &byte, 1) != MemoryAccess::kForbidden) return 4;
              return 0;
            }),
            0);
}

// A system-call filter may forbid only one of the two calls, but attaching needs both.
TEST_F(Attach, NeedsBothSystemCalls) {
  auto segment = Segment::create({.ranks = 2}, 0);
  ASSERT_TRUE(segment.ok());
  const pid_t owner = getpid();
  const auto attaches = [&](unsigned forbidden) {
    return in_a_child([&] {
      if (forbidden != 0 && !forbid(forbidden)) return 2;
      std::byte byte{};
      const auto read = read_process(owner, segment->header().address, &byte, 1);
      if (forbidden == SYS_process_vm_readv && read != MemoryAccess::kForbidden) return 3;
      return can_attach(owner, segment->header()) ? 1 : 0;
    });
  };
  if (attaches(0) != 1) GTEST_SKIP() << "this system does not let a child access its parent's memory";
  EXPECT_EQ(attaches(SYS_process_vm_readv), 0);
  EXPECT_EQ(attaches(SYS_process_vm_writev), 0);
}

}  // namespace
}  // namespace tutti
