// VerbsDevice: an opened RDMA device. It owns the verbs context, the protection domain, the caches of registered
// memory, and the reports that the device sends about its own state. A process uses at most one object for each device,
// which all its ranks and communicators share. (A forked child does not use the copies that it inherits.) Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/verbs/library.h"
#include "transports/verbs/registration_cache.h"
#include "transports/verbs/reports.h"

namespace tutti {

class VerbsDevice : public std::enable_shared_from_this<VerbsDevice> {
 public:
  // Returns the device called `name`, and opens it if no object for it exists. `cache_bytes` is the maximum size of
  // each registration cache; only the call that opens the device determines it. Errors: kUnsupported if libibverbs is
  // missing or too old; kSystem otherwise.
  static Result<std::shared_ptr<VerbsDevice>> open(const std::string& name, std::uint64_t cache_bytes);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const VerbsLibrary& library() const { return library_; }
  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const ibv_device_attr& limits() const { return limits_; }
  // kReadByUs: memory that this rank sends from. kWrittenByPeers: memory that peers write into.
  enum class MemoryUse : std::uint8_t { kReadByUs, kWrittenByPeers };
  // Registered memory of users. Each use has its own cache, because memory that is only sent from need not be
  // writable, and peers must not get a key with which they could write to it.
  std::shared_ptr<RegistrationCache> registrations(MemoryUse use) const {
    return use == MemoryUse::kReadByUs ? sources_ : targets_;
  }
  // Registers memory with the device. Returns null and sets errno if the operating system refuses.
  ibv_mr* register_memory(void* data, std::size_t bytes, MemoryUse use) const;

  // Reads the asynchronous events of the device into reports(). Never blocks.
  void pump();
  DeviceReports& reports() { return reports_; }

 private:
  VerbsDevice(const VerbsLibrary& library, std::string name, ibv_context* context);
  Status prepare(std::uint64_t cache_bytes);
  std::shared_ptr<RegistrationCache> make_registrations(MemoryUse use, std::uint64_t cache_bytes);

  const VerbsLibrary& library_;
  const std::string name_;
  ibv_context* const context_;
  const pid_t process_;
  ibv_pd* domain_ = nullptr;
  ibv_device_attr limits_{};
  // The caches for kReadByUs and for kWrittenByPeers. They are shared pointers so that VerbsPath's
  // memory_release_callback() can hold weak pointers to them, because the callback may run after the device was closed.
  std::shared_ptr<RegistrationCache> sources_;
  std::shared_ptr<RegistrationCache> targets_;
  DeviceReports reports_;
};

}  // namespace tutti
