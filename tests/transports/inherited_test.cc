// Tests of close_in_children(): a forked child keeps none of the library's descriptors. Each is replaced by
// /dev/null.
#include "transports/inherited.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/patience.h"

namespace tutti {
namespace {

bool is_null_device(int fd) {
  struct stat found {};
  struct stat null {};
  return fstat(fd, &found) == 0 && stat("/dev/null", &null) == 0 && found.st_rdev == null.st_rdev;
}

// Returns the exit status of body() in a forked child.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class Inherited : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  void TearDown() override {
    forget_in_children(ends_[0]);
    for (const int fd : ends_) {
      if (fd >= 0) close(fd);
    }
  }
  int ends_[2] = {-1, -1};
};

TEST_F(Inherited, ARegisteredDescriptorIsReplacedInTheChildAndOthersAreKept) {
  close_in_children(ends_[0]);
  EXPECT_EQ(in_child([&] { return is_null_device(ends_[0]) && !is_null_device(ends_[1]) ? 0 : 1; }), 0);
  EXPECT_FALSE(is_null_device(ends_[0])) << "in the parent";
}

TEST_F(Inherited, OneThatWasForgottenIsKept) {
  close_in_children(ends_[0]);
  forget_in_children(ends_[0]);
  EXPECT_EQ(in_child([&] { return is_null_device(ends_[0]) ? 1 : 0; }), 0);
}

// If the child kept its copy of the descriptor, the other end would see the end only when the child exits.
TEST_F(Inherited, TheOtherEndSeesTheEndWhileTheChildLives) {
  close_in_children(ends_[0]);
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends_[1]);
    close(hold[1]);
    char byte = 0;
    _exit(static_cast<int>(read(hold[0], &byte, 1)));  // waits until the test closes its end of the pipe
  }
  forget_in_children(ends_[0]);
  close(ends_[0]);
  ends_[0] = -1;
  pollfd end{.fd = ends_[1], .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&end, 1, static_cast<int>(test::patience().count())), 1);
  close(hold[1]);
  close(hold[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

// The process has no free descriptor number to open /dev/null, so another replacement is needed.
TEST_F(Inherited, IsReplacedWhereNoNumberIsFree) {
  close_in_children(ends_[0]);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int status = in_child([&] {
    setrlimit(RLIMIT_NOFILE, &limit);
    struct stat found {};
    return fstat(ends_[0], &found) == 0 && S_ISSOCK(found.st_mode) ? 1 : 0;
  });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tutti
