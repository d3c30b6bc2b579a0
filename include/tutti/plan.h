// UserPlan and PlanBuilder: a collective algorithm of the caller, built with PlanBuilder or read from a JSON file, and
// proved correct before it can run. docs/plan-json.md describes the file format, docs/verifier.md the proof.
//
// A plan has one or more channels for each rank. A channel is a sequential program, and the channels of a rank run
// concurrently. A channel is a list of steps, and each step is one equation:
//
//   value = x1 (+) x2 (+) ... (+) xk     operands in a stated order: at most one local slice, the others received
//   sink  = value; send value; ...       at most one local sink, any number of sends
//
// A slice is one chunk of one of the rank's buffers. (A step can also stand for several equations on consecutive
// chunks; see PlanBuilder::Step::run().) Plans are independent of the length of a call, because they refer to chunks
// and not to bytes: the blocks of a call's buffers are split into tiles, each tile of a block into `chunks` chunks, and
// every channel runs all its steps once for each tile. A connection is a FIFO of messages. It is identified by (sending
// rank, receiving rank, lane). Exactly one channel uses it at each end, and its k-th message sent is its k-th message
// received. docs/plan-json.md lists the blocks of each collective.
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

// Limits of a user plan. A step with a run of n equations (PlanBuilder::Step::run()) counts as n steps, and each of its
// messages as n messages. In addition, the buffers of all ranks together have at most 2^22 chunks per tile, and a plan
// is refused (kUnsupported) if its proof would need more than about 2 GiB of memory or more than about a minute. Rings
// and trees are possible for up to 1024 ranks, and plans in which all pairs of ranks communicate for some hundred
// ranks.
struct PlanLimits {
  static constexpr std::uint32_t kRanks = 1024;
  static constexpr std::uint32_t kChannels = 64;     // per rank
  static constexpr std::uint32_t kLanes = 7;         // lanes are numbered 0 .. 6
  static constexpr std::uint32_t kSlots = 64;        // messages that a connection can hold
  static constexpr std::uint32_t kOperands = 1024;   // per step; also the limit of sends per step
  static constexpr std::uint32_t kSteps = 1u << 21;  // number of steps, summed over all ranks
  // number of messages per tile, summed over all ranks; also the limit of the number of waits (Step::after())
  static constexpr std::uint32_t kMessages = 1u << 21;
  static constexpr std::size_t kNameBytes = 128;
  static constexpr std::size_t kCommentBytes = 4096;
  static constexpr std::size_t kJsonBytes = std::size_t{64} << 20;
};

// The properties of a plan that are the same for all its ranks.
struct PlanDescription {
  // `name` and `comment` are for people: UTF-8 of at most kNameBytes and kCommentBytes bytes (PlanLimits), without
  // control characters and characters that change the direction of text or separate lines.
  std::string name{};
  std::string comment{};
  CollectiveKind collective = CollectiveKind::kAllReduce;  // not kSendReceive
  std::uint32_t ranks = 1;                                 // 1 .. 1024
  std::uint32_t root = 0;                                  // 0 .. ranks-1 if the collective has a root, otherwise 0
  std::uint32_t chunks = 1;          // chunks per tile of each block of the input and of the output; at least 1
  std::uint32_t scratch_chunks = 0;  // chunks per tile of the scratch buffer of every rank
  // 1 .. 64: number of messages that every connection must be able to hold, so that the plan does not deadlock. A
  // communicator whose connections hold fewer messages (TUTTI_SLOTS) refuses the plan.
  std::uint16_t slots = 1;
  std::uint16_t lanes = 1;    // 1 .. 7; lanes are numbered 0 .. lanes-1
  Order order = Order::kAny;  // the order in which the ranks' values are added; the verifier proves it as well

  bool operator==(const PlanDescription&) const = default;
};

// Result and size of the proof. The verifier runs the plan for two tiles and two calls, in place and out of place, with
// messages through slots and with messages through windows. (A window is a rank's buffer that its peers access
// directly.) The counters are sums over these runs.
struct PlanProof {
  // True if peers may access the buffers of a rank through windows even if the call of that rank is in place. False:
  // they access only the buffers of ranks with calls that are not in place, because a peer could otherwise read an
  // input that its owner has already overwritten. All other messages go through slots.
  bool windows_in_place = false;
  std::uint64_t steps = 0;
  std::uint64_t messages = 0;
  std::uint64_t race_checks = 0;

  bool operator==(const PlanProof&) const = default;
};

// A plan that was proved: every call of it ends, every rank gets the result that the collective defines, the result has
// the same bits on all ranks, and channels do not race with each other. An immutable value; copies share their content.
// Safe to use from any thread.
class TUTTI_API UserPlan {
 public:
  // Reads and proves a plan. The error names the field ("ranks[2].channels[0].steps[5].receive[0].peer: ...") or, if
  // the text is valid but the plan is not correct, the rank, channel and step. Errors: kInvalidPlan; kUnsupported if
  // the format has another version, or if the text or a list in it is too long, or the plan or its proof is too large
  // (PlanLimits). A single field that is out of its range, for example `slots`, is kInvalidPlan.
  static Result<UserPlan> parse_json(std::string_view text);
  // Reads and proves a plan from a file. Errors: as above, and kSystem if the file cannot be read.
  static Result<UserPlan> load(const std::string& path);

  UserPlan(const UserPlan&);
  UserPlan& operator=(const UserPlan&);
  ~UserPlan();

  const PlanDescription& description() const;
  std::string_view name() const;
  const PlanProof& proof() const;

  // A checksum of everything that determines the behaviour of the ranks. Name and comment are left out. Never 0. A
  // call fails with kMismatch if the plans of its ranks have different digests. Two different plans have the same
  // digest with a probability of about 2^-32.
  std::uint32_t digest() const;

  // The plan as JSON text; parse_json() turns it into an equal plan. The text of a plan with more than about 500,000
  // steps can be longer than PlanLimits::kJsonBytes; parse_json() then refuses it.
  std::string to_json() const;

  bool operator==(const UserPlan& other) const;  // unlike digest(), compares name and comment as well

 private:
  friend class PlanBuilder;
  friend struct detail::UserPlanData;
  explicit UserPlan(std::shared_ptr<const detail::UserPlanData> data);
  std::shared_ptr<const detail::UserPlanData> data_;  // shared by all copies: plans are large and never change
};

// Builds a plan. Wrong arguments never cause an assertion failure: the builder stores the first error, ignores all
// later calls, and build() returns the error. Used by one thread at a time. Channels and steps refer to their builder
// and must not outlive it; they stay valid if the builder is moved.
class TUTTI_API PlanBuilder {
 public:
  class Channel;

  // One equation, or several on consecutive chunks (run()). The calls follow the order of the equation: operands, then
  // sink and sends. completes(), run() and after() may come at any time. Only the last step of a channel can be
  // changed: it is closed as soon as the channel's next step begins.
  class TUTTI_API Step {
   public:
    // The next operand is the next message from `peer`, which must be another rank. lane: 0 .. lanes-1. At most once
    // per connection in each step.
    Step& receive(std::uint32_t peer, std::uint32_t lane = 0);
    // The next operand is chunk number `chunk` of this rank's input, output or scratch. At most one per step.
    Step& local(Space space, std::uint32_t chunk);
    // Stores the value in chunk number `chunk` of output or scratch. At most one per step.
    Step& store(Space space, std::uint32_t chunk);
    // Sends the value as the next message to `peer`, which must be another rank. At most once per connection in each
    // step.
    Step& send(std::uint32_t peer, std::uint32_t lane = 0);
    // Marks the step at which the value first contains the contribution of every rank. The mark is needed because this
    // step divides an average by the number of ranks. Collectives that reduce need the mark at exactly these steps;
    // other collectives must not have it.
    Step& completes();
    // Makes the step stand for a run of `chunks` equations, at least 1 (the default). Each message of the step carries
    // `chunks` values. Equation i = 0, 1, ... uses the chunks that are i chunks after those of local() and store(), and
    // value i of each message. After the last chunk of a buffer, a run goes on with chunk 0. For example, if the input
    // has 4 chunks, run(3), local(Space::kInput, 2) and send(1) send the chunks 2, 3 and 0 to rank 1 in one message.
    //
    // build() checks these rules. The two steps of a message have runs of the same length. A run has at most as many
    // chunks as the buffers that it uses. No equation of a run stores to a chunk that another one reads, not even in an
    // in-place call, in which an input chunk and an output chunk can be the same memory. If a run of several chunks has
    // neither a local operand nor a chunk of the output to store to, the plan must have 1 chunk per block.
    //
    // Runs suit short calls, because a message must fit into one slot of a connection (TUTTI_SLOT_BYTES), and is always
    // copied through it. Only the host carries out plans with runs of several chunks. all_gather_v and reduce_scatter_v
    // use another plan if they pass Algorithm::kAuto. If they pass kUser, they return kUnsupported for such a plan.
    Step& run(std::uint32_t chunks);
    // Waits until the given step of another channel of this rank has run in the same tile or, if tiles_before is 1,
    // in the previous tile. That step may be added to the builder later than this one.
    Step& after(std::uint32_t channel, std::uint32_t step, std::uint32_t tiles_before = 0);

   private:
    friend class Channel;
    Step(detail::PlanDraft& draft, std::uint32_t rank, std::uint32_t channel, std::uint32_t step)
        : draft_(&draft), rank_(rank), channel_(channel), step_(step) {}
    detail::PlanDraft* draft_;  // owned by the builder
    std::uint32_t rank_;
    std::uint32_t channel_;
    std::uint32_t step_;
  };

  // One sequential program of a rank.
  class TUTTI_API Channel {
   public:
    Step step();  // appends a step; steps are numbered from 0
    std::uint32_t index() const { return channel_; }

   private:
    friend class PlanBuilder;
    Channel(detail::PlanDraft& draft, std::uint32_t rank, std::uint32_t channel)
        : draft_(&draft), rank_(rank), channel_(channel) {}
    detail::PlanDraft* draft_;  // owned by the builder
    std::uint32_t rank_;
    std::uint32_t channel_;
  };

  explicit PlanBuilder(PlanDescription description);
  PlanBuilder(PlanBuilder&&) noexcept;
  PlanBuilder& operator=(PlanBuilder&&) noexcept;
  ~PlanBuilder();

  // Appends a channel to `rank`. The channels of each rank are numbered from 0. Every rank needs at least one.
  Channel channel(std::uint32_t rank);

  // Proves the plan as it has been built so far. Errors: kInvalidArgument if the builder was used wrongly, also if a
  // number exceeds a constant of PlanLimits; kInvalidPlan if the plan is not correct (both name rank, channel and step
  // if the fault is in one step); kUnsupported if the plan has too many steps or messages because of its runs, or too
  // many chunks, or if its proof would cost too much (see PlanLimits).
  Result<UserPlan> build() const;

 private:
  std::unique_ptr<detail::PlanDraft> draft_;
};

}  // namespace tutti
