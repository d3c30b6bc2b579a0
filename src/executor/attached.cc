// uses_attached_memory(): decides for which calls the ranks of one machine use each other's private memory.
#include "base/collective_table.h"
#include "executor/single_copy.h"

namespace tutti {

// With Attachment::kLongCalls, short calls use no system calls, because one costs more than copying twice through
// shared memory. Reductions by system calls need one more pass over the operands, because the operands are first
// fetched into a scratch buffer and added afterwards. Operands that arrive as messages are added while they are in a
// cache. So with kLongCalls an all-reduce is the only reduction that can use system calls, if that was measured to be
// faster.
bool uses_attached_memory(const Collective& collective, std::uint64_t bytes, Attachment attachment,
                          const MachineChoices& choices) {
  if (attachment != Attachment::kLongCalls) return attachment != Attachment::kNone;
  const auto reaches = [](std::uint64_t copied, std::uint64_t least) { return least > 0 && copied >= least; };
  if (!reduces(collective.kind)) return reaches(bytes, choices.copy_by_calls_bytes);
  return collective.kind == CollectiveKind::kAllReduce &&
         reaches(bytes / collective.ranks, choices.all_reduce_by_calls_bytes);
}

}  // namespace tutti
