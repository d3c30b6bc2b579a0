// The fake driver's functions for virtual memory management (cuMemCreate, cuMemMap ...).
//
// Physical memory is a file in memory (memfd). A reservation is a range of addresses without access, and cuMemMap maps
// the file into it. An exported handle is a descriptor of that file, so that sharing really works between processes.
// The name of the file contains the number of the device, because the importing process needs it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20U;  // 2 MiB, as real drivers have
constexpr std::string_view kFileName = "fake-cuda-physical-";

bool is_valid(const CUmemAllocationProp* properties) {
  return properties != nullptr && properties->type == MemAllocationType::kPinned &&
         properties->location.type == MemLocationType::kDevice && driver_state().has_device(properties->location.id);
}

// Whether the requested handle types are supported: none, or a POSIX file descriptor.
bool has_handle_types(const CUmemAllocationProp& properties) {
  return properties.requested_handle_types == MemHandleType::kNone ||
         properties.requested_handle_types == MemHandleType::kPosixFd;
}

bool is_whole(std::size_t bytes) { return bytes > 0 && bytes % kGranularity == 0; }

CUresult get_granularity(std::size_t* bytes, const CUmemAllocationProp* properties, MemGranularity) {
  if (bytes == nullptr || !is_valid(properties)) return CUresult::kInvalidValue;
  *bytes = kGranularity;
  return CUresult::kSuccess;
}

CUresult mem_create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                    unsigned long long flags) {
  if (handle == nullptr || flags != 0 || !is_valid(properties) || !is_whole(bytes)) return CUresult::kInvalidValue;
  if (setting("FAKE_CUDA_VMM", 1) == 0 || !has_handle_types(*properties)) return CUresult::kNotSupported;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  Device& device = own.devices[static_cast<std::size_t>(properties->location.id)];
  if (bytes > device.limit_bytes || device.used_bytes > device.limit_bytes - bytes) return CUresult::kOutOfMemory;
  auto physical = std::make_shared<Physical>();
  const std::string name = std::string(kFileName) + std::to_string(properties->location.id);
  physical->fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (physical->fd < 0 || ftruncate(physical->fd, static_cast<off_t>(bytes)) != 0) return CUresult::kOutOfMemory;
  physical->bytes = bytes;
  physical->device = properties->location.id;
  physical->handle_types = properties->requested_handle_types;
  device.used_bytes += bytes;
  *handle = own.physicals.add(std::move(physical));
  return CUresult::kSuccess;
}

// Subtracts the physical memory from the used memory of its device, if the caller holds the last reference to it.
void uncount_if_last(const std::shared_ptr<Physical>& physical) {
  if (physical->own && physical.use_count() == 1) {
    driver_state().devices[static_cast<std::size_t>(physical->device)].used_bytes -= physical->bytes;
  }
}

CUresult mem_release(CUmemGenericAllocationHandle handle) {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  auto physical = own.physicals.find(handle);
  if (physical == nullptr) return CUresult::kInvalidValue;
  own.physicals.erase(handle);
  uncount_if_last(physical);
  return CUresult::kSuccess;
}

CUresult mem_retain(CUmemGenericAllocationHandle* handle, void* address) {
  if (handle == nullptr) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto memory = own.find_memory(reinterpret_cast<CUdeviceptr>(address), 1);
  if (memory == nullptr || memory->category != MemoryCategory::kMapped) return CUresult::kInvalidValue;
  *handle = own.physicals.add(memory->physical);
  return CUresult::kSuccess;
}

CUresult get_properties(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(driver_state().mutex);
  const auto physical = driver_state().physicals.find(handle);
  if (properties == nullptr || physical == nullptr) return CUresult::kInvalidValue;
  *properties = {.requested_handle_types = physical->handle_types,
                 .location = {MemLocationType::kDevice, physical->device}};
  return CUresult::kSuccess;
}

CUresult mem_address_reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  const std::size_t aligned = std::max(alignment, kGranularity);
  const bool power = (aligned & (aligned - 1)) == 0;
  if (address == nullptr || flags != 0 || !is_whole(bytes) || !power) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const std::size_t mapping_bytes = bytes + aligned;
  void* mapping = mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return CUresult::kOutOfMemory;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping);
  const std::uintptr_t base = (begin + aligned - 1) & ~(aligned - 1);
  if (base > begin) munmap(mapping, base - begin);
  if (begin + mapping_bytes > base + bytes) {
    munmap(std::bit_cast<void*>(base + bytes), begin + mapping_bytes - base - bytes);
  }
  own.reservations.emplace(base, bytes);
  *address = base;
  return CUresult::kSuccess;
}

bool has_mapping(CUdeviceptr address, std::size_t bytes) {
  const auto next = driver_state().memory.lower_bound(address);
  const bool begins_inside = next != driver_state().memory.end() && next->first < address + bytes;
  return begins_inside || driver_state().find_memory(address, 1) != nullptr;
}

CUresult mem_address_free(CUdeviceptr address, std::size_t bytes) {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto found = own.reservations.find(address);
  if (found == own.reservations.end() || found->second != bytes || has_mapping(address, bytes)) {
    return CUresult::kInvalidValue;
  }
  munmap(std::bit_cast<void*>(address), bytes);
  own.reservations.erase(found);
  return CUresult::kSuccess;
}

bool is_reserved(CUdeviceptr address, std::size_t bytes) {
  auto found = driver_state().reservations.upper_bound(address);
  if (found == driver_state().reservations.begin()) return false;
  --found;
  const std::uint64_t offset = address - found->first;
  return offset < found->second && bytes <= found->second - offset;
}

CUresult mem_map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags) {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto physical = own.physicals.find(handle);
  if (physical == nullptr || flags != 0 || offset != 0 || !is_whole(bytes) || bytes > physical->bytes) {
    return CUresult::kInvalidValue;
  }
  if (!is_reserved(address, bytes) || has_mapping(address, bytes)) return CUresult::kInvalidValue;
  // The memory cannot be accessed until cuMemSetAccess() is called.
  void* mapping = mmap(std::bit_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, 0);
  if (mapping == MAP_FAILED) return CUresult::kMapFailed;
  auto memory = std::make_shared<Memory>();
  memory->category = MemoryCategory::kMapped;
  memory->base = address;
  memory->bytes = bytes;
  memory->device = physical->device;
  memory->id = own.next_id++;
  memory->physical = physical;
  own.memory.emplace(address, std::move(memory));
  return CUresult::kSuccess;
}

std::shared_ptr<Memory> find_mapping(CUdeviceptr address, std::size_t bytes) {
  const auto found = driver_state().memory.find(address);
  if (found == driver_state().memory.end() || found->second->category != MemoryCategory::kMapped) return nullptr;
  return found->second->bytes == bytes ? found->second : nullptr;
}

// Returns the mappings that cover the range [address, address + bytes), if they are adjacent and the range begins and
// ends at the boundary of a mapping. Otherwise the result is empty.
std::vector<std::shared_ptr<Memory>> find_mappings(CUdeviceptr address, std::size_t bytes) {
  auto span = driver_state().find_span(address, bytes);
  const bool whole = !span.empty() && span.front()->category == MemoryCategory::kMapped &&
                     span.front()->base == address && span.back()->base + span.back()->bytes == address + bytes;
  return whole ? span : std::vector<std::shared_ptr<Memory>>();
}

CUresult mem_unmap(CUdeviceptr address, std::size_t bytes) {
  DriverState& own = driver_state();
  std::shared_ptr<Memory> memory;
  {
    const std::lock_guard lock(own.mutex);
    memory = find_mapping(address, bytes);
    if (memory == nullptr) return CUresult::kInvalidValue;
  }
  // Work in progress may still use the memory. Wait for it without the mutex.
  for (const int device : memory->accesses) {
    const CUresult waited = wait_for_device(device, nullptr, "cuMemUnmap");
    if (waited != CUresult::kSuccess) return waited;
  }
  const std::lock_guard lock(own.mutex);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* mapping = mmap(std::bit_cast<void*>(address), bytes, PROT_NONE, kFlags, -1, 0);
  if (mapping == MAP_FAILED) return CUresult::kUnknown;
  own.memory.erase(address);
  const auto physical = std::move(memory->physical);
  uncount_if_last(physical);
  return CUresult::kSuccess;
}

CUresult mem_set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* accesses, std::size_t count) {
  if (accesses == nullptr || count == 0) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto mapped = find_mappings(address, bytes);
  if (mapped.empty()) return CUresult::kInvalidValue;
  for (const auto& memory : mapped) {
    for (std::size_t i = 0; i < count; ++i) {
      const CUmemLocation& location = accesses[i].location;
      if (location.type != MemLocationType::kDevice || !own.has_device(location.id)) return CUresult::kInvalidDevice;
      if (!own.reaches(location.id, memory->device)) return CUresult::kInvalidDevice;
    }
  }
  for (const auto& memory : mapped) {
    for (std::size_t i = 0; i < count; ++i) {
      if (accesses[i].flags == MemAccess::kNone) {
        memory->accesses.erase(accesses[i].location.id);
      } else {
        memory->accesses.insert(accesses[i].location.id);
      }
    }
    const int protection = memory->accesses.empty() ? PROT_NONE : PROT_READ | PROT_WRITE;
    if (mprotect(std::bit_cast<void*>(memory->base), memory->bytes, protection) != 0) {
      return CUresult::kOperatingSystem;
    }
  }
  return CUresult::kSuccess;
}

CUresult mem_export(void* shareable, CUmemGenericAllocationHandle handle, MemHandleType type,
                    unsigned long long flags) {
  if (shareable == nullptr || flags != 0) return CUresult::kInvalidValue;
  if (type != MemHandleType::kPosixFd) return CUresult::kNotSupported;
  const std::lock_guard lock(driver_state().mutex);
  const auto physical = driver_state().physicals.find(handle);
  if (physical == nullptr || physical->handle_types == MemHandleType::kNone) return CUresult::kInvalidValue;
  const int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUresult::kOperatingSystem;
  std::memcpy(shareable, &fd, sizeof(fd));
  return CUresult::kSuccess;
}

// Returns the device of the physical memory in this file, or -1 if the file is not physical memory of the fake driver.
int device_of(int fd) {
  std::array<char, 256> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), target.data(), target.size() - 1);
  if (length <= 0) return -1;
  const std::string_view name(target.data(), static_cast<std::size_t>(length));
  const std::size_t at = name.find(kFileName);
  return at == std::string_view::npos ? -1 : std::atoi(name.data() + at + kFileName.size());
}

CUresult mem_import(CUmemGenericAllocationHandle* handle, void* shareable, MemHandleType type) {
  if (handle == nullptr) return CUresult::kInvalidValue;
  if (type != MemHandleType::kPosixFd) return CUresult::kNotSupported;
  const auto given = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  struct stat about {};
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  auto physical = std::make_shared<Physical>();
  physical->device = device_of(given);
  if (!own.has_device(physical->device) || fstat(given, &about) != 0) return CUresult::kInvalidValue;
  physical->fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
  if (physical->fd < 0) return CUresult::kOperatingSystem;
  physical->bytes = static_cast<std::size_t>(about.st_size);
  physical->own = false;
  *handle = own.physicals.add(std::move(physical));
  return CUresult::kSuccess;
}

}  // namespace

void bind_mappings(DriverApi& api) {
  bind<&get_granularity>(api.mem_get_allocation_granularity);
  bind<&mem_create>(api.mem_create);
  bind<&mem_release>(api.mem_release);
  bind<&mem_retain>(api.mem_retain_allocation_handle);
  bind<&get_properties>(api.mem_get_allocation_properties);
  bind<&mem_address_reserve>(api.mem_address_reserve);
  bind<&mem_address_free>(api.mem_address_free);
  bind<&mem_map>(api.mem_map);
  bind<&mem_unmap>(api.mem_unmap);
  bind<&mem_set_access>(api.mem_set_access);
  bind<&mem_export>(api.mem_export_to_shareable_handle);
  bind<&mem_import>(api.mem_import_from_shareable_handle);
}

}  // namespace tutti::cuda::fake
