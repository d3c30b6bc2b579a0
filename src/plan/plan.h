// Plan: a collective algorithm as a value. The same plan is verified, simulated, drawn, exported and executed. See
// docs/decisions/0001-step-equation.md.
//
//   value = x1 (+) x2 (+) ... (+) xk     operands in a fixed order: at most one local slice, the others received
//   sink  = value; send c = value; ...   at most one local sink, and sends on any number of connections
//
// A plan contains chunk numbers and no byte offsets. A Tiling (plan/tiling.h) converts chunks to offsets for one
// call. The loop over the tiles is not part of the plan: each channel runs all of its steps once per tile, one
// tile after the other. All types here are values: they can be compared, copied and printed. Nothing in this
// folder communicates with a peer or touches user memory, so everything may be used from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/types.h"

namespace tutti {

// The parts of a collective that a plan depends on. The count, the data type and the reduction operation are not
// among them, so one plan serves calls of every length. collective.h defines each collective.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint32_t ranks = 1;
  // rank; 0 if the collective has no root
  std::uint32_t root = 0;
  // The machine of each rank, numbered 0, 1, ... If it is empty, all ranks are on one machine.
  std::vector<std::uint32_t> nodes{};

  bool operator==(const Collective&) const = default;
};

std::string_view to_string(Space space);

// One chunk of one buffer of this rank. Space kNone stands for "no slice"; chunk is then 0. In an in-place call,
// some chunks of input and output share memory (see output_alias() in collective.h). Such a chunk of kInput must
// not be read after the corresponding chunk of kOutput was written, because its value is lost then.
struct Slice {
  Space space = Space::kNone;
  std::uint8_t reserved[3] = {};
  std::uint32_t chunk = 0;

  bool operator==(const Slice&) const = default;
};
static_assert(sizeof(Slice) == 8 && alignof(Slice) == 4);

// One equation. The operands are, in this order: the first `source_position` received values, then the local
// `source` (if there is one), then the remaining received values. The connections are in the channel's list of
// port indices: lists[list_begin, +receive_count) are the receives in operand order, and the next send_count
// entries are the sends.
struct Step {
  Slice source;                  // local operand, or kNone
  Slice sink;                    // local destination of the value, or kNone
  std::uint32_t list_begin = 0;  // index into Channel::lists
  std::uint16_t receive_count = 0;
  std::uint16_t send_count = 0;
  std::uint16_t source_position = 0;  // 0 .. receive_count; 0 if there is no source
  // 1 if this step is the first one whose value holds the contributions of all ranks; an average divides here.
  // Always 0 in collectives that do not add.
  std::uint8_t completes = 0;
  std::uint8_t reserved = 0;

  bool operator==(const Step&) const = default;
};
static_assert(sizeof(Step) == 28 && alignof(Step) == 4);

enum class Direction : std::uint8_t { kReceive = 0, kSend = 1 };

// One end of a connection. A connection is a directed FIFO, identified by (sending rank, receiving rank, lane).
// Exactly one channel of the sender and one channel of the receiver use it.
struct Port {
  std::uint32_t peer = 0;
  std::uint16_t lane = 0;
  Direction direction = Direction::kReceive;
  std::uint8_t reserved = 0;

  bool operator==(const Port&) const = default;
};
static_assert(sizeof(Port) == 8 && alignof(Port) == 4);

// A wait between two channels of one rank: `step` of this channel may run only after `other_step` of
// `other_channel` has run in the same tile, or in the previous tile if tiles_before is 1. A wait for the previous
// tile protects scratch memory: this channel must not overwrite a chunk before the other channel has read it. In
// the first tile of a call there is no previous tile, and such a wait is skipped.
struct After {
  std::uint32_t step = 0;
  std::uint16_t other_channel = 0;
  std::uint16_t tiles_before = 0;  // 0 or 1
  std::uint32_t other_step = 0;

  bool operator==(const After&) const = default;
};
static_assert(sizeof(After) == 12 && alignof(After) == 4);

// A sequential program of one rank. On the host it is one task, on a GPU it is one thread block.
struct Channel {
  std::vector<Step> steps;
  std::vector<Port> ports;
  std::vector<std::uint16_t> lists;  // indices into ports, see Step
  std::vector<After> after;          // sorted by step

  std::span<const std::uint16_t> receives(const Step& step) const {
    return std::span(lists).subspan(step.list_begin, step.receive_count);
  }
  std::span<const std::uint16_t> sends(const Step& step) const {
    return std::span(lists).subspan(step.list_begin + step.receive_count, step.send_count);
  }
  bool operator==(const Channel&) const = default;
};

// The part of a plan that one rank runs. A rank builds only its own RankPlan, and those of its direct peers if it
// must know where a store through a window goes (plan/windows.h).
struct RankPlan {
  std::vector<Channel> channels;

  bool operator==(const RankPlan&) const = default;
};

std::string_view to_string(Order order);

// Properties that are the same for all ranks of a plan.
struct PlanShape {
  Collective collective;
  Algorithm algorithm = Algorithm::kRing;
  std::uint32_t chunks = 1;  // chunks of each block of input and of output, per tile
  // Number of scratch chunks. Every tile uses the same ones. Each of them can hold a value as long as the longest
  // chunk.
  std::uint32_t scratch_chunks = 0;
  // Number of messages that every connection must be able to hold. With fewer slots the plan can deadlock.
  std::uint16_t slots = 1;
  std::uint16_t lanes = 1;  // lanes are 0 .. lanes - 1
  // False: a rank does not use windows (see plan/windows.h) if its call is in place. It publishes nothing, because
  // the plan may overwrite its input before every peer has read it. It does not offer its output to peers either,
  // because a peer could overwrite data that the plan has yet to read. Messages to and from such a rank go through
  // slots.
  bool windows_in_place = true;
  Order order = Order::kAny;

  bool operator==(const PlanShape&) const = default;
};

// A whole plan, with all ranks. Only tools, tests and the verifier need one.
struct Plan {
  PlanShape shape;
  std::vector<RankPlan> ranks;

  bool operator==(const Plan&) const = default;
};

// Builds one channel step by step. The calls for a step are made in the order of its equation. Example:
//   ChannelBuilder b;
//   auto from = b.receive_from(prev, lane), to = b.send_to(next, lane);
//   b.step().receive(from).local({Space::kInput, {}, 3}).send(to);
class ChannelBuilder {
 public:
  // Both return the port's index, and add the port if the channel does not have it yet.
  std::uint16_t receive_from(std::uint32_t peer, std::uint16_t lane);
  std::uint16_t send_to(std::uint32_t peer, std::uint16_t lane);

  // Appends operands, the sink and sends to the last step of the builder. The operands keep the order of the
  // calls.
  class StepBuilder {
   public:
    StepBuilder& receive(std::uint16_t port);
    StepBuilder& local(Space space, std::uint32_t chunk);
    StepBuilder& store(Space space, std::uint32_t chunk);
    StepBuilder& send(std::uint16_t port);
    StepBuilder& completes();

   private:
    friend class ChannelBuilder;
    explicit StepBuilder(ChannelBuilder& builder) : builder_(builder) {}
    ChannelBuilder& builder_;
  };
  StepBuilder step();
  // Makes the last step wait for the given step of another channel of this rank, see After.
  void after(std::uint16_t other_channel, std::uint32_t other_step, std::uint16_t tiles_before = 0);

  std::uint32_t steps() const { return static_cast<std::uint32_t>(channel_.steps.size()); }
  Channel build() &&;

 private:
  std::uint16_t port(std::uint32_t peer, std::uint16_t lane, Direction direction);
  Channel channel_;
  // (peer, lane, direction) -> index into Channel::ports
  std::unordered_map<std::uint64_t, std::uint16_t> port_index_;
};

// An algorithm's generator. `build` is a pure function, and gives the same result on every rank.
struct Generator {
  PlanShape shape;
  std::function<RankPlan(const PlanShape& shape, std::uint32_t rank)> build;
};
Plan build_plan(const Generator& generator);

}  // namespace tutti
