// When ranks of one machine use each other's private memory.
#include "base/collective_table.h"
#include "executor/single_copy.h"

namespace tutti {
namespace {

// What one rank copies from or to another one: below, system calls cost more than copying twice. Measured, see
// docs/decisions/0012.
constexpr std::uint64_t kAttachedFromBytes = 128 * 1024;

}  // namespace

// Sums fetch operands by calls, one more pass over them; copied by messages they are added out of a cache. That is
// quicker but where an all-reduce's ranks have a core each (docs/results/2026-11-22-tuner.md).
bool uses_attached_memory(const Collective& collective, std::uint64_t bytes, Attachment attachment,
                          std::uint32_t cores) {
  if (attachment != Attachment::kLongCalls) return attachment != Attachment::kNone;
  if (!reduces(collective.kind)) return bytes >= kAttachedFromBytes;
  return collective.kind == CollectiveKind::kAllReduce && (cores == 0 || collective.ranks <= cores) &&
         bytes / collective.ranks >= kAttachedFromBytes;
}

}  // namespace tutti
