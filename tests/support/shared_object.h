// Objects that a test shares with the processes that it forks.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace tutti::test {

// Returns a new object T{}, in memory that this process and the children that it forks from now on share. It lives
// until these processes end. Ends the process if there is no memory.
template <typename T>
T& shared_object() {
  void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return *new (memory) T{};
}

}  // namespace tutti::test
