// pack_transfers(): the sends and receives of one call of one rank, in the form in which a kernel runs them
// (kernels/device/transfer.h). A pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/call_tag.h"
#include "executor/exchange.h"
#include "kernels/device/transfer_call.h"

namespace tutti {

struct DeviceTransfers {
  // Each queue has parts of transfers with one peer in one direction, in the order of the calls.
  std::vector<device::TransferQueue> queues;
  std::vector<device::TransferPart> parts;
};

// A hash of those arguments in the tag of a call on GPUs that must be the same on all of its ranks; never 0. The
// sequence number and the tile size are not among them.
std::uint32_t device_digest(const CallTag& tag);

// `transfers`: none of them is empty, and none is with the calling rank itself. `ranks`: the number of ranks of the
// communicator. `connections`: the number of connections for transfers in each direction, the same on all ranks.
// `links`: their ends on this rank, as DeviceArena::transfer_links() lists them, in the memory of the GPU; the function
// only computes addresses in it. Sender and receiver divide a transfer into the same parts.
DeviceTransfers pack_transfers(std::span<const Transfer> transfers, std::uint32_t ranks, std::uint32_t connections,
                               device::Link* links);

}  // namespace tutti
