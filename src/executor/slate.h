// SlateRun: a collective on a few bytes, without a plan, messages and credits. Every rank writes what it contributes
// into its slate (transport.h), which all others read in place; whoever has seen all that it needs is done. One cache
// line each way where the value fits into one.
//
// It stands for the one-shot and direct plans of the same collective and gives the same bits: sums in rank order, in
// one go (tests/runtime/slates_test.cc compares the two).
//
// Calls with even and odd sequence numbers have a slate each. Its owner may write it again only when all others have
// finished the call that it was written for before: they have if they have come to a later one. A rank that needed
// values of all others in a later call has seen that; otherwise (a broadcast's root) it looks before it writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/running.h"
#include "kernels/cpu/reduce.h"
#include "plan/plan.h"

namespace tutti {

class SlateRun final : public Running {
 public:
  // transport.slates() is not null. `transport` outlives it.
  SlateRun(std::uint32_t rank, Transport& transport);

  // Whether a call goes this way: the same on all ranks that agree about the call. `bytes`: of one block.
  static bool takes(const Collective& collective, Algorithm algorithm, std::uint64_t bytes);

  void start(const Call& call) override;
  WindowRef offered() const override { return {}; }
  bool progress() override;
  bool done() override { return phase_ == Phase::kDone; }
  // Somebody means another call. Without a tag: his board says which, as long as it remembers the call.
  const std::optional<BadMessage>& bad_message() const override { return bad_; }
  std::string waits_for() override;

 private:
  enum class Phase : std::uint8_t { kBeforeWriting, kReading, kDone };
  std::uint32_t ranks() const { return slates_.ranks; }
  SlateMark& mark_of(std::uint32_t rank) const { return slates_.marks[turn_][rank]; }
  std::byte* payload_of(std::uint32_t rank) const {
    return shown_bytes_ <= sizeof(SlateMark::payload) ? mark_of(rank).payload.data() : slates_.rooms[turn_][rank];
  }
  const std::byte* shown_by(std::uint32_t rank) const;
  bool needs(std::uint32_t peer) const;
  bool others_have_read();
  void write();
  bool all_there();
  bool finish();
  void reduce(std::uint64_t first_byte);
  void gather(std::uint64_t first_byte);
  void copy(const std::byte* from, std::byte* to) const;

  const std::uint32_t rank_;
  Transport& transport_;
  const Slates& slates_;
  Call call_;
  CollectiveKind kind_ = CollectiveKind::kBarrier;
  std::uint64_t bytes_ = 0;        // of one block
  std::uint64_t shown_bytes_ = 0;  // of what a rank shows that shows anything
  std::size_t turn_ = 0;           // which of its slates
  std::uint64_t digest_ = 0;
  std::array<std::uint64_t, kSlates> used_{};    // by slate: the call that it was written for last
  std::uint64_t all_seen_ = 0;                   // the last call in which all others were seen
  std::uint32_t next_ = 0;                       // the first rank not known to have come as far as is waited for
  std::uint32_t awaited_ = Transport::kAnyRank;  // as the transport knows it
  Phase phase_ = Phase::kDone;
  std::vector<const std::byte*> sources_;
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
