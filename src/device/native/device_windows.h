// DeviceWindows: the registered device memory of one communicator, as one rank has it: which of its own buffers lie in
// which window, and the peers' memory, mapped here. A window has one number, the same on all ranks; the table by which
// kernels find where a peer's begins lies in the rank's arena (executor/device_arena.h). At most kMostDeviceWindows.
//
// add() is collective, in the order of the communicator's calls; remove() is local. A number is given again when no
// rank has a registration under it any more. Thread-safe; add() by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/resources.h"
#include "device/native/exported_memory.h"
#include "device/rank_device.h"
#include "executor/device_arena.h"
#include "job/job_context.h"

namespace tutti::detail {

class DeviceWindows {
 public:
  using Reach = DeviceReach;
  // `arena`: of this rank, in which it writes until end(). Writes the table. With a current context.
  static Result<std::shared_ptr<DeviceWindows>> make(std::shared_ptr<RankDevice> device, std::uint32_t rank,
                                                     DevicePeers peers, cuda::CUdeviceptr arena);
  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;

  // Two rounds over the ranks, and more where mapped memory goes to other processes; returns the window's number. bytes
  // > 0. Errors, the same on all ranks: kInvalidArgument (not memory of this rank's GPU and context), kUnsupported (of
  // a kind that peers cannot map; too many windows), the driver's.
  Result<std::uint32_t> add(const void* data, std::size_t bytes, const Gather& gather);
  void remove(std::uint32_t number);

  struct Place {
    std::uint32_t window = 0;
    std::uint64_t offset = 0;
  };
  // The window in which these bytes lie, all of them.
  std::optional<Place> find(const void* data, std::size_t bytes) const;

  // The same in a window that is as long on all ranks, so that a place in it is one in all of them; and where that
  // place is, by rank, as this one's GPU sees it.
  struct EvenPlace {
    Place place;
    std::vector<std::uint64_t> addresses;
  };
  std::optional<EvenPlace> find_even(const void* data, std::size_t bytes) const;

  std::size_t used() const;  // windows

  // Nothing is added from now on; the peers' memory is closed, or left open for good where kernels may still use it.
  void end(bool idle);

 private:
  struct Offer;
  struct Window {
    bool taken = false;
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    std::vector<std::uint64_t> bases;  // by rank
    bool even = false;                 // all ranks' have this length
    std::vector<cuda::PeerMemory> opened;
    std::vector<cuda::MappedMemory> mapped;
  };
  DeviceWindows(std::shared_ptr<RankDevice> device, std::uint32_t rank, DevicePeers peers, cuda::CUdeviceptr arena)
      : device_(std::move(device)), rank_(rank), peers_(std::move(peers)), arena_(arena) {}
  Result<std::string> offer(const void* data, std::size_t bytes, ExportedMemory& piece) const;
  Result<std::vector<Offer>> read(const std::vector<std::string>& blobs) const;
  Status open(std::uint32_t number, const std::vector<Offer>& offers, ExportRounds& parts);
  Result<std::uint64_t> map_peer(std::uint32_t peer, const Offer& offer, ExportRounds& parts, Window& window) const;
  void close(std::uint32_t number) noexcept;
  enum class Wanted : std::uint8_t { kAny, kEven };
  std::optional<Place> find_locked(const void* data, std::size_t bytes, Wanted wanted) const;
  Status exchange(std::uint32_t number, const std::vector<Offer>& offers, ExportRounds& parts, const Gather& gather);
  Status write_bases(std::uint32_t number, std::span<const std::uint64_t> bases) const;

  const std::shared_ptr<RankDevice> device_;  // shared with the resources; ends last
  const std::uint32_t rank_;
  const DevicePeers peers_;
  const cuda::CUdeviceptr arena_;
  mutable std::mutex mutex_;
  bool ended_ = false;
  std::uint32_t last_ = 0;                              // no number above it is taken
  std::array<Window, kMostDeviceWindows + 1> windows_;  // by number, from 1 on
};

// A registration, as long as it lives.
class DeviceWindow {
 public:
  DeviceWindow(std::shared_ptr<DeviceWindows> windows, std::uint32_t number)
      : windows_(std::move(windows)), number_(number) {}
  ~DeviceWindow() { windows_->remove(number_); }
  DeviceWindow(const DeviceWindow&) = delete;
  DeviceWindow& operator=(const DeviceWindow&) = delete;

 private:
  const std::shared_ptr<DeviceWindows> windows_;  // shared with the communicator; whichever ends last
  const std::uint32_t number_;
};

}  // namespace tutti::detail
