// UCX's functions, found in libucp.so.0 at run time. Only what UCX 1.13 has is called, whatever the headers' version.
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
  std::string version;  // "1.13.1"

  // Opened once in a process and never closed. Errors: kUnsupported, with what to install. Thread-safe.
  static Result<const UcxLibrary*> open();
};

// What UCX holds for a whole process: devices, registrations. One for all ranks and communicators of the process.
class UcxContext {
 public:
  // That of this process; made when nobody has it. A forked child gets its own. Errors: kUnsupported, kSystem.
  // Thread-safe.
  static Result<std::shared_ptr<UcxContext>> shared(UcxPuts puts = UcxPuts::kByCards);
  // For a worker that cannot be destroyed: it, its context and what peers may still write to stay until the process
  // ends. Thread-safe.
  static void keep(std::shared_ptr<UcxContext> context, ucp_worker_h worker,
                   std::vector<std::unique_ptr<class UcxSlots>> slots);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  const UcxLibrary& library() const { return library_; }
  ucp_context_h handle() const { return handle_; }
  UcxPuts puts() const { return puts_; }
  // Whether endpoints tell of their peers' ends, as far as has been seen. UCX prints an error where one is asked for
  // that cannot, so that it is asked for once.
  bool tells_of_ends() const { return tells_of_ends_.load(std::memory_order_relaxed); }
  void tells_of_no_ends() { tells_of_ends_.store(false, std::memory_order_relaxed); }
  bool own_process() const;  // false in a child that was forked: its copy may not be used

 private:
  UcxContext(const UcxLibrary& library, ucp_context_h handle, UcxPuts puts);
  const UcxLibrary& library_;
  const ucp_context_h handle_;
  const UcxPuts puts_;
  const int process_;
  std::atomic<bool> tells_of_ends_ = true;
};

// "making a worker: Out of memory", for a person. `doing`: "making a worker".
Error ucx_error(const UcxLibrary& library, const std::string& doing, ucs_status_t status);

// What `write` writes.
std::string ucx_words(const std::function<void(std::FILE* file)>& write);

}  // namespace tutti
