// gpu_first: what a GPU and its driver do in the cases on which Tutti relies, found out in less than a minute.
//
//     gpu_first                 runs all probes, each in a process of its own, at most 10 s each
//     gpu_first PROBE...        runs these probes
//     gpu_first --list          prints their names
//
// Prints a line for each finding at once, so nothing is lost if a later probe hangs. The exit status is 0 if all
// findings are as Tutti needs them, 1 if not, 3 if there is no GPU.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "tests/device/hardware/first/probes.h"

extern char** environ;

namespace tutti::test {
namespace {

constexpr int kNoGpu = 3;
constexpr std::chrono::seconds kLimit{10};

int run_here(const char* name) {
  for (const Probe& probe : probes()) {
    if (std::strcmp(probe.name, name) != 0) continue;
    return probe.run();
  }
  std::fprintf(stderr, "gpu_first: there is no probe '%s'; --list prints the names\n", name);
  return 2;
}

// Runs the probe in a child process and returns its exit status, or -1 after the limit.
int run_apart(const char* self, const char* name) {
  const std::string program = self;
  const std::string probe = name;
  const std::array<std::string, 3> words = {program, "--here", probe};
  std::array<char*, 4> arguments = {const_cast<char*>(words[0].c_str()), const_cast<char*>(words[1].c_str()),
                                    const_cast<char*>(words[2].c_str()), nullptr};
  pid_t child = -1;
  if (const int code = posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ); code != 0) {
    std::fprintf(stderr, "gpu_first: cannot start a process: %s\n", std::strerror(code));
    return 2;
  }
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // interval between two looks at the child
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_all(const char* self, int count, char** names) {
  int failed = 0;
  for (const Probe& probe : probes()) {
    bool wanted = count == 0;
    for (int i = 0; i < count; ++i) wanted |= std::strcmp(names[i], probe.name) == 0;
    if (!wanted) continue;
    const auto begin = std::chrono::steady_clock::now();
    const int status = run_apart(self, probe.name);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (status == kNoGpu) return kNoGpu;
    if (status != 0) ++failed;
    const std::string outcome = status == 0  ? "ok"
                                : status < 0 ? "FAILED: it did not end"
                                             : "FAILED: exit status " + std::to_string(status);
    std::printf("[%s] %s, %.2f s\n", probe.name, outcome.c_str(), seconds.count());
    std::fflush(stdout);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  using namespace tutti::test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc == 3 && std::strcmp(argv[1], "--here") == 0) return run_here(argv[2]);
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Probe& probe : probes()) std::printf("%s\n", probe.name);
    return 0;
  }
  return run_all(argv[0], argc - 1, argv + 1);
}
