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

}  // namespace tutti::test
