// DataPath: transfers messages between machines in place of TCP. There are two implementations: VerbsPath and UcxPath.
// Status boards, close notifications, and the detection that a process has ended remain the task of TcpTransport.
// OffloadTransport combines a DataPath with a TcpTransport.
//
// Each OffloadTransport has its own DataPath, which is used by the thread that drives progress. The connections of a
// DataPath may outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transports/rdma/handshake_channel.h"
#include "transports/tcp/links.h"
#include "transports/transport.h"

namespace tutti {

// The parameters of a new data path.
struct DataPathOptions {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;
  std::uint32_t lanes = 8;
  // Indexed by rank: the text in which the data path of that rank described itself at set-up (see
  // DataPathMaker::offer()). Empty for this rank and for ranks that the data path does not serve. The texts
  // come from peers, so do not trust them.
  std::vector<std::string> offers;
};

class DataPath {
 public:
  virtual ~DataPath() = default;
  virtual std::string_view name() const = 0;  // "verbs" or "ucx"
  virtual bool reaches(std::uint32_t peer) const = 0;
  // Like the functions of Transport. Only for peers for which reaches() is true. Errors: kSystem, and those of
  // HandshakeChannel::send().
  virtual Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) = 0;
  virtual Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) = 0;
  // Processes everything that has arrived, and sends everything that waits, as far as possible now. Never blocks.
  virtual void pump() = 0;
  // Passes on the messages that wait to be sent, as far as possible now. (With verbs, pump() reports releases and
  // revocations that wait for space in a queue pair.) Returns true if this process need not do anything more for the
  // messages that were sent. See Transport::flush().
  virtual bool flush() = 0;
  // The devices and ports that connect this rank to the peer. See Transport::peer_path().
  virtual std::string describe_path(std::uint32_t /*peer*/) { return {}; }
  // The reason why messages to or from the peer cannot pass any more, with the device, port and queue pair if they are
  // known. Empty if no such failure is known. With UCX also empty for kErrorDelayNs after the failure, in which TCP may
  // show a more precise reason, and if the peer has left.
  virtual std::optional<std::string> broken(std::uint32_t peer) = 0;
  // True if the peer itself has reported that messages cannot pass between the two ranks, even if the peer has since
  // left properly.
  virtual bool peer_reported_broken(std::uint32_t /*peer*/) { return false; }
  // Waits until everything that was sent has arrived (verbs) or has at least left this process (UCX), as far as that is
  // possible, but at most `timeout_ns`. Call it before the path ends.
  virtual void drain(std::int64_t timeout_ns) = 0;
  virtual MemoryReleaseCallback memory_release_callback() { return {}; }  // see Transport
  // Number of successful send completions that the network has reported so far; 0 if the path does not count them.
  virtual std::uint64_t send_completions() const { return 0; }
  // Problems to report in the message of a wait that has timed out; empty if there are none.
  virtual std::string troubles() = 0;
};

// The parts of its transport that a data path may use. They outlive the path.
struct DataPathHost {
  HandshakeChannel& handshake_channel;
  // The TCP connections to the peers, which carry the status boards, and the doorbell on which this rank sleeps.
  TcpLinks& links;
};

// Makes the data paths of the communicators of one rank of a job, or of all ranks of one create_all(). Thread-safe.
class DataPathMaker {
 public:
  virtual ~DataPathMaker() = default;
  virtual std::string_view name() const = 0;  // like DataPath::name()
  // A description of this rank, from which a peer finds out whether it and this rank can reach each other. Printable,
  // without '|'.
  virtual std::string offer() const = 0;
  // Errors: kSystem (resources), kRefused (the offer of a rank cannot be read, or is of another version; the error
  // contains the rank), kConfig (the user requires this data path, but this rank reaches no port of a peer that has
  // offered ports).
  virtual Result<std::unique_ptr<DataPath>> make(const DataPathHost& host, const DataPathOptions& options) = 0;
};

}  // namespace tutti
