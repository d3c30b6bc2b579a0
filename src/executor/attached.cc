// uses_attached_memory(): decides for which calls the ranks of one machine use each other's private memory.
#include "base/collective_table.h"
#include "executor/single_copy.h"

namespace tutti {
namespace {

// For Attachment::kLongCalls: the least number of bytes that one rank copies from or to another rank for which
// system calls are used. For fewer bytes, the system calls cost more than copying twice through shared memory.
// Measured, see docs/decisions/0012.
constexpr std::uint64_t kAttachedFromBytes = 128 * 1024;

}  // namespace

// Reductions by system calls need one more pass over the operands, because the operands are first fetched into a
// scratch buffer and added afterwards. Operands that arrive as messages are added while they are in a cache. With
// kLongCalls, reductions therefore use messages. The exception is a long all-reduce in which each rank has a core of
// its own, which is faster with system calls (docs/results/2026-11-22-tuner.md).
bool uses_attached_memory(const Collective& collective, std::uint64_t bytes, Attachment attachment,
                          std::uint32_t cores) {
  if (attachment != Attachment::kLongCalls) return attachment != Attachment::kNone;
  if (!reduces(collective.kind)) return bytes >= kAttachedFromBytes;
  return collective.kind == CollectiveKind::kAllReduce && (cores == 0 || collective.ranks <= cores) &&
         bytes / collective.ranks >= kAttachedFromBytes;
}

}  // namespace tutti
