// Tests of Mapping::adopt() in a process that the system does not let create shared memory.
#include "transports/shm/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace {
std::atomic<bool> forbids_memfd = false;
}  // namespace

// Replaces the C library's memfd_create() in this whole program.
extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (!forbids_memfd) return static_cast<int>(syscall(SYS_memfd_create, name, flags));
  errno = EPERM;
  return -1;
}

namespace tutti {
namespace {

// Returns the scope of the error of adopt() when the system forbids memfd_create().
ErrorScope scope_of_refusal() {
  forbids_memfd = true;
  void* data = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto adopted = Mapping::adopt(data, page_size());
  return adopted.ok() ? ErrorScope::kProcess : adopted.error().scope;
}

// Runs in its own process, because a process tries memfd_create() only once and keeps the answer.
TEST(Mapping, ARefusedRegistrationCostsNoCommunicator) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(_exit(static_cast<int>(scope_of_refusal())), testing::ExitedWithCode(static_cast<int>(ErrorScope::kCall)),
              "");
}

}  // namespace
}  // namespace tutti
