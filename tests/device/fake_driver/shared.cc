// CUDA IPC: memory of other processes. A handle contains a process id and a file descriptor of that process.
// The file is opened through /proc, so sharing really works between processes, as long as the owner is running and has
// not freed the memory.
#include "shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

constexpr std::uint64_t kMemoryMagic = 0x46414B454D454D31;
constexpr std::size_t kPage = 4096;

// The contents of a CUipcMemHandle.
struct MemoryHandleData {
  std::uint64_t magic = kMemoryMagic;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // of the memory's first byte in the file
  std::uint64_t bytes = 0;
  std::uint64_t file_bytes = 0;
  std::int32_t owner = 0;
  std::int32_t fd = 0;
  std::int32_t device = 0;
  std::int32_t padding = 0;
};
static_assert(sizeof(MemoryHandleData) == 56);

template <class Handle, class HandleData>
Handle pack(const HandleData& handle_data) {
  static_assert(sizeof(HandleData) <= sizeof(Handle) && std::is_trivially_copyable_v<HandleData>);
  Handle handle;
  std::memcpy(handle.reserved.data(), &handle_data, sizeof(handle_data));
  return handle;
}

template <class HandleData, class Handle>
HandleData unpack(const Handle& handle) {
  HandleData handle_data;
  std::memcpy(&handle_data, handle.reserved.data(), sizeof(handle_data));
  return handle_data;
}

CUresult ipc_get_mem_handle(CUipcMemHandle* out, CUdeviceptr address) {
  if (out == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  const auto memory = driver_state().find_memory(address, 1);
  if (memory == nullptr || memory->category != MemoryCategory::kDevice) return CUresult::kInvalidValue;
  MemoryHandleData handle_data;
  handle_data.inode = inode_of(memory->fd);
  handle_data.offset = memory->base - memory->map;
  handle_data.bytes = memory->bytes;
  handle_data.file_bytes = memory->map_bytes - kPage;
  handle_data.owner = getpid();
  handle_data.fd = memory->fd;
  handle_data.device = memory->device;
  *out = pack<CUipcMemHandle>(handle_data);
  return CUresult::kSuccess;
}

// Maps the memory that a handle describes. Returns null if the owner has exited or has freed the memory.
std::shared_ptr<Memory> map_handle(const MemoryHandleData& handle_data) {
  auto memory = std::make_shared<Memory>();
  memory->fd = open_file_of(handle_data.owner, handle_data.fd, handle_data.inode);
  if (memory->fd < 0) return nullptr;
  struct stat about {};
  if (fstat(memory->fd, &about) != 0 || static_cast<std::uint64_t>(about.st_size) != handle_data.file_bytes)
    return nullptr;
  if (handle_data.offset > handle_data.file_bytes || handle_data.bytes > handle_data.file_bytes - handle_data.offset)
    return nullptr;
  // A private mapping: what this process writes is not seen by others.
  const bool loses = setting("FAKE_CUDA_LOSES_WRITES", 0) != 0;
  const int flags = loses ? MAP_PRIVATE : MAP_SHARED;
  void* mapping = mmap(nullptr, handle_data.file_bytes, PROT_READ | PROT_WRITE, flags, memory->fd, 0);
  if (mapping == MAP_FAILED) return nullptr;
  memory->category = MemoryCategory::kOpened;
  memory->map = reinterpret_cast<std::uintptr_t>(mapping);
  memory->map_bytes = handle_data.file_bytes;
  memory->base = memory->map + handle_data.offset;
  memory->bytes = handle_data.bytes;
  memory->device = handle_data.device;
  memory->id = handle_data.inode;
  memory->owner = handle_data.owner;
  return memory;
}

CUresult ipc_open_mem_handle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  if (address == nullptr || flags != kIpcLazyPeerAccess) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Context> context;
  if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
  const auto handle_data = unpack<MemoryHandleData>(handle);
  if (handle_data.magic != kMemoryMagic || !own.has_device(handle_data.device)) return CUresult::kInvalidHandle;
  if (handle_data.owner == getpid())
    return CUresult::kInvalidContext;  // a real driver also rejects the process's own memory
  if (!own.reaches(context->device, handle_data.device)) return CUresult::kPeerAccessUnsupported;
  for (const auto& [base, memory] : own.memory) {
    const bool opened = memory->category == MemoryCategory::kOpened && memory->context == context;
    if (!opened || memory->owner != handle_data.owner || memory->id != handle_data.inode) continue;
    ++memory->references;
    *address = base;
    return CUresult::kSuccess;
  }
  auto memory = map_handle(handle_data);
  if (memory == nullptr) return CUresult::kMapFailed;
  memory->context = std::move(context);
  *address = memory->base;
  own.memory.emplace(memory->base, std::move(memory));
  return CUresult::kSuccess;
}

CUresult ipc_close_mem_handle(CUdeviceptr address) {
  DriverState& own = driver_state();
  std::shared_ptr<Memory> memory;
  {
    const std::lock_guard lock(own.mutex);
    const auto found = own.memory.find(address);
    if (found == own.memory.end() || found->second->category != MemoryCategory::kOpened) return CUresult::kInvalidValue;
    memory = found->second;
  }
  const int device = memory->context->device;
  const CUresult waited = wait_for_device(device, nullptr, "cuIpcCloseMemHandle");
  if (waited != CUresult::kSuccess) return waited;
  const std::lock_guard lock(own.mutex);
  if (--memory->references == 0) own.memory.erase(address);
  return CUresult::kSuccess;
}

}  // namespace

std::uint64_t inode_of(int fd) {
  struct stat about {};
  return fstat(fd, &about) == 0 ? about.st_ino : 0;
}

int open_file_of(pid_t owner, int fd, std::uint64_t inode) {
  const std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(fd);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return -1;
  if (inode_of(opened) == inode) return opened;
  close(opened);
  return -1;
}

void bind_shared(DriverApi& api) {
  bind<&ipc_get_mem_handle>(api.ipc_get_mem_handle);
  bind<&ipc_open_mem_handle>(api.ipc_open_mem_handle);
  bind<&ipc_close_mem_handle>(api.ipc_close_mem_handle);
}

}  // namespace tutti::cuda::fake
