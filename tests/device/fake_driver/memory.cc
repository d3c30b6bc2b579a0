// The fake driver's functions for device memory, pinned host memory, and attributes of pointers.
//
// Every device allocation is a file in memory (memfd), because other processes can then map it. A guard page follows
// the end of the allocation, so that a write past the end (rounded up to 256 bytes) crashes the process.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// Allocates the memory and fills in its address and mapping. Returns false if the operating system has no memory for
// it.
//
//   | unused | bytes, rounded up to kAlignment | guard page |
//   ^ map    ^ base
bool map_shared(Memory& memory, std::size_t bytes) {
  const std::size_t rounded = round_up(bytes, kAlignment);
  const std::size_t file_bytes = round_up(rounded, kPage);
  memory.fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (memory.fd < 0 || ftruncate(memory.fd, static_cast<off_t>(file_bytes)) != 0) return false;
  void* mapping = mmap(nullptr, file_bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return false;
  memory.map = reinterpret_cast<std::uintptr_t>(mapping);
  memory.map_bytes = file_bytes + kPage;
  memory.base = memory.map + file_bytes - rounded;
  memory.bytes = bytes;
  return mmap(mapping, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.fd, 0) != MAP_FAILED;
}

CUresult allocate(CUdeviceptr* address, std::size_t bytes, MemoryCategory category) {
  if (address == nullptr || bytes == 0) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  auto memory = std::make_shared<Memory>();
  if (const CUresult result = current_context(memory->context); result != CUresult::kSuccess) return result;
  if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  memory->category = category;
  memory->device = memory->context->device;
  if (category == MemoryCategory::kPool) memory->context.reset();
  Device& device = own.devices[static_cast<std::size_t>(memory->device)];
  if (bytes > device.limit_bytes || device.used_bytes > device.limit_bytes - bytes) return CUresult::kOutOfMemory;
  if (!map_shared(*memory, bytes)) return CUresult::kOutOfMemory;
  device.used_bytes += bytes;
  memory->id = own.next_id++;
  *address = memory->base;
  own.memory.emplace(memory->base, std::move(memory));
  return CUresult::kSuccess;
}

CUresult mem_alloc(CUdeviceptr* address, std::size_t bytes) {
  return allocate(address, bytes, MemoryCategory::kDevice);
}

CUresult mem_alloc_managed(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  if (flags != kManagedGlobal) return CUresult::kInvalidValue;
  return allocate(address, bytes, MemoryCategory::kManaged);
}

// Returns the memory that begins at `address` if `accepts` returns true for its category; otherwise null.
template <class Predicate>
std::shared_ptr<Memory> find_base(CUdeviceptr address, Predicate accepts) {
  const auto found = driver_state().memory.find(address);
  return found == driver_state().memory.end() || !accepts(found->second->category) ? nullptr : found->second;
}

// Frees memory after all work that was submitted to its device is done, because that work may still use the memory.
template <class Predicate>
CUresult free_after_work(CUdeviceptr address, Predicate accepts, const char* what) {
  DriverState& own = driver_state();
  std::shared_ptr<Memory> memory;
  {
    const std::lock_guard lock(own.mutex);
    std::shared_ptr<Context> context;
    if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
    memory = find_base(address, accepts);
    if (memory == nullptr) return CUresult::kInvalidValue;
    if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  }
  const CUresult waited = wait_for_device(memory->device, nullptr, what);
  if (waited != CUresult::kSuccess) return waited;
  const std::lock_guard lock(own.mutex);
  if (own.memory.erase(address) == 0) return CUresult::kInvalidValue;  // another thread freed it at the same time
  if (memory->counts_against_device()) {
    own.devices[static_cast<std::size_t>(memory->device)].used_bytes -= memory->bytes;
  }
  return CUresult::kSuccess;
}

CUresult mem_free(CUdeviceptr address) {
  if (address == 0) return CUresult::kSuccess;
  const auto accepts = [](MemoryCategory category) {
    return category == MemoryCategory::kDevice || category == MemoryCategory::kManaged ||
           category == MemoryCategory::kPool;
  };
  return free_after_work(address, accepts, "cuMemFree");
}

CUresult mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (free_bytes == nullptr || total_bytes == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
  const Device& device = driver_state().devices[static_cast<std::size_t>(context->device)];
  *total_bytes = device.limit_bytes;
  *free_bytes = device.limit_bytes - device.used_bytes;
  return CUresult::kSuccess;
}

CUresult mem_host_alloc(void** out, std::size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = 7;
  if (out == nullptr || bytes == 0 || (flags & ~kKnown) != 0) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  auto memory = std::make_shared<Memory>();
  if (const CUresult result = current_context(memory->context); result != CUresult::kSuccess) return result;
  if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  memory->map_bytes = round_up(bytes, kPage);
  void* mapping = mmap(nullptr, memory->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return CUresult::kOutOfMemory;
  memory->category = MemoryCategory::kPinned;
  memory->device = memory->context->device;
  memory->map = reinterpret_cast<std::uintptr_t>(mapping);
  memory->base = memory->map;
  memory->bytes = bytes;
  memory->id = own.next_id++;
  *out = mapping;
  own.memory.emplace(memory->base, std::move(memory));
  return CUresult::kSuccess;
}

CUresult mem_free_host(void* memory) {
  const auto accepts = [](MemoryCategory category) { return category == MemoryCategory::kPinned; };
  return free_after_work(reinterpret_cast<CUdeviceptr>(memory), accepts, "cuMemFreeHost");
}

CUresult mem_host_register(void* address, std::size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = 15;
  if (address == nullptr || bytes == 0 || (flags & ~kKnown) != 0) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  auto memory = std::make_shared<Memory>();
  if (const CUresult result = current_context(memory->context); result != CUresult::kSuccess) return result;
  if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  memory->category = MemoryCategory::kRegistered;
  memory->device = memory->context->device;
  memory->base = reinterpret_cast<CUdeviceptr>(address);
  memory->bytes = bytes;
  memory->id = own.next_id++;
  const auto next = own.memory.lower_bound(memory->base);
  const bool runs_into_next = next != own.memory.end() && next->first < memory->base + bytes;
  if (runs_into_next || own.find_memory(memory->base, 1) != nullptr) return CUresult::kHostMemoryAlreadyRegistered;
  own.memory.emplace(memory->base, std::move(memory));
  return CUresult::kSuccess;
}

CUresult mem_host_unregister(void* address) {
  const auto accepts = [](MemoryCategory category) { return category == MemoryCategory::kRegistered; };
  {
    const std::lock_guard lock(driver_state().mutex);
    if (find_base(reinterpret_cast<CUdeviceptr>(address), accepts) == nullptr) {
      return CUresult::kHostMemoryNotRegistered;
    }
  }
  return free_after_work(reinterpret_cast<CUdeviceptr>(address), accepts, "cuMemHostUnregister");
}

CUresult mem_host_get_device_pointer(CUdeviceptr* address, void* pointer, unsigned flags) {
  if (address == nullptr || flags != 0) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  const auto memory = driver_state().find_memory(reinterpret_cast<CUdeviceptr>(pointer), 1);
  if (memory == nullptr || memory->on_device()) return CUresult::kInvalidValue;
  *address = reinterpret_cast<CUdeviceptr>(pointer);  // the host and the fake devices share one address space
  return CUresult::kSuccess;
}

CUresult mem_get_address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  const std::lock_guard lock(driver_state().mutex);
  const auto memory = driver_state().find_memory(address, 1);
  if (memory == nullptr) return CUresult::kNotFound;
  if (base != nullptr) *base = memory->base;
  if (bytes != nullptr) *bytes = memory->bytes;
  return CUresult::kSuccess;
}

template <class T>
void put(void* out, T value) {
  std::memcpy(out, &value, sizeof(value));
}

// Stores the value of an attribute of `memory`. Returns false if the fake driver does not implement the attribute.
bool put_attribute(PointerAttribute attribute, void* out, const Memory& memory, CUdeviceptr address) {
  switch (attribute) {
    case PointerAttribute::kContext:
      put(out, memory.context == nullptr ? std::uintptr_t{0} : driver_state().contexts.handle_of(memory.context.get()));
      return true;
    case PointerAttribute::kMemoryType:
      put(out, memory.category == MemoryCategory::kPinned || memory.category == MemoryCategory::kRegistered
                   ? MemoryType::kHost
                   : MemoryType::kDevice);
      return true;
    case PointerAttribute::kDevicePointer: put(out, address); return true;
    case PointerAttribute::kHostPointer: put(out, memory.on_device() ? CUdeviceptr{0} : address); return true;
    case PointerAttribute::kBufferId: put(out, memory.id); return true;
    case PointerAttribute::kIsManaged:
      put(out, static_cast<std::uint32_t>(memory.category == MemoryCategory::kManaged));
      return true;
    case PointerAttribute::kDeviceOrdinal: put(out, memory.device); return true;
    case PointerAttribute::kIsLegacyIpcCapable: put(out, memory.category == MemoryCategory::kDevice); return true;
    case PointerAttribute::kRangeStart: put(out, memory.base); return true;
    case PointerAttribute::kRangeBytes: put(out, memory.bytes); return true;
    case PointerAttribute::kMapped: put(out, true); return true;
    case PointerAttribute::kMemoryPool:
      // A handle of the pool. No other function of the fake driver accepts it.
      put(out, std::uint64_t{memory.category == MemoryCategory::kPool ? 1U : 0U});
      return true;
  }
  return false;
}

// Stores the value that an attribute has for an address that is not memory of the driver.
void put_nothing(PointerAttribute attribute, void* out) {
  switch (attribute) {
    case PointerAttribute::kMemoryType:
    case PointerAttribute::kIsManaged: return put(out, std::uint32_t{0});
    case PointerAttribute::kDeviceOrdinal: return put(out, std::int32_t{-2});
    case PointerAttribute::kIsLegacyIpcCapable:
    case PointerAttribute::kMapped: return put(out, false);
    default: return put(out, std::uint64_t{0});
  }
}

CUresult pointer_get_attributes(unsigned count, PointerAttribute* attributes, void** values, CUdeviceptr address) {
  if (count == 0 || attributes == nullptr || values == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  const auto memory = driver_state().find_memory(address, 1);
  for (unsigned i = 0; i < count; ++i) {
    if (values[i] == nullptr) return CUresult::kInvalidValue;
    if (memory == nullptr) {
      put_nothing(attributes[i], values[i]);
    } else if (!put_attribute(attributes[i], values[i], *memory, address)) {
      return CUresult::kInvalidValue;
    }
  }
  return CUresult::kSuccess;
}

}  // namespace

CUdeviceptr allocate_from_pool(std::size_t bytes) {
  CUdeviceptr address = 0;
  return allocate(&address, bytes, MemoryCategory::kPool) == CUresult::kSuccess ? address : 0;
}

void bind_memory(DriverApi& api) {
  bind<&mem_alloc>(api.mem_alloc);
  bind<&mem_alloc_managed>(api.mem_alloc_managed);
  bind<&mem_free>(api.mem_free);
  bind<&mem_get_info>(api.mem_get_info);
  bind<&mem_host_alloc>(api.mem_host_alloc);
  bind<&mem_free_host>(api.mem_free_host);
  bind<&mem_host_register>(api.mem_host_register);
  bind<&mem_host_unregister>(api.mem_host_unregister);
  bind<&mem_host_get_device_pointer>(api.mem_host_get_device_pointer);
  bind<&mem_get_address_range>(api.mem_get_address_range);
  bind<&pointer_get_attributes>(api.pointer_get_attributes);
}

}  // namespace tutti::cuda::fake
