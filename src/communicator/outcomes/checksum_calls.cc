#include "communicator/outcomes/checksum_calls.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/assert.h"
#include "engine/arguments.h"

namespace tutti::detail {

Status ChecksumCalls::run(const CollectiveCall& call, const CallOptions& options) {
  const std::scoped_lock lock(mutex_);
  TUTTI_TRY(meet(options.timeout));
  if (owned_ == nullptr) TUTTI_TRY(make_twin(options.timeout));
  // abort() first breaks the original communicator, and then aborts the twin. If it ran before the twin was stored in
  // twin_, this check returns its error; if it runs later, it aborts the twin itself. Other failures break only the
  // original communicator. Ranks that are in the call on the twin notice them by the abort of the twin.
  if (Status broken = original_.broken(); !broken.ok()) {
    owned_->abort();
    return broken;
  }
  Status ended = owned_->run(call, options);
  if (!ended.ok() && ended.error().scope > ErrorScope::kCall) original_.fail(ended.error());
  return ended;
}

Status ChecksumCalls::meet(std::chrono::milliseconds timeout) {
  Status met = original_.run({.kind = CollectiveKind::kBarrier, .type = DataType::kUint8}, {.timeout = timeout},
                             CallPurpose::kChecksumBarrier);
  if (met.ok() || is_refusal(met.error()) || met.error().code == ErrorCode::kMismatch) return met;
  // For example after a timeout: the barrier may have succeeded on another rank, which then continues with the call on
  // the twin. From then on the ranks would not agree on the number of the twin's calls.
  return end(met.error());
}

// A rank may fail to make its part of the twin although the others have made theirs. Then a minimum over all ranks
// shows this to the others, and no rank keeps its part.
Status ChecksumCalls::make_twin(std::chrono::milliseconds timeout) {
  auto made = original_.make_twin();
  const std::int32_t own = made.ok() ? 1 : 0;
  std::int32_t all = 0;
  const Status voted = original_.run({.kind = CollectiveKind::kAllReduce,
                                      .input = &own,
                                      .output = &all,
                                      .count = 1,
                                      .type = DataType::kInt32,
                                      .op = ReduceOp::kMin},
                                     {.timeout = timeout}, CallPurpose::kChecksumSetUp);
  // A rank whose set-up failed in another round than that of the others does not vote at the same time as they do.
  if (!voted.ok()) return end(made.ok() ? voted.error() : made.error());
  if (!made) return made.error();
  if (all == 0) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
                 "checksum: another rank could not make its part of the communicator for calls with checksums; its own "
                 "error has the reason"};
  }
  owned_ = *std::move(made);
  twin_.store(owned_.get());
  return {};
}

Error ChecksumCalls::end(Error error) {
  error.scope = std::max(error.scope, ErrorScope::kCommunicator);
  original_.fail(error);
  abort();
  return error;
}

Status ChecksumCalls::finalize() {
  Communicator* const twin = twin_.load();
  return twin == nullptr ? Status() : twin->finalize();
}

void ChecksumCalls::abort() {
  if (Communicator* const twin = twin_.load()) twin->abort();
}

}  // namespace tutti::detail
