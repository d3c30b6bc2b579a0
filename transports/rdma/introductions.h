// Introductions: how two ranks tell each other what their data path must know before its first message on a lane: queue
// pairs, addresses, keys. They go over a TCP connection of their own, one each way for each pair of ranks that talks,
// on a lane that carries nothing else. It stays open: its end is how the death of a peer's process is noticed.
//
// Thread of the driver.
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

class Introductions {
 public:
  using OpenSend = std::function<Result<std::unique_ptr<SendConnection>>(std::uint32_t peer)>;
  using OpenReceive = std::function<Result<std::unique_ptr<ReceiveConnection>>(std::uint32_t peer)>;

  // `slot_bytes`: longest message of those connections.
  Introductions(OpenSend open_send, OpenReceive open_receive, std::uint64_t slot_bytes);

  // Tells `peer` about this rank's side of `lane`, once. At most kMostIntroduction bytes. Errors: those of opening.
  Status introduce(std::uint32_t peer, std::uint16_t lane, const std::string& text);
  // What `peer` has told about its side of `lane`; nothing: it has not come yet.
  std::optional<std::string> take(std::uint32_t peer, std::uint16_t lane);
  // Takes what has come and sends what waits. `trouble` of a peer that says what no sound one does is kept.
  void pump();
  // The peer has said what no sound one says; nothing more comes from it.
  bool corrupt(std::uint32_t peer) const;
  const std::string& trouble() const { return trouble_; }
  // Ends the connections, while their transport still lives.
  void close() { peers_.clear(); }

  static constexpr std::size_t kMostIntroduction = 64 * 1024;
  static constexpr std::size_t kMostTold = 256;  // introductions of one peer that nobody has taken

 private:
  struct Peer {
    std::unique_ptr<SendConnection> send;
    std::unique_ptr<ReceiveConnection> receive;
    std::string unsent;    // whole messages, cut anew into slots
    std::string received;  // what is no whole message yet
    std::map<std::uint16_t, std::string> told;
    bool corrupt = false;
  };
  void send_pending(Peer& peer);
  void receive_pending(std::uint32_t rank, Peer& peer);
  bool take_message(Peer& peer);

  OpenSend open_send_;
  OpenReceive open_receive_;
  const std::uint64_t slot_bytes_;
  std::map<std::uint32_t, Peer> peers_;
  std::string trouble_;
};

}  // namespace tutti
