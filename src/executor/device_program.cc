// Packs plans and geometries for the device evaluator.
#include "executor/device_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/assert.h"
#include "plan/collective.h"
#include "plan/windows.h"

namespace tutti {
namespace {

Error unsupported(const PlanShape& shape, const std::string& what, std::uint64_t had, std::uint64_t most) {
  return {ErrorCode::kUnsupported, ErrorScope::kCall, -1,
          fmt::format("the {} plan of {} for {} ranks has {} {}; on a device at most {} can be run",
                      to_string(shape.algorithm), to_string(shape.collective.kind), shape.collective.ranks, had, what,
                      most)};
}

Status check_bounds(const PlanShape& shape, const RankPlan& plan) {
  if (shape.collective.ranks > device::kMaxRanks)
    return unsupported(shape, "ranks", shape.collective.ranks, device::kMaxRanks);
  if (shape.longest_run > 1) return unsupported(shape, "chunks in a message", shape.longest_run, 1);
  if (plan.channels.size() > device::kMaxChannels)
    return unsupported(shape, "channels", plan.channels.size(), device::kMaxChannels);
  for (const Channel& channel : plan.channels) {
    if (channel.ports.size() > device::kMaxPorts)
      return unsupported(shape, "connections of one channel", channel.ports.size(), device::kMaxPorts);
    if (channel.steps.size() > device::kMaxSteps)
      return unsupported(shape, "steps of one channel", channel.steps.size(), device::kMaxSteps);
    for (const Step& step : channel.steps) {
      if (step.receive_count > device::kMaxReceives)
        return unsupported(shape, "messages received by one step", step.receive_count, device::kMaxReceives);
      if (step.send_count > device::kMaxSends)
        return unsupported(shape, "messages sent by one step", step.send_count, device::kMaxSends);
      std::set<std::uint16_t> once;
      for (const std::uint16_t port : channel.receives(step)) once.insert(port);
      for (const std::uint16_t port : channel.sends(step)) once.insert(port);
      const std::size_t entries = std::size_t{step.receive_count} + step.send_count;
      if (once.size() < entries)
        return unsupported(shape, "messages of one step on a connection", entries - once.size() + 1, 1);
    }
    std::uint32_t afters = 0;
    for (std::size_t i = 0; i < channel.after.size(); ++i) {
      afters = i > 0 && channel.after[i].step == channel.after[i - 1].step ? afters + 1 : 1;
      if (afters > device::kMaxAfters) return unsupported(shape, "waits of one step", afters, device::kMaxAfters);
    }
  }
  return {};
}

device::Blocks packed(const Blocks& blocks) { return {.count = blocks.count, .first = blocks.first}; }

// The arrays of a program under construction.
struct Arrays {
  std::vector<device::PackedChannel> channels;
  std::vector<device::PackedStep> steps;
  std::vector<device::Route> routes;
  std::vector<device::PackedAfter> afters;
  std::vector<device::PackedPort> ports;
};

void add_steps(const Channel& channel, Arrays& arrays) {
  std::uint32_t after = 0;
  for (std::uint32_t s = 0; s < channel.steps.size(); ++s) {
    const Step& step = channel.steps[s];
    device::PackedStep& to = arrays.steps.emplace_back();
    to.source = step.source.space;
    to.source_chunk = step.source.chunk;
    to.sink = step.sink.space;
    to.sink_chunk = step.sink.chunk;
    to.first_route = step.list_begin;
    to.receive_count = step.receive_count;
    to.send_count = step.send_count;
    to.source_position = step.source_position;
    to.completes = step.completes;
    to.first_after = after;
    while (after < channel.after.size() && channel.after[after].step == s) ++after;
    to.after_count = static_cast<std::uint16_t>(after - to.first_after);
  }
  TUTTI_ASSERT(after == channel.after.size(), "waits are not sorted by step");
}

void add_channel(const PlanShape& shape, const Channel& channel, Arrays& arrays) {
  device::PackedChannel& to = arrays.channels.emplace_back();
  const auto size = [](const auto& list) { return static_cast<std::uint32_t>(list.size()); };
  to.first_step = size(arrays.steps);
  to.step_count = size(channel.steps);
  to.first_port = size(arrays.ports);
  to.port_count = size(channel.ports);
  to.first_route = size(arrays.routes);
  to.route_count = size(channel.lists);
  to.first_after = size(arrays.afters);
  add_steps(channel, arrays);
  for (const Port& port : channel.ports) {
    arrays.ports.push_back({.peer = port.peer,
                            .lane = port.lane,
                            .sends = static_cast<std::uint8_t>(port.direction == Direction::kSend ? 1 : 0),
                            .peer_output = packed(output_blocks(shape.collective, port.peer))});
  }
  // Check that every connection of the channel has at least one message in each tile. The receiver identifies its
  // offer of an output by the number of the first message of the call on that connection. Without a message, that
  // number would be the same in the next call, and the old offer would be taken for a new one.
  std::vector<bool> used(channel.ports.size());
  for (const std::uint16_t port : channel.lists) used[port] = true;
  TUTTI_ASSERT(std::ranges::find(used, false) == used.end(), "a channel has a connection that no step uses");
  for (const std::uint16_t port : channel.lists) arrays.routes.push_back({.port = port});
  for (const After& after : channel.after) {
    arrays.afters.push_back(
        {.other_step = after.other_step, .other_channel = after.other_channel, .tiles_before = after.tiles_before});
  }
}

template <class T>
std::uint32_t append(std::vector<std::byte>& bytes, const std::vector<T>& values) {
  bytes.resize((bytes.size() + device::kProgramAlignment - 1) / device::kProgramAlignment * device::kProgramAlignment);
  const auto at = static_cast<std::uint32_t>(bytes.size());
  const auto view = std::as_bytes(std::span(values));
  bytes.insert(bytes.end(), view.begin(), view.end());
  return at;
}

DeviceProgram join(device::ProgramHeader header, const Arrays& arrays) {
  std::vector<std::byte> bytes(sizeof(header));
  header.channels_at = append(bytes, arrays.channels);
  header.steps_at = append(bytes, arrays.steps);
  header.routes_at = append(bytes, arrays.routes);
  header.afters_at = append(bytes, arrays.afters);
  header.ports_at = append(bytes, arrays.ports);
  header.total_bytes = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::vector<device::ProgramWord> words((bytes.size() + sizeof(device::ProgramWord) - 1) /
                                         sizeof(device::ProgramWord));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return DeviceProgram(std::move(words));
}

}  // namespace

std::span<const device::PackedChannel> DeviceProgram::channels() const {
  return {device::array_at<device::PackedChannel>(&header(), header().channels_at), header().channel_count};
}

std::span<const device::PackedPort> DeviceProgram::ports() const {
  return {device::array_at<device::PackedPort>(&header(), header().ports_at), header().port_count};
}

Result<DeviceProgram> pack_program(const Generator& generator, std::uint32_t rank) {
  const PlanShape& shape = generator.shape;
  const RankPlan plan = generator.build(shape, rank);
  TUTTI_TRY(check_bounds(shape, plan));
  Arrays arrays;
  for (const Channel& channel : plan.channels) add_channel(shape, channel, arrays);
  for (const Channel& channel : plan.channels) {
    for (const After& after : channel.after) arrays.channels[after.other_channel].watched = 1;
  }
  for (const WindowSend& send : window_sends(generator, rank, plan)) {
    const device::PackedChannel& channel = arrays.channels[send.channel];
    const Step& step = plan.channels[send.channel].steps[send.step];
    device::Route& route = arrays.routes[channel.first_route + step.list_begin + step.receive_count + send.send_index];
    route.carrier = send.carrier;
    route.unpublished = send.unpublished;
    route.peer_chunk = send.peer_sink.chunk;
  }
  return join({.rank = rank,
               .rank_count = shape.collective.ranks,
               .channel_count = static_cast<std::uint32_t>(arrays.channels.size()),
               .port_count = static_cast<std::uint32_t>(arrays.ports.size()),
               .chunks = shape.chunks,
               .scratch_chunks = shape.scratch_chunks,
               .least_slots = shape.slots,
               .windows_in_place = shape.windows_in_place ? 1u : 0u,
               .lanes = shape.lanes,
               .input = packed(input_blocks(shape.collective, rank)),
               .output = packed(output_blocks(shape.collective, rank))},
              arrays);
}

device::Geometry DeviceGeometry::on_host() const {
  device::Geometry whole = geometry;
  if (!cuts.empty()) whole.cuts = cuts.data();
  if (!contiguous.empty()) whole.contiguous = contiguous.data();
  if (!starts.empty()) whole.starts = starts.data();
  return whole;
}

DeviceGeometry pack_geometry(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths,
                             std::uint32_t element_bytes, std::uint64_t max_chunk_bytes) {
  TUTTI_ASSERT(std::has_single_bit(element_bytes) && element_bytes <= 8, "an element has {} bytes", element_bytes);
  TUTTI_ASSERT(max_chunk_bytes > 0 && max_chunk_bytes % device::kChunkUnitBytes == 0, "max_chunk_bytes is {}",
               max_chunk_bytes);
  DeviceGeometry result;
  device::Geometry& geometry = result.geometry;
  geometry.cut = device::make_cut(lengths.count, element_bytes, shape.chunks, max_chunk_bytes);
  geometry.chunks = shape.chunks;
  geometry.element_log2 = static_cast<std::uint32_t>(std::countr_zero(element_bytes));
  geometry.input = packed(input_blocks(shape.collective, rank));
  geometry.output = packed(output_blocks(shape.collective, rank));
  const auto count_in = [&](const device::Cut& cut) {
    geometry.tiles = std::max(geometry.tiles, cut.tiles);
    geometry.max_chunk_count = std::max(geometry.max_chunk_count, device::cut_range(cut, 0, 0).count);
  };
  if (lengths.counts.empty()) {
    count_in(geometry.cut);
  } else {
    TUTTI_ASSERT(lengths.counts.size() == shape.collective.ranks);
    result.contiguous.push_back(0);
    for (const std::uint64_t count : lengths.counts) {
      result.cuts.push_back(device::make_cut(count, element_bytes, shape.chunks, max_chunk_bytes));
      result.contiguous.push_back(result.contiguous.back() + count);
      count_in(result.cuts.back());
    }
  }
  result.starts = lengths.displacements.empty() ? result.contiguous : lengths.displacements;
  return result;
}

}  // namespace tutti
