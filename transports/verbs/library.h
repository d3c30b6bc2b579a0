// VerbsLibrary: the functions of libibverbs that Tutti uses and that are not inline in its header. The library is
// opened at run time, so that one build of Tutti also works on machines without it. The inline functions (post, poll,
// arm) need no symbol of the library, because they use the function table of an opened device.
#pragma once

#include <infiniband/verbs.h>

#include "tutti/result.h"

// The header defines macros over these two functions. The macros would require symbols at link time.
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
  // Null before rdma-core 28. Relaxed ordering is not used then, because reg_mr() does not accept that flag.
  ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) = nullptr;

  decltype(&::ibv_is_fork_initialized) is_fork_initialized = nullptr;  // null before rdma-core 35
  // True if fork() leaves pinned pages to the parent process (since Linux 5.12). False if it does not, or if libibverbs
  // is too old to report it. In that case the next write of this process after a fork could go to a copy of the page,
  // which the NIC does not see. Therefore memory of users is then not registered.
  bool fork_is_harmless() const { return is_fork_initialized != nullptr && is_fork_initialized() == IBV_FORK_UNNEEDED; }

  // Opens the library once per process. Thread-safe. Errors: kUnsupported.
  static Result<const VerbsLibrary*> load();
};

}  // namespace tutti
