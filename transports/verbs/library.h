// libibverbs, opened at run time: the functions that are not inline in its header. What is inline (post, poll, arm)
// goes through the tables of an opened device and needs no symbol.
#pragma once

#include <infiniband/verbs.h>

#include "tutti/result.h"

// Of the header: macros over functions of the same names, which would ask for symbols.
#undef ibv_query_port
#undef ibv_reg_mr

namespace tutti {

struct VerbsLibrary {
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_get_device_name) get_device_name = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  int (*query_port)(ibv_context*, std::uint8_t, ibv_port_attr*) = nullptr;
  decltype(&::ibv_query_gid) query_gid = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, std::size_t, int) = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
  decltype(&::ibv_create_srq) create_srq = nullptr;
  decltype(&::ibv_destroy_srq) destroy_srq = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_query_qp) query_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&::ibv_wc_status_str) wc_status_str = nullptr;
  decltype(&::ibv_port_state_str) port_state_str = nullptr;
  decltype(&::ibv_event_type_str) event_type_str = nullptr;
  // Absent before rdma-core 28: then no access flag beyond the old ones is asked for.
  ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) = nullptr;

  decltype(&::ibv_is_fork_initialized) is_fork_initialized = nullptr;  // absent before rdma-core 36
  // Whether a fork leaves pinned pages to this process (Linux 5.12); else what it writes next goes to copies that no
  // card sees, so that users' memory cannot be pinned.
  bool fork_is_harmless() const { return is_fork_initialized != nullptr && is_fork_initialized() == IBV_FORK_UNNEEDED; }

  // Opened once per process. Thread-safe. Errors: kUnsupported.
  static Result<const VerbsLibrary*> load();
};

}  // namespace tutti
