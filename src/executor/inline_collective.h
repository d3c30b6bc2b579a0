// InlineCollective: a collective on short values (kMostInlineBytes) among ranks of one machine, without plan, messages
// and credits. Every rank writes its contribution into its own shared-memory mailbox (ShmMailboxes in transport.h), and
// the other ranks read it there. A rank is done as soon as it has read all values that it needs. A value that fits into
// the mark of a mailbox costs each reader the transfer of one cache line.
//
// An InlineCollective replaces the one-shot or direct plan of its collective. It returns the same bits as the plan,
// because it adds the values in rank order in one pass, as the plan does
// (tests/communicator/inline_collective_test.cc compares the two).
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

// The most bytes that a rank may write into its mailbox in one call: the length of one block or, if the input of
// the collective has a block for each rank (for example all_to_all), of all these blocks together. Measured, see
// docs/decisions/0010.
inline constexpr std::uint64_t kMostInlineBytes = kMailboxBytes;

class InlineCollective final : public CollectiveTask {
 public:
  // `marks` must outlive this object.
  explicit InlineCollective(MailboxBoard& marks);

  // Whether mailboxes can carry out a call with this algorithm instead of a plan. The result is the same on all ranks
  // that pass the same arguments. `bytes`: length of one block. The caller also checks what this function does not see:
  // the transport has mailboxes, all blocks have the same length, and the call has no UserReduction and no user plan.
  static bool takes(const Collective& collective, Algorithm algorithm, std::uint64_t bytes);

  void start(const Call& call) override;
  WindowRef offered(const Call& /*call*/) const override { return {}; }
  bool progress() override;
  bool done() override { return phase_ == Phase::kDone; }
  // Set if a peer has written its mailbox for a call with the same number but other arguments. The BadMessage
  // contains no tag, because a mailbox has only a digest of the tag. The tag itself is on the status board of the
  // peer, as long as the board remembers the call.
  const std::optional<BadMessage>& bad_message() const override { return bad_; }
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  enum class Phase : std::uint8_t { kBeforeWriting, kReading, kDone };
  std::uint32_t rank() const { return marks_.rank(); }
  std::uint32_t ranks() const { return marks_.ranks(); }
  std::byte* payload_of(std::uint32_t owner) const {
    return payload_bytes_ <= sizeof(MailboxMark::payload) ? marks_.mark(owner).payload.data()
                                                          : marks_.payload_buffer(owner);
  }
  const std::byte* value_of(std::uint32_t owner) const;
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
  std::uint64_t bytes_ = 0;          // length of one block, in bytes
  std::uint64_t payload_bytes_ = 0;  // bytes that a rank writes into its mailbox, if it writes any
  // The first rank whose value this rank needs and has not seen written yet; ranks() if there is none.
  std::uint32_t next_ = 0;
  Phase phase_ = Phase::kDone;
  std::vector<const std::byte*> sources_;
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
