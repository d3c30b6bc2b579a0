#include "transports/ucx/ucp_worker.h"

#include "base/thread.h"
#include "transports/ucx/lane.h"

namespace tutti {
namespace {

constexpr unsigned kMessageId = 1;  // id of our active messages in UCX

}  // namespace

Status UcpWorker::create(ucp_am_recv_callback_t on_message, void* user) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.am_alignment = 64;
  const SignalsBlocked blocked;  // UCX may start a thread, which must not receive signals
  ucs_status_t status = library_.worker_create(context_->handle(), &params, &handle_);
  if (status != UCS_OK) {
    handle_ = nullptr;
    return ucx_error(library_, "making a worker", status);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = on_message;
  handler.arg = user;
  status = library_.worker_set_am_recv_handler(handle_, &handler);
  return status == UCS_OK ? Status() : ucx_error(library_, "setting the handler of messages", status);
}

Result<std::string> UcpWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  const ucs_status_t status = library_.worker_get_address(handle_, &address, &bytes);
  if (status != UCS_OK) return ucx_error(library_, "asking for the worker's address", status);
  std::string text(reinterpret_cast<const char*>(address), bytes);
  library_.worker_release_address(handle_, address);
  return text;
}

Result<int> UcpWorker::wake_fd() const {
  int wake = -1;
  const ucs_status_t status = library_.worker_get_efd(handle_, &wake);
  if (status != UCS_OK) return ucx_error(library_, "getting the descriptor that wakes a sleeping thread", status);
  return wake;
}

void* UcpWorker::post(ucp_ep_h endpoint, const UcxHeader& header, std::string_view data, ucp_send_nbx_callback_t done,
                      void* user) const {
  const ucp_request_param_t param = ucx_request_param(done, user);
  return library_.am_send_nbx(endpoint, kMessageId, &header, sizeof(header), data.data(), data.size(), &param);
}

}  // namespace tutti
