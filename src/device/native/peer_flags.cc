#include "device/native/peer_flags.h"

#include <span>

#include "base/assert.h"
#include "executor/device_arena.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kBytes = 3 * kMostDeviceRanks * sizeof(std::uint32_t);

}  // namespace

Result<std::shared_ptr<PeerFlags>> PeerFlags::create(const cuda::Driver& driver) {
  auto mapping = Mapping::create(kBytes, false);
  if (!mapping) return mapping.error();
  return open(driver, std::move(*mapping));
}

Result<std::shared_ptr<PeerFlags>> PeerFlags::open(const cuda::Driver& driver, std::shared_ptr<Mapping> mapping) {
  if (mapping->size() < kBytes)
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, -1, "a rank shared flags that are too short"};
  auto pin = cuda::RegisteredMemory::add(driver, {mapping->data(), mapping->size()});
  if (!pin) return pin.error();
  // not make_shared, because the constructor is private
  return std::shared_ptr<PeerFlags>(new PeerFlags(std::move(mapping), std::move(*pin)));
}

std::size_t PeerFlags::offset(Kind kind, std::uint32_t peer) {
  TUTTI_ASSERT(peer < kMostDeviceRanks);
  return (static_cast<std::size_t>(kind) * kMostDeviceRanks + peer) * sizeof(std::uint32_t);
}

std::atomic_ref<std::uint32_t> PeerFlags::flag(Kind kind, std::uint32_t peer) const {
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(mapping_->data() + offset(kind, peer)));
}

cuda::CUdeviceptr PeerFlags::on_device(Kind kind, std::uint32_t peer) const {
  return pin_.device_address() + offset(kind, peer);
}

}  // namespace tutti::detail
