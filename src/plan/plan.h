// Plans: every collective algorithm as a value. See docs/decisions/0001-step-equation.md.
//
//   value = x1 (+) x2 (+) ... (+) xk     operands in a stated order: at most one local slice, the others received
//   sink  = value; send c = value; ...   at most one local sink, any connections to send to
//
// A plan speaks of chunks, never of bytes; a Tiling turns chunks to offsets for one call. The tile loop stands outside
// the plan: each channel runs its steps once per tile, tile after tile. All types here are values: they compare, copy
// and print; nothing in this folder talks to a peer or touches user memory.
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

// What is to be done, as far as a plan depends on it: not the count, the type or the operation. collective.h says what
// each kind means.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint32_t ranks = 1;
  std::uint32_t root = 0;              // of the kinds that have one, else 0
  std::vector<std::uint32_t> nodes{};  // the machine of each rank, numbered 0, 1, ...; empty: all on one

  bool operator==(const Collective&) const = default;
};

std::string_view to_string(Space space);

// One chunk of one of this rank's buffers; space kNone means "no slice" (chunk is then 0). In place, some chunks of
// input and output are the same memory (collective.h): reading such a chunk of kInput after its kOutput was written is
// therefore always wrong.
struct Slice {
  Space space = Space::kNone;
  std::uint8_t reserved[3] = {};
  std::uint32_t chunk = 0;

  bool operator==(const Slice&) const = default;
};
static_assert(sizeof(Slice) == 8 && alignof(Slice) == 4);

// One equation. Operands are, in order: the first `source_position` received values, then the local `source` (if any),
// then the remaining received values. Received values and sends are named by the channel's list of connection indices:
// lists[list_begin, +receive_count) are receives in operand order, the next send_count are sends.
struct Step {
  Slice source;                  // local operand, or none
  Slice sink;                    // where the value goes locally, or none
  std::uint32_t list_begin = 0;  // into Channel::lists
  std::uint16_t receive_count = 0;
  std::uint16_t send_count = 0;
  std::uint16_t source_position = 0;  // 0 .. receive_count; 0 when there is no source
  // 1: the value holds every contribution for the first time here (averages divide here). 0 where nothing is added.
  std::uint8_t completes = 0;
  std::uint8_t reserved = 0;

  bool operator==(const Step&) const = default;
};
static_assert(sizeof(Step) == 28 && alignof(Step) == 4);

enum class Direction : std::uint8_t { kReceive = 0, kSend = 1 };

// One end of a connection. A connection is a directed FIFO named by (sending rank, receiving rank, lane); exactly one
// channel of the sender and one channel of the receiver use it.
struct Port {
  std::uint32_t peer = 0;
  std::uint16_t lane = 0;
  Direction direction = Direction::kReceive;
  std::uint8_t reserved = 0;

  bool operator==(const Port&) const = default;
};
static_assert(sizeof(Port) == 8 && alignof(Port) == 4);

// `step` of this channel may run only after `other_step` of `other_channel` of the same rank has run in the same tile,
// or in the tile before it: what waits for another channel to have read scratch that it is about to write again. In the
// first tile of a call there is no tile before, and nothing to wait for.
struct After {
  std::uint32_t step = 0;
  std::uint16_t other_channel = 0;
  std::uint16_t tiles_before = 0;  // 0 or 1
  std::uint32_t other_step = 0;

  bool operator==(const After&) const = default;
};
static_assert(sizeof(After) == 12 && alignof(After) == 4);

// One sequential program of one rank: one CPU task, or one GPU thread block.
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

// One rank's share of a plan: what that rank runs. Ranks build only their own (and, to find where a window store lands,
// their direct peers').
struct RankPlan {
  std::vector<Channel> channels;

  bool operator==(const RankPlan&) const = default;
};

std::string_view to_string(Order order);

// Facts that are the same for all ranks of a plan.
struct PlanShape {
  Collective collective;
  Algorithm algorithm = Algorithm::kRing;
  std::uint32_t chunks = 1;  // chunks of each block of input and of output per tile
  // Chunks of scratch, which every tile uses again; each takes a value of any length up to that of the longest chunk.
  std::uint32_t scratch_chunks = 0;
  std::uint16_t slots = 1;  // messages that every connection must be able to hold for the plan not to deadlock
  std::uint16_t lanes = 1;  // lanes are 0 .. lanes-1
  // False: a rank whose call is in place takes no part in windows (see plan/windows.h): it publishes nothing, since the
  // plan may overwrite its input before every peer has read it, and offers its output to nobody, since a peer could
  // write there what the plan has still to read. Messages to and from it go through slots.
  bool windows_in_place = true;
  Order order = Order::kAny;

  bool operator==(const PlanShape&) const = default;
};

// The whole plan, all ranks. Only tools, tests and the verifier hold one.
struct Plan {
  PlanShape shape;
  std::vector<RankPlan> ranks;

  bool operator==(const Plan&) const = default;
};

// Builds one channel step by step, in the order of the equation. Example:
//   ChannelBuilder b;
//   auto from = b.receive_from(prev, lane), to = b.send_to(next, lane);
//   b.step().receive(from).local({Space::kInput, {}, 3}).send(to);
class ChannelBuilder {
 public:
  std::uint16_t receive_from(std::uint32_t peer, std::uint16_t lane);  // finds or adds the port
  std::uint16_t send_to(std::uint32_t peer, std::uint16_t lane);

  // Appends operands, sink and sends to the last step of the builder. Operands keep the order of the calls.
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
  // The last step waits for that one.
  void after(std::uint16_t other_channel, std::uint32_t other_step, std::uint16_t tiles_before = 0);

  std::uint32_t steps() const { return static_cast<std::uint32_t>(channel_.steps.size()); }
  Channel build() &&;

 private:
  std::uint16_t port(std::uint32_t peer, std::uint16_t lane, Direction direction);
  Channel channel_;
  std::unordered_map<std::uint64_t, std::uint16_t> port_index_;  // (peer, lane, direction) -> index into Channel::ports
};

// An algorithm's generator: pure, the same on every rank.
struct Generator {
  PlanShape shape;
  std::function<RankPlan(const PlanShape& shape, std::uint32_t rank)> build;
};
Plan build_plan(const Generator& generator);

}  // namespace tutti
