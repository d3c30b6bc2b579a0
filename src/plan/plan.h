// Plan: a collective algorithm as a value. The same plan is verified, simulated, drawn, exported and executed. See
// docs/decisions/0001-step-equation.md.
//
//   value = x1 (+) x2 (+) ... (+) xk     operands in a fixed order: at most one local slice, the others received
//   sink  = value; send c = value; ...   at most one local sink, and sends on any number of connections
//
// A plan contains chunk numbers and no byte offsets. A Tiling (plan/tiling.h) converts chunks to offsets for one
// call. The loop over the tiles is not part of the plan: each channel runs all of its steps once per tile, one
// tile after the other. All types here are plain values that can be compared and copied. No code in this folder
// communicates with a peer or accesses user memory. Different objects may be used by different threads at the same
// time.
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

// The properties of a collective on which its plan depends. The count, the data type and the reduction operation are
// not among them, so one plan serves calls of different lengths, types and operations. collective.h defines each
// collective.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint32_t ranks = 1;
  // rank number of the root; 0 if the collective has no root
  std::uint32_t root = 0;
  // The number of the machine (node) on which each rank runs, indexed by rank. If it is empty, all ranks are on
  // one machine.
  std::vector<std::uint32_t> nodes{};

  bool operator==(const Collective&) const = default;
};

std::string_view to_string(Space space);

// One chunk of one buffer (input, output or scratch) of the rank that runs the step. If the step has a run of several
// chunks (Step::run), its slices are the first chunks of the run. Space kNone stands for "no slice"; chunk is then 0.
// In an in-place call, some chunks of input and output share memory (see output_alias() in collective.h). A plan must
// not read such a chunk of kInput after it has written the chunk of kOutput with the same memory, because the input
// value is lost then.
struct Slice {
  Space space = Space::kNone;
  std::uint8_t reserved[3] = {};
  std::uint32_t chunk = 0;

  bool operator==(const Slice&) const = default;
};
static_assert(sizeof(Slice) == 8 && alignof(Slice) == 4);

// One equation (see the top of this file), or a run of equations on consecutive chunks.
//
// A step with run = n stands for n equations, and each message that it receives or sends carries n values. Equation i
// (i = 0 .. n-1) uses the chunk that is i chunks after `source`, the one that is i chunks after `sink`, and value i of
// each message. After the last chunk of a buffer, a run goes on with chunk 0 (chunk_of_run() in plan/collective.h). For
// example, with run = 3, source in[2] and sink out[0], and 4 chunks in the input, the equations are out[0] = in[2],
// out[1] = in[3] and out[2] = in[0]. The equations of a step must not depend on each other: none of them may store to a
// chunk that another one reads, not even in an in-place call, in which an input chunk can be an output chunk, too.
//
// The operands are added in this order: the first `source_position` received values, then the local `source` (if there
// is one), then the remaining received values. The step's connections are in Channel::lists, which contains indices
// into Channel::ports. The receive_count entries from list_begin on are the receives, in the order of the operands. The
// next send_count entries are the sends.
struct Step {
  Slice source;                  // local operand; its space is kNone if all operands are received
  Slice sink;                    // chunk to which the value is stored; its space is kNone if it is only sent
  std::uint32_t list_begin = 0;  // index in Channel::lists of the step's first entry
  std::uint16_t receive_count = 0;
  std::uint16_t send_count = 0;
  // number of received operands before the source: 0 .. receive_count; 0 if there is no source
  std::uint16_t source_position = 0;
  // 1 if the value of this step is the sum over all ranks, and none of its operands is a sum that an earlier step has
  // completed. (With one rank, the step that loads the input completes the sum.) In an average, this step divides by
  // the number of ranks. Several ranks may each complete the same chunk. Always 0 in collectives that do not add.
  std::uint8_t completes = 0;
  std::uint8_t reserved = 0;
  std::uint32_t run = 1;  // number of equations; each has its own chunks, and its own value of each message

  bool operator==(const Step&) const = default;
};
static_assert(sizeof(Step) == 32 && alignof(Step) == 4);

enum class Direction : std::uint8_t { kReceive = 0, kSend = 1 };

// One end of a connection, as seen by a channel of one rank. A connection is a directed FIFO of messages. It is
// identified by (sending rank, receiving rank, lane). Exactly one channel of the sending rank and one channel of the
// receiving rank use it. A message carries the values of one step: one value, or as many as the run of the step has
// equations.
struct Port {
  std::uint32_t peer = 0;
  std::uint16_t lane = 0;
  Direction direction = Direction::kReceive;
  std::uint8_t reserved = 0;

  bool operator==(const Port&) const = default;
};
static_assert(sizeof(Port) == 8 && alignof(Port) == 4);

// A wait between two channels of one rank: `step` of the channel that has this entry may run only after
// `other_step` of `other_channel` has run in the same tile (if tiles_before is 0) or in the previous tile (if
// tiles_before is 1). A wait for the previous tile protects scratch memory, which all tiles share: this channel
// must not overwrite a scratch chunk before the other channel has read the chunk's value of the previous tile. In
// the first tile of a call there is no previous tile, so such a wait is skipped.
struct After {
  std::uint32_t step = 0;
  std::uint16_t other_channel = 0;
  std::uint16_t tiles_before = 0;  // 0: other_step of the same tile; 1: of the previous tile
  std::uint32_t other_step = 0;

  bool operator==(const After&) const = default;
};
static_assert(sizeof(After) == 12 && alignof(After) == 4);

// A sequential program of one rank. The channels of a rank run independently of each other, except for the waits in
// `after`. On a GPU, one or more thread blocks run a channel, each of them for its own tiles.
struct Channel {
  std::vector<Step> steps;
  std::vector<Port> ports;
  std::vector<std::uint16_t> lists;  // indices into `ports`; see Step
  std::vector<After> after;          // the waits of all steps, sorted by After::step

  std::span<const std::uint16_t> receives(const Step& step) const {
    return std::span(lists).subspan(step.list_begin, step.receive_count);
  }
  std::span<const std::uint16_t> sends(const Step& step) const {
    return std::span(lists).subspan(step.list_begin + step.receive_count, step.send_count);
  }
  bool operator==(const Channel&) const = default;
};

// The part of a plan that one rank runs. To run a built-in algorithm, a rank does not need the whole Plan. It builds
// its own RankPlan, and those of the peers with which it exchanges messages if it needs to know the steps at the other
// end (plan/windows.h, plan/replies.h). The RankPlans of all ranks are built for the proof (VerifiedPlanCache), and for
// calls on GPUs in rounds (DeviceRounds).
struct RankPlan {
  std::vector<Channel> channels;

  bool operator==(const RankPlan&) const = default;
};

std::string_view to_string(Order order);

// Properties that are the same for all ranks of a plan.
struct PlanShape {
  Collective collective;
  Algorithm algorithm = Algorithm::kRing;
  std::uint32_t chunks = 1;  // number of chunks of each block of input and output, per tile
  // Number of scratch chunks of each rank. All tiles share them, so a tile overwrites the values of the previous
  // one. Each scratch chunk has space for the longest chunk of a call.
  std::uint32_t scratch_chunks = 0;
  // Smallest number of messages that every connection must be able to hold. With fewer slots the plan can
  // deadlock.
  std::uint16_t slots = 1;
  std::uint16_t lanes = 1;  // number of lanes; Port::lane is 0 .. lanes - 1
  // The largest Step::run of all steps of all ranks. A message with this many values must fit into one slot of a
  // connection, so chunks are at most about 1 / longest_run as long as a slot (longest_chunk_bytes() in tiling.h).
  std::uint32_t longest_run = 1;
  // False: a rank with an in-place call does not let peers access its buffers through windows (plan/windows.h). It
  // publishes nothing, because the plan may overwrite its input before every peer has read it. It does not let peers
  // write into its output either, because a peer could overwrite data that the plan has yet to read. So messages to
  // this rank go through slots, unless the sender publishes them. Messages from this rank go through slots, unless
  // they are pushed into the output of a peer with a call that is not in place. True: in-place calls use windows
  // like others.
  bool windows_in_place = true;
  Order order = Order::kAny;

  bool operator==(const PlanShape&) const = default;
};

// A whole plan, with the RankPlans of all ranks, indexed by rank. Needed for plans of users (UserPlan), tools, tests
// and the verifier. Calls with the built-in algorithms run from a Generator and single RankPlans instead.
struct Plan {
  PlanShape shape;
  std::vector<RankPlan> ranks;

  bool operator==(const Plan&) const = default;
};

// Builds one channel step by step. For each step, call step(), and then the functions of StepBuilder: first receive()
// and local() for the operands in the order in which they are added up, then store(), then send(). Example:
//   ChannelBuilder b;
//   auto from = b.receive_from(prev, lane), to = b.send_to(next, lane);
//   b.step().receive(from).local(Space::kInput, 3).send(to);
class ChannelBuilder {
 public:
  // receive_from() returns the index of the port that receives from `peer` on `lane`, and send_to() that of the
  // port that sends to it. Both add the port if the channel does not have it yet.
  std::uint16_t receive_from(std::uint32_t peer, std::uint16_t lane);
  std::uint16_t send_to(std::uint32_t peer, std::uint16_t lane);

  // Adds operands, a sink and sends to the last step of the builder, even if step() returned the StepBuilder for an
  // earlier step. Operands are added up in the order of the calls of receive() and local().
  class StepBuilder {
   public:
    StepBuilder& receive(std::uint16_t port);
    StepBuilder& local(Space space, std::uint32_t chunk);
    StepBuilder& store(Space space, std::uint32_t chunk);
    StepBuilder& send(std::uint16_t port);
    StepBuilder& completes();
    // Sets Step::run. May be called before or after the other functions.
    StepBuilder& run(std::uint32_t chunks);

   private:
    friend class ChannelBuilder;
    explicit StepBuilder(ChannelBuilder& builder) : builder_(builder) {}
    ChannelBuilder& builder_;
  };
  StepBuilder step();
  // Makes the last step of this channel wait for a step of another channel of the same rank; see After.
  void after(std::uint16_t other_channel, std::uint32_t other_step, std::uint16_t tiles_before = 0);

  std::uint32_t steps() const { return static_cast<std::uint32_t>(channel_.steps.size()); }
  Channel build() &&;

 private:
  std::uint16_t port(std::uint32_t peer, std::uint16_t lane, Direction direction);
  Channel channel_;
  // (peer, lane, direction), packed into 64 bits -> index into Channel::ports
  std::unordered_map<std::uint64_t, std::uint16_t> port_index_;
};

// An algorithm's generator for one collective. `build` returns the plan of `rank`. It is a pure function: every
// rank that calls it with the same arguments obtains the same plan.
struct Generator {
  PlanShape shape;
  std::function<RankPlan(const PlanShape& shape, std::uint32_t rank)> build;
};
Plan build_plan(const Generator& generator);

}  // namespace tutti
