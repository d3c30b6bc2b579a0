// InlineCollective: a collective on a few bytes, without a plan, messages and credits. Every rank writes what it
// contributes into its mailbox (transport.h), which all others read in place; whoever has seen all that it needs is
// done. One cache line each way where the value fits into one.
//
// It stands for the one-shot and direct plans of the same collective and gives the same bits: sums in rank order, in
// one go (tests/communicator/inline_collective_test.cc compares the two).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/collective_task.h"
#include "executor/mailbox_board.h"
#include "kernels/cpu/reduce.h"
#include "plan/plan.h"

namespace tutti {

// Up to here a value goes through mailboxes where all ranks read all of them, or through as many bytes of one mailbox.
// Measured, see docs/decisions/0010.
inline constexpr std::uint64_t kMostShownBytes = kMailboxBytes;

class InlineCollective final : public CollectiveTask {
 public:
  // `marks` outlives it.
  explicit InlineCollective(MailboxBoard& marks);

  // Whether a call goes this way: the same on all ranks that agree about the call. `bytes`: of one block.
  static bool takes(const Collective& collective, Algorithm algorithm, std::uint64_t bytes);

  void start(const Call& call) override;
  WindowRef offered(const Call& /*call*/) const override { return {}; }
  bool progress() override;
  bool done() override { return phase_ == Phase::kDone; }
  // Somebody means another call. Without a tag: his board says which, as long as it remembers the call.
  const std::optional<BadMessage>& bad_message() const override { return bad_; }
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  enum class Phase : std::uint8_t { kBeforeWriting, kReading, kDone };
  std::uint32_t rank() const { return marks_.rank(); }
  std::uint32_t ranks() const { return marks_.ranks(); }
  std::byte* payload_of(std::uint32_t who) const {
    return shown_bytes_ <= sizeof(MailboxMark::payload) ? marks_.mark(who).payload.data() : marks_.room(who);
  }
  const std::byte* shown_by(std::uint32_t who) const;
  bool needs(std::uint32_t peer) const;
  void write();
  bool all_there();
  bool finish();
  void reduce(std::uint64_t first_byte);
  void gather(std::uint64_t first_byte);
  void copy(const std::byte* from, std::byte* to) const;

  MailboxBoard& marks_;
  Call call_;
  CollectiveKind kind_ = CollectiveKind::kBarrier;
  std::uint64_t bytes_ = 0;        // of one block
  std::uint64_t shown_bytes_ = 0;  // of what a rank shows that shows anything
  std::uint32_t next_ = 0;         // the first rank whose value has not been seen
  Phase phase_ = Phase::kDone;
  std::vector<const std::byte*> sources_;
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
