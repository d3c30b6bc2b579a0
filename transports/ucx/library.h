// UcxLibrary and UcxContext: access to UCX. Its library libucp.so.0 is opened at run time, so that one build of Tutti
// also works on machines without it. Only functions that UCX 1.13 has are called, whatever the version of the headers.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transports/ucx/puts.h"
#include "tutti/result.h"

namespace tutti {

struct UcxLibrary {
  decltype(&::ucp_get_version) get_version = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&::ucp_am_recv_data_nbx) am_recv_data_nbx = nullptr;
  decltype(&::ucp_am_data_release) am_data_release = nullptr;
  decltype(&::ucp_mem_map) mem_map = nullptr;
  decltype(&::ucp_mem_unmap) mem_unmap = nullptr;
  decltype(&::ucp_rkey_pack) rkey_pack = nullptr;
  decltype(&::ucp_rkey_buffer_release) rkey_buffer_release = nullptr;
  decltype(&::ucp_ep_rkey_unpack) ep_rkey_unpack = nullptr;
  decltype(&::ucp_rkey_destroy) rkey_destroy = nullptr;
  decltype(&::ucp_put_nbx) put_nbx = nullptr;
  decltype(&::ucp_ep_flush_nbx) ep_flush_nbx = nullptr;
  decltype(&::ucp_ep_print_info) ep_print_info = nullptr;
  decltype(&::ucp_context_print_info) context_print_info = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;
  std::string version;  // for example "1.13.1"

  // Opens the library on the first call that succeeds; it is never closed. Errors: kUnsupported if the library is
  // missing, lacks a function or has an unsuitable version. Thread-safe.
  static Result<const UcxLibrary*> open();
};

// The resources of UCX that a whole process needs once: devices and registrations. Ranks and communicators of the
// process that use the same UcxPuts normally share one object, because it is expensive to create; see shared().
class UcxContext {
 public:
  // Returns the object of this process that was created last, if it still exists and was created with the same value
  // of `puts`. Otherwise creates one; the users of an object with another value keep theirs. A forked child gets an
  // object of its own.
  // Errors: kUnsupported, kSystem. Thread-safe.
  static Result<std::shared_ptr<UcxContext>> shared(UcxPuts puts = UcxPuts::kByCards);
  // Takes a worker that cannot be destroyed, and keeps it until the process ends, with its context and the memory to
  // which peers may still write. Thread-safe.
  static void retain(std::shared_ptr<UcxContext> context, ucp_worker_h worker,
                     std::vector<std::unique_ptr<class UcxSlots>> slots);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  const UcxLibrary& library() const { return library_; }
  ucp_context_h handle() const { return handle_; }
  UcxPuts puts() const { return puts_; }
  // False once UCX could make an endpoint only without detection of the failure of its peer. UCX prints an error for
  // each such attempt, so further endpoints are made without failure detection at once.
  bool detects_failures() const { return detects_failures_.load(std::memory_order_relaxed); }
  void set_no_failure_detection() { detects_failures_.store(false, std::memory_order_relaxed); }
  bool own_process() const;  // false in a forked child, which must not use its copy

 private:
  UcxContext(const UcxLibrary& library, ucp_context_h handle, UcxPuts puts);
  const UcxLibrary& library_;
  const ucp_context_h handle_;
  const UcxPuts puts_;
  const int process_;
  std::atomic<bool> detects_failures_ = true;
};

// An error with the version of UCX and its message, for example "UCX 1.13.1: making a worker: Out of memory".
// `doing`: "making a worker".
Error ucx_error(const UcxLibrary& library, const std::string& doing, ucs_status_t status);

// Returns the text that `write` prints into the file; empty if there is no memory for the file.
std::string capture_output(const std::function<void(std::FILE* file)>& write);

}  // namespace tutti
