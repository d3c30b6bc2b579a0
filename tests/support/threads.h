// Finds out whether a thread has reached the point at which it waits for other threads or processes.
#pragma once

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/patience.h"

namespace tutti::test {

// The state of a thread of this process, from the kernel: 'S' sleeps, 'R' runs or waits for a processor, '?' unknown.
inline char state_of_thread(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end == std::string::npos ? '?' : text[name_end + 2];
}

// Waits until a thread of this process is asleep in 8 consecutive checks. Then it is in the call that waits for
// others, even on a busy machine, because a thread that has not reached this call runs or waits for a processor.
// Returns false after patience().
inline bool falls_asleep(pid_t thread) {
  int looks = 0;
  return eventually([&] {
    for (looks = 0; looks < 8 && state_of_thread(thread) == 'S'; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return looks == 8;
  });
}

// How often a thread of this process has gone to sleep so far, or -1 after the thread has ended.
inline long sleeps_of_thread(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  const std::string key = "voluntary_ctxt_switches:";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stol(line.substr(key.size()));
  }
  return -1;
}

// The same as falls_asleep() for a thread that waits by polling, as the fake driver does: waits until the thread has
// gone to sleep another 16 times. On a busy machine, falls_asleep() rarely sees such a thread asleep, because after
// each short sleep it waits for a processor. Returns false after patience(), or if the thread ends before.
inline bool falls_asleep_repeatedly(pid_t thread) {
  const long before = sleeps_of_thread(thread);
  long now = before;
  return eventually([&] {
           now = sleeps_of_thread(thread);
           return now < 0 || now >= before + 16;
         }) &&
         now >= 0;
}

}  // namespace tutti::test
