// The driver's virtual memory: physical memory and addresses apart, so that memory can be mapped by other processes
// through a file descriptor, and several allocations lie side by side. Used where device memory is registered
// (runtime/device_windows.h) and where memory is allocated that shall be registered later. Any thread; one object is
// used by one thread at a time.
//
// It belongs to no context: it needs none to be made, and outlives the one that was current. A destructor gives back
// without waiting for the device's work: whoever ends it knows that nothing uses it any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/resources.h"

namespace tutti::cuda {

// An open file, closed at the end.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(other.release()) {}
  File& operator=(File&& other) = delete;
  ~File();
  int descriptor() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// A hold on one allocation of physical memory, which lives as long as something holds it or it is mapped somewhere.
class PhysicalMemory {
 public:
  // `bytes`: whole granules (granularity()). Errors: kUnsupported (no virtual memory), the driver's.
  static Result<PhysicalMemory> create(const Driver& driver, int device, std::size_t bytes);
  // What is mapped at the address, in this process; nothing where that is other memory.
  static Result<std::optional<PhysicalMemory>> behind(const Driver& driver, CUdeviceptr address);
  // What another process shared. The file stays the caller's.
  static Result<PhysicalMemory> import(const Driver& driver, const File& file);

  PhysicalMemory(PhysicalMemory&& other) noexcept : driver_(other.driver_), handle_(std::exchange(other.handle_, 0)) {}
  PhysicalMemory& operator=(PhysicalMemory&&) = delete;
  ~PhysicalMemory();

  CUmemGenericAllocationHandle handle() const { return handle_; }
  struct Properties {
    int device = 0;
    bool shareable = false;  // was made to be shared by a file
  };
  Result<Properties> properties() const;
  Result<File> share() const;  // needs `shareable`

 private:
  PhysicalMemory(const Driver& driver, CUmemGenericAllocationHandle handle) : driver_(&driver), handle_(handle) {}
  const Driver* driver_;
  CUmemGenericAllocationHandle handle_;
};

// The granularity of the device's physical memory that can be shared, in bytes. Errors: kUnsupported.
Result<std::size_t> granularity(const Driver& driver, int device);

// A range of addresses of its own, filled from the front with physical memory.
class MappedMemory {
 public:
  static Result<MappedMemory> reserve(const Driver& driver, std::size_t bytes);  // whole granules

  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&&) = delete;
  ~MappedMemory();

  // Behind what is mapped already. `bytes`: all of the memory, as its owner mapped it; they have room.
  Status map(const PhysicalMemory& memory, std::size_t bytes);
  // Lets these devices use what is mapped; nobody may before.
  Status allow(std::span<const int> devices) const;

  CUdeviceptr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }    // reserved
  std::size_t mapped() const { return mapped_; }  // from the front
  CUdeviceptr release();                          // the caller's from now on, with what is in it

 private:
  MappedMemory(const Driver& driver, CUdeviceptr address, std::size_t bytes)
      : driver_(&driver), address_(address), bytes_(bytes) {}
  const Driver* driver_;
  CUdeviceptr address_;
  std::size_t bytes_;
  std::size_t mapped_ = 0;
  std::vector<std::size_t> parts_;  // bytes of each mapping, in order: a mapping is taken back whole
};

// Device memory that other processes can map, in the way that the driver has for it: virtual memory with a file behind
// it, else plain memory, which CUDA IPC shares. At least 256-byte aligned; nothing zeroes it.
class ShareableMemory {
 public:
  // Of the current context's device, readable and writable by it and by every device that reaches it. bytes > 0.
  static Result<ShareableMemory> allocate(const Driver& driver, std::size_t bytes);

  ShareableMemory(ShareableMemory&& other) noexcept : driver_(other.driver_), address_(other.release()) {}
  ShareableMemory& operator=(ShareableMemory&&) = delete;
  ~ShareableMemory();

  CUdeviceptr address() const { return address_; }
  CUdeviceptr release() { return std::exchange(address_, 0); }  // for free(), called from anywhere in the process
  // Gives back what release() gave; nothing uses it any more. The driver knows what it is, no table is kept: memory
  // that the program mapped by itself in one piece would go, too. Errors: kInvalidArgument (not the address of an
  // allocation; nothing has happened), the driver's.
  static Status free(const Driver& driver, CUdeviceptr address);

 private:
  ShareableMemory(const Driver& driver, CUdeviceptr address) : driver_(&driver), address_(address) {}
  const Driver* driver_;
  CUdeviceptr address_;
};

}  // namespace tutti::cuda
