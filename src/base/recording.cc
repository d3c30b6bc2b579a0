#include "base/recording.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/mix_bits.h"
#include "base/system/boot_id.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tutti::recording {

std::string file_name(std::uint32_t job, std::uint32_t communicator, std::uint32_t rank, std::int32_t pid) {
  return fmt::format("tutti-{:08x}-r{}-p{}-{:08x}{}", job, rank, pid, communicator, kSuffix);
}

bool is_recording(std::string_view name) {
  return name.starts_with("tutti-") && (name.ends_with(kSuffix) || name.ends_with(kEndedSuffix));
}

std::vector<std::string> folders(std::string_view chosen, const EnvironmentVariables& environment) {
  if (!chosen.empty()) return {std::string(chosen)};
  std::vector<std::string> found;
  const auto absolute_path = [&](const char* name) {
    const auto variable = environment.find(name);
    return variable != environment.end() && variable->second.starts_with('/') ? variable->second : std::string();
  };
  const std::string runtime = absolute_path("XDG_RUNTIME_DIR");
  if (!runtime.empty()) found.push_back(runtime + "/tutti");
  // Recordings remain after their jobs. In /dev/shm they would look like shared memory that a job has leaked, so
  // /dev/shm comes last.
  std::string temporary = absolute_path("TMPDIR");
  while (temporary.ends_with('/')) temporary.pop_back();
  for (const std::string& parent : {temporary, std::string(P_tmpdir), std::string("/dev/shm")}) {
    const std::string folder = fmt::format("{}/tutti-{}", parent, geteuid());
    if (!parent.empty() && std::ranges::find(found, folder) == found.end()) found.push_back(folder);
  }
  return found;
}

std::uint32_t fold(std::uint64_t id) { return static_cast<std::uint32_t>(mix_bits(id) >> 32); }

// The line is "PID (name) STATE PPID ...". The name may contain spaces and brackets, so the last bracket ends it.
std::uint64_t process_start(std::int32_t pid, char* state) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return 0;
  const std::size_t bracket = line.rfind(')');
  if (bracket == std::string::npos || bracket + 2 >= line.size()) return 0;
  if (state != nullptr) *state = line[bracket + 2];
  std::size_t at = bracket + 2;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) {
    at = line.find(' ', at);
    if (at != std::string::npos) ++at;
  }
  return at == std::string::npos ? 0 : std::strtoull(line.c_str() + at, nullptr, 10);
}

std::uint64_t own_pid_namespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? std::uint64_t{about.st_ino} : 0;
}

std::string own_boot() {
  const auto boot = boot_id();
  return boot && boot->is_proof ? boot->name.substr(0, sizeof(Header::boot) - 1) : std::string();
}

bool has_cpu_counter() {
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kInvariant = 1U << 8;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & kInvariant) != 0;
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

namespace {
std::int64_t now_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}
}  // namespace

std::int64_t steady_ns() { return now_ns(CLOCK_MONOTONIC); }
std::int64_t unix_ns() { return now_ns(CLOCK_REALTIME); }

}  // namespace tutti::recording
