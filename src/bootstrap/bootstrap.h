// Bootstrap: the first communication of the ranks of a job. At this time the ranks have no connections to each other.
// They exchange data through a rendezvous server. A rank uses its Bootstrap in one thread, and only during set-up.
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
  // Every rank contributes one blob (bytes of any content, at most kMaxBlobBytes) and receives the blobs of all
  // ranks, indexed by rank. The messages of the errors kTimeout and kPeerLost name the ranks that are missing, have
  // exited or have given up, or the server if it does not answer or has ended. If a rank exits or gives up, the call
  // fails on all other ranks at once instead of waiting for its deadline.
  virtual Result<std::vector<std::string>> all_gather(const std::string& blob) = 0;
  // Whether the next all_gather() is known to fail, because the server has reported a failure or has ended, or because
  // RendezvousOptions::stop is set. Does not wait.
  virtual bool has_failed() = 0;
  // The numeric address of this rank's end of the connection to the server. The machine of the server can reach
  // this rank under that address, unless a network translates addresses between them. Other machines possibly cannot,
  // see server_is_here().
  virtual std::string local_address() const = 0;
  // True if this rank runs the rendezvous server, or has reached it under an address of this rank's machine. In that
  // case local_address() may be an address that other machines cannot reach, for example 127.0.0.1.
  virtual bool server_is_here() const = 0;
  // A key that all ranks of this set-up and its server have. It is derived from the job's key, so that processes
  // without that key cannot compute it, and from a random number of the server, so that every set-up has a different
  // one.
  virtual Key key() const = 0;
  // Call this when the set-up of this rank has succeeded. If a rank destroys its Bootstrap without this call, its
  // set-up counts as failed, and the next all_gather() of the other ranks fails (has_failed()). If this rank runs the
  // server, the destructor waits until the other ranks have closed their connections, so that they can receive the
  // messages of the server: up to about 0.1 s if no rank has failed, otherwise up to about 2 s (~RendezvousServer()).
  virtual void set_succeeded() = 0;

  static constexpr std::size_t kMaxBlobBytes = 4096;
};

struct RendezvousOptions {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  // The host of the rendezvous server, which rank 0 runs: a name or a numeric address. A name is looked up again and
  // again until this rank has joined (on rank 0: until the name has an address) or its set-up fails. If the name has
  // several addresses, rank 0 listens on each of them that belongs to its machine (for exceptions see `ports` and
  // `listening_fd`), and the other ranks try all of them in turn. If `pmi_fd` or `pmix` is set, only rank 0 uses the
  // host, and it must be numeric.
  std::string host;
  // The ports on which rank 0 may listen. Rank 0 takes the first one that is free on all its addresses or, if there is
  // none, on the most of them (Listener::open_all()), unless it uses the socket `listening_fd`. The other ranks try
  // these ports in turn.
  std::vector<std::uint16_t> ports;
  // Used by rank 0 only: a numeric address on which rank 0 listens as well if the hosts file of its machine maps
  // `host` to a loopback address, which other machines cannot reach. See also may_be_forwarded. Empty if there is
  // none, for example if all ranks are known to be on one machine, and on all ranks except rank 0.
  std::string other_host;
  // Matters if `listening_fd` is -1 and no address of `host` belongs to rank 0's machine, for example because another
  // machine forwards connections to rank 0. If true, rank 0 then listens on `other_host` alone. If false, or if
  // `other_host` is empty, the set-up fails.
  bool may_be_forwarded = false;
  // For rank 0: the descriptor of an inherited socket that is bound to the address of the server, or -1 if there is
  // none. The caller keeps the ownership, because the server duplicates the descriptor.
  int listening_fd = -1;
  // The inherited socket is used only if it is bound to this port. 0 accepts any port.
  std::uint16_t listening_port = 0;
  // Distinguishes the set-ups of different jobs that use the same host and port. At most wire::kMaxJobIdBytes bytes.
  // Not a secret.
  std::string job_id;
  // The ranks and the server authenticate each other with this key.
  JobKey key;
  std::int64_t timeout_ms = 60'000;  // limit of the set-up, from the Bootstrap's creation on; errors may be 2 s late
  // Encrypt the data of the set-up with TLS 1.3. If a rank cannot load the TLS library, it does not encrypt if it
  // reaches the server over a loopback address; if it reaches the server in another way, the set-up fails.
  bool encrypt = false;

  // At most one of the following three is set. It replaces `ports`, `job_id` and `key` (and `unique_id` also replaces
  // `host`), because the ranks then meet by a unique id, which contains an address, a port and a secret. Either the
  // caller gives the id (`unique_id`), or the launcher has a store (`pmi_fd` or `pmix`): rank 0 makes an id for `host`
  // and a port of `port_range`, and passes it to the other ranks through that store. With `pmi_fd`, the name of the id
  // in the store contains a hash of `job_id`.
  std::optional<Wiped<UniqueId>> unique_id;
  std::optional<int> pmi_fd;  // descriptor of a PMI-1 store
  bool pmix = false;          // the store is reached through the PMIx library
  // A key from a file or variable that the user has configured, or empty. It is used only with a unique id or a
  // store: the key of the id and this key are combined, so that the id alone is not sufficient to join.
  std::optional<JobKey> configured_key;
  PortRange port_range;

  // Another thread sets this to true in order to end the set-up early. The set-up then fails, normally with kAborted.
  // It is not read while this rank waits for a launcher's store (`pmi_fd`, `pmix`). Shared with that thread. Null if no
  // other thread may end the set-up.
  std::shared_ptr<const std::atomic<bool>> stop{};

  LogLevel log_level = LogLevel::kOff;
  std::string origin;  // for the log: the variables and options from which the values were taken
};

// Creates a bootstrap that connects the ranks in a star around a RendezvousServer. The connections exist only during
// set-up. The server runs in rank 0, or in the process that made the unique id. Every rank is its client, rank 0
// included. The server and each rank prove to each other that they have the job's key. Blocks until all ranks have
// joined. Errors:
// - kTimeout: some ranks did not join or answer, or the server or the launcher's store does not answer. The message
//   names the ranks, the server or the store.
// - kPeerLost: a rank has exited or given up, or the process of the server has exited. The message names it.
// - kRefused: this rank differs from the server in job id, key, version or number of ranks, its number is already in
//   use, a message was altered in transit or is malformed, or the launcher's store refuses a request.
// - kInvalidArgument: the unique id is damaged or has another version.
// - kMismatch: only some of the ranks encrypt. Ranks that are connected to the server over a loopback address do not
//   count.
// - kAborted: `stop` was set.
// - kConfig: for example, `host` has no address, or the TLS library is missing on some machine.
// - kSystem: for example, no port or no file descriptor is free.
// - kUnsupported: `pmix` is set, but the PMIx library is missing or too old.
Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const RendezvousOptions& options);

// Whether this process can encrypt (RendezvousOptions::encrypt). Error: kConfig (the TLS library is missing). Any
// thread may call it.
Status can_encrypt();

}  // namespace tutti
