// DeviceGroup: ranks on emulated GPUs, for the tests of the device evaluator. It has the programs, connections and
// buffers of the ranks in the layout that the runtime uses in device memory. run_on_host() runs the same call with the
// host executor, so that tests can compare the results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/device_program.h"
#include "kernels/device/call.h"
#include "plan/layout.h"
#include "plan/plan.h"
#include "tests/device/emulator/emulator.h"

namespace tutti::testing {

struct GroupOptions {
  device::Protocol protocol = device::Protocol::kSimple;
  std::uint32_t slots = 2;
  std::uint64_t slot_bytes = 512;
  std::uint32_t slices = 1;
  bool few_blocks = false;  // rank r has blocks for 1 + r % slices of the slices at a time
  bool windows = false;
  // Whether the counters that a rank posts to the mailboxes of its peers become visible only at the next
  // deliver_posts().
  bool defers_posts = false;
  unsigned threads = 32;           // threads in a block
  std::uint64_t first_number = 0;  // number of the first message on every connection
};

struct CallOptions {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Lengths lengths;
  bool in_place = false;
  std::uint64_t seed = 1;  // determines the inputs and the alignment of the buffers
};

// The buffers of one rank. Both are in `memory`, with unused bytes before, between and after them, so that tests notice
// writes outside of the buffers.
struct RankBuffers {
  std::vector<std::byte> memory;
  std::size_t input_at = 0;
  std::size_t output_at = 0;
  bool in_place = false;  // the call is in place, and this rank has both an input and an output
};
// Makes the buffers of all ranks and fills the inputs. The same arguments always give the same buffers and contents.
std::vector<RankBuffers> make_buffers(const PlanShape& shape, const CallOptions& call);

// Runs the call with the host executor and returns the buffers of all ranks after it.
std::vector<RankBuffers> run_on_host(const Generator& generator, const CallOptions& call,
                                     std::uint64_t max_chunk_bytes);

class DeviceGroup {
 public:
  using Kernel = std::function<void(const device::Launch&)>;

  DeviceGroup(const Generator& generator, const GroupOptions& options)
      : DeviceGroup(std::vector<Generator>{generator}, options) {}
  // Several plans for the same ranks, which use the same connections.
  DeviceGroup(const std::vector<Generator>& generators, const GroupOptions& options);

  std::uint32_t ranks() const { return ranks_; }
  std::uint64_t max_chunk_bytes() const { return device::payload_bytes(options_.protocol, options_.slot_bytes); }

  // Prepares the next call, which executes plan number `plan`. The buffers must exist until the call has finished.
  void set_call(const CallOptions& call, std::vector<RankBuffers>& buffers, std::size_t plan = 0);
  device::Call& call(std::uint32_t rank) { return calls_[rank]; }

  enum class Start : std::uint8_t { kBegin, kResume };
  enum class Calls : std::uint8_t { kInline, kInMemory };
  // Makes the arguments of a launch for the call of one rank, or for the calls of all ranks. The calls of all ranks are
  // inside the launch's arguments (kInline) or in memory (kInMemory).
  device::Launch launch_of_rank(std::uint32_t rank, Start start = Start::kBegin) const;
  device::Launch launch_of_all(Calls where) const;
  // Launches the ranks on one GPU each, with one launch each.
  void launch_all(emu::Emulator& emulator, const Kernel& kernel, Start start = Start::kBegin);
  std::uint64_t launch(emu::Emulator& emulator, std::uint32_t rank, const Kernel& kernel, Start start);
  // Launches all ranks on one GPU, in one launch.
  void launch_together(emu::Emulator& emulator, const Kernel& kernel, Calls where);

  // With GroupOptions::defers_posts: makes everything visible that ranks have posted so far. Call it between launches.
  void deliver_posts();

  bool finished(std::uint32_t rank) const;  // whether the rank has finished the last call
  device::RankStatus& status(std::uint32_t rank) { return statuses_[rank]; }
  device::FailureWord failure(std::uint32_t rank) const { return device::FailureWord::of(statuses_[rank].failure); }

  // The connections are public so that tests can inspect or damage them.
  struct alignas(device::kLineBytes) AlignedLine {
    std::byte bytes[device::kLineBytes];
  };
  struct Connection {
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    device::Link* send = nullptr;
    device::Link* receive = nullptr;
    std::vector<AlignedLine> slots;
    std::vector<device::Envelope> envelopes;
  };
  const std::vector<std::unique_ptr<Connection>>& connections() const { return connections_; }

 private:
  // The program of one rank for one plan, and its state.
  struct RankProgram {
    DeviceProgram program;
    std::vector<device::ChannelState> states;
  };
  struct GroupPlan {
    PlanShape shape;
    std::vector<RankProgram> rank_programs;  // indexed by rank
  };
  void connect(std::uint32_t lanes);
  device::Launch launch_of(Start start) const;

  const GroupOptions options_;
  const std::uint32_t ranks_;
  std::vector<GroupPlan> plans_;
  std::size_t plan_ = 0;                          // the plan of the last call
  std::vector<std::vector<device::Link>> links_;  // indexed by rank, then by device::link_index()
  // With defers_posts: posts that deliver_posts() will copy to the mailboxes. Indexed as links_.
  std::vector<std::vector<device::Mailbox>> posts_;
  std::vector<std::vector<device::Mailbox>> mailboxes_;  // indexed as links_
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<device::RankStatus> statuses_;
  std::vector<DeviceGeometry> geometries_;
  std::vector<std::vector<AlignedLine>> scratch_;
  std::vector<std::vector<std::uint64_t>> scratch_bytes_;
  std::vector<device::Call> calls_;
  const std::uint64_t window_base_ = 0;  // the only window begins at address 0, so it contains all memory
};

}  // namespace tutti::testing
