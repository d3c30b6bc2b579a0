#include "tools/run/descendants.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "tools/common/system_error.h"

namespace tutti::tool {
namespace {

constexpr std::chrono::seconds kGiveUpAfter{2};  // end_children() gives up after this time

// The id of the parent process of `pid`, or -1 if `pid` does not exist any more. In /proc/PID/stat, the parent's id
// follows the process name in parentheses. The name may contain any characters, so it ends at the last ')' of the file.
pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  // The file is read with getline(), because iterators would throw if the process ends while the file is read.
  std::getline(file, text, '\0');
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= text.size()) return -1;
  return static_cast<pid_t>(std::strtol(text.c_str() + name_end + 4, nullptr, 10));
}

}  // namespace

Status become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return system_error("prctl(PR_SET_CHILD_SUBREAPER)", errno);
  return {};
}

std::vector<pid_t> list_children() {
  std::vector<pid_t> children;
  DIR* processes = ::opendir("/proc");
  if (processes == nullptr) return children;
  while (const dirent* entry = ::readdir(processes)) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid > 0 && parent_of(pid) == ::getpid()) children.push_back(pid);
  }
  ::closedir(processes);
  return children;
}

int end_children(const std::vector<pid_t>& spared) {
  const auto give_up = std::chrono::steady_clock::now() + kGiveUpAfter;
  std::set<pid_t> killed;
  while (std::chrono::steady_clock::now() < give_up) {
    bool left = false;
    for (pid_t child : list_children()) {
      if (std::find(spared.begin(), spared.end(), child) != spared.end()) continue;
      // A child that has already ended (a zombie) is only reaped, and not counted as killed.
      if (::waitpid(child, nullptr, WNOHANG) == child) continue;
      ::kill(child, SIGKILL);
      killed.insert(child);
      left = true;
    }
    if (!left) break;
    const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return static_cast<int>(killed.size());
}

}  // namespace tutti::tool
