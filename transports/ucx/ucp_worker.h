// UcpWorker: owns one ucp_worker of UCX, which receives and sends active messages. It keeps exceptions away from UCX
// and provides the few calls that need the worker itself. Use it in the thread that drives progress; callbacks of UCX
// run within progress() and destroy(), and may run while UCX closes an endpoint.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/ucx/library.h"
#include "transports/ucx/slots.h"
#include "transports/ucx/wire.h"

namespace tutti {

class UcpWorker {
 public:
  explicit UcpWorker(std::shared_ptr<UcxContext> context)
      : context_(std::move(context)), library_(context_->library()) {}
  UcpWorker(const UcpWorker&) = delete;
  UcpWorker& operator=(const UcpWorker&) = delete;

  // Creates the worker. Active messages go to `on_message` with `user`. Errors: kSystem.
  Status create(ucp_am_recv_callback_t on_message, void* user);
  // The address to which peers connect, in the format of UCX. Errors: kSystem.
  Result<std::string> address() const;
  // A descriptor that wakes a sleeping thread. Errors: kSystem.
  Result<int> wake_fd() const;

  bool over() const { return handle_ == nullptr; }  // not created, or ended
  ucp_worker_h handle() const { return handle_; }
  UcxContext& context() const { return *context_; }
  const std::shared_ptr<UcxContext>& shared_context() const { return context_; }
  const UcxLibrary& functions() const { return library_; }

  unsigned progress() { return library_.worker_progress(handle_); }  // returns 0 if nothing has happened
  bool arm() { return library_.worker_arm(handle_) == UCS_OK; }      // false: UCX still has events, or has failed
  // Sends one active message. Returns the request of UCX: the header and the data must then remain unchanged until
  // `done` is called. Returns null if the message was sent at once, or an error pointer (UCS_PTR_IS_ERR); `done` is not
  // called then.
  void* post(ucp_ep_h endpoint, const UcxHeader& header, std::string_view data, ucp_send_nbx_callback_t done,
             void* user) const;

  // Runs the body of a callback. No exception may pass through functions of UCX: it is written in C, and aborts the
  // process if it is called again afterwards. So the exception is stored, and rethrow() throws it again when UCX has
  // returned.
  template <class Body>
  void in_callback(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }
  void rethrow() {
    if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

  void destroy() {
    library_.worker_destroy(handle_);
    handle_ = nullptr;
  }
  // Keeps the worker until the process ends, because it cannot be destroyed. Also keeps `slots`, because peers may
  // still write there.
  void retain(std::vector<std::unique_ptr<UcxSlots>> slots) {
    UcxContext::retain(context_, handle_, std::move(slots));
    handle_ = nullptr;
  }
  void abandon() { handle_ = nullptr; }  // for a forked child, which must destroy nothing: the parent owns everything

 private:
  const std::shared_ptr<UcxContext> context_;  // can be shared with other ranks of the process
  const UcxLibrary& library_;
  ucp_worker_h handle_ = nullptr;
  std::exception_ptr thrown_;  // exception of a callback, not thrown again yet; null: none
};

}  // namespace tutti
