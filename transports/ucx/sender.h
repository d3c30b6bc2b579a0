// UcxSender: the sending direction of all lanes of a UcxWorker. It counts credits, sends active messages, and writes
// long messages into the slots of the receiver once they have been advertised. Use it in the thread that drives
// progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/call_tag.h"
#include "transports/ucx/endpoints.h"
#include "transports/ucx/lane.h"
#include "transports/ucx/ucp_worker.h"

namespace tutti {

class UcxSender {
 public:
  // Both arguments must outlive this object.
  UcxSender(UcpWorker& ucp, UcxEndpoints& endpoints) : ucp_(ucp), endpoints_(endpoints) {}
  UcxSender(const UcxSender&) = delete;
  UcxSender& operator=(const UcxSender&) = delete;

  // True if the peer has not failed, and there is a credit and a free slot for one more message. Also true if the
  // worker is over: send() then does nothing.
  bool may_send(const UcxLane& lane) const;
  std::byte* slot(UcxLane& lane);
  // Sends the message in slot(). Call it only if may_send().
  void send(UcxLane& lane, std::uint64_t bytes, const CallTag& tag);
  // Passes to UCX the messages of the lane that were not passed yet. Call it only if the peer is connected.
  void start(UcxLane& lane);
  // True if all messages of this lane were passed to UCX (or dropped), and UCX does not read their memory any more.
  bool is_delivered(const UcxLane& lane) const;
  // True if the operating system or the peer has all messages of this lane that were passed to UCX. If the endpoint of
  // the peer is broken: true if the peer has left properly.
  bool is_handed_over(const UcxLane& lane) const;
  // Records how many messages the peer has released. `released`: the counter that a header of the peer contains.
  void note_released(UcxLane& lane, std::uint32_t released);

  // Takes the advertisement of the peer's slots.
  void take_offer(UcxLane& lane, const void* data, std::size_t bytes, std::uint64_t how);
  // Does the work that callbacks of UCX have queued. That work must not be done within the callbacks.
  void settle();
  void release_keys();  // call it when no request uses the keys any more

 private:
  void start_message(UcxSend& message);
  void finish(UcxSend& message);
  std::uint64_t unconfirmed_bytes(const UcxLane& lane) const;
  void read_offer(UcxLane& lane);
  bool writes(const UcxLane& lane, const UcxHeader& header) const;
  void write(UcxSend& message);
  bool await_written(UcxSend& message, void* request);

  static void on_sent(void* request, ucs_status_t status, void* send);
  static void on_written(void* request, ucs_status_t status, void* send);

  UcpWorker& ucp_;  // belongs to the UcxWorker, like `endpoints_`
  UcxEndpoints& endpoints_;
  std::vector<UcxSend*> written_;  // messages to announce when the callback has returned
  std::vector<UcxLane*> offered_;  // lanes with an unread advertisement of the peer's slots
};

}  // namespace tutti
