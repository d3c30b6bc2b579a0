// Memory and events of other processes. A handle says which file of which process carries what it stands for, and is
// opened through /proc, so it works between processes for real, as long as the owner lives and keeps it.
#include "shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

constexpr std::uint64_t kMemoryMagic = 0x46414B454D454D31;
constexpr std::uint64_t kEventMagic = 0x46414B4545565431;
constexpr std::size_t kPage = 4096;

struct MemoryTicket {
  std::uint64_t magic = kMemoryMagic;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // of the first byte in the file
  std::uint64_t bytes = 0;
  std::uint64_t file_bytes = 0;
  std::int32_t owner = 0;
  std::int32_t fd = 0;
  std::int32_t device = 0;
  std::int32_t padding = 0;
};
static_assert(sizeof(MemoryTicket) == 56);

struct EventTicket {
  std::uint64_t magic = kEventMagic;
  std::uint64_t inode = 0;
  std::int32_t owner = 0;
  std::int32_t fd = 0;
};

template <class Handle, class Ticket>
Handle pack(const Ticket& ticket) {
  static_assert(sizeof(Ticket) <= sizeof(Handle) && std::is_trivially_copyable_v<Ticket>);
  Handle handle;
  std::memcpy(handle.reserved.data(), &ticket, sizeof(ticket));
  return handle;
}

template <class Ticket, class Handle>
Ticket unpack(const Handle& handle) {
  Ticket ticket;
  std::memcpy(&ticket, handle.reserved.data(), sizeof(ticket));
  return ticket;
}

std::shared_ptr<EventState> map_state(int fd, bool fresh) {
  void* room = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* state = fresh ? new (room) EventState : std::launder(static_cast<EventState*>(room));  // in the shared page
  return {state, [room](EventState*) { munmap(room, kPage); }};
}

CUresult ipc_get_mem_handle(CUipcMemHandle* out, CUdeviceptr address) {
  if (out == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(world().mutex);
  const auto memory = world().find_memory(address, 1);
  if (memory == nullptr || memory->kind != MemKind::kDevice) return CUresult::kInvalidValue;
  MemoryTicket ticket;
  ticket.inode = inode_of(memory->fd);
  ticket.offset = memory->base - memory->map;
  ticket.bytes = memory->bytes;
  ticket.file_bytes = memory->map_bytes - kPage;
  ticket.owner = getpid();
  ticket.fd = memory->fd;
  ticket.device = memory->device;
  *out = pack<CUipcMemHandle>(ticket);
  return CUresult::kSuccess;
}

// Opens what the ticket stands for; null where the owner is gone or has given it back.
std::shared_ptr<Memory> map_ticket(const MemoryTicket& ticket) {
  auto memory = std::make_shared<Memory>();
  memory->fd = open_file_of(ticket.owner, ticket.fd, ticket.inode);
  if (memory->fd < 0) return nullptr;
  struct stat about {};
  if (fstat(memory->fd, &about) != 0 || static_cast<std::uint64_t>(about.st_size) != ticket.file_bytes) return nullptr;
  if (ticket.offset > ticket.file_bytes || ticket.bytes > ticket.file_bytes - ticket.offset) return nullptr;
  void* room = mmap(nullptr, ticket.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
  if (room == MAP_FAILED) return nullptr;
  memory->kind = MemKind::kOpened;
  memory->map = reinterpret_cast<std::uintptr_t>(room);
  memory->map_bytes = ticket.file_bytes;
  memory->base = memory->map + ticket.offset;
  memory->bytes = ticket.bytes;
  memory->device = ticket.device;
  memory->id = ticket.inode;
  memory->owner = ticket.owner;
  return memory;
}

CUresult ipc_open_mem_handle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  if (address == nullptr || flags != kIpcLazyPeerAccess) return CUresult::kInvalidValue;
  World& own = world();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Context> context;
  if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
  const auto ticket = unpack<MemoryTicket>(handle);
  if (ticket.magic != kMemoryMagic || !own.has_device(ticket.device)) return CUresult::kInvalidHandle;
  if (ticket.owner == getpid()) return CUresult::kInvalidContext;  // its own memory: a driver refuses that, too
  if (!own.reaches(context->device, ticket.device)) return CUresult::kPeerAccessUnsupported;
  for (const auto& [base, memory] : own.memory) {
    const bool opened = memory->kind == MemKind::kOpened && memory->context == context;
    if (!opened || memory->owner != ticket.owner || memory->id != ticket.inode) continue;
    ++memory->references;
    *address = base;
    return CUresult::kSuccess;
  }
  auto memory = map_ticket(ticket);
  if (memory == nullptr) return CUresult::kMapFailed;
  memory->context = context;
  *address = memory->base;
  own.memory.emplace(memory->base, std::move(memory));
  return CUresult::kSuccess;
}

CUresult ipc_close_mem_handle(CUdeviceptr address) {
  World& own = world();
  std::shared_ptr<Memory> memory;
  {
    const std::lock_guard lock(own.mutex);
    const auto found = own.memory.find(address);
    if (found == own.memory.end() || found->second->kind != MemKind::kOpened) return CUresult::kInvalidValue;
    memory = found->second;
  }
  const int device = memory->context->device;
  const CUresult waited = wait_for_device(device, nullptr, "cuIpcCloseMemHandle");
  if (waited != CUresult::kSuccess) return waited;
  const std::lock_guard lock(own.mutex);
  if (--memory->references == 0) own.memory.erase(address);
  return CUresult::kSuccess;
}

CUresult ipc_get_event_handle(CUipcEventHandle* out, CUevent handle) {
  if (out == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Event> event;
  if (const CUresult result = find_event(handle, event); result != CUresult::kSuccess) return result;
  if ((event->flags & kEventInterprocess) == 0 || event->opened) return CUresult::kInvalidHandle;
  EventTicket ticket;
  ticket.inode = inode_of(event->fd);
  ticket.owner = getpid();
  ticket.fd = event->fd;
  *out = pack<CUipcEventHandle>(ticket);
  return CUresult::kSuccess;
}

CUresult ipc_open_event_handle(CUevent* out, CUipcEventHandle handle) {
  if (out == nullptr) return CUresult::kInvalidValue;
  World& own = world();
  const std::lock_guard lock(own.mutex);
  auto event = std::make_shared<Event>();
  if (const CUresult result = current_context(event->context); result != CUresult::kSuccess) return result;
  const auto ticket = unpack<EventTicket>(handle);
  if (ticket.magic != kEventMagic) return CUresult::kInvalidHandle;
  if (ticket.owner == getpid()) return CUresult::kInvalidContext;
  event->fd = open_file_of(ticket.owner, ticket.fd, ticket.inode);
  if (event->fd >= 0) event->state = map_state(event->fd, false);
  if (event->state == nullptr) return CUresult::kMapFailed;
  event->flags = kEventInterprocess | kEventDisableTiming;
  event->opened = true;
  *out = as_handle<CUevent>(own.events.add(std::move(event)));
  return CUresult::kSuccess;
}

}  // namespace

std::shared_ptr<EventState> make_shared_state(int& fd) {
  fd = memfd_create("fake-cuda-event", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kPage) != 0) return nullptr;
  return map_state(fd, true);
}

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
  bind<&ipc_get_event_handle>(api.ipc_get_event_handle);
  bind<&ipc_open_event_handle>(api.ipc_open_event_handle);
}

}  // namespace tutti::cuda::fake
