// The driver's virtual memory. Physical memory and address ranges are allocated separately and then mapped. In this
// way other processes can map the memory through a file descriptor, and several allocations can have adjacent
// addresses. Used when device memory is registered (device/native/device_windows.h), and to allocate memory that
// will be registered. Threads: any thread may use these classes, but an object is used by one thread at a time.
//
// This memory belongs to no context: creating it needs no current context, and it remains valid when a context is
// destroyed. Destructors do not wait for the work of the device, so the caller must ensure that nothing uses the memory
// any more. ShareableMemory differs: allocating it needs a current context, and if the device does not support virtual
// memory, it is plain memory, which belongs to that context and whose destructor waits for the work of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/resources.h"

namespace tutti::cuda {

// Owns an open file descriptor, and closes it in the destructor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) = delete;
  ~FileDescriptor();
  int descriptor() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// A reference to one allocation of physical memory. The driver frees the memory when no process has a reference to it,
// a mapping of it, or an open file descriptor for it (share()).
class PhysicalMemory {
 public:
  // `bytes` is a multiple of granularity(). Errors: kUnsupported (the device has no shareable virtual memory), and
  // those of the driver.
  static Result<PhysicalMemory> create(const Driver& driver, int device, std::size_t bytes);
  // Returns the physical memory that this process has mapped at the address, or nothing if the address is memory of
  // another type.
  static Result<std::optional<PhysicalMemory>> behind(const Driver& driver, CUdeviceptr address);
  // Returns memory that another process has shared. The caller still owns the file descriptor.
  static Result<PhysicalMemory> import(const Driver& driver, const FileDescriptor& file);

  PhysicalMemory(PhysicalMemory&& other) noexcept : driver_(other.driver_), handle_(std::exchange(other.handle_, 0)) {}
  PhysicalMemory& operator=(PhysicalMemory&&) = delete;
  ~PhysicalMemory();

  CUmemGenericAllocationHandle handle() const { return handle_; }
  struct Properties {
    int device = 0;
    bool shareable = false;  // the memory was created so that share() can export it as a file descriptor
  };
  Result<Properties> properties() const;
  Result<FileDescriptor> share() const;  // fails if the memory is not `shareable`

 private:
  PhysicalMemory(const Driver& driver, CUmemGenericAllocationHandle handle) : driver_(&driver), handle_(handle) {}
  const Driver* driver_;
  CUmemGenericAllocationHandle handle_;
};

// The granularity of the device's physical memory that can be shared, in bytes. Errors: kUnsupported (the device has no
// such memory), and those of the driver.
Result<std::size_t> granularity(const Driver& driver, int device);

// A reserved range of addresses. Physical memory is mapped into it, starting at its beginning.
class MappedMemory {
 public:
  static Result<MappedMemory> reserve(const Driver& driver, std::size_t bytes);  // a multiple of granularity()

  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&&) = delete;
  ~MappedMemory();

  // Maps the memory after the part that is already mapped. `bytes` is the whole size of the memory, as its owner mapped
  // it, and must fit into the rest of the range.
  Status map(const PhysicalMemory& memory, std::size_t bytes);
  // Allows these devices to read and write the mapped memory. Before this call no device can access it.
  Status allow(std::span<const int> devices) const;

  CUdeviceptr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }    // size of the reserved range
  std::size_t mapped() const { return mapped_; }  // size of the mapped part, from the beginning of the range
  CUdeviceptr release();                          // the caller now owns the range and the memory in it

 private:
  MappedMemory(const Driver& driver, CUdeviceptr address, std::size_t bytes)
      : driver_(&driver), address_(address), bytes_(bytes) {}
  const Driver* driver_;
  CUdeviceptr address_;
  std::size_t bytes_;
  std::size_t mapped_ = 0;
  std::vector<std::size_t> parts_;  // bytes of each mapping, in order, because a mapping can only be removed as a whole
};

// Device memory that other processes can map, by the best method of the driver: virtual memory that is shared through a
// file descriptor or, if the device does not support that, plain memory that is shared by CUDA IPC. Aligned to at least
// 256 bytes, and not initialised.
class ShareableMemory {
 public:
  // Allocates memory of the device of the current context. This device can read and write it, and so can every device
  // that is able to access this device's memory; if the memory is plain, those devices need peer access first.
  // `bytes` must be greater than 0.
  static Result<ShareableMemory> allocate(const Driver& driver, std::size_t bytes);

  ShareableMemory(ShareableMemory&& other) noexcept : driver_(other.driver_), address_(other.release()) {}
  ShareableMemory& operator=(ShareableMemory&&) = delete;
  ~ShareableMemory();

  CUdeviceptr address() const { return address_; }
  CUdeviceptr release() { return std::exchange(address_, 0); }  // the caller later passes the address to free()
  // Frees memory that release() returned. The caller ensures that nothing uses it any more. There is no table of
  // allocations: the function asks the driver about the address. So it would also free memory that the program itself
  // has allocated with cuMemAlloc or has mapped as one allocation. Errors: kInvalidArgument (the address is not the
  // start of an allocation of device memory, or it is managed memory; nothing was freed), and those of the driver.
  static Status free(const Driver& driver, CUdeviceptr address);

 private:
  ShareableMemory(const Driver& driver, CUdeviceptr address) : driver_(&driver), address_(address) {}
  const Driver* driver_;
  CUdeviceptr address_;
};

}  // namespace tutti::cuda
