// Bootstrap: how ranks that know nothing of each other but a rendezvous exchange their first words. Used during set-up
// only, by one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/hmac.h"
#include "bootstrap/job_key.h"
#include "tutti/result.h"
#include "tutti/unique_id.h"

namespace tutti {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Every rank gives one blob (at most kMaxBlobBytes) and gets all ranks' blobs, by rank. Errors: kTimeout and
  // kPeerLost name the ranks; a rank that dies or gives up ends the call on all others at once.
  virtual Result<std::vector<std::string>> all_gather(const std::string& blob) = 0;
  // This rank's own address on its connection to the server, numeric: an address under which the server's machine
  // reaches it.
  virtual std::string local_address() const = 0;
  // The server runs on this rank's machine, so that local_address() need not be one that other machines reach.
  virtual bool server_is_here() const = 0;
  // Drawn for this meeting: all its ranks have it, and nobody else.
  virtual Key key() const = 0;
  // To be called once this rank's set-up has succeeded. Without it, rank 0 takes its set-up for failed, and its
  // destructor waits for up to 2 s, so that the other ranks still hear the reason.
  virtual void set_succeeded() = 0;

  static constexpr std::size_t kMaxBlobBytes = 4096;
};

struct RendezvousOptions {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  // The host where rank 0 is met: a name or a numeric address. A name is looked up until the set-up deadline. Rank 0
  // listens on all of its addresses, and the others try them in turn. Numeric with `pmi_fd` and `pmix`.
  std::string host;
  std::vector<std::uint16_t> ports;  // where it may listen: it takes the first free one, the others try them in turn
  // A numeric address on which rank 0 listens as well if the hosts file turns `host` into a loopback address, which
  // other machines cannot reach. Empty: there is none, or all ranks are on one machine.
  std::string other_host;
  bool may_be_forwarded = false;     // rank 0 listens on `other_host` alone if no address of `host` is its machine's
  int listening_fd = -1;             // rank 0: an inherited socket that is bound there; stays the caller's
  std::uint16_t listening_port = 0;  // it counts only if it is bound to this port; 0: any
  std::string job_id;                // at most 128 bytes; no secret
  JobKey key;                        // by which ranks and server know each other
  std::int64_t timeout_ms = 60'000;  // of the whole set-up
  bool encrypt = false;              // the rounds go by TLS 1.3; within a machine only where its library is there

  // In place of host, ports and job id: an id that some process made, or a launcher's store through which rank 0
  // passes one that it makes on `host` and a port of `port_range`. The id has a key of its own, so `key` is not used.
  std::optional<Wiped<UniqueId>> unique_id;
  std::optional<int> pmi_fd;
  bool pmix = false;
  std::optional<JobKey> configured_key;  // beside an id or a store; mixed into the id's key
  PortRange port_range;

  std::shared_ptr<const std::atomic<bool>> stop{};  // set by another thread: give up; shared with it. Null: none does

  LogLevel log_level = LogLevel::kOff;
  std::string origin;  // which variables and options gave what, for the log
};

// A star of TCP connections around a RendezvousServer, gone after set-up. Rank 0 runs the server, or the process that
// made the unique id does; every rank, rank 0 included, is its client. Hub and ranks prove to each other that they have
// the job's key. Blocks until all ranks have come. Errors: kTimeout (names the missing ranks), kPeerLost (names who
// died), kRefused (another key, version, number of ranks; altered on its way), kMismatch (only some encrypt), kConfig,
// kSystem.
Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const RendezvousOptions& options);

}  // namespace tutti
