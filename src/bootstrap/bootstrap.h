// Bootstrap: the first communication of the ranks of a job. At this time they share only the address of a
// rendezvous server. It is used by one thread, and only during set-up.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/crypto/hmac.h"
#include "bootstrap/job_key.h"
#include "tutti/result.h"
#include "tutti/unique_id.h"

namespace tutti {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Every rank contributes one blob of at most kMaxBlobBytes bytes and receives the blobs of all ranks, indexed by
  // rank. The errors kTimeout and kPeerLost name the ranks. If a rank exits or gives up, the call fails on all
  // other ranks at once.
  virtual Result<std::vector<std::string>> all_gather(const std::string& blob) = 0;
  // The numeric address of this rank's end of the connection to the server. The server's machine can reach this
  // rank under that address.
  virtual std::string local_address() const = 0;
  // True if the server runs on this rank's machine. Then local_address() is not necessarily an address that other
  // machines can reach.
  virtual bool server_is_here() const = 0;
  // A random key for this set-up. All of its ranks have it, and other processes do not.
  virtual Key key() const = 0;
  // Call this when the set-up of this rank has succeeded. Otherwise rank 0 assumes that its own set-up has failed,
  // and its destructor waits for up to 2 s, so that the other ranks can still receive the reason.
  virtual void set_succeeded() = 0;

  static constexpr std::size_t kMaxBlobBytes = 4096;
};

struct RendezvousOptions {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  // The host of the rendezvous server, which rank 0 runs: a name or a numeric address. A name is looked up
  // repeatedly until the set-up deadline. Rank 0 listens on all of its addresses, and the other ranks try them in
  // turn. With `pmi_fd` and `pmix` the host must be numeric.
  std::string host;
  // The ports on which rank 0 may listen. It takes the first free one, and the other ranks try them in turn.
  std::vector<std::uint16_t> ports;
  // A numeric address on which rank 0 listens as well if the hosts file maps `host` to a loopback address, which
  // other machines cannot reach. Empty if there is no such address, or if all ranks are on one machine.
  std::string other_host;
  // If true and no address of `host` belongs to rank 0's machine, for example because connections to `host` are
  // forwarded to it, rank 0 listens on `other_host` alone.
  bool may_be_forwarded = false;
  // For rank 0: an inherited socket that is bound to the address, or -1. The caller keeps its ownership.
  int listening_fd = -1;
  // The inherited socket is used only if it is bound to this port. 0 accepts any port.
  std::uint16_t listening_port = 0;
  std::string job_id;                // at most 128 bytes; not a secret
  JobKey key;                        // ranks and server authenticate each other with it
  std::int64_t timeout_ms = 60'000;  // limit for the whole set-up
  // Encrypt the set-up with TLS 1.3. Within a machine this is done only if the TLS library is installed.
  bool encrypt = false;

  // These replace host, ports and job id. Either a process has made a unique id, or the launcher has a store,
  // through which rank 0 passes a unique id that it makes for `host` and a port of `port_range`. A unique id
  // contains a key, so `key` is not used then.
  std::optional<Wiped<UniqueId>> unique_id;
  std::optional<int> pmi_fd;  // descriptor of a PMI-1 store
  bool pmix = false;          // the store is reached through the PMIx library
  // A configured key that is used together with an id or a store. It is mixed into the id's key.
  std::optional<JobKey> configured_key;
  PortRange port_range;

  // Another thread sets this to make the set-up give up. Shared with that thread. Null if no thread does so.
  std::shared_ptr<const std::atomic<bool>> stop{};

  LogLevel log_level = LogLevel::kOff;
  std::string origin;  // for the log: which variables and options the values came from
};

// Creates a bootstrap whose ranks are connected in a star around a RendezvousServer. The connections exist only
// during set-up. The server runs in rank 0, or in the process that made the unique id. Every rank is its client,
// rank 0 included. Server and ranks prove to each other that they have the job's key. Blocks until all ranks have
// joined. Errors:
// - kTimeout: names the missing ranks.
// - kPeerLost: names the rank that has exited.
// - kRefused: another key, version, or number of ranks, or a message was altered in transit.
// - kMismatch: only some of the ranks encrypt.
// - kConfig, kSystem.
Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const RendezvousOptions& options);

}  // namespace tutti
