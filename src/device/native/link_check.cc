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

// Length of a message: several slots at most, and a part of a page that is not whole.
constexpr std::size_t kMessageBytes = 4096 + 64;

// The byte `index` of the message from one rank to another.
std::byte pattern(std::uint32_t from, std::uint32_t to, std::size_t index) {
  return static_cast<std::byte>(from * 31 + to * 7 + index * 13 + index / 256 + 1);
}

Error lost(std::uint32_t from, std::uint32_t to, const char* what) {
  return Error{
      ErrorCode::kDevice, ErrorScope::kCommunicator, static_cast<std::int32_t>(from),
      fmt::format("data that the GPU of rank {} writes to the GPU of rank {} {}, although the driver says that "
                  "the GPUs reach each other: switch off PCIe access control (ACS) and the IOMMU for them",
                  from, to, what)};
}

}  // namespace

Status check_links(const LinkCheck& check, std::chrono::milliseconds limit) {
  if (check.ranks < 2) return {};
  const cuda::DriverApi& api = check.driver.api();
  const std::size_t all_bytes = check.ranks * kMessageBytes;
  // Block r of the first half goes to rank r, and block r of the second half comes from it.
  auto memory = cuda::DeviceMemory::allocate(check.driver, 2 * all_bytes);
  if (!memory) return memory.error();
  std::vector<Transfer> transfers;
  std::vector<std::byte> bytes(2 * all_bytes);
  for (std::uint32_t peer = 0; peer < check.ranks; ++peer) {
    if (peer == check.rank) continue;
    for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
      Transfer transfer;
      transfer.direction = direction;
      transfer.peer = peer;
      transfer.bytes = kMessageBytes;
      const std::size_t at = (direction == Direction::kSend ? 0 : all_bytes) + peer * kMessageBytes;
      transfer.data = reinterpret_cast<std::byte*>(memory->address() + at);  // NOLINT: a device's address
      transfer.tag.type = static_cast<std::uint8_t>(DataType::kUint8);
      transfers.push_back(transfer);
    }
    for (std::size_t i = 0; i < kMessageBytes; ++i) bytes[peer * kMessageBytes + i] = pattern(check.rank, peer, i);
  }
  const DeviceTransfers packed = pack_transfers(transfers, check.ranks, check.connections, check.links);
  const std::size_t queues_bytes = packed.queues.size() * sizeof(device::TransferQueue);
  const std::size_t parts_bytes = packed.parts.size() * sizeof(device::TransferPart);
  auto pinned = cuda::PinnedMemory::allocate(check.driver, queues_bytes + parts_bytes);
  if (!pinned) return pinned.error();
  std::memcpy(pinned->bytes().data(), packed.queues.data(), queues_bytes);
  std::memcpy(pinned->bytes().data() + queues_bytes, packed.parts.data(), parts_bytes);
  device::TransferLaunch launch;
  launch.queues = reinterpret_cast<const device::TransferQueue*>(pinned->device_address());  // NOLINT: as above
  launch.parts = reinterpret_cast<const device::TransferPart*>(pinned->device_address() + queues_bytes);  // NOLINT
  launch.queue_count = static_cast<std::uint32_t>(packed.queues.size());
  launch.status = check.status;
  launch.timeout_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(limit).count());
  auto stream = cuda::Stream::create(check.driver);
  if (!stream) return stream.error();
  const auto checked = [&](cuda::CUresult result) { return check.driver.check(result, "checking the links of a GPU"); };
  TUTTI_TRY(checked(api.memcpy_htod_async(memory->address(), bytes.data(), bytes.size(), stream->handle())));
  void* parameters[] = {&launch};
  const std::uint32_t blocks = std::min(check.blocks, launch.queue_count);
  TUTTI_TRY(checked(
      api.launch_kernel(check.kernel, blocks, 1, 1, check.threads, 1, 1, 0, stream->handle(), parameters, nullptr)));
  TUTTI_TRY(checked(api.memcpy_dtoh_async(bytes.data(), memory->address(), bytes.size(), stream->handle())));
  TUTTI_TRY(stream->synchronize());
  const auto failed = device::FailureWord::of(check.here.failure);
  if (failed.cause != device::Failure::kNone) return lost(failed.peer, check.rank, "does not arrive");
  for (std::uint32_t peer = 0; peer < check.ranks; ++peer) {
    for (std::size_t i = 0; peer != check.rank && i < kMessageBytes; ++i) {
      if (bytes[all_bytes + peer * kMessageBytes + i] != pattern(peer, check.rank, i))
        return lost(peer, check.rank, "is changed on its way");
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
