// Bootstrap: how ranks that know nothing of each other but a rendezvous exchange their first words. Used during set-up
// only, by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/result.h"

namespace tutti {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Every rank gives one blob (at most kMaxBlobBytes) and gets all ranks' blobs, by rank. Errors: kTimeout and
  // kPeerLost name the ranks.
  virtual Result<std::vector<std::string>> all_gather(const std::string& blob) = 0;

  static constexpr std::size_t kMaxBlobBytes = 4096;
};

struct RendezvousOptions {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::string host;  // numeric address where rank 0 listens
  std::uint16_t port = 0;
  int listening_fd = -1;  // rank 0: an inherited socket that listens there already; stays the caller's
  std::string job_id;
  std::int64_t timeout_ms = 60'000;  // of the whole set-up
};

// A star of TCP connections around rank 0 (Boost.Asio), gone after set-up. Blocks until all ranks have come. Strangers,
// ranks of other jobs and second copies of a rank are refused with a reason, and the wait for the real ones goes on.
// Errors: kTimeout (names the missing ranks), kRefused, kSystem.
Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const RendezvousOptions& options);

}  // namespace tutti
