#include "device/native/link_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/assert.h"
#include "cuda/nvml.h"
#include "cuda/resources.h"
#include "executor/device_transfers.h"

namespace tutti::detail {
namespace {

// Length of a message: more than the smallest slot, and not a multiple of a page.
constexpr std::size_t kMessageBytes = 4096 + 64;

// The byte `index` of the message from one rank to another.
std::byte pattern(std::uint32_t from, std::uint32_t to, std::size_t index) {
  return static_cast<std::byte>(from * 31 + to * 7 + index * 13 + index / 256 + 1);
}

Error failed_link(std::uint32_t from, std::uint32_t to, const std::string& what) {
  return Error{ErrorCode::kDevice, ErrorScope::kCommunicator, static_cast<std::int32_t>(from),
               fmt::format("rank {} received {} from the GPU of rank {}, although the driver says that the GPUs reach "
                           "each other: switch off PCIe access control (ACS) and the IOMMU for these GPUs",
                           to, what, from)};
}

std::size_t message_bytes(std::uint32_t ranks) { return ranks * kMessageBytes; }

}  // namespace

Result<LinkCheck> LinkCheck::make(const cuda::Driver& driver, std::uint32_t ranks, std::uint32_t connections) {
  auto memory = cuda::DeviceMemory::allocate(driver, 2 * message_bytes(ranks));
  if (!memory) return memory.error();
  // A message has at most one part on each connection.
  const std::size_t most_queues = std::size_t{2} * ranks * connections;
  const std::size_t launch_bytes = most_queues * (sizeof(device::TransferQueue) + sizeof(device::TransferPart));
  auto pinned = cuda::PinnedMemory::allocate(driver, 2 * message_bytes(ranks) + launch_bytes);
  if (!pinned) return pinned.error();
  return LinkCheck(driver, ranks, connections, std::move(*memory), std::move(*pinned));
}

Status LinkCheck::run(const Options& options) {
  const cuda::DriverApi& api = driver_.api();
  std::vector<Transfer> transfers;
  const std::span<std::byte> bytes = pinned_.bytes().first(2 * message_bytes(ranks_));
  const std::span<std::byte> received = bytes.subspan(message_bytes(ranks_));
  std::ranges::fill(bytes, std::byte{0});
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == options.rank) continue;
    for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
      Transfer transfer;
      transfer.direction = direction;
      transfer.peer = peer;
      transfer.bytes = kMessageBytes;
      const std::size_t at = (direction == Direction::kSend ? 0 : message_bytes(ranks_)) + peer * kMessageBytes;
      transfer.data = reinterpret_cast<std::byte*>(memory_.address() + at);  // NOLINT: a device's address
      transfer.tag.type = static_cast<std::uint8_t>(DataType::kUint8);
      transfers.push_back(transfer);
    }
    for (std::size_t i = 0; i < kMessageBytes; ++i) bytes[peer * kMessageBytes + i] = pattern(options.rank, peer, i);
  }
  const DeviceTransfers packed = pack_transfers(transfers, ranks_, connections_, options.links);
  const std::size_t queues_bytes = packed.queues.size() * sizeof(device::TransferQueue);
  const std::size_t parts_bytes = packed.parts.size() * sizeof(device::TransferPart);
  TUTTI_ASSERT(bytes.size() + queues_bytes + parts_bytes <= pinned_.bytes().size());
  std::memcpy(pinned_.bytes().data() + bytes.size(), packed.queues.data(), queues_bytes);
  std::memcpy(pinned_.bytes().data() + bytes.size() + queues_bytes, packed.parts.data(), parts_bytes);
  const cuda::CUdeviceptr queues = pinned_.device_address() + bytes.size();
  device::TransferLaunch launch;
  launch.queues = reinterpret_cast<const device::TransferQueue*>(queues);               // NOLINT: as above
  launch.parts = reinterpret_cast<const device::TransferPart*>(queues + queues_bytes);  // NOLINT
  launch.queue_count = static_cast<std::uint32_t>(packed.queues.size());
  launch.status = options.status;
  launch.timeout_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(options.limit).count());
  auto stream = cuda::Stream::create(driver_);
  if (!stream) return stream.error();
  const auto checked = [&](cuda::CUresult result) { return driver_.check(result, "checking the links of a GPU"); };
  TUTTI_TRY(checked(api.memcpy_htod_async(memory_.address(), bytes.data(), bytes.size(), stream->handle())));
  void* parameters[] = {&launch};
  const std::uint32_t blocks = std::min(options.blocks, launch.queue_count);
  TUTTI_TRY(checked(api.launch_kernel(options.kernel, blocks, 1, 1, options.threads, 1, 1, 0, stream->handle(),
                                      parameters, nullptr)));
  TUTTI_TRY(checked(api.memcpy_dtoh_async(bytes.data(), memory_.address(), bytes.size(), stream->handle())));
  TUTTI_TRY(stream->synchronize());
  const auto failed = device::FailureWord::of(options.here->failure);
  const bool changed = failed.cause == device::Failure::kMismatch || failed.cause == device::Failure::kCorrupt;
  if (failed.cause == device::Failure::kTimedOut) {
    Error late = failed_link(failed.peer, options.rank, fmt::format("nothing within {} ms", options.limit.count()));
    late.message += "; if another program was using one of these GPUs for that time, end it and try again";
    return late;
  }
  if (changed) return failed_link(failed.peer, options.rank, "changed data");
  if (failed.cause != device::Failure::kNone) {
    return Error{ErrorCode::kDevice, ErrorScope::kCommunicator, static_cast<std::int32_t>(failed.peer),
                 fmt::format("checking the link from rank {} to rank {} has failed", failed.peer, options.rank)};
  }
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    for (std::size_t i = 0; peer != options.rank && i < kMessageBytes; ++i) {
      if (received[peer * kMessageBytes + i] != pattern(peer, options.rank, i))
        return failed_link(peer, options.rank, "changed data");
    }
  }
  return {};
}

bool lines_arrive_whole(std::span<const DeviceOffer> offers) {
  std::vector<cuda::CUuuid> gpus;
  bool one_device = true;
  for (const DeviceOffer& offer : offers) {
    gpus.push_back(offer.uuid);
    one_device &= offer.same_device(offers.front());
  }
  return one_device || cuda::are_joined_by_nvlink(gpus);
}

}  // namespace tutti::detail
