// UcxWorker: one ucp_worker with the endpoints to those peers of a communicator that use UCX, and the lanes of messages
// over these endpoints.
//
// A message is one active message: a UcxHeader and the payload. UCX does not keep the order of active messages that it
// transfers by different protocols, so messages are numbered for each lane and put in order here. A message that
// arrives complete remains in memory of UCX until it is released, if UCX permits that and it is suitably aligned there.
// Otherwise it is copied. If the sender only announces a message (rendezvous protocol), it is fetched into a slot of
// this rank at once. It is never fetched into memory of the caller, because a network card could then write there at
// any time.
//
// If the endpoint of a peer uses a NIC that can write into the memory of the peer (see is_nic_write_transport()) and
// can detect the failure of the peer, or with UcxPuts::kAlways, long messages are written into slots of the receiver
// with ucp_put_nbx. When a flush has confirmed that the data has arrived, a UcxHeader alone announces the message. The
// receiver advertises the slots of a lane (kOffer) when the first long message of the lane has arrived as an active
// message.
//
// At most `slots` messages are in transit in each direction of a lane. The receiver reports the messages that it has
// released in the header of each message in the other direction. It sends a message of its own for that when at least
// half of the slots or kUcxReportBytes bytes are released but not reported, or when the sender cannot have a credit
// left. So a sender without credits always gets some after a message was released.
//
// The worker owns its parts and connects them: UcpWorker (the worker of UCX), UcxEndpoints (handshakes, failures and
// the state of peers and lanes), UcxSender and UcxReceiver. Use it in the thread that drives progress. Callbacks of UCX
// run within progress(), arm() and end(). The worker is shared by the path and its connections, which may outlive the
// path. After end() nothing is sent or received.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "transports/rdma/data_path.h"
#include "transports/ucx/endpoints.h"
#include "transports/ucx/lane.h"
#include "transports/ucx/library.h"
#include "transports/ucx/receiver.h"
#include "transports/ucx/sender.h"
#include "transports/ucx/ucp_worker.h"

namespace tutti {

class UcxWorker {
 public:
  // Errors: kSystem.
  static Result<std::shared_ptr<UcxWorker>> create(std::shared_ptr<UcxContext> context, const DataPathHost& host,
                                                   const DataPathOptions& options);
  ~UcxWorker() { end(); }
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const DataPathOptions& options() const { return endpoints_.options(); }
  bool over() const { return ucp_.over(); }
  // Returns the lane. Sends the handshake message to the peer if that has not happened. Errors: those of sending it.
  Result<UcxLane*> open(std::uint32_t peer, std::uint16_t lane);

  // The connections use this function and those up to now_ns().
  UcxSender& sender() { return sender_; }
  // True if a message can be sent on the lane; see UcxSender::may_send().
  bool ready(UcxLane& lane);
  // True if UCX does not read the messages of this lane any more; see UcxSender::is_delivered().
  bool delivered(UcxLane& lane);
  // True if, in addition to delivered(), the operating system or the peer has all messages of the lane; see
  // UcxSender::is_handed_over(). Also true after end().
  bool handed_over(UcxLane& lane);
  // The next message in order, or null if nothing of it has arrived, or after end(). The message may be incomplete: its
  // state can be kAnnounced, kFetching or kComplete.
  UcxArrived* next(UcxLane& lane);
  void release(UcxLane& lane, UcxArrived& message) { receiver_.release(lane, message); }
  void note_call(UcxPeer& peer, const CallTag& tag) { links_->note_call(peer.rank, tag); }
  void push_status() { links_->pusher().push_now(); }
  std::int64_t now_ns() { return clock_.now_ns(); }

  // Lets UCX make progress, and does the work that its callbacks have queued. next(), pump() and drain(), among others,
  // call it.
  void progress();
  // The UcxPath uses the functions from here to troubles(); see DataPath.
  void pump();
  bool flush();
  void drain(std::int64_t timeout_ns);
  std::optional<std::string> broken(std::uint32_t peer) { return endpoints_.broken(peer); }
  std::string describe_path(std::uint32_t peer) { return endpoints_.peers()[peer].resources; }
  std::string troubles() const;
  bool arm();  // false: UCX still has events or has failed, so this thread must not sleep
  void end();

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, const DataPathHost& host, const DataPathOptions& options);
  ucs_status_t take(const void* header, std::size_t header_bytes, void* data, std::size_t bytes, std::uint64_t how);
  void settle();
  bool drained(UcxPeer& peer);
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);

  HandshakeChannel* handshake_channel_;  // belongs to the transport (see DataPathHost); valid until end()
  TcpLinks* links_;                      // belongs to the transport (see DataPathHost); valid until end()
  SteadyClock clock_;
  UcpWorker ucp_;
  UcxEndpoints endpoints_;
  UcxSender sender_;
  UcxReceiver receiver_;
  // Messages that were dropped because their header is wrong: its length, magic, key, rank or lane.
  std::uint64_t refused_ = 0;
  bool ending_ = false;  // end() has begun, so everything that arrives is dropped
};

}  // namespace tutti
