// UcxWorker: one ucp_worker with the endpoints to all peers of a communicator, and the lanes of messages over these
// endpoints.
//
// A message is one active message: a UcxHeader and the payload. UCX does not keep the order of active messages that
// it transfers by different protocols, so messages are numbered for each lane and put in order here. A message that
// arrives complete remains in memory of UCX until it is released, if it is suitably aligned there. If the sender
// only announces a message (rendezvous protocol), it is fetched into a slot of this rank at once. It is never
// fetched into memory of the caller, because a network card could then write there at any time.
//
// If the endpoint of a peer uses a NIC that can write into the memory of the peer (see is_nic_write_transport()), long
// messages are written into slots of the receiver with ucp_put_nbx. When a flush has confirmed that the data has
// arrived, a UcxHeader alone announces the message. The receiver advertises the slots of a lane (kOffer) when its
// first long message has arrived as an active message.
//
// At most `slots` messages are in transit in each direction of a lane. The receiver reports the messages that it has
// released in the header of each message in the other direction. It sends a message of its own for that when half of
// the slots are released but not reported, or when the sender cannot have a credit left. So a sender without credits
// always gets some after a message was released.
//
// Use a worker in the thread that drives progress. Callbacks of UCX run within progress(). The worker is shared by
// the path and its connections, which may outlive the path. After end() nothing is sent or received.
// connections, which may outlive it; after end() nothing is sent or received.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transports/rdma/data_path.h"
#include "transports/tcp/socket.h"
#include "transports/ucx/library.h"
#include "transports/ucx/slots.h"
#include "transports/ucx/wire.h"

namespace tutti {

struct UcxLane;

// The parameters of a request that calls `done` with `user` when it is complete.
inline ucp_request_param_t ucx_request_param(ucp_send_nbx_callback_t done, void* user) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = done;
  param.user_data = user;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

// A message of this rank, from send() until UCX does not need it any more.
struct UcxSend {
  UcxLane* lane = nullptr;
  UcxHeader header;
  PageBytes memory;
  bool going = false;  // UCX has the message and has not completed it yet
  // Requests of UCX, a put and a flush, that must complete before the message is announced.
  std::uint32_t writing = 0;
};

// A message of the peer, until it is released.
struct UcxArrived {
  // kAnnounced: the sender has announced the message, and it must be fetched. kFetching: it is being fetched.
  // kComplete: the whole message is here.
  enum class State : std::uint8_t { kEmpty, kAnnounced, kFetching, kComplete };
  UcxLane* lane = nullptr;
  UcxHeader header;
  State state = State::kEmpty;
  PageBytes memory;  // holds the payload if it could not remain in memory of UCX
  // Data of UCX: to be released, or to be fetched in state kAnnounced.
  void* kept = nullptr;
  const std::byte* data = nullptr;  // the payload, in state kComplete
};

struct UcxPeer;

// Both directions between this rank and a peer on one lane. All counters start at 0 and are never reset.
struct UcxLane {
  UcxPeer* peer = nullptr;
  std::uint16_t number = 0;
  std::vector<UcxSend> sends;        // index: number of the message modulo slots; empty until the lane is used
  std::uint64_t sent = 0;            // messages that this rank has sent
  std::uint64_t started = 0;         // messages of those that were passed to UCX
  std::uint64_t credited = 0;        // messages of those that the peer has reported as released
  std::uint32_t going = 0;           // elements of `sends` that UCX has not completed
  std::vector<UcxArrived> arrivals;  // index like that of `sends`
  std::uint64_t seen = 0;            // the highest message number that has arrived, plus 1
  std::uint64_t released = 0;        // messages that this rank has released
  std::uint64_t reported = 0;        // messages of those that were reported to the peer
  // Bytes of released messages that were not reported to the peer.
  std::uint64_t unreported_bytes = 0;
  bool corrupt = false;  // the peer has sent something that a correct peer never sends
  UcxHeader credit;      // header of the message that reports released messages
  bool credit_going = false;
  bool report_queued = false;  // the lane is in UcxWorker::reports_queue_
  // Long messages of the peer.
  std::unique_ptr<UcxSlots> slots;  // the peer writes into them, once they are advertised
  bool offers = false;              // they are advertised, or will be soon
  UcxHeader offer;
  bool offer_going = false;
  // Long messages of this rank.
  std::string offered;             // the advertisement of the peer, not parsed yet
  ucp_rkey_h key = nullptr;        // key of the peer's slots
  std::uint64_t remote_slots = 0;  // address of the peer's slots
};

struct UcxPeer {
  std::uint32_t rank = 0;
  class UcxWorker* worker = nullptr;
  ucp_ep_h endpoint = nullptr;
  std::string resources;  // the devices that the endpoint uses, as far as UCX shows
  // A NIC writes into the memory of the peer, so long messages are put into its slots.
  bool writes = false;
  bool introduced = false;  // this rank has sent its handshake message to the peer
  bool connected = false;   // the handshake message of the peer has arrived
  std::uint64_t key = 0;    // the key in that message; every header to the peer has it
  std::vector<UcxLane> lanes;
  bool last_sent = false;
  bool last_going = false;
  UcxHeader last;
  bool left = false;  // it has sent its last message (kLast)
  ucs_status_t error = UCS_OK;
  std::string error_words;
  std::int64_t error_ns = 0;
  bool dead() const { return error != UCS_OK; }
};

class UcxWorker {
 public:
  // Errors: kSystem.
  static Result<std::shared_ptr<UcxWorker>> create(std::shared_ptr<UcxContext> context, const DataPathHost& host,
                                                   const DataPathOptions& options);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const DataPathOptions& options() const { return options_; }
  bool over() const { return worker_ == nullptr; }
  // Returns the lane. Sends the handshake message to the peer if that has not happened. Errors: those of sending it.
  Result<UcxLane*> open(std::uint32_t peer, std::uint16_t lane);

  // For the connections.
  bool ready(UcxLane& lane);
  std::byte* slot(UcxLane& lane);
  // Sends the message in slot(). Call it only if ready().
  void send(UcxLane& lane, std::uint64_t bytes, const CallTag& tag);
  bool delivered(UcxLane& lane);    // UCX does not read memory of this rank any more for this lane
  bool handed_over(UcxLane& lane);  // in addition, no further action of this process is needed
  // The next message in order, or null if nothing of it has arrived. It may be incomplete: its state is any but
  // kEmpty.
  UcxArrived* next(UcxLane& lane);
  void release(UcxLane& lane, UcxArrived& message);
  void note_call(UcxPeer& peer, const CallTag& tag) { links_->note_call(peer.rank, tag); }
  void push_status() { links_->pusher().push_now(); }
  std::int64_t now_ns() { return clock_.now_ns(); }

  // For the path; see DataPath.
  void progress();
  void pump();
  bool flush();
  void drain(std::int64_t timeout_ns);
  std::optional<std::string> broken(std::uint32_t peer);
  std::string describe_path(std::uint32_t peer) const { return peers_[peer].resources; }
  std::string troubles() const;
  bool arm();  // false: UCX still has events, so this thread must not sleep
  void end();

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, const DataPathHost& host, const DataPathOptions& options);
  Status set_up();
  void use_peer(UcxPeer& peer);
  void use(UcxLane& lane);
  bool connect(UcxPeer& peer);
  ucs_status_t make_endpoint(UcxPeer& peer, const void* address);
  void start(UcxLane& lane);
  void start_message(UcxSend& message);
  void finish(UcxSend& message);
  bool writes(const UcxLane& lane, const UcxHeader& header) const;
  void write(UcxSend& message);
  bool await_written(UcxSend& message, void* request);
  void wants_slots(UcxLane& lane);
  bool offer_slots(UcxLane& lane);
  void read_offer(UcxLane& lane);
  void release_keys(UcxPeer& peer);
  ucs_status_t take_offer(UcxLane& lane, const void* data, std::size_t bytes, std::uint64_t how);
  void fetch(UcxArrived& message);
  void queue_report(UcxLane& lane);
  void report_released(UcxLane& lane);
  void* post(UcxPeer& peer, const UcxHeader& header, std::string_view data, ucp_send_nbx_callback_t done, void* user);
  UcxHeader header_to(const UcxPeer& peer, UcxMessageType kind) const;
  bool is_handed_over(const UcxLane& lane) const;
  std::uint64_t unconfirmed_bytes(const UcxLane& lane) const;
  bool busy() const;
  bool drained(UcxPeer& peer);
  void send_last(UcxPeer& peer);
  void fail(UcxPeer& peer, ucs_status_t status, std::string_view doing);
  void close(UcxPeer& peer);
  void close_failed();
  ucs_status_t take(const void* header, std::size_t header_bytes, void* data, std::size_t bytes, std::uint64_t how);
  ucs_status_t take_message(UcxArrived& message, void* data, std::uint64_t how);
  void settle();

  // Runs the body of a callback. No exception may pass through functions of UCX: it is written in C, and aborts the
  // process if it is called again afterwards. So the exception is stored, and thrown again when UCX has returned.
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

  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* send);
  static void on_written(void* request, ucs_status_t status, void* send);
  static void on_offered(void* request, ucs_status_t status, void* lane);
  static void on_reported(void* request, ucs_status_t status, void* lane);
  static void on_last(void* request, ucs_status_t status, void* peer);
  static void on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* message);

  const std::shared_ptr<UcxContext> context_;  // shared by the ranks of the process with the same UcxPuts
  const UcxLibrary& ucx_;
  DataPathOptions options_;
  HandshakeChannel* handshake_channel_;  // belongs to the DataPathHost; valid until end()
  TcpLinks* links_;                      // the same
  SteadyClock clock_;
  ucp_worker_h worker_ = nullptr;
  std::string handshake_message_;
  std::uint64_t key_ = 0;
  std::vector<UcxPeer> peers_;          // indexed by rank; elements never move
  std::vector<UcxPeer*> unconnected_;   // peers that have not answered the handshake message of this rank
  std::exception_ptr thrown_;           // from a callback, not thrown again yet
  std::vector<UcxArrived*> announced_;  // to be fetched when UCX has returned
  std::vector<UcxSend*> written_;       // to be announced when UCX has returned
  std::vector<UcxLane*> offered_;       // lanes with an unread advertisement of the peer's slots
  std::vector<UcxLane*> offering_;      // lanes that must still advertise their slots
  std::string no_slots_;                // why some slots could not be advertised or used
  // Lanes that have released messages to report.
  std::vector<UcxLane*> reports_queue_;
  std::vector<UcxPeer*> failed_;       // peers with endpoints to close
  std::vector<void*> closing_;         // close requests of UCX that are not complete
  std::uint64_t unfinished_ = 0;       // messages that UCX has not completed or has not received yet
  std::uint64_t refused_ = 0;          // messages that were dropped because no peer has sent them
  bool no_failure_detection_ = false;  // an endpoint cannot detect the failure of its peer
  bool ending_ = false;                // everything that arrives from now on is dropped
};

}  // namespace tutti
