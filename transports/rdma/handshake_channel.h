// HandshakeChannel: exchanges the handshake messages of data paths. Before the first message on a lane, two ranks must
// exchange, for example, queue pair numbers, addresses and keys. These messages use a TCP connection in each direction
// between two ranks, on a lane that is reserved for them. These connections remain open, because their end reveals that
// the process of the peer has died.
//
// Use it in the thread that drives progress.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transports/transport.h"

namespace tutti {

class HandshakeChannel {
 public:
  using OpenSend = std::function<Result<std::unique_ptr<SendConnection>>(std::uint32_t peer)>;
  using OpenReceive = std::function<Result<std::unique_ptr<ReceiveConnection>>(std::uint32_t peer)>;

  // `slot_bytes`: length of the longest message that the connections of `open_send` and `open_receive` can carry.
  // Longer handshake messages are sent in parts.
  HandshakeChannel(OpenSend open_send, OpenReceive open_receive, std::uint64_t slot_bytes);

  // Sends `text`, for example the description of this rank's end of a lane, to `peer`. At most kMaxMessageBytes bytes.
  // Opens the TCP connections on the first call for a peer. Call it at most once for each peer and value of `lane`: a
  // lane with several types of messages adds a flag to its number (see LaneState). Errors: those of opening the
  // connections.
  Status send(std::uint32_t peer, std::uint16_t lane, const std::string& text);
  // Returns the text that `peer` has sent with the same value of `lane`, once. Empty if it has not arrived yet, or if
  // this rank has not called send() for `peer`.
  std::optional<std::string> take(std::uint32_t peer, std::uint16_t lane);
  // Processes everything that has arrived, and sends everything that waits, as far as possible now. If a peer has sent
  // something that a correct peer never sends, trouble() describes it afterwards.
  void pump();
  // True if the peer has sent something that a correct peer never sends. Nothing more is received from it.
  bool corrupt(std::uint32_t peer) const;
  const std::string& trouble() const { return trouble_; }

  static constexpr std::size_t kMaxMessageBytes = 64 * 1024;
  // Limit for the messages of one peer that take() has not returned yet. A peer that sends more is corrupt.
  static constexpr std::size_t kMaxUnread = 256;

 private:
  struct PeerChannels {
    std::unique_ptr<SendConnection> send;
    std::unique_ptr<ReceiveConnection> receive;
    std::string unsent;    // messages, each with its header; sent in parts that fit into slots
    std::string received;  // the beginning of a message that is not complete
    std::map<std::uint16_t, std::string> messages;
    bool corrupt = false;
  };
  void send_pending(PeerChannels& peer);
  void receive_pending(std::uint32_t rank, PeerChannels& peer);
  bool take_message(PeerChannels& peer);

  OpenSend open_send_;
  OpenReceive open_receive_;
  const std::uint64_t slot_bytes_;
  std::map<std::uint32_t, PeerChannels> peers_;
  std::string trouble_;
};

}  // namespace tutti
