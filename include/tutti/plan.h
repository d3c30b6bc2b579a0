// Bring your own plan: a collective algorithm built with PlanBuilder or read from a JSON file, proved before anybody
// can run it. docs/plan-json.md has the file format, docs/verifier.md what is proved.
//
// A plan is, for each rank, some channels: sequential programs that run beside each other. A channel is a list of
// steps, and each step is one equation:
//
//   value = x1 (+) x2 (+) ... (+) xk     operands in a stated order: at most one local slice, the others received
//   sink  = value; send value; ...       at most one local sink, any number of sends
//
// A slice is one chunk of one of the rank's buffers. Plans speak of chunks and never of bytes: a call's message is cut
// into tiles, each tile into `chunks` chunks per block, and every channel runs all its steps once for each tile. A
// connection is a FIFO named by (sending rank, receiving rank, lane) that one channel of each end uses; its k-th
// message sent is its k-th received. docs/plan-json.md lists the blocks of each collective.
//
//   PlanBuilder plan({.name = "chain", .collective = CollectiveKind::kBroadcast, .ranks = 2});
//   plan.channel(0).step().local(Space::kInput, 0).store(Space::kOutput, 0).send(1);
//   plan.channel(1).step().receive(0).store(Space::kOutput, 0);
//   Result<UserPlan> chain = plan.build();
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/export.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

namespace detail {
class PlanDraft;
struct UserPlanData;
}  // namespace detail

// What a user's plan may hold at most. Beside these, all buffers of all ranks together hold at most 2^22 chunks, and a
// plan whose proof would need more than about 2 GiB of memory is refused (kUnsupported): rings and trees go up to 1024
// ranks, plans in which all pairs of ranks talk up to about 256.
struct PlanLimits {
  static constexpr std::uint32_t kRanks = 1024;
  static constexpr std::uint32_t kChannels = 64;        // of one rank
  static constexpr std::uint32_t kLanes = 7;            // lanes are numbered 0 .. 6
  static constexpr std::uint32_t kSlots = 64;           // messages that a connection holds
  static constexpr std::uint32_t kOperands = 1024;      // of one step; as many sends
  static constexpr std::uint32_t kSteps = 1u << 21;     // of all ranks together
  static constexpr std::uint32_t kMessages = 1u << 21;  // of one tile, all ranks together; as many waits
  static constexpr std::size_t kNameBytes = 128;
  static constexpr std::size_t kCommentBytes = 4096;
  static constexpr std::size_t kJsonBytes = std::size_t{64} << 20;
};

// What is the same for all ranks of a plan.
struct PlanDescription {
  std::string name{};     // for people: UTF-8 without control or direction characters, at most 128 bytes
  std::string comment{};  // the same, at most 4096 bytes
  CollectiveKind collective = CollectiveKind::kAllReduce;  // not kSendReceive
  std::uint32_t ranks = 1;                                 // 1 .. 1024
  std::uint32_t root = 0;                                  // 0 .. ranks-1 where the collective has a root, else 0
  std::uint32_t chunks = 1;          // of each block of input and of output, in each tile; at least 1
  std::uint32_t scratch_chunks = 0;  // of scratch, in each tile, on every rank
  // 1 .. 64: messages that every connection must hold for the plan to end. A communicator whose connections hold fewer
  // (TUTTI_SLOTS) refuses the plan.
  std::uint16_t slots = 1;
  std::uint16_t lanes = 1;    // 1 .. 7; lanes are numbered 0 .. lanes-1
  Order order = Order::kAny;  // of the additions; a promise that is proved

  bool operator==(const PlanDescription&) const = default;
};

// What the proof took: over two tiles, two calls, in place and out of place, staged and through windows.
struct PlanProof {
  // True: calls in place use windows, too. False: their messages take slots, since a peer might read an input that its
  // owner has overwritten.
  bool windows_in_place = false;
  std::uint64_t steps = 0;
  std::uint64_t messages = 0;
  std::uint64_t race_checks = 0;

  bool operator==(const PlanProof&) const = default;
};

// A plan that was proved: every call of it ends, every rank gets what the collective promises, the same bits on all
// ranks, and no two channels race. An immutable value; copies share their content. Safe to use from any thread.
class TUTTI_API UserPlan {
 public:
  // Reads and proves a plan. The error names the place ("ranks[2].channels[0].steps[5].receive[0].peer: ...") or, where
  // the plan is read but wrong, the rank, channel and step. Errors: kInvalidPlan; kUnsupported for another version of
  // the format and for what is beyond PlanLimits.
  static Result<UserPlan> parse_json(std::string_view text);
  // The same from a file. Errors: those above, and kSystem where the file can not be read.
  static Result<UserPlan> load(const std::string& path);

  UserPlan(const UserPlan&);
  UserPlan& operator=(const UserPlan&);
  ~UserPlan();

  const PlanDescription& description() const;
  std::string_view name() const;
  const PlanProof& proof() const;

  // Of all that decides what ranks do, so not of name and comment; never 0. Ranks of one call whose plans have
  // different digests are told so. Different plans have the same digest with a chance of 2^-32.
  std::uint32_t digest() const;

  // The plan as a file: parse_json() of it gives an equal plan. Text longer than PlanLimits::kJsonBytes, from about
  // 500,000 steps on, is not read back.
  std::string to_json() const;

  bool operator==(const UserPlan& other) const;  // name and comment included

 private:
  friend class PlanBuilder;
  friend struct detail::UserPlanData;
  explicit UserPlan(std::shared_ptr<const detail::UserPlanData> data);
  std::shared_ptr<const detail::UserPlanData> data_;  // shared by all copies: plans are large and never change
};

// Builds a plan. Nothing that is passed here asserts: the first mistake is kept, later calls do nothing, and build()
// tells it. One thread at a time. Channels and steps refer to their builder and must not outlive it; moving the builder
// keeps them valid.
class TUTTI_API PlanBuilder {
 public:
  class Channel;

  // One equation. Calls come in its order: operands, then sink and sends, then completes(). The last step of a channel
  // only: once the next one has begun, this one is closed.
  class TUTTI_API Step {
   public:
    // The next operand is the next message from `peer`. Another rank; lane 0 .. lanes-1. Once for each connection.
    Step& receive(std::uint32_t peer, std::uint32_t lane = 0);
    // The next operand is this chunk of this rank's input, output or scratch. At most one for each step.
    Step& local(Space space, std::uint32_t chunk);
    // The value goes to this chunk of output or scratch. At most one for each step.
    Step& store(Space space, std::uint32_t chunk);
    // The value is the next message to `peer`.
    Step& send(std::uint32_t peer, std::uint32_t lane = 0);
    // The value holds every rank's contribution for the first time here: averages are divided here. Exactly where that
    // is so, in collectives that add.
    Step& completes();
    // Waits until that step of another channel of this rank has run in the same tile or, with tiles_before 1, in the
    // tile before. That step may be added later.
    Step& after(std::uint32_t channel, std::uint32_t step, std::uint32_t tiles_before = 0);

   private:
    friend class Channel;
    Step(detail::PlanDraft& draft, std::uint32_t rank, std::uint32_t channel, std::uint32_t step)
        : draft_(&draft), rank_(rank), channel_(channel), step_(step) {}
    detail::PlanDraft* draft_;  // of the builder
    std::uint32_t rank_;
    std::uint32_t channel_;
    std::uint32_t step_;
  };

  class TUTTI_API Channel {
   public:
    Step step();  // appends a step; its number is that of the steps before it
    std::uint32_t index() const { return channel_; }

   private:
    friend class PlanBuilder;
    Channel(detail::PlanDraft& draft, std::uint32_t rank, std::uint32_t channel)
        : draft_(&draft), rank_(rank), channel_(channel) {}
    detail::PlanDraft* draft_;  // of the builder
    std::uint32_t rank_;
    std::uint32_t channel_;
  };

  explicit PlanBuilder(PlanDescription description);
  PlanBuilder(PlanBuilder&&) noexcept;
  PlanBuilder& operator=(PlanBuilder&&) noexcept;
  ~PlanBuilder();

  // Appends a channel to the programs of `rank`; its number is that of the rank's channels before it. Every rank needs
  // one at least.
  Channel channel(std::uint32_t rank);

  // Proves what was built so far. Errors: kInvalidArgument for a mistake in using the builder, kInvalidPlan for a plan
  // that is wrong (both name rank, channel and step), kUnsupported for what is beyond PlanLimits.
  Result<UserPlan> build() const;

 private:
  std::unique_ptr<detail::PlanDraft> draft_;
};

}  // namespace tutti
