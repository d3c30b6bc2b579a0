// Ranks on emulated GPUs: their programs, connections and buffers, as the runtime would lay them out in device memory,
// and the same call by the host executor to compare with. For the tests of the device evaluator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "emu/world.h"
#include "executor/device_program.h"
#include "kernels/device/call.h"
#include "plan/layout.h"
#include "plan/plan.h"

namespace tutti::testing {

struct GroupOptions {
  device::Protocol protocol = device::Protocol::kSimple;
  std::uint32_t slots = 2;
  std::uint64_t slot_bytes = 512;
  bool windows = false;
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

  DeviceGroup(const Generator& generator, const GroupOptions& options);

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(programs_.size()); }
  std::uint64_t max_chunk_bytes() const { return device::payload_bytes(options_.protocol, options_.slot_bytes); }

  // The next call; the buffers live as long as it runs.
  void set_call(const CallOptions& call, std::vector<RankBuffers>& buffers);
  device::Call& call(std::uint32_t rank) { return calls_[rank]; }

  enum class Start : std::uint8_t { kBegin, kResume };
  // What a launch is given, and its blocks: of one rank, or of all on one GPU.
  device::Launch launch_of(std::uint32_t rank, Start start = Start::kBegin) const;
  unsigned blocks_of(std::uint32_t rank) const { return static_cast<unsigned>(states_[rank].size()); }
  device::Launch launch_of_all() const;
  unsigned blocks_of_all() const { return static_cast<unsigned>(tasks_.size()); }
  // All ranks on GPUs of their own, one launch each.
  void launch_all(emu::World& world, const Kernel& kernel, Start start = Start::kBegin);
  std::uint64_t launch(emu::World& world, std::uint32_t rank, const Kernel& kernel, Start start);
  // All ranks on one GPU, in one launch.
  void launch_together(emu::World& world, const Kernel& kernel);

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
  void connect();

  const PlanShape shape_;
  const GroupOptions options_;
  std::vector<DeviceProgram> programs_;
  std::vector<std::vector<device::ChannelState>> states_;
  std::vector<std::vector<device::Link>> links_;
  std::vector<std::vector<device::Mailbox>> mailboxes_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<device::RankStatus> statuses_;
  std::vector<DeviceGeometry> geometries_;
  std::vector<std::vector<Line>> scratch_;
  std::vector<std::vector<std::uint64_t>> scratch_bytes_;
  std::vector<device::Call> calls_;
  std::vector<device::Task> tasks_;      // of launch_together
  const std::uint64_t window_base_ = 0;  // the one window is all of memory
};

}  // namespace tutti::testing
