// UcxWorker: one ucp_worker with the endpoints to all peers of a communicator, and the lanes of messages over them.
//
// A message is one active message: a UcxHeader and the payload. UCX keeps no order between active messages that it
// carries in different ways, so messages are numbered by lane and put in order here. What comes whole stays in UCX's
// own memory until it is released, where that is aligned well; what the sender only announces (rendezvous) is drawn
// into a slot of this rank's at once, never into a caller's memory: a network card would write there whenever it likes.
//
// Where UCX's endpoint goes by network cards that write into a peer's memory (ways.h), long messages are written into
// slots of the receiver's by ucp_put_nbx, and announced by a UcxHeader alone once a flush has said that they are there.
// The receiver offers a lane's slots (kOffer) when its first long message has come in the other way.
//
// At most `slots` messages are on their way in each direction of a lane; the receiver tells what it has released, with
// messages that go the other way anyhow, or by a message of its own when half of the slots are untold, or when the
// sender can have no credit left. So a sender without credit always gets some once anything is released.
//
// Belongs to the thread that drives progress; callbacks of UCX run within progress(). Shared by the path and its
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

// Of a request that tells `done` when it is, with `user`.
inline ucp_request_param_t ucx_request_param(ucp_send_nbx_callback_t done, void* user) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = done;
  param.user_data = user;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

// A message of this rank's, from send() until UCX no longer needs it.
struct UcxSend {
  UcxLane* lane = nullptr;
  UcxHeader header;
  PageBytes memory;
  bool going = false;         // UCX has it, and has not said that it is done
  std::uint32_t writing = 0;  // what UCX has to finish before it is announced: a put, a flush
};

// A message of the peer's, until its release.
struct UcxArrived {
  enum class State : std::uint8_t { kEmpty, kAnnounced, kComing, kHere };
  UcxLane* lane = nullptr;
  UcxHeader header;
  State state = State::kEmpty;
  PageBytes memory;                 // what could not stay with UCX
  void* kept = nullptr;             // UCX's: to be given back, or drawn when kAnnounced
  const std::byte* data = nullptr;  // of kHere
};

struct UcxPeer;

// Both directions between this rank and a peer on one lane. The counts are of messages since the beginning.
struct UcxLane {
  UcxPeer* peer = nullptr;
  std::uint16_t number = 0;
  std::vector<UcxSend> sends;        // by number of the message, modulo slots; empty until the lane is used
  std::uint64_t sent = 0;            // given by this rank
  std::uint64_t started = 0;         // given to UCX
  std::uint64_t credited = 0;        // released by the peer, as far as it has told
  std::uint32_t going = 0;           // of `sends`
  std::vector<UcxArrived> arrivals;  // likewise
  std::uint64_t seen = 0;            // one more than the highest number that has come
  std::uint64_t released = 0;        // by this rank
  std::uint64_t told = 0;            // of these
  std::uint64_t untold_bytes = 0;
  bool corrupt = false;  // the peer has sent what no sound one does
  UcxHeader credit;      // of the message that tells
  bool credit_going = false;
  bool owes = false;  // in UcxWorker's list of those that have something to tell
  // Long messages of the peer's.
  std::unique_ptr<UcxSlots> slots;  // where it writes them, once they are offered
  bool offers = false;              // they are, or are about to be
  UcxHeader offer;
  bool offer_going = false;
  // Long messages of this rank's.
  std::string offered;             // what the peer has offered, not yet read
  ucp_rkey_h key = nullptr;        // of the peer's slots
  std::uint64_t remote_slots = 0;  // their address
};

struct UcxPeer {
  std::uint32_t rank = 0;
  class UcxWorker* worker = nullptr;
  ucp_ep_h endpoint = nullptr;
  std::string way;          // by which devices, as far as UCX tells
  bool writes = false;      // by cards that write into memory: long messages are put
  bool introduced = false;  // this rank, to it
  bool connected = false;   // it has introduced itself
  std::uint64_t key = 0;    // its own
  std::vector<UcxLane> lanes;
  bool last_sent = false;
  bool last_going = false;
  UcxHeader last;
  bool left = false;  // it has sent its last
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
  // Introduces this rank to the peer, where it has not. Errors: those of the introduction.
  Result<UcxLane*> open(std::uint32_t peer, std::uint16_t lane);

  // For the connections.
  bool ready(UcxLane& lane);
  std::byte* slot(UcxLane& lane);
  // The message that stands in slot(). With ready() only.
  void send(UcxLane& lane, std::uint64_t bytes, const CallTag& tag);
  bool delivered(UcxLane& lane);    // UCX no longer reads this rank's memory for it
  bool handed_over(UcxLane& lane);  // and needs this process no more
  // The message whose turn it is, or null; its state may be anything but kEmpty.
  UcxArrived* next(UcxLane& lane);
  void release(UcxLane& lane, UcxArrived& message);
  void note_call(UcxPeer& peer, const CallTag& tag) { links_->note_call(peer.rank, tag); }
  void tell_of_mismatch() { links_->pusher().push_now(); }
  std::int64_t now_ns() { return clock_.now_ns(); }

  // For the path. See DataPath.
  void progress();
  void pump();
  bool flush();
  void drain(std::int64_t patience_ns);
  std::optional<std::string> broken(std::uint32_t peer);
  std::string way(std::uint32_t peer) const { return peers_[peer].way; }
  std::string troubles() const;
  bool arm();  // false: UCX does not agree to sleep
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
  void draw(UcxArrived& message);
  void owe(UcxLane& lane);
  void tell(UcxLane& lane);
  void* post(UcxPeer& peer, const UcxHeader& header, std::string_view data, ucp_send_nbx_callback_t done, void* user);
  UcxHeader header_to(const UcxPeer& peer, UcxKind kind) const;
  bool gone(const UcxLane& lane) const;
  std::uint64_t unconfirmed_bytes(const UcxLane& lane) const;
  bool busy() const;
  bool drained(UcxPeer& peer);
  void say_last(UcxPeer& peer);
  void fail(UcxPeer& peer, ucs_status_t status, std::string_view doing);
  void close(UcxPeer& peer);
  void close_failed();
  ucs_status_t take(const void* header, std::size_t header_bytes, void* data, std::size_t bytes, std::uint64_t how);
  ucs_status_t take_message(UcxArrived& message, void* data, std::uint64_t how);
  void settle();

  // Runs the body of a callback. No exception may pass through functions of UCX, which is written in C and ends the
  // process when it is called again. So it is kept, and thrown again once UCX has returned.
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
  static void on_told(void* request, ucs_status_t status, void* lane);
  static void on_last(void* request, ucs_status_t status, void* peer);
  static void on_drawn(void* request, ucs_status_t status, std::size_t bytes, void* message);

  const std::shared_ptr<UcxContext> context_;  // shared by all of the process
  const UcxLibrary& ucx_;
  DataPathOptions options_;
  Introductions* introductions_;  // of the path's host: until end()
  TcpLinks* links_;               // likewise
  SteadyClock clock_;
  ucp_worker_h worker_ = nullptr;
  std::string introduction_;
  std::uint64_t key_ = 0;
  std::vector<UcxPeer> peers_;          // by rank; they stay where they are
  std::vector<UcxPeer*> unconnected_;   // introduced to, and not connected yet
  std::exception_ptr thrown_;           // in a callback, not thrown again yet
  std::vector<UcxArrived*> announced_;  // to be drawn once UCX has returned
  std::vector<UcxSend*> written_;       // to be announced, likewise
  std::vector<UcxLane*> offered_;       // whose peers have offered slots, likewise
  std::vector<UcxLane*> offering_;      // whose slots are to be offered
  std::string no_slots_;                // why some could not be
  std::vector<UcxLane*> owing_;
  std::vector<UcxPeer*> failed_;  // whose endpoints must be closed
  std::vector<void*> closing_;    // UCX's requests
  std::uint64_t unfinished_ = 0;  // messages that UCX has not done with, or has not had yet
  std::uint64_t refused_ = 0;     // messages that are none of a peer's
  bool no_failures_ = false;      // an endpoint does not tell of a peer's end
  bool ending_ = false;           // what still comes is dropped
};

}  // namespace tutti
