#include "job/machine_limits.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// A socket, and a descriptor that signals the exit of the peer's process.
constexpr std::uint64_t kDescriptorsPerPeer = 2;
constexpr std::uint64_t kOtherDescriptors = 16;  // listeners, event queues, the segment's file
constexpr std::uint64_t kMappingsPerPeer = 2;
constexpr std::uint64_t kOtherMappings = 1000;  // used by the program itself
// Maximum address space for the segments of all ranks of a machine, of the 128 TiB that a process has.
constexpr std::uint64_t kMostAddressBytes = std::uint64_t{100} << 40;

Error refusal(ErrorCode code, std::string message) { return {code, ErrorScope::kCommunicator, -1, std::move(message)}; }

}  // namespace

ProcessLimits process_limits() {
  ProcessLimits limits;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) limits.descriptors = files.rlim_cur;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (folder != nullptr && readdir(folder.get()) != nullptr) ++limits.open;
  std::ifstream("/proc/sys/vm/max_map_count") >> limits.mappings;
  if (geteuid() != 0) std::ifstream("/proc/sys/fs/file-max") >> limits.files;
  return limits;
}

Status check_descriptor_limit(std::uint64_t ranks, const ProcessLimits& limits) {
  const std::uint64_t descriptors = limits.open + kDescriptorsPerPeer * (ranks - 1) + kOtherDescriptors;
  if (limits.descriptors > 0 && descriptors > limits.descriptors) {
    return refusal(ErrorCode::kSystem, fmt::format("with {} ranks on this machine each process needs {} file "
                                                   "descriptors, and the limit is {}: raise it (ulimit -n)",
                                                   ranks, descriptors, limits.descriptors));
  }
  const std::uint64_t files = ranks * (kDescriptorsPerPeer * (ranks - 1) + kOtherDescriptors);
  if (limits.files > 0 && files > limits.files) {
    return refusal(ErrorCode::kSystem, fmt::format("{} ranks on this machine need {} open files together, and the "
                                                   "limit is {}: raise it (sysctl fs.file-max)",
                                                   ranks, files, limits.files));
  }
  return {};
}

Status check_machine_limits(const SegmentShape& shape, const ProcessLimits& limits) {
  const std::uint64_t ranks = shape.ranks;
  if (ranks > kMostMachineRanks) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} ranks are on this machine, and at most {} can share its memory: start fewer here",
                               ranks, kMostMachineRanks));
  }
  TUTTI_TRY(check_descriptor_limit(ranks, limits));
  const std::uint64_t mappings = kMappingsPerPeer * ranks + kOtherMappings;
  if (limits.mappings > 0 && mappings > limits.mappings) {
    return refusal(ErrorCode::kSystem, fmt::format("with {} ranks on this machine each process needs {} mappings, and "
                                                   "the limit is {}: raise it (sysctl vm.max_map_count)",
                                                   ranks, mappings, limits.mappings));
  }
  if (shape.bytes() > kMostAddressBytes / ranks) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} ranks on this machine would map {} TiB of shared memory each, and at most {} can be "
                               "mapped: use smaller TUTTI_SLOTS or TUTTI_SLOT_BYTES, or fewer ranks",
                               ranks, (shape.bytes() * ranks) >> 40, kMostAddressBytes >> 40));
  }
  return {};
}

}  // namespace tutti
