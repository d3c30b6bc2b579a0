// Whether a thread has come to where it waits for others.
#pragma once

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/patience.h"

namespace tutti::test {

// What the kernel says of a thread of this process: 'S' sleeps, 'R' runs or waits for a processor.
inline char state_of_thread(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end == std::string::npos ? '?' : text[name_end + 2];
}

// Waits until a thread of this process sleeps in every one of several looks: then it is in the call that has to wait
// for others, however busy the machine is, because a thread that has not come so far runs or waits for a processor.
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
