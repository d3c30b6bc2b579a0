// Test of the launcher's list of processes, when some processes end while the list is read.
#include "tools/run/descendants.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace tutti::tool {
namespace {

TEST(Descendants, AreListedWhileOthersEnd) {
  const pid_t stays = fork();
  if (stays == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) pause();
  }
  const pid_t busy = fork();  // always has a child that is about to end
  if (busy == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCHLD, SIG_IGN);
    while (true) {
      if (fork() == 0) _exit(0);
    }
  }
  for (int look = 0; look < 1500; ++look) {
    const std::vector<pid_t> children = list_children();
    ASSERT_EQ(std::count(children.begin(), children.end(), stays), 1) << look;
    ASSERT_EQ(std::count(children.begin(), children.end(), busy), 1) << look;
  }
  for (const pid_t child : {stays, busy}) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

}  // namespace
}  // namespace tutti::tool
