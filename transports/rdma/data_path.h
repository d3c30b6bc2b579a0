// DataPath: what carries messages to peers on other machines in place of TCP: verbs, UCX. Boards, goodbyes and the
// knowledge that a process has ended stay with TcpTransport; OffloadTransport puts the two together.
//
// One per transport, used by the thread that drives progress. Connections may outlive it, as those of a Transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transports/rdma/introductions.h"
#include "transports/tcp/links.h"
#include "transports/transport.h"

namespace tutti {

// What a data path is told when it is made.
struct DataPathOptions {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;
  std::uint32_t lanes = 8;
  // By rank: what that rank's data path has said of itself at set-up; empty for this rank and for those that it does
  // not serve. A peer's words: nothing in them is trusted.
  std::vector<std::string> offers;
};

class DataPath {
 public:
  virtual ~DataPath() = default;
  virtual std::string_view name() const = 0;  // "verbs", "ucx"
  virtual bool reaches(std::uint32_t peer) const = 0;
  // As Transport's. Only to peers that it reaches. Errors: kSystem, with the device.
  virtual Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) = 0;
  virtual Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) = 0;
  // Takes what has come and sends what waits. Never blocks.
  virtual void pump() = 0;
  // True when nothing that was sent is left in this process.
  virtual bool flush() = 0;
  virtual std::string way(std::uint32_t /*peer*/) { return {}; }  // as Transport::peer_way()
  // Why messages to and from the peer can no longer pass, with device, port and queue pair; nothing while they can.
  virtual std::optional<std::string> broken(std::uint32_t peer) = 0;
  // The peer itself has said so: even if it has left since, in good order.
  virtual bool told_broken(std::uint32_t /*peer*/) { return false; }
  // Waits until what was sent has arrived, as far as it can, for at most `patience_ns`. Before the end.
  virtual void drain(std::int64_t patience_ns) = 0;
  virtual MemoryForgetter memory_forgetter() { return {}; }  // as Transport's
  virtual std::uint64_t sends_told() const { return 0; }     // times that the network has said that it is done, ever
  // What has gone wrong, for the message of a wait that has lasted too long; empty: nothing.
  virtual std::string troubles() = 0;
};

// What a data path may use of the transport that it belongs to; all of it outlives the path.
struct DataPathHost {
  Introductions& introductions;
  TcpLinks& links;  // doorbell, boards
};

// Makes the data paths of a rank's communicators. One per rank of a job; thread-safe.
class DataPathMaker {
 public:
  virtual ~DataPathMaker() = default;
  virtual std::string_view name() const = 0;  // as the paths'
  // What peers must know of this rank to say whether the two reach each other: printable, without '|'.
  virtual std::string offer() const = 0;
  // Errors: kSystem (resources), kRefused (an offer that cannot be read, with the rank).
  virtual Result<std::unique_ptr<DataPath>> make(const DataPathHost& host, const DataPathOptions& options) = 0;
};

}  // namespace tutti
