// Ranks on emulated GPUs: their programs, connections and buffers, as the runtime lays them out in device memory, and
// the same call by the host executor to compare with. For the tests of the device evaluator.
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
#include "tests/device/emulator/world.h"

namespace tutti::testing {

struct GroupOptions {
  device::Protocol protocol = device::Protocol::kSimple;
  std::uint32_t slots = 2;
  std::uint64_t slot_bytes = 512;
  std::uint32_t slices = 1;
  bool windows = false;
  bool posts_at_meetings = false;  // what a rank tells another is seen after the next meet() and not before
  unsigned threads = 32;           // of a block
  std::uint64_t first_number = 0;  // of every connection
};

struct CallOptions {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Lengths lengths;
  bool in_place = false;
  std::uint64_t seed = 1;  // of the inputs, and of where buffers start
};

// One rank's buffers in one piece of memory, with room around them.
struct RankBuffers {
  std::vector<std::byte> memory;
  std::size_t input_at = 0;
  std::size_t output_at = 0;
  bool in_place = false;  // as far as this rank has both
};
// The same for the same arguments, contents included.
std::vector<RankBuffers> make_buffers(const PlanShape& shape, const CallOptions& call);

// What the host executor leaves in them.
std::vector<RankBuffers> run_on_host(const Generator& generator, const CallOptions& call,
                                     std::uint64_t max_chunk_bytes);

class DeviceGroup {
 public:
  using Kernel = std::function<void(const device::Launch&)>;

  DeviceGroup(const Generator& generator, const GroupOptions& options)
      : DeviceGroup(std::vector<Generator>{generator}, options) {}
  // Several plans of the same ranks over the same connections.
  DeviceGroup(const std::vector<Generator>& generators, const GroupOptions& options);

  std::uint32_t ranks() const { return ranks_; }
  std::uint64_t max_chunk_bytes() const { return device::payload_bytes(options_.protocol, options_.slot_bytes); }

  // The next call, by one of the plans; the buffers live as long as it runs.
  void set_call(const CallOptions& call, std::vector<RankBuffers>& buffers, std::size_t plan = 0);
  device::Call& call(std::uint32_t rank) { return calls_[rank]; }

  enum class Start : std::uint8_t { kBegin, kResume };
  enum class Calls : std::uint8_t { kInline, kInMemory };
  // What a launch is given: one rank's call, or those of all, which stand in itself or in memory.
  device::Launch launch_of_rank(std::uint32_t rank, Start start = Start::kBegin) const;
  device::Launch launch_of_all(Calls where) const;
  // All ranks on GPUs of their own, one launch each.
  void launch_all(emu::World& world, const Kernel& kernel, Start start = Start::kBegin);
  std::uint64_t launch(emu::World& world, std::uint32_t rank, const Kernel& kernel, Start start);
  // All ranks on one GPU, in one launch.
  void launch_together(emu::World& world, const Kernel& kernel, Calls where);

  void meet();  // of posts_at_meetings, between launches

  bool finished(std::uint32_t rank) const;  // its last call
  device::RankStatus& status(std::uint32_t rank) { return statuses_[rank]; }
  device::FailureWord failure(std::uint32_t rank) const { return device::FailureWord::of(statuses_[rank].failure); }

  // For what tests look at or break.
  struct alignas(device::kLineBytes) Line {
    std::byte bytes[device::kLineBytes];
  };
  struct Connection {
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    device::Link* send = nullptr;
    device::Link* receive = nullptr;
    std::vector<Line> slots;
    std::vector<device::Envelope> envelopes;
  };
  const std::vector<std::unique_ptr<Connection>>& connections() const { return connections_; }

 private:
  // One rank's part of one plan.
  struct Part {
    DeviceProgram program;
    std::vector<device::ChannelState> states;
  };
  struct GroupPlan {
    PlanShape shape;
    std::vector<Part> parts;  // by rank
  };
  void connect(std::uint32_t lanes);
  device::Launch launch_of(Start start) const;

  const GroupOptions options_;
  const std::uint32_t ranks_;
  std::vector<GroupPlan> plans_;
  std::size_t plan_ = 0;                             // of the last call
  std::vector<std::vector<device::Link>> links_;     // by rank, then by device::link_index()
  std::vector<std::vector<device::Mailbox>> posts_;  // of posts_at_meetings: what goes to the mailboxes at the next one
  std::vector<std::vector<device::Mailbox>> mailboxes_;  // the same
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<device::RankStatus> statuses_;
  std::vector<DeviceGeometry> geometries_;
  std::vector<std::vector<Line>> scratch_;
  std::vector<std::vector<std::uint64_t>> scratch_bytes_;
  std::vector<device::Call> calls_;
  const std::uint64_t window_base_ = 0;  // the one window is all of memory
};

}  // namespace tutti::testing
