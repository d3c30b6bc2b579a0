// Tests of ProcessWatch: it notices that a process has ended, even if the parent has not waited for it yet, and if
// this process had no free descriptor when the watch was created.
#include "transports/shm/process_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "tests/support/patience.h"

namespace tutti {
namespace {

// Returns a child that runs until it is killed.
pid_t start_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(2 * test::patience() / std::chrono::seconds(1)));
    while (true) pause();
  }
  return child;
}

// This process can open no further descriptor during the lifetime of the object.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDERR_FILENO);
    close(next);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(next);
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(ProcessWatch, NoticesTheEndBeforeTheParentWaits) {
  const pid_t child = start_child();
  const ProcessWatch watch(child);
  EXPECT_GE(watch.fd(), 0);
  EXPECT_FALSE(watch.has_ended());
  kill(child, SIGKILL);
  EXPECT_TRUE(test::eventually([&] { return watch.has_ended(); }));
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(watch.has_ended());
}

TEST(ProcessWatch, NoticesTheEndThoughDescriptorsHadRunOut) {
  const pid_t child = start_child();
  std::optional<NoDescriptors> none(std::in_place);
  const ProcessWatch watch(child);
  EXPECT_EQ(watch.fd(), -1);
  EXPECT_FALSE(watch.has_ended());
  none.reset();
  EXPECT_FALSE(watch.has_ended());
  kill(child, SIGKILL);
  EXPECT_TRUE(test::eventually([&] { return watch.has_ended(); }));
  none.emplace();
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(watch.has_ended());
}

// The number 0 stands for a process that is invisible here, because it is in another process namespace.
TEST(ProcessWatch, OfAnotherNamespaceNoticesNothing) { EXPECT_FALSE(ProcessWatch(0).has_ended()); }

}  // namespace
}  // namespace tutti
