#include "transports/verbs/library.h"

#include <fmt/format.h>

#include <string>

#include "base/shared_library.h"

namespace tutti {
namespace {

constexpr const char* kFile = "libibverbs.so.1";

Result<const VerbsLibrary*> open() {
  const auto unsupported = [](std::string why) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCommunicator, -1, std::move(why)};
  };
  auto library = SharedLibrary::open(kFile);
  if (!library) {
    return unsupported(fmt::format("{} cannot be opened ({}): install libibverbs1 and ibverbs-providers", kFile,
                                   library.error().message));
  }
  static VerbsLibrary table;
  library->find(table.get_device_list, "ibv_get_device_list");
  library->find(table.free_device_list, "ibv_free_device_list");
  library->find(table.get_device_name, "ibv_get_device_name");
  library->find(table.open_device, "ibv_open_device");
  library->find(table.close_device, "ibv_close_device");
  library->find(table.query_device, "ibv_query_device");
  library->find(table.query_port, "ibv_query_port");
  library->find(table.query_gid, "ibv_query_gid");
  library->find(table.get_async_event, "ibv_get_async_event");
  library->find(table.ack_async_event, "ibv_ack_async_event");
  library->find(table.alloc_pd, "ibv_alloc_pd");
  library->find(table.dealloc_pd, "ibv_dealloc_pd");
  library->find(table.reg_mr, "ibv_reg_mr");
  library->find(table.dereg_mr, "ibv_dereg_mr");
  library->find(table.create_comp_channel, "ibv_create_comp_channel");
  library->find(table.destroy_comp_channel, "ibv_destroy_comp_channel");
  library->find(table.create_cq, "ibv_create_cq");
  library->find(table.destroy_cq, "ibv_destroy_cq");
  library->find(table.get_cq_event, "ibv_get_cq_event");
  library->find(table.ack_cq_events, "ibv_ack_cq_events");
  library->find(table.create_srq, "ibv_create_srq");
  library->find(table.destroy_srq, "ibv_destroy_srq");
  library->find(table.create_qp, "ibv_create_qp");
  library->find(table.modify_qp, "ibv_modify_qp");
  library->find(table.query_qp, "ibv_query_qp");
  library->find(table.destroy_qp, "ibv_destroy_qp");
  library->find(table.wc_status_str, "ibv_wc_status_str");
  library->find(table.port_state_str, "ibv_port_state_str");
  library->find(table.event_type_str, "ibv_event_type_str");
  library->find_optional(table.reg_mr_iova2, "ibv_reg_mr_iova2");
  library->find_optional(table.is_fork_initialized, "ibv_is_fork_initialized");
  if (library->missing() != nullptr) {
    return unsupported(fmt::format("{} has no {}: it is too old", kFile, library->missing()));
  }
  return &table;
}

}  // namespace

Result<const VerbsLibrary*> VerbsLibrary::load() {
  // The library is never closed, because threads may still use it while the process ends.
  static const Result<const VerbsLibrary*> loaded = open();
  return loaded;
}

}  // namespace tutti
