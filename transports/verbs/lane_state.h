// LaneState: the state of one VerbsLane that its parts share: the stage of the handshake, whether the lane has broken
// and why, and whether the peer has violated the protocol. It exchanges the handshake messages with the peer, and
// the reports that an end has broken. Use it in the thread that drives progress.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "transports/rdma/handshake_channel.h"

namespace tutti {

struct VerbsLaneOptions {
  std::uint32_t rank = 0;
  std::uint32_t peer = 0;
  std::uint16_t lane = 0;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;
  std::uint32_t queue_pairs = 1;  // number of queue pairs that the lane has on each rail
  bool advertises_outputs = true;
};

class LaneState {
 public:
  LaneState(const VerbsLaneOptions& options, HandshakeChannel& handshake_channel)
      : peer_(options.peer), lane_(options.lane), handshake_channel_(handshake_channel) {}
  LaneState(const LaneState&) = delete;
  LaneState& operator=(const LaneState&) = delete;

  // Sends the handshake message of this rank. Errors: those of HandshakeChannel::send().
  Status send_handshake(const std::string& text);
  // Returns the handshake message of the peer, once; empty if it has not arrived. Fails the lane if there is no message
  // to return and the peer has sent something malformed.
  std::optional<std::string> take_handshake();
  void send_ready();  // informs the peer that the queue pairs of this rank are ready to receive
  void take_ready();  // makes the lane connected if the peer has sent the same message
  void close() { stage_ = Stage::kClosed; }
  bool awaits_handshake() const { return stage_ == Stage::kHandshakeSent; }
  bool is_connecting() const { return stage_ == Stage::kHandshakeSent || stage_ == Stage::kReadySent; }
  bool is_connected() const { return stage_ == Stage::kConnected; }
  bool is_closed() const { return stage_ == Stage::kClosed; }
  // True if the handshake is complete and the lane has not broken. Sending a message needs a credit in addition.
  bool works() const { return is_connected() && broken_.empty(); }

  void fail(const std::string& why);
  const std::string& broken() const { return broken_; }  // why the lane has broken; empty: it has not
  // Informs the peer that the queue pair with index `pair` has broken. `words`: the reason.
  void report_broken(std::size_t pair, const std::string& words);
  struct BrokenReport {
    std::size_t pair = 0;
    std::string words;  // the reason; the characters that are not printable ASCII are replaced by '?'
  };
  // Returns the report of the peer that its end has broken, once. Empty if there is none, or if the lane is connecting
  // or closed.
  std::optional<BrokenReport> take_broken_report();
  bool peer_reported_broken() const { return peer_reported_broken_; }

  void set_corrupt() { corrupt_ = true; }  // the peer has sent something that a correct peer never sends
  bool corrupt() const { return corrupt_; }

 private:
  enum class Stage : std::uint8_t { kHandshakeSent, kReadySent, kConnected, kClosed };

  const std::uint32_t peer_;
  const std::uint16_t lane_;
  HandshakeChannel& handshake_channel_;
  Stage stage_ = Stage::kHandshakeSent;
  std::string broken_;
  bool peer_reported_broken_ = false;
  bool corrupt_ = false;
};

}  // namespace tutti
