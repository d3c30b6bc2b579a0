#include "tools/perf/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/assert.h"
#include "base/byte_text.h"
#include "base/system/boot_id.h"
#include "topology/memory.h"

namespace tutti::tool {
namespace {

// In addition to its buffers, a rank allocates slots of shared memory in its first call. reserve_for() estimates their
// size in bytes for messages of `size` bytes. The result is from kLeastSlotBytes to kMostSlotBytes.
constexpr std::uint64_t kMostSlotBytes = 16 << 20;
constexpr std::uint64_t kLeastSlotBytes = 64 << 10;
std::uint64_t reserve_for(std::uint64_t size) { return std::min(kMostSlotBytes, kLeastSlotBytes + 4 * size); }

// Estimate of the memory that a rank needs before its first call, in a job of a few ranks.
constexpr std::uint64_t kRankBytes = 4 << 20;

// A hash of the text. Equal texts have the same hash on all ranks, because all ranks run the same program.
std::uint64_t digest(const std::string& text) { return std::hash<std::string>{}(text); }

// Identifies the process's cgroup namespace. Needed because the path of a cgroup is relative to the namespace, so equal
// paths can mean different cgroups.
std::string namespace_identity() {
  std::array<char, 64> name = {};
  const ssize_t bytes = ::readlink("/proc/self/ns/cgroup", name.data(), name.size());
  return {name.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0};
}

// This rank's claim, without needed_bytes. If a machine hides its boot id, ranks are grouped by host name (boot_id.h).
// If several machines then have the same name, the needs of their ranks are added up, and more messages than necessary
// may be left out.
Result<MemoryClaim> own_claim() {
  const AvailableMemory memory = available_memory();
  const auto boot = boot_id();
  if (!boot) return boot.error();
  const std::string& machine = boot->name;
  MemoryClaim claim;
  claim.machine = digest(machine);
  claim.machine_bytes = memory.machine_bytes;
  claim.group_bytes = memory.group_bytes;
  if (!memory.group.empty()) claim.group = digest(machine + namespace_identity() + memory.group);
  return claim;
}

// The ranks that share a machine or a cgroup: the sum of the bytes that they need, and the smallest number of available
// bytes that one of them has found.
struct MemoryDomain {
  std::uint64_t needed_bytes = 0;
  std::uint64_t available_bytes = kUnlimitedMemory;
  std::int32_t ranks = 0;
  std::int32_t first_rank = 0;
};

void add_to(std::map<std::uint64_t, MemoryDomain>& domains, std::uint64_t key, std::int32_t rank, std::uint64_t needed,
            std::uint64_t available) {
  MemoryDomain& domain = domains[key];
  if (domain.ranks++ == 0) domain.first_rank = rank;
  domain.needed_bytes += needed;
  domain.available_bytes = std::min(domain.available_bytes, available);
}

// Checks whether a message size, given by its index in `sizes`, fits in memory. shortage_of() is collective.
class ShortageFinder {
 public:
  ShortageFinder(Communicator& communicator, const std::vector<std::uint64_t>& sizes,
                 const std::function<std::uint64_t(std::uint64_t size)>& needed, const MemoryClaim& own)
      : communicator_(communicator), sizes_(sizes), needed_(needed), own_(own) {}

  Result<MemoryShortage> shortage_of(std::size_t index) {
    static_assert(sizeof(MemoryClaim) % sizeof(std::uint64_t) == 0);
    own_.needed_bytes = needed_(sizes_[index]) + reserve_for(sizes_[index]);
    std::vector<MemoryClaim> claims(static_cast<std::size_t>(communicator_.size()));
    TUTTI_TRY(
        communicator_.all_gather(&own_, claims.data(), sizeof(MemoryClaim) / sizeof(std::uint64_t), DataType::kUint64));
    return find_shortage(claims);
  }

 private:
  Communicator& communicator_;
  const std::vector<std::uint64_t>& sizes_;
  const std::function<std::uint64_t(std::uint64_t size)>& needed_;
  MemoryClaim own_;
};

std::string describe(const MemoryShortage& shortage, std::uint64_t size) {
  return fmt::format("messages of {} need {} of memory for {} rank{} on the machine of rank {}, and {} are available{}",
                     text_of_bytes(size), text_of_bytes(shortage.needed_bytes), shortage.ranks,
                     shortage.ranks == 1 ? "" : "s", shortage.first_rank, text_of_bytes(shortage.available_bytes),
                     shortage.by_group ? " (limit of a memory cgroup)" : "");
}

}  // namespace

MemoryShortage find_shortage(const std::vector<MemoryClaim>& claims) {
  std::map<std::uint64_t, MemoryDomain> machines;
  std::map<std::uint64_t, MemoryDomain> groups;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const MemoryClaim& claim = claims[i];
    const auto rank = static_cast<std::int32_t>(i);
    add_to(machines, claim.machine, rank, claim.needed_bytes, claim.machine_bytes);
    if (claim.group != 0) add_to(groups, claim.group, rank, claim.needed_bytes, claim.group_bytes);
  }
  MemoryShortage worst;
  std::uint64_t worst_missing = 0;
  for (const auto* domains : {&machines, &groups}) {
    for (const auto& [key, domain] : *domains) {
      if (domain.needed_bytes <= domain.available_bytes) continue;
      const std::uint64_t missing = domain.needed_bytes - domain.available_bytes;
      if (missing <= worst_missing) continue;
      worst_missing = missing;
      worst = {.needed_bytes = domain.needed_bytes,
               .available_bytes = domain.available_bytes,
               .ranks = domain.ranks,
               .first_rank = domain.first_rank,
               .by_group = domains == &groups};
    }
  }
  return worst;
}

Result<MemoryFit> fit_in_memory(Communicator& communicator, const std::vector<std::uint64_t>& sizes,
                                const std::function<std::uint64_t(std::uint64_t size)>& needed) {
  TUTTI_ASSERT(!sizes.empty());
  const auto own = own_claim();
  if (!own) return own.error();
  ShortageFinder fitting(communicator, sizes, needed, *own);
  const auto largest = fitting.shortage_of(sizes.size() - 1);
  if (!largest) return largest.error();
  if (largest->needed_bytes == 0) return MemoryFit{.max_bytes = sizes.back(), .left_out = {}, .nothing_fits = {}};
  // Binary search: sizes with an index below `fit` fit in memory, sizes with an index of `low` or more do not.
  std::size_t fit = 0;
  MemoryShortage smallest = *largest;
  for (std::size_t low = sizes.size() - 1; fit < low;) {
    const std::size_t middle = (fit + low) / 2;
    const auto shortage = fitting.shortage_of(middle);
    if (!shortage) return shortage.error();
    if (shortage->needed_bytes == 0) {
      fit = middle + 1;
    } else {
      low = middle;
      smallest = *shortage;
    }
  }
  if (fit == 0) {
    return MemoryFit{.max_bytes = 0,
                     .left_out = {},
                     .nothing_fits = fmt::format("nothing can be measured: {}", describe(smallest, sizes.front()))};
  }
  return MemoryFit{.max_bytes = sizes[fit - 1],
                   .left_out = fmt::format("messages of more than {} are left out: {}", text_of_bytes(sizes[fit - 1]),
                                           describe(*largest, sizes.back())),
                   .nothing_fits = {}};
}

Status check_memory_for_ranks(std::int32_t ranks) {
  const AvailableMemory memory = available_memory();
  const std::uint64_t needed = static_cast<std::uint64_t>(ranks) * kRankBytes;
  if (needed <= memory.shared_bytes()) return {};
  return Error{.code = ErrorCode::kSystem,
               .message = fmt::format("{} ranks need {} of memory, and {} are available ({})", ranks,
                                      text_of_bytes(needed), text_of_bytes(memory.shared_bytes()), memory.limit())};
}

}  // namespace tutti::tool
