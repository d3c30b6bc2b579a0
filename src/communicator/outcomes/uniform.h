// UniformMode: makes uniform calls end in the same way on all live ranks, with success or with an error. Depending on
// CommunicatorOptions::uniform, which also states the limits, either all blocking collectives are uniform, or only
// those with CallOptions::uniform. A call with CallOptions::stream, or with a wrong argument of this rank, is not
// covered. For a call on device memory the vote only shows whether all ranks have begun it. UniformMode owns no
// threads, and a mutex, which is held during a call and its confirmation. Thread-safe.
//
// After each uniform call the ranks vote on how it went, by a short all-reduce. If the vote fails, or is impossible
// because the call has broken the communicator, the surviving ranks agree by consensus (settle()) how the call has
// ended, and UniformMode refuses all further calls. A call that is not uniform has no vote, but if it breaks the
// communicator, this rank calls settle(), too. Otherwise a rank in the next uniform call would wait for this rank.
// agree() settles the last uniform call first. All survivors have then taken part in the same sequence of agreements,
// whether they notice the end of the communicator in a call or afterwards.
//
// In the rest of this comment, "call" means a uniform call. Any two ranks are at most one call apart. All ranks that
// completed the vote on a call have the outcome of that call,
// which is the same on all of them. The position of a rank is the number of the call of which it does not have the
// outcome yet or, if it has all outcomes, the number of its next call. Each rank contributes two numbers, and the
// consensus returns the minimum of each:
//
//   operation = 2 * position + (1 if this rank's part of that call succeeded and run() still waits for the outcome)
//   value     = -(4 * position + (2 if the call before is known to have failed)
//                              + (1 if this rank has made the call at its position, and lacks its outcome, or if it
//                                 accepts no more calls))
//
// Let A be the least position and K the greatest. They follow from the two minima.
// - A rank at position A, if K = A: the vote was completed by no rank, so the call succeeded if every part of it
//   did.
// - A rank at position A, if K = A + 1: the ranks at A + 1 have the outcome of the call, and this rank takes it over.
// - A rank at position A + 1 while others are at A: if it has made that call, the call has failed, because the others
//   will not make that call any more.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "base/call_tag.h"
#include "membership/consensus.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class UniformMode {
 public:
  using RunCall = std::function<Status(const CollectiveCall& call, const CallOptions& options, CallPurpose purpose)>;
  using Decide = std::function<Result<ConsensusDecision>(const ConsensusVote& vote, std::chrono::milliseconds timeout)>;
  // `ranks` is greater than 1. `timeout`: that of calls without a timeout of their own. `calls`: which calls are
  // uniform; not kNone. `run_call`: runs a call of the communicator without a vote. `decide`: runs a consensus among
  // the surviving ranks, and returns the errors of agree(). `announce_end`: breaks the communicator with this error,
  // unless it is broken already, and informs the other ranks.
  UniformMode(std::uint32_t rank, std::uint32_t ranks, std::chrono::milliseconds timeout, UniformCalls calls,
              RunCall run_call, Decide decide, std::function<void(const Error& error)> announce_end)
      : rank_(rank),
        ranks_(ranks),
        timeout_(timeout),
        calls_(calls),
        run_call_(std::move(run_call)),
        decide_(std::move(decide)),
        announce_end_(std::move(announce_end)) {}

  // Runs a call and, if it is uniform, the vote on it.
  Status run(const CollectiveCall& call, const CallOptions& options);
  // Settles the last call, as the first part of the application's agree().
  Status settle_before_agree(std::chrono::milliseconds timeout);
  // Call this at the end of the application's agree(). Do not call it if agree() timed out: the application is then
  // expected to call agree() again.
  void end_agree();

 private:
  // Runs a uniform call without the vote.
  Status run_without_vote(const CollectiveCall& call, const CallOptions& options);
  // Runs the vote on a call that ended with `own` on this rank and, if the vote fails or is impossible, settle().
  // Returns the outcome of the call: success or an error, normally the same on all live ranks. `timeout`: that of the
  // call. The vote waits for the longer of this and the communicator's timeout, because a rank whose call has timed out
  // must still wait for ranks that are late.
  Status confirm(const Status& own, std::chrono::milliseconds timeout);
  // From now on, refuses all calls, uniform or not, with the error `reason`. Informs the other ranks, so that none
  // waits in a receive from this rank while this rank waits for it. Then calls settle() and returns its result.
  Result<bool> end_calls(const Error& reason, bool own_ok);
  // Agrees with the surviving ranks on how the last uniform call ended, and returns whether it succeeded. `own_ok`: the
  // call succeeded on this rank, and run() still waits for its outcome. Errors: those of agree().
  Result<bool> settle(bool own_ok, std::chrono::milliseconds timeout);

  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const std::chrono::milliseconds timeout_;
  const UniformCalls calls_;
  const RunCall run_call_;
  const Decide decide_;
  const std::function<void(const Error& error)> announce_end_;
  std::mutex mutex_;                   // held during a call and its confirmation; guards the members below
  std::int64_t count_ = 0;             // number of uniform calls so far
  bool resolved_ = true;               // whether this rank knows how the last uniform call ended
  std::int64_t last_failed_call_ = 0;  // number of the last call that is known to have failed; 0: none
  // The reason why run() refuses further calls, uniform or not; empty as long as it accepts calls.
  std::optional<Error> calls_ended_;
  // An agreement has informed all survivors that there will be no more calls, or the other ranks have agreed without
  // this rank after its last call.
  bool settled_ = false;
  // settle_before_agree() has succeeded, and the agree() that it prepared has not ended yet, or has timed out and may
  // be called again.
  bool agreeing_ = false;
};

}  // namespace tutti::detail
