#include "transports/verbs/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

Error system_error(const std::string& what, int error) {
  return {ErrorCode::kSystem, ErrorScope::kCommunicator, -1, fmt::format("{}: {}", what, std::strerror(error))};
}

ibv_context* open_by_name(const VerbsLibrary& library, const std::string& name) {
  int count = 0;
  ibv_device** const list = library.get_device_list(&count);
  ibv_context* context = nullptr;
  for (int i = 0; list != nullptr && i < count; ++i) {
    if (name == library.get_device_name(list[i])) context = library.open_device(list[i]);
  }
  const int error = errno;
  if (list != nullptr) library.free_device_list(list);
  errno = error;
  return context;
}

}  // namespace

VerbsDevice::VerbsDevice(const VerbsLibrary& library, std::string name, ibv_context* context)
    : library_(library), name_(std::move(name)), context_(context), process_(getpid()), reports_(name_) {}

Result<std::shared_ptr<VerbsDevice>> VerbsDevice::open(const std::string& name, std::uint64_t cache_bytes) {
  auto library = VerbsLibrary::load();
  if (!library) return library.error();
  static std::mutex mutex;
  static auto& opened = *new std::map<std::string, std::weak_ptr<VerbsDevice>>;  // never destroyed
  const std::scoped_lock lock(mutex);
  std::weak_ptr<VerbsDevice>& known = opened[name];
  if (auto device = known.lock(); device != nullptr && device->process_ == getpid()) return device;
  errno = ENODEV;
  ibv_context* const context = open_by_name(**library, name);
  if (context == nullptr) return system_error(fmt::format("{} cannot be opened", name), errno);
  std::shared_ptr<VerbsDevice> device(new VerbsDevice(**library, name, context));  // private constructor
  TUTTI_TRY(device->prepare(cache_bytes));
  known = device;
  return device;
}

Status VerbsDevice::prepare(std::uint64_t cache_bytes) {
  const int flags = fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_error(fmt::format("{}: fcntl", name_), errno);
  }
  if (const int error = library_.query_device(context_, &limits_); error != 0) {
    return system_error(fmt::format("{}: ibv_query_device", name_), error);
  }
  domain_ = library_.alloc_pd(context_);
  if (domain_ == nullptr) return system_error(fmt::format("{}: ibv_alloc_pd", name_), errno);
  sources_ = make_registrations(MemoryUse::kReadByUs, cache_bytes);
  targets_ = make_registrations(MemoryUse::kWrittenByPeers, cache_bytes);
  return {};
}

std::shared_ptr<RegistrationCache> VerbsDevice::make_registrations(MemoryUse use, std::uint64_t cache_bytes) {
  return std::make_shared<RegistrationCache>(  // shared: VerbsPath::memory_release_callback() holds weak pointers
      [this, use](void* data, std::size_t bytes) -> std::optional<RegistrationCache::Key> {
        if (!library_.fork_is_harmless()) return std::nullopt;
        ibv_mr* const region = register_memory(data, bytes, use);
        if (region == nullptr) return std::nullopt;
        return RegistrationCache::Key{.handle = region, .local = region->lkey, .remote = region->rkey};
      },
      [this](const RegistrationCache::Key& key) { library_.dereg_mr(static_cast<ibv_mr*>(key.handle)); }, cache_bytes,
      MemoryMonitor::shared());
}

VerbsDevice::~VerbsDevice() {
  // In a forked child this object is only a copy. The kernel objects belong to the parent, so the child must not free
  // anything: the caches are moved to memory that is leaked intentionally.
  if (process_ != getpid()) {
    static_cast<void>(new (std::nothrow) auto(std::move(sources_)));
    static_cast<void>(new (std::nothrow) auto(std::move(targets_)));
    return;
  }
  for (const auto& cache : {sources_, targets_}) {
    if (cache != nullptr) cache->clear();
  }
  if (domain_ != nullptr) library_.dealloc_pd(domain_);
  library_.close_device(context_);
}

ibv_mr* VerbsDevice::register_memory(void* data, std::size_t bytes, MemoryUse use) const {
  const unsigned access = use == MemoryUse::kWrittenByPeers ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0u;
  if (library_.reg_mr_iova2 == nullptr) return library_.reg_mr(domain_, data, bytes, static_cast<int>(access));
  // Relaxed ordering lets the NIC write in any order. That is safe because data is only read after a completion that
  // implies its arrival (see lane.h).
  return library_.reg_mr_iova2(domain_, data, bytes, reinterpret_cast<std::uintptr_t>(data),
                               access | IBV_ACCESS_RELAXED_ORDERING);
}

void VerbsDevice::pump() {
  ibv_async_event event{};
  while (library_.get_async_event(context_, &event) == 0) {
    reports_.take(event, library_.event_type_str(event.event_type));
    library_.ack_async_event(&event);
  }
}

}  // namespace tutti
