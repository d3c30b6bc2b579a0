// UcxEndpoints: the endpoints from this rank to all peers over UCX. It owns the peers and their lanes, exchanges the
// handshake messages, creates and closes the endpoints, and keeps the failures of peers. It also counts the messages
// that UCX has not completed, because the messages to a peer that fails are dropped. Use it in the thread that drives
// progress.
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
  std::uint64_t key() const { return key_; }  // messages to this rank must contain it
  std::vector<UcxPeer>& peers() { return peers_; }
  // Returns the lane, ready for use.
  UcxLane& lane(UcxPeer& peer, std::uint16_t number);

  // Sends the handshake message to the peer if that has not happened. Errors: those of sending it.
  Status introduce(UcxPeer& peer);
  // Makes the endpoints of the peers whose handshake messages have arrived, and starts the messages to them.
  void connect_waiting();

  UcxHeader header_to(const UcxPeer& peer, UcxMessageType kind) const;
  // Sends one active message. See UcpWorker::post().
  void* post(UcxPeer& peer, const UcxHeader& header, std::string_view data, ucp_send_nbx_callback_t done, void* user) {
    return ucp_.post(peer.endpoint, header, data, done, user);
  }
  void send_last(UcxPeer& peer);  // the last message to the peer: this rank leaves
  void note_sent() { ++unfinished_; }
  void note_finished() { --unfinished_; }
  std::uint64_t unfinished() const { return unfinished_; }  // messages that UCX has not completed or not received yet

  void fail(UcxPeer& peer, ucs_status_t status, std::string_view doing);
  // Closes the endpoints of peers that have failed. UCX does not permit that within its own callbacks.
  void close_failed();
  // Closes all endpoints, for at most `timeout_ns`.
  void close_all(std::int64_t timeout_ns);
  // Endpoints that cannot detect failures cannot be closed by force either.
  bool detects_failures() const { return !no_failure_detection_; }
  bool busy() const;  // UCX still has requests in its queues

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
  std::vector<UcxPeer*> unconnected_;  // peers that have not answered the handshake message of this rank
  std::vector<UcxPeer*> failed_;       // peers with endpoints to close
  std::vector<void*> closing_;         // close requests of UCX that are not complete
  std::uint64_t unfinished_ = 0;       // see unfinished()
  std::string no_slots_;               // why some slots could not be advertised or used
  bool no_failure_detection_ = false;  // an endpoint cannot detect the failure of its peer
};

}  // namespace tutti
