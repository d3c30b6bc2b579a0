// DeviceWindows: the registered device memory of one communicator, from the view of one rank: the rank's own memory in
// each window, and the mappings of the peers' memory. A window is one registration: each rank contributes memory of its
// own, and the number of the window is the same on all ranks. Kernels find the address of a peer's memory in a table in
// the rank's arena (executor/device_arena.h). There are at most kMostDeviceWindows windows at a time.
//
// add() is collective, in the order of the communicator's calls; remove() is local. The number of a window can be
// reused when all ranks have removed it. Thread-safe, but only one thread at a time may call add().
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
  // `arena`: the address of this rank's arena; the object writes the table in it, until end(). The context of the
  // device must be current.
  static Result<std::shared_ptr<DeviceWindows>> make(std::shared_ptr<RankDevice> device, ExportedMemory::Peers peers,
                                                     cuda::CUdeviceptr arena);
  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;

  // Registers memory of this rank, which may have another length on other ranks, and returns the number of the
  // window. Takes two exchange rounds over the ranks, and more if mapped virtual memory is exported to other processes.
  // `bytes` must be greater than 0. If one rank returns an error, all ranks return one (see gather_or_fail()). Errors:
  // for example kInvalidArgument (not memory of this rank's GPU and context), kUnsupported (a type of memory that peers
  // cannot map; too many windows), those of the driver.
  Result<std::uint32_t> add(const void* data, std::size_t bytes, const Gather& gather);
  void remove(std::uint32_t number);

  // A position in a window; `offset` is in bytes from the start of the rank's memory.
  struct WindowLocation {
    std::uint32_t window = 0;
    std::uint64_t offset = 0;
  };
  // Returns the position of these bytes in the first window that contains all of them in its memory of this rank.
  // Returns nothing if no window contains them.
  std::optional<WindowLocation> find(const void* data, std::size_t bytes) const;

  // A position in a symmetric window: all ranks have registered the same length, so an offset in the window is
  // valid on all ranks. `addresses`: indexed by rank, the address of the position in each rank's memory, as this
  // rank's GPU sees it.
  struct SymmetricLocation {
    WindowLocation place;
    std::vector<std::uint64_t> addresses;
  };
  std::optional<SymmetricLocation> find_symmetric(const void* data, std::size_t bytes) const;

  std::size_t used() const;  // number of windows that are in use

  // Ends all windows. Do not call add() afterwards; remove() then has no effect. If `idle`, the peers' memory is
  // closed. Otherwise the mappings are leaked, because kernels may still use them.
  void end(bool idle);

 private:
  struct Offer;
  struct Window {
    bool taken = false;
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    std::vector<std::uint64_t> bases;  // indexed by rank: the address of that rank's memory, as this rank's GPU sees it
    bool symmetric = false;            // all ranks have registered `bytes` bytes
    std::vector<cuda::PeerMemory> opened;
    std::vector<cuda::MappedMemory> mapped;
  };
  DeviceWindows(std::shared_ptr<RankDevice> device, ExportedMemory::Peers peers, cuda::CUdeviceptr arena)
      : device_(std::move(device)), peers_(std::move(peers)), arena_(arena) {}
  Result<std::string> offer(const void* data, std::size_t bytes, ExportedMemory& exported) const;
  Result<std::vector<Offer>> read(const std::vector<std::string>& blobs) const;
  Status open(std::uint32_t number, const std::vector<Offer>& offers, ExportedMemory::Rounds& parts);
  Result<std::uint64_t> map_peer(std::uint32_t peer, const Offer& offer, ExportedMemory::Rounds& parts,
                                 Window& window) const;
  void close(std::uint32_t number) noexcept;
  enum class WindowFilter : std::uint8_t { kAny, kSymmetric };
  std::optional<WindowLocation> find_locked(const void* data, std::size_t bytes, WindowFilter wanted) const;
  Status exchange(std::uint32_t number, const std::vector<Offer>& offers, ExportedMemory::Rounds& parts,
                  const Gather& gather);
  Status write_bases(std::uint32_t number, std::span<const std::uint64_t> bases) const;

  // shared with the DeviceResources; declared first, so that it is destroyed last
  const std::shared_ptr<RankDevice> device_;
  const ExportedMemory::Peers peers_;
  const cuda::CUdeviceptr arena_;
  mutable std::mutex mutex_;
  bool ended_ = false;
  std::uint32_t last_ = 0;                              // the highest number of a window that may be in use; 0: none is
  std::array<Window, kMostDeviceWindows + 1> windows_;  // indexed by number; element 0 is not used
};

// The caller's handle of one rank's registration; the destructor ends the registration on this rank.
class DeviceWindow {
 public:
  DeviceWindow(std::shared_ptr<DeviceWindows> windows, std::uint32_t number)
      : windows_(std::move(windows)), number_(number) {}
  ~DeviceWindow() { windows_->remove(number_); }
  DeviceWindow(const DeviceWindow&) = delete;
  DeviceWindow& operator=(const DeviceWindow&) = delete;

 private:
  const std::shared_ptr<DeviceWindows> windows_;  // shared with the communicator; either may be destroyed first
  const std::uint32_t number_;
};

}  // namespace tutti::detail
