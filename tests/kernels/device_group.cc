// Ranks on emulated GPUs: see device_group.h.
#include "device_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "executor/plan_execution.h"
#include "plan/collective.h"
#include "support.h"
#include "transports/sim/sim_environment.h"

namespace tutti::testing {
namespace {

constexpr std::size_t kPaddingBytes = 256;  // unused bytes before, between and after the buffers

std::uint64_t elements_of(const Blocks& blocks, const Lengths& lengths) {
  if (lengths.counts.empty()) return blocks.count * lengths.count;
  std::uint64_t sum = 0;
  for (std::uint32_t b = 0; b < blocks.count; ++b) sum += lengths.counts[blocks.first + b];
  return sum;
}

std::uint64_t elements_before(std::uint32_t rank, const Lengths& lengths) {
  return elements_of({.count = rank, .first = 0}, lengths);
}

Call host_call(const CallOptions& options, RankBuffers& buffers, std::uint64_t max_chunk_bytes) {
  Call call;
  call.tag = {.sequence = 1,
              .count = options.lengths.count,
              .type = static_cast<std::uint8_t>(options.type),
              .op = static_cast<std::uint8_t>(options.op),
              .tile_bytes = static_cast<std::uint32_t>(max_chunk_bytes)};
  call.type = options.type;
  call.element_bytes = size_of(options.type);
  call.op = options.op;
  call.scale = {.real = 1.5, .integer = 3};
  call.lengths = options.lengths;
  call.in_place = buffers.in_place;
  call.input = buffers.memory.data() + buffers.input_at;
  call.output = buffers.memory.data() + buffers.output_at;
  return call;
}

}  // namespace

std::vector<RankBuffers> make_buffers(const PlanShape& shape, const CallOptions& call) {
  std::vector<RankBuffers> all(shape.collective.ranks);
  std::mt19937_64 random(call.seed);
  const std::size_t element_bytes = size_of(call.type);
  for (std::uint32_t rank = 0; rank < shape.collective.ranks; ++rank) {
    RankBuffers& buffers = all[rank];
    const Blocks in = input_blocks(shape.collective, rank);
    const Blocks out = output_blocks(shape.collective, rank);
    const std::size_t in_bytes = elements_of(in, call.lengths) * element_bytes;
    const std::size_t out_bytes = elements_of(out, call.lengths) * element_bytes;
    const std::size_t own_at = elements_before(rank, call.lengths) * element_bytes;
    buffers.in_place = call.in_place && in.count > 0 && out.count > 0;
    // The buffers start anywhere, but aligned to the element. In half of the cases input and output have the same
    // alignment, because only then the kernels can move 16 bytes at a time.
    const bool alike = random() % 2 == 0;
    const std::size_t start = kPaddingBytes + random() % 16 * element_bytes;
    buffers.input_at = buffers.output_at = start;
    if (!buffers.in_place) {
      buffers.output_at =
          (start + in_bytes) / 16 * 16 + kPaddingBytes + (alike ? start : random() % 16 * element_bytes) % 128;
    } else if (in.count < out.count) {
      buffers.input_at += own_at;
    } else if (out.count < in.count) {
      buffers.output_at += own_at;
    }
    buffers.memory.resize(std::max(buffers.input_at + in_bytes, buffers.output_at + out_bytes) + kPaddingBytes);
    kernels::testing::fill(buffers.memory, DataType::kUint8, kernels::testing::Values::kOrdinary, random);
    kernels::testing::fill({buffers.memory.data() + buffers.input_at, in_bytes}, call.type,
                           kernels::testing::Values::kWild, random);
  }
  return all;
}

std::vector<RankBuffers> run_on_host(const Generator& generator, const CallOptions& options,
                                     std::uint64_t max_chunk_bytes) {
  const std::uint32_t ranks = generator.shape.collective.ranks;
  std::vector<RankBuffers> buffers = make_buffers(generator.shape, options);
  SimEnvironment sim({.ranks = ranks, .slots = 4, .slot_bytes = max_chunk_bytes});
  sim.run([&](std::uint32_t rank) {
    const auto transport = sim.transport(rank);
    Connections connections(*transport);
    const auto plan = bind(generator, rank, *transport);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    ASSERT_TRUE(open(**plan, connections).ok());
    PlanExecution execution(**plan, *transport);
    execution.start(host_call(options, buffers[rank], max_chunk_bytes));
    Idle idle;
    const auto waiter = sim.waiter(rank);
    while (!execution.done()) {
      if (!execution.progress()) waiter->pause(idle, transport->doorbell(), sim.clock()->now_ns() + 1'000'000);
    }
  });
  return buffers;
}

DeviceGroup::DeviceGroup(const std::vector<Generator>& generators, const GroupOptions& options)
    : options_(options), ranks_(generators[0].shape.collective.ranks) {
  std::uint32_t lanes = 1;
  for (const Generator& generator : generators) {
    GroupPlan& plan = plans_.emplace_back();
    plan.shape = generator.shape;
    lanes = std::max<std::uint32_t>(lanes, generator.shape.lanes);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      RankProgram& part = plan.rank_programs.emplace_back(RankProgram{pack_program(generator, rank).value(), {}});
      part.states.resize(std::size_t{options.slices} * part.program.header().channel_count);
    }
  }
  statuses_.resize(ranks_);
  scratch_.resize(ranks_);
  scratch_bytes_.resize(ranks_);
  calls_.resize(ranks_);
  connect(lanes);
}

// Makes all connections of all pairs of ranks, even if no plan uses them.
void DeviceGroup::connect(std::uint32_t lanes) {
  const std::uint32_t numbers = options_.slices * lanes;
  links_.resize(ranks_);
  mailboxes_.resize(ranks_);
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    links_[rank].resize(device::link_index(numbers, ranks_, 0, false));
    mailboxes_[rank].resize(links_[rank].size());
  }
  posts_ = mailboxes_;
  const auto end_of = [&](std::uint32_t rank, std::uint32_t number, std::uint32_t peer, bool sends) {
    const std::uint64_t at = device::link_index(number, ranks_, peer, sends);
    device::Link& link = links_[rank][at];
    link.own = &mailboxes_[rank][at];
    link.own->counter = options_.first_number;
    link.number = options_.first_number;
    link.slot_bytes = options_.slot_bytes;
    link.slot_mask = options_.slots - 1;
    if (options_.windows) link.windows = &window_base_;
    return &link;
  };
  const auto posting_to = [&](std::uint32_t rank, std::uint64_t at) {
    posts_[rank][at].counter = options_.first_number;
    return options_.defers_posts ? &posts_[rank][at] : &mailboxes_[rank][at];
  };
  for (std::uint32_t number = 0; number < numbers; ++number) {
    for (std::uint32_t from = 0; from < ranks_; ++from) {
      for (std::uint32_t to = 0; to < ranks_; ++to) {
        if (from == to) continue;
        Connection& connection = *connections_.emplace_back(std::make_unique<Connection>());
        connection.from = from;
        connection.to = to;
        connection.slots.resize(options_.slots * options_.slot_bytes / sizeof(AlignedLine));
        connection.envelopes.resize(options_.slots);
        connection.send = end_of(from, number, to, true);
        connection.receive = end_of(to, number, from, false);
        connection.send->peer = posting_to(to, device::link_index(number, ranks_, from, false));
        connection.receive->peer = posting_to(from, device::link_index(number, ranks_, to, true));
        for (device::Link* link : {connection.send, connection.receive}) {
          link->slots = connection.slots[0].bytes;
          link->envelopes = connection.envelopes.data();
        }
      }
    }
  }
}

void DeviceGroup::set_call(const CallOptions& options, std::vector<RankBuffers>& buffers, std::size_t plan) {
  plan_ = plan;
  const PlanShape& shape = plans_[plan].shape;
  geometries_.clear();
  geometries_.reserve(ranks());
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    const DeviceGeometry& geometry = geometries_.emplace_back(pack_geometry(
        shape, rank, options.lengths, static_cast<std::uint32_t>(size_of(options.type)), max_chunk_bytes()));
    device::Call& call = calls_[rank] = {};
    call.program = &plans_[plan].rank_programs[rank].program.header();
    // In half of the cases the length of the program is not given, so that the kernel reads it from global memory.
    const bool whole = (options.seed + rank) % 2 == 0;
    call.program_bytes = whole ? plans_[plan].rank_programs[rank].program.bytes().size() : 0;
    call.channels = plans_[plan].rank_programs[rank].states.data();
    call.links = links_[rank].data();
    call.status = &statuses_[rank];
    call.input = buffers[rank].memory.data() + buffers[rank].input_at;
    call.output = buffers[rank].memory.data() + buffers[rank].output_at;
    call.geometry = geometry.on_host();
    const std::uint64_t chunk_bytes = call.geometry.max_chunk_count << call.geometry.element_log2;
    const std::size_t scratch_chunks = std::size_t{options_.slices} * shape.scratch_chunks;
    scratch_[rank].assign(scratch_chunks * chunk_bytes / sizeof(AlignedLine) + 1, AlignedLine{});
    scratch_bytes_[rank].assign(scratch_chunks + 1, 0);
    call.scratch = scratch_[rank][0].bytes;
    call.scratch_bytes = scratch_bytes_[rank].data();
    call.arithmetic.type = options.type;
    call.arithmetic.op = options.op;
    call.arithmetic.scale_real = 1.5;
    call.arithmetic.scale_integer = 3;
    call.in_place = buffers[rank].in_place ? 1 : 0;
    call.digest = 0xD16E57;
    if (options_.windows) {
      call.input_window = call.output_window = 0;
      call.input_offset = reinterpret_cast<std::uintptr_t>(call.input);
      call.output_offset = reinterpret_cast<std::uintptr_t>(call.output);
    }
  }
}

device::Launch DeviceGroup::launch_of(Start start) const {
  device::Launch launch;
  launch.slices = options_.slices;
  launch.resume = start == Start::kResume ? 1 : 0;
  for (const RankProgram& part : plans_[plan_].rank_programs)
    launch.channels = std::max(launch.channels, part.program.header().channel_count);
  return launch;
}

device::Launch DeviceGroup::launch_of_rank(std::uint32_t rank, Start start) const {
  device::Launch launch = launch_of(start);
  if (options_.few_blocks) launch.at_once = 1 + rank % options_.slices;
  launch.call_count = 1;
  launch.inline_calls[0] = calls_[rank];
  return launch;
}

device::Launch DeviceGroup::launch_of_all(Calls where) const {
  device::Launch launch = launch_of(Start::kBegin);
  if (options_.few_blocks) launch.at_once = 1 + ranks() % options_.slices;
  launch.call_count = ranks();
  if (where == Calls::kInMemory) {
    launch.calls = calls_.data();
  } else {
    EXPECT_LE(ranks(), device::kInlineCalls);
    std::ranges::copy(calls_, launch.inline_calls);
  }
  return launch;
}

std::uint64_t DeviceGroup::launch(emu::Emulator& emulator, std::uint32_t rank, const Kernel& kernel, Start start) {
  const device::Launch launch = launch_of_rank(rank, start);
  return emulator.launch(static_cast<int>(rank), device::blocks_of(launch), options_.threads,
                         [launch, kernel] { kernel(launch); });
}

void DeviceGroup::launch_all(emu::Emulator& emulator, const Kernel& kernel, Start start) {
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) launch(emulator, rank, kernel, start);
}

void DeviceGroup::launch_together(emu::Emulator& emulator, const Kernel& kernel, Calls where) {
  const device::Launch launch = launch_of_all(where);
  emulator.launch(0, device::blocks_of(launch), options_.threads, [launch, kernel] { kernel(launch); });
}

void DeviceGroup::deliver_posts() {
  ASSERT_TRUE(options_.defers_posts);
  mailboxes_ = posts_;
}

bool DeviceGroup::finished(std::uint32_t rank) const {
  for (const device::ChannelState& state : plans_[plan_].rank_programs[rank].states) {
    if (state.running != 0) return false;
  }
  return true;
}

}  // namespace tutti::testing
