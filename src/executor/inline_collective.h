// InlineCollective: a collective on a few bytes, without a plan, messages and credits. Every rank writes its
// contribution into its own shared-memory mailbox (transport.h), and all others read it in place. A rank is done as
// soon as it has read all the values that it needs. A value that fits into one cache line costs one cache-line
// transfer per reader.
//
// It replaces the one-shot and direct plans of the same collective and returns the same bits, because it adds in
// rank order in one pass (tests/communicator/inline_collective_test.cc compares the two).
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

// Longest value, in bytes, that goes through mailboxes. If all ranks read all mailboxes, it is the length of one
// block; if a mailbox contains a block for each rank, it is the sum of these blocks. Measured, see
// docs/decisions/0010.
inline constexpr std::uint64_t kMostInlineBytes = kMailboxBytes;

class InlineCollective final : public CollectiveTask {
 public:
  // `marks` must outlive this object.
  explicit InlineCollective(MailboxBoard& marks);

  // Whether a call runs through mailboxes. The answer is the same on all ranks that agree about the arguments of the
  // call. `bytes`: length of one block.
  static bool takes(const Collective& collective, Algorithm algorithm, std::uint64_t bytes);

  void start(const Call& call) override;
  WindowRef offered(const Call& /*call*/) const override { return {}; }
  bool progress() override;
  bool done() override { return phase_ == Phase::kDone; }
  // Set if a rank has written a mailbox for a call with other arguments. It has no tag; the tag is on the status
  // board of that peer, for as long as the board remembers the call.
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
  std::uint64_t bytes_ = 0;          // length of one block
  std::uint64_t payload_bytes_ = 0;  // length of the payload of a rank that writes one
  std::uint32_t next_ = 0;           // this rank has not read the value of rank next_ yet
  Phase phase_ = Phase::kDone;
  std::vector<const std::byte*> sources_;
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
