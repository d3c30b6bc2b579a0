// UcxEndpoints: the endpoints from this rank to its peers over UCX. It owns the peers and their lanes, exchanges the
// handshake messages, creates and closes the endpoints, and keeps the failures of peers. It also counts the messages
// that were not passed to UCX or that UCX has not completed, because this number falls when a peer fails and its
// messages are dropped. Use it in the thread that drives progress.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "transports/rdma/data_path.h"
#include "transports/ucx/lane.h"
#include "transports/ucx/ucp_worker.h"

namespace tutti {

class UcxEndpoints {
 public:
  // `ucp` must outlive this object. `channel` must be valid until `ucp` is over.
  UcxEndpoints(UcpWorker& ucp, HandshakeChannel& channel, const DataPathOptions& options);
  UcxEndpoints(const UcxEndpoints&) = delete;
  UcxEndpoints& operator=(const UcxEndpoints&) = delete;

  // Prepares the handshake message. Errors: kSystem.
  Status set_up();
  const DataPathOptions& options() const { return options_; }
  std::uint64_t key() const { return key_; }  // messages to this rank must contain this key
  std::vector<UcxPeer>& peers() { return peers_; }
  // Returns the lane. Allocates its lists of messages on the first use.
  UcxLane& lane(UcxPeer& peer, std::uint16_t number);

  // Sends the handshake message to the peer if that has not happened. Errors: those of sending it.
  Status introduce(UcxPeer& peer);
  // Makes the endpoints of the peers whose handshake messages have arrived, and passes the messages that wait for these
  // peers to UCX.
  void connect_waiting();

  UcxHeader header_to(const UcxPeer& peer, UcxMessageType kind) const;
  // Sends one active message. See UcpWorker::post().
  void* post(UcxPeer& peer, const UcxHeader& header, std::string_view data, ucp_send_nbx_callback_t done, void* user) {
    return ucp_.post(peer.endpoint, header, data, done, user);
  }
  void send_last(UcxPeer& peer);  // sends the last message (kLast) to the peer, because this rank leaves
  void note_sent() { ++unfinished_; }
  void note_finished() { --unfinished_; }
  // Number of messages of this rank that were not passed to UCX yet, or that UCX has not completed. Reports of credits,
  // advertisements of slots and the last message do not count.
  std::uint64_t unfinished() const { return unfinished_; }

  // Marks the peer as failed, unless it has failed before or the worker is over. This rank's messages to it that were
  // not passed to UCX are dropped, and close_failed() closes its endpoint (unless detects_failures() is false).
  // `doing`: the action that failed, for the error message; may be empty.
  void fail(UcxPeer& peer, ucs_status_t status, std::string_view doing);
  // Closes the endpoints of peers that have failed, but none if detects_failures() is false. Do not call it within a
  // callback of UCX, because UCX does not permit that.
  void close_failed();
  // Closes all endpoints, and waits for that at most `timeout_ns`. Closes none if detects_failures() is false.
  void close_all(std::int64_t timeout_ns);
  // False if some endpoint cannot detect the failure of its peer. Such endpoints cannot be closed by force either.
  bool detects_failures() const { return !no_failure_detection_; }
  // True if UCX has not completed all requests of this rank, or if a message was not passed to UCX yet.
  bool busy() const;

  std::optional<std::string> broken(std::uint32_t rank);  // see DataPath::broken()
  std::string troubles() const;
  void note_no_slots(std::string why) { no_slots_ = std::move(why); }

 private:
  bool connect(UcxPeer& peer);
  ucs_status_t make_endpoint(UcxPeer& peer, const void* address);
  void close(UcxPeer& peer);

  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  static void on_last(void* request, ucs_status_t status, void* peer);

  UcpWorker& ucp_;  // belongs to the UcxWorker
  HandshakeChannel& handshake_channel_;
  const DataPathOptions options_;
  SteadyClock clock_;
  std::string handshake_message_;
  std::uint64_t key_ = 0;
  std::vector<UcxPeer> peers_;         // indexed by rank; elements never move
  std::vector<UcxPeer*> unconnected_;  // peers with `introduced` set whose handshake message has not arrived
  std::vector<UcxPeer*> failed_;       // peers with endpoints to close
  std::vector<void*> closing_;         // close requests of UCX that are not complete
  std::uint64_t unfinished_ = 0;       // see unfinished()
  std::string no_slots_;               // why some slots could not be advertised or used
  bool no_failure_detection_ = false;  // an endpoint cannot detect the failure of its peer
};

}  // namespace tutti
