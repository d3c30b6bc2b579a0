// Tests the packing of plans for the GPU. Every chunk must lie at the address that Layout computes on the host,
// every packed step must agree with the plan, and a program that does not fit into a thread block must be refused.
#include "executor/device_program.h"

#include <gtest/gtest.h>

#include <random>

#include "algorithms/algorithms.h"
#include "plan/collective.h"

namespace tutti {
namespace {

void expect_equal(const Extent& wanted, const device::Range& got, const std::string& what) {
  ASSERT_EQ(wanted.count, got.count) << what;
  ASSERT_EQ(wanted.offset, got.offset) << what;
}

// Compares every chunk of the input, the output and the peers' outputs. This includes tiles after the last tile of
// blocks that are shorter than the longest one.
void expect_layout(const PlanShape& shape, const Lengths& lengths, std::uint32_t element_bytes,
                   std::uint64_t max_chunk_bytes) {
  for (std::uint32_t rank = 0; rank < shape.collective.ranks; ++rank) {
    const Layout layout(shape, rank, lengths, element_bytes, max_chunk_bytes);
    const DeviceGeometry packed = pack_geometry(shape, rank, lengths, element_bytes, max_chunk_bytes);
    const device::Geometry geometry = packed.on_host();
    ASSERT_EQ(layout.tiles(), geometry.tiles);
    ASSERT_EQ(layout.max_chunk_count(), geometry.max_chunk_count);
    ASSERT_EQ(std::uint64_t{1} << geometry.element_log2, element_bytes);
    for (std::uint64_t tile = 0; tile < layout.tiles(); ++tile) {
      const std::string what = std::string(to_string(shape.collective.kind)) + ", rank " + std::to_string(rank) +
                               ", tile " + std::to_string(tile) + " of " + std::to_string(lengths.count);
      for (std::uint32_t c = 0; c < input_chunks(shape, rank); ++c)
        expect_equal(layout.input(tile, c), device::input_range(geometry, tile, c), what);
      for (std::uint32_t c = 0; c < output_chunks(shape, rank); ++c)
        expect_equal(layout.output(tile, c), device::output_range(geometry, tile, c), what);
      for (std::uint32_t peer = 0; peer < shape.collective.ranks; ++peer) {
        const Blocks blocks = output_blocks(shape.collective, peer);
        for (std::uint32_t c = 0; c < output_chunks(shape, peer); ++c) {
          expect_equal(layout.output_of(peer, tile, c),
                       device::peer_output_range(geometry, {blocks.count, blocks.first}, tile, c), what);
        }
      }
    }
  }
}

TEST(DeviceGeometry, IsTheHostsLayoutForEveryCollective) {
  std::mt19937_64 random(1);
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      const PlanShape shape =
          find_generator({.kind = kind, .ranks = 3, .root = has_root(kind) ? 1u : 0u}, algorithm)->shape;
      for (const std::uint64_t count : {0u, 1u, 15u, 16u, 17u, 1000u, 4096u, 10'007u}) {
        expect_layout(shape, {.count = count, .counts = {}, .displacements = {}}, 1u << random() % 4,
                      64 * (1 + random() % 30));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceGeometry, IsTheHostsLayoutForBlocksOfDifferentLengths) {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    const PlanShape shape = find_generator({.kind = kind, .ranks = 4}, Algorithm::kRing)->shape;
    expect_layout(shape, {.count = 0, .counts = {5, 0, 1000, 77}, .displacements = {}}, 4, 256);
    expect_layout(shape, {.count = 0, .counts = {5, 0, 1000, 77}, .displacements = {2000, 3, 10, 1500}}, 8, 512);
    expect_layout(shape, {.count = 0, .counts = {0, 0, 0, 0}, .displacements = {}}, 1, 64);
  }
}

TEST(DeviceGeometry, CutsLongMessagesLikeTheHost) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t count = random() >> (24 + random() % 40);
    const auto element_bytes = 1u << random() % 4;
    const auto chunks = static_cast<std::uint32_t>(1 + random() % 64);
    const std::uint64_t max_chunk_bytes = 64 * (1 + random() % 100'000);
    const Tiling tiling(count, element_bytes, chunks, max_chunk_bytes);
    const device::Cut cut = device::make_cut(count, element_bytes, chunks, max_chunk_bytes);
    ASSERT_EQ(tiling.tiles(), cut.tiles);
    for (int k = 0; k < 10 && cut.tiles > 0; ++k) {
      const std::uint64_t tile = k == 0 ? cut.tiles - 1 : random() % cut.tiles;
      const auto chunk = static_cast<std::uint32_t>(random() % chunks);
      expect_equal(tiling.extent(tile, chunk), device::cut_range(cut, tile, chunk), "a tile");
    }
  }
}

TEST(DeviceProgram, SaysWhatThePlanSays) {
  const Generator generator = find_generator({.ranks = 5, .nodes = {0, 0, 0, 1, 1}}, Algorithm::kHierarchical).value();
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    const RankPlan plan = generator.build(generator.shape, rank);
    const DeviceProgram program = pack_program(generator, rank).value();
    const device::ProgramHeader& header = program.header();
    ASSERT_EQ(header.rank, rank);
    ASSERT_EQ(header.total_bytes <= program.bytes().size(), true);
    ASSERT_EQ(program.channels().size(), plan.channels.size());
    std::vector<bool> watched(plan.channels.size());
    for (std::size_t c = 0; c < plan.channels.size(); ++c) {
      const Channel& channel = plan.channels[c];
      const device::PackedChannel& packed = program.channels()[c];
      ASSERT_EQ(packed.step_count, channel.steps.size());
      ASSERT_EQ(packed.port_count, channel.ports.size());
      std::uint32_t afters = 0;
      for (std::uint32_t s = 0; s < packed.step_count; ++s) {
        const auto& step = device::array_at<device::PackedStep>(&header, header.steps_at)[packed.first_step + s];
        EXPECT_EQ(step.source, channel.steps[s].source.space);
        EXPECT_EQ(step.source_chunk, channel.steps[s].source.chunk);
        EXPECT_EQ(step.sink, channel.steps[s].sink.space);
        EXPECT_EQ(step.sink_chunk, channel.steps[s].sink.chunk);
        EXPECT_EQ(step.completes, channel.steps[s].completes);
        const auto* routes = device::array_at<device::Route>(&header, header.routes_at) + packed.first_route;
        for (std::uint32_t i = 0; i < step.receive_count; ++i)
          EXPECT_EQ(routes[step.first_route + i].port, channel.receives(channel.steps[s])[i]);
        for (std::uint32_t i = 0; i < step.send_count; ++i)
          EXPECT_EQ(routes[step.first_route + step.receive_count + i].port, channel.sends(channel.steps[s])[i]);
        for (std::uint32_t i = 0; i < step.after_count; ++i, ++afters) {
          const auto* waits = device::array_at<device::PackedAfter>(&header, header.afters_at) + packed.first_after;
          EXPECT_EQ(channel.after[afters].step, s);
          EXPECT_EQ(waits[step.first_after + i].other_step, channel.after[afters].other_step);
          EXPECT_EQ(waits[step.first_after + i].tiles_before, channel.after[afters].tiles_before);
          watched[channel.after[afters].other_channel] = true;
        }
      }
      EXPECT_EQ(afters, channel.after.size());
    }
    for (std::size_t c = 0; c < watched.size(); ++c) EXPECT_EQ(program.channels()[c].watched != 0, watched[c]);
  }
}

TEST(DeviceProgram, RefusesWhatABlockCannotHold) {
  const Result<Generator> generator = find_generator({.ranks = 120}, Algorithm::kOneShot);
  ASSERT_TRUE(generator.ok());
  const Result<DeviceProgram> program = pack_program(*generator, 0);
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(program.error().message.find("one_shot"), std::string::npos) << program.error().message;
}

TEST(DeviceProgram, RefusesMessagesOfSeveralChunks) {
  const Result<DeviceProgram> program =
      pack_program(*find_generator({.ranks = 8}, Algorithm::kCirculant, Messages::kRuns), 0);
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(program.error().message.find("has 4 chunks in a message"), std::string::npos) << program.error().message;
}

TEST(DevicePayload, IsWhatFitsBesideTheFlags) {
  EXPECT_EQ(device::payload_bytes(device::Protocol::kSimple, 512), 512u);
  EXPECT_EQ(device::payload_bytes(device::Protocol::kLl, 128 + 16 * 16), 128u);
  // 240 bytes fit; rounded down to a multiple of 64
  EXPECT_EQ(device::payload_bytes(device::Protocol::kLl128, 128 + 2 * 128), 192u);
  EXPECT_EQ(device::payload_bytes(device::Protocol::kLl, 127), 0u);
}

}  // namespace
}  // namespace tutti
