#include "transports/verbs/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace tutti {
namespace {

constexpr const char* kFile = "libibverbs.so.1";

// Null where the library lacks the symbol; `missing` then says which.
template <typename Function>
void find(void* library, const char* symbol, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr && missing.empty()) missing = symbol;
}

Result<const VerbsLibrary*> open() {
  const auto unsupported = [](std::string why) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCommunicator, -1, std::move(why)};
  };
  void* const library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unsupported(
        fmt::format("{} cannot be opened ({}): install libibverbs1 and ibverbs-providers", kFile, dlerror()));
  }
  static VerbsLibrary table;
  std::string missing;
  find(library, "ibv_get_device_list", table.get_device_list, missing);
  find(library, "ibv_free_device_list", table.free_device_list, missing);
  find(library, "ibv_get_device_name", table.get_device_name, missing);
  find(library, "ibv_open_device", table.open_device, missing);
  find(library, "ibv_close_device", table.close_device, missing);
  find(library, "ibv_query_device", table.query_device, missing);
  find(library, "ibv_query_port", table.query_port, missing);
  find(library, "ibv_query_gid", table.query_gid, missing);
  find(library, "ibv_get_async_event", table.get_async_event, missing);
  find(library, "ibv_ack_async_event", table.ack_async_event, missing);
  find(library, "ibv_alloc_pd", table.alloc_pd, missing);
  find(library, "ibv_dealloc_pd", table.dealloc_pd, missing);
  find(library, "ibv_reg_mr", table.reg_mr, missing);
  find(library, "ibv_dereg_mr", table.dereg_mr, missing);
  find(library, "ibv_create_comp_channel", table.create_comp_channel, missing);
  find(library, "ibv_destroy_comp_channel", table.destroy_comp_channel, missing);
  find(library, "ibv_create_cq", table.create_cq, missing);
  find(library, "ibv_destroy_cq", table.destroy_cq, missing);
  find(library, "ibv_get_cq_event", table.get_cq_event, missing);
  find(library, "ibv_ack_cq_events", table.ack_cq_events, missing);
  find(library, "ibv_create_srq", table.create_srq, missing);
  find(library, "ibv_destroy_srq", table.destroy_srq, missing);
  find(library, "ibv_create_qp", table.create_qp, missing);
  find(library, "ibv_modify_qp", table.modify_qp, missing);
  find(library, "ibv_query_qp", table.query_qp, missing);
  find(library, "ibv_destroy_qp", table.destroy_qp, missing);
  find(library, "ibv_wc_status_str", table.wc_status_str, missing);
  find(library, "ibv_port_state_str", table.port_state_str, missing);
  find(library, "ibv_event_type_str", table.event_type_str, missing);
  std::string optional;
  find(library, "ibv_reg_mr_iova2", table.reg_mr_iova2, optional);
  find(library, "ibv_is_fork_initialized", table.is_fork_initialized, optional);
  if (!missing.empty()) return unsupported(fmt::format("{} has no {}: it is too old", kFile, missing));
  return &table;
}

}  // namespace

Result<const VerbsLibrary*> VerbsLibrary::load() {
  static const Result<const VerbsLibrary*> loaded = open();  // stays open: threads may use it while the process ends
  return loaded;
}

}  // namespace tutti
