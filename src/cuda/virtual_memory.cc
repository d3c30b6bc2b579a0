#include "cuda/virtual_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <bit>

#include "base/assert.h"
#include "cuda/pointer.h"

namespace tutti::cuda {
namespace {

// Checks the result of a call in a destructor. Three errors are ignored, because they leave nothing to free: a context
// was lost, the driver has shut down, or this is a forked child, in which the driver is not initialised and the memory
// belongs to the parent. Any other error is a bug.
void must_end(const Driver& driver, CUresult result, std::string_view call) {
  if (result == CUresult::kSuccess || result == CUresult::kNotInitialized || is_lost(result)) return;
  TUTTI_ASSERT(false, "{}", to_string(driver.error(result, call)));
}

Result<int> attribute(const Driver& driver, int device, DeviceAttribute attribute) {
  int value = 0;
  TUTTI_TRY(driver.check(driver.api().device_get_attribute(&value, attribute, device),
                         fmt::format("cuDeviceGetAttribute of device {}", device)));
  return value;
}

// Whether the device supports virtual memory that can be shared through a file descriptor.
Result<bool> can_share_by_file(const Driver& driver, int device) {
  for (const DeviceAttribute needed :
       {DeviceAttribute::kVirtualMemoryManagementSupported, DeviceAttribute::kPosixFdHandleSupported}) {
    const Result<int> has = attribute(driver, device, needed);
    if (!has) return has.error();
    if (*has == 0) return false;
  }
  return true;
}

// The properties of all memory that PhysicalMemory::create() makes: located on the device, shareable through a file
// descriptor, and accessible to NICs (GPUDirect RDMA) if the device supports this for virtual memory.
Result<CUmemAllocationProp> properties_of(const Driver& driver, int device) {
  const Result<bool> files = can_share_by_file(driver, device);
  if (!files) return files.error();
  if (!*files) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 fmt::format("device {} has no virtual memory that can be shared by a file: use cuMemAlloc", device)};
  }
  CUmemAllocationProp wanted;
  wanted.location.id = device;
  const Result<int> rdma = attribute(driver, device, DeviceAttribute::kGpuDirectRdmaWithVirtualMemorySupported);
  if (!rdma) return rdma.error();
  wanted.gpu_direct_rdma_capable = *rdma != 0 ? 1 : 0;
  return wanted;
}

Result<std::size_t> granularity_of(const Driver& driver, const CUmemAllocationProp& wanted) {
  std::size_t bytes = 0;
  TUTTI_TRY(driver.check(driver.api().mem_get_allocation_granularity(&bytes, &wanted, MemGranularity::kRecommended),
                         "cuMemGetAllocationGranularity"));
  return bytes;
}

// Returns the device and all devices that can access its memory.
Result<std::vector<int>> devices_that_reach(const Driver& driver, int device) {
  const Result<int> count = driver.device_count();
  if (!count) return count.error();
  std::vector<int> devices;
  for (int other = 0; other < *count; ++other) {
    int can = other == device ? 1 : 0;
    if (other != device) {
      TUTTI_TRY(driver.check(driver.api().device_can_access_peer(&can, other, device), "cuDeviceCanAccessPeer"));
    }
    if (can != 0) devices.push_back(other);
  }
  return devices;
}

Result<CUdeviceptr> map_new(const Driver& driver, int device, std::size_t bytes) {
  const Result<std::size_t> granule = granularity(driver, device);
  if (!granule) return granule.error();
  const std::size_t whole = (bytes + *granule - 1) / *granule * *granule;
  auto physical = PhysicalMemory::create(driver, device, whole);
  if (!physical) return physical.error();
  auto mapped = MappedMemory::reserve(driver, whole);
  if (!mapped) return mapped.error();
  TUTTI_TRY(mapped->map(*physical, whole));
  const auto devices = devices_that_reach(driver, device);
  if (!devices) return devices.error();
  TUTTI_TRY(mapped->allow(*devices));
  return mapped->release();
}

Status unmap(const Driver& driver, CUdeviceptr address, std::size_t bytes) {
  TUTTI_TRY(driver.check(driver.api().mem_unmap(address, bytes), "cuMemUnmap"));
  return driver.check(driver.api().mem_address_free(address, bytes), "cuMemAddressFree");
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<PhysicalMemory> PhysicalMemory::create(const Driver& driver, int device, std::size_t bytes) {
  TUTTI_ASSERT(bytes > 0);
  const auto wanted = properties_of(driver, device);
  if (!wanted) return wanted.error();
  CUmemGenericAllocationHandle handle = 0;
  TUTTI_TRY(driver.check(driver.api().mem_create(&handle, bytes, &*wanted, 0),
                         fmt::format("cuMemCreate of {} bytes on device {}", bytes, device)));
  return PhysicalMemory(driver, handle);
}

Result<std::optional<PhysicalMemory>> PhysicalMemory::behind(const Driver& driver, CUdeviceptr address) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver.api().mem_retain_allocation_handle(&handle, std::bit_cast<void*>(address));
  if (result == CUresult::kInvalidValue) return std::optional<PhysicalMemory>();
  TUTTI_TRY(driver.check(result, "cuMemRetainAllocationHandle"));
  return std::optional<PhysicalMemory>(PhysicalMemory(driver, handle));
}

Result<PhysicalMemory> PhysicalMemory::import(const Driver& driver, const FileDescriptor& file) {
  CUmemGenericAllocationHandle handle = 0;
  void* descriptor = std::bit_cast<void*>(std::intptr_t{file.descriptor()});
  TUTTI_TRY(driver.check(driver.api().mem_import_from_shareable_handle(&handle, descriptor, MemHandleType::kPosixFd),
                         "cuMemImportFromShareableHandle"));
  return PhysicalMemory(driver, handle);
}

PhysicalMemory::~PhysicalMemory() {
  if (handle_ != 0) must_end(*driver_, driver_->api().mem_release(handle_), "cuMemRelease");
}

Result<PhysicalMemory::Properties> PhysicalMemory::properties() const {
  CUmemAllocationProp found;
  TUTTI_TRY(driver_->check(driver_->api().mem_get_allocation_properties(&found, handle_),
                           "cuMemGetAllocationPropertiesFromHandle"));
  const auto types = static_cast<std::uint32_t>(found.requested_handle_types);  // a bit mask of types
  return Properties{.device = found.location.id,
                    .shareable = (types & static_cast<std::uint32_t>(MemHandleType::kPosixFd)) != 0};
}

Result<FileDescriptor> PhysicalMemory::share() const {
  int descriptor = -1;
  TUTTI_TRY(
      driver_->check(driver_->api().mem_export_to_shareable_handle(&descriptor, handle_, MemHandleType::kPosixFd, 0),
                     "cuMemExportToShareableHandle"));
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);  // programs that this process starts must not inherit it
  return FileDescriptor(descriptor);
}

Result<std::size_t> granularity(const Driver& driver, int device) {
  const auto wanted = properties_of(driver, device);
  if (!wanted) return wanted.error();
  return granularity_of(driver, *wanted);
}

Result<MappedMemory> MappedMemory::reserve(const Driver& driver, std::size_t bytes) {
  TUTTI_ASSERT(bytes > 0);
  CUdeviceptr address = 0;
  TUTTI_TRY(driver.check(driver.api().mem_address_reserve(&address, bytes, 0, 0, 0),
                         fmt::format("cuMemAddressReserve of {} bytes", bytes)));
  return MappedMemory(driver, address, bytes);
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : driver_(other.driver_),
      address_(other.address_),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      parts_(std::exchange(other.parts_, {})) {}

MappedMemory::~MappedMemory() {
  if (bytes_ == 0) return;
  CUdeviceptr at = address_;
  for (const std::size_t part : parts_) {
    must_end(*driver_, driver_->api().mem_unmap(at, part), "cuMemUnmap");
    at += part;
  }
  must_end(*driver_, driver_->api().mem_address_free(address_, bytes_), "cuMemAddressFree");
}

Status MappedMemory::map(const PhysicalMemory& memory, std::size_t bytes) {
  TUTTI_ASSERT(bytes > 0 && bytes <= bytes_ - mapped_);
  TUTTI_TRY(driver_->check(driver_->api().mem_map(address_ + mapped_, bytes, 0, memory.handle(), 0),
                           fmt::format("cuMemMap of {} bytes", bytes)));
  parts_.push_back(bytes);
  mapped_ += bytes;
  return {};
}

Status MappedMemory::allow(std::span<const int> devices) const {
  std::vector<CUmemAccessDesc> accesses;
  for (const int device : devices) accesses.push_back({.location = {.id = device}});
  return driver_->check(driver_->api().mem_set_access(address_, mapped_, accesses.data(), accesses.size()),
                        "cuMemSetAccess");
}

CUdeviceptr MappedMemory::release() {
  bytes_ = 0;
  return address_;
}

Result<ShareableMemory> ShareableMemory::allocate(const Driver& driver, std::size_t bytes) {
  TUTTI_ASSERT(bytes > 0);
  CUdevice device = 0;
  TUTTI_TRY(driver.check(driver.api().ctx_get_device(&device), "finding the device of the current context"));
  const Result<bool> files = can_share_by_file(driver, device);
  if (!files) return files.error();
  if (*files) {
    const Result<CUdeviceptr> mapped = map_new(driver, device, bytes);
    if (!mapped) return mapped.error();
    return ShareableMemory(driver, *mapped);
  }
  CUdeviceptr address = 0;
  TUTTI_TRY(driver.check(driver.api().mem_alloc(&address, bytes), fmt::format("cuMemAlloc of {} bytes", bytes)));
  return ShareableMemory(driver, address);
}

ShareableMemory::~ShareableMemory() {
  if (address_ == 0) return;
  const RelaxedCapture relaxed(*driver_);  // another thread may be capturing a graph
  const Status freed = free(*driver_, address_);
  // If the context was destroyed, plain memory was freed with it, and the address is not valid any more.
  const bool gone =
      !freed.ok() && (freed.error().scope == ErrorScope::kProcess || freed.error().code == ErrorCode::kInvalidArgument);
  TUTTI_ASSERT(freed.ok() || gone, "{}", to_string(freed.error()));
}

Status ShareableMemory::free(const Driver& driver, CUdeviceptr address) {
  const auto refuse = [&] {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("{:#x} is not the address of an allocation of device memory: give the address that "
                             "allocating returned, once",
                             address)};
  };
  const auto where = classify(driver, std::bit_cast<const void*>(address));
  if (!where) return where.error();
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (where->kind != MemoryKind::kDevice) return refuse();
  TUTTI_TRY(driver.check(driver.api().mem_get_address_range(&base, &bytes, address), "cuMemGetAddressRange"));
  if (base != address) return refuse();
  if (!where->plain) {
    const auto mapped = PhysicalMemory::behind(driver, address);
    if (!mapped) return mapped.error();
    if (*mapped) return unmap(driver, address, bytes);
  }
  if (where->context == nullptr) return refuse();
  auto scope = ContextScope::enter(driver, where->context);
  if (!scope) return scope.error();
  return driver.check(driver.api().mem_free(address), "cuMemFree");
}

}  // namespace tutti::cuda
