// DeviceWindows: the registered device memory of one communicator, from the view of one rank: which of the rank's
// buffers are in which window, and the mappings of the peers' memory. A window has one number, which is the same on
// all ranks. Kernels find the address of a peer's window in a table in the rank's arena (executor/device_arena.h).
// There are at most kMostDeviceWindows windows.
//
// add() is collective, in the order of the communicator's calls; remove() is local. A number is reused when no rank
// has a registration with it any more. Thread-safe, but only one thread at a time may call add().
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
  // `arena`: the arena of this rank; the object writes the table in it until end(). Requires a current context.
  static Result<std::shared_ptr<DeviceWindows>> make(std::shared_ptr<RankDevice> device, std::uint32_t rank,
                                                     ExportedMemory::Peers peers, cuda::CUdeviceptr arena);
  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;

  // Registers memory and returns the number of the window. Takes two rounds over the ranks, and more if mapped
  // virtual memory is exported to other processes. `bytes` must be greater than 0. Errors, the same on all ranks:
  // kInvalidArgument (not memory of this rank's GPU and context), kUnsupported (a type of memory that peers cannot
  // map; too many windows), those of the driver.
  Result<std::uint32_t> add(const void* data, std::size_t bytes, const Gather& gather);
  void remove(std::uint32_t number);

  // A position in a window.
  struct WindowLocation {
    std::uint32_t window = 0;
    std::uint64_t offset = 0;
  };
  // Returns the window that contains all of these bytes, or nothing.
  std::optional<WindowLocation> find(const void* data, std::size_t bytes) const;

  // A position in a symmetric window, which has the same length on all ranks, so that an offset in it is valid on
  // all ranks. `addresses`: indexed by rank, the address of the position in each rank's memory, as this rank's GPU
  // sees it.
  struct SymmetricLocation {
    WindowLocation place;
    std::vector<std::uint64_t> addresses;
  };
  std::optional<SymmetricLocation> find_symmetric(const void* data, std::size_t bytes) const;

  std::size_t used() const;  // number of windows

  // Ends all windows: nothing can be added any more. If `idle`, the peers' memory is closed. Otherwise it is leaked,
  // because kernels may still use it.
  void end(bool idle);

 private:
  struct Offer;
  struct Window {
    bool taken = false;
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    std::vector<std::uint64_t> bases;  // indexed by rank: the address of the window
    bool symmetric = false;            // symmetric: the window has this length on all ranks
    std::vector<cuda::PeerMemory> opened;
    std::vector<cuda::MappedMemory> mapped;
  };
  DeviceWindows(std::shared_ptr<RankDevice> device, std::uint32_t rank, ExportedMemory::Peers peers,
                cuda::CUdeviceptr arena)
      : device_(std::move(device)), rank_(rank), peers_(std::move(peers)), arena_(arena) {}
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

  const std::shared_ptr<RankDevice> device_;  // shared with the resources; destroyed last
  const std::uint32_t rank_;
  const ExportedMemory::Peers peers_;
  const cuda::CUdeviceptr arena_;
  mutable std::mutex mutex_;
  bool ended_ = false;
  std::uint32_t last_ = 0;                              // all windows with higher numbers are free
  std::array<Window, kMostDeviceWindows + 1> windows_;  // indexed by number; element 0 is not used
};

// A registration; the destructor ends it.
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
