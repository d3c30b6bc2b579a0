// VerbsDevice: an opened device: its context, protection domain, registered memory and what it reports of itself. One
// per device and process, shared by all ranks and communicators in it. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/verbs/library.h"
#include "transports/verbs/registrations.h"
#include "transports/verbs/reports.h"

namespace tutti {

class VerbsDevice : public std::enable_shared_from_this<VerbsDevice> {
 public:
  // The one of this name, opened if it is not yet. `cache_bytes`: of the first who opens it. Errors: kSystem.
  static Result<std::shared_ptr<VerbsDevice>> open(const std::string& name, std::uint64_t cache_bytes);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const VerbsLibrary& library() const { return library_; }
  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const ibv_device_attr& limits() const { return limits_; }
  enum class MemoryUse : std::uint8_t { kReadByUs, kWrittenByPeers };  // sent from; received into
  // Users' memory. One cache for each use: memory that is sent from need not be writable, and peers have no key to it.
  std::shared_ptr<Registrations> registrations(MemoryUse use) const {
    return use == MemoryUse::kReadByUs ? sources_ : targets_;
  }
  // Null, with errno, where the system refuses.
  ibv_mr* register_memory(void* data, std::size_t bytes, MemoryUse use) const;

  // Reads what the device has reported of itself into reports(). Never blocks.
  void pump();
  DeviceReports& reports() { return reports_; }

 private:
  VerbsDevice(const VerbsLibrary& library, std::string name, ibv_context* context);
  Status prepare(std::uint64_t cache_bytes);
  std::shared_ptr<Registrations> make_registrations(MemoryUse use, std::uint64_t cache_bytes);

  const VerbsLibrary& library_;
  const std::string name_;
  ibv_context* const context_;
  const pid_t process_;
  ibv_pd* domain_ = nullptr;
  ibv_device_attr limits_{};
  std::shared_ptr<Registrations> sources_;  // shared with those who forget memory, as
  std::shared_ptr<Registrations> targets_;
  DeviceReports reports_;
};

}  // namespace tutti
