// Tests of the options of `tutti perf`: sizes, ranges, collectives and memory, and the messages for wrong values.
#include "tools/perf/options.h"

#include <gtest/gtest.h>

#include <limits>

namespace tutti::tool {
namespace {

using Counts = std::vector<std::uint64_t>;

TEST(PerfOptions, AStepFactorThatLeavesTheRangeEndsTheSweep) {
  PerfArguments arguments;
  arguments.min_bytes = "8";
  arguments.max_bytes = "1024G";
  arguments.step_factor = "137438953472";
  EXPECT_EQ(sweep_sizes(resolve(arguments).value()), (std::vector<std::uint64_t>{8, std::uint64_t{1} << 40}));
  arguments.min_bytes = "0";
  arguments.max_bytes = "4";
  arguments.step_factor = "2";
  EXPECT_EQ(sweep_sizes(resolve(arguments).value()), (std::vector<std::uint64_t>{0, 2, 4}));
}

TEST(ParseSize, TakesWholeBytesAndBinarySuffixes) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("8"), 8u);
  EXPECT_EQ(parse_size("4K"), 4096u);
  EXPECT_EQ(parse_size("64m"), 64u << 20);
  EXPECT_EQ(parse_size("1G"), 1u << 30);
  EXPECT_EQ(parse_size("1GiB"), 1u << 30);
  EXPECT_EQ(parse_size("2kiB"), 2048u);
  EXPECT_EQ(parse_size("1024G"), kMaxMessageBytes);
}

TEST(ParseSize, RefusesEverythingElse) {
  for (const char* text : {"", "K", "-1", "+1", " 8", "8 ", "1.5M", "8KB", "8KK", "0x10", "1025G",
                           "18446744073709551616", "8T", "1GB", "8iB", "1Gi", "1GiBs"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << '"' << text << '"';
  }
}

PerfArguments sizes(std::string min_bytes, std::string max_bytes) {
  PerfArguments arguments;
  arguments.min_bytes = std::move(min_bytes);
  arguments.max_bytes = std::move(max_bytes);
  return arguments;
}

Counts counts(const PerfArguments& arguments, DataType type, std::int32_t ranks = 3) {
  return sweep_elements(resolve(arguments).value(), type, ranks);
}

TEST(Sweep, RoundsDownToWholeElementsAndNeverBelowOne) {
  EXPECT_EQ(counts(sizes("0", "0"), DataType::kFloat32), Counts({1}));
  EXPECT_EQ(counts(sizes("3", "3"), DataType::kFloat64), Counts({1}));
  EXPECT_EQ(counts(sizes("15", "15"), DataType::kInt32), Counts({3}));
  EXPECT_EQ(counts(sizes("4000012", "4000012"), DataType::kFloat32), Counts({1000003}));
}

TEST(Sweep, GrowsByFactorOrByStepAndEndsAtTheMaximum) {
  EXPECT_EQ(counts(sizes("8", "64"), DataType::kInt8), Counts({8, 16, 32, 64}));
  // 1, 2, 4 and 8 bytes are all rounded to one element
  EXPECT_EQ(counts(sizes("1", "16"), DataType::kInt64), Counts({1, 2}));
  PerfArguments arguments = sizes("8", "100");
  arguments.step_factor = "3";
  EXPECT_EQ(counts(arguments, DataType::kInt8), Counts({8, 24, 72}));
  arguments.step_bytes = "40";
  EXPECT_EQ(counts(arguments, DataType::kInt8), Counts({8, 48, 88}));
}

TEST(Sweep, BlocksAreEqualOrTogetherTheMessageAndABarrierHasNone) {
  PerfArguments arguments = sizes("4", "64");
  arguments.step_factor = "4";
  arguments.collective = "all_gather";
  EXPECT_EQ(counts(arguments, DataType::kFloat32), Counts({3, 15})) << "4 and 16 bytes both give one element per block";
  arguments.collective = "scatter_v";
  EXPECT_EQ(counts(arguments, DataType::kFloat32), Counts({1, 4, 16}));
  arguments.collective = "barrier";
  EXPECT_EQ(counts(arguments, DataType::kFloat32), Counts({0}));
}

TEST(Sweep, FromZeroEnds) { EXPECT_EQ(counts(sizes("0", "4"), DataType::kInt8), Counts({1, 2, 4})); }

TEST(Resolve, OneEndOfTheRangeMovesTheOther) {
  EXPECT_EQ(resolve(sizes("1G", ""))->max_bytes, 1u << 30);
  EXPECT_EQ(resolve(sizes("", "4"))->min_bytes, 4u);
}

TEST(Resolve, NamesOrAll) {
  PerfArguments arguments;
  arguments.data_type = "all";
  arguments.op = "all";
  arguments.algorithm = "two_shot";
  arguments.memory = "registered";
  const PerfOptions options = resolve(arguments).value();
  EXPECT_EQ(options.types.size(), all_data_types().size());
  EXPECT_EQ(options.ops.size(), all_reduce_ops().size());
  EXPECT_EQ(options.algorithm, Algorithm::kTwoShot);
  EXPECT_EQ(options.memory, MemoryKind::kRegistered);
}

TEST(Resolve, MemoryOfAGpuMayBeSharedByRanks) {
  PerfArguments arguments;
  arguments.memory = "cuda";
  arguments.ranks_per_gpu = 2;
  EXPECT_EQ(resolve(arguments)->memory, MemoryKind::kCuda);
  EXPECT_EQ(resolve(arguments)->ranks_per_gpu, 2);
  arguments.ranks_per_gpu = 0;
  EXPECT_FALSE(resolve(arguments).ok());
  arguments.memory = "gpu";
  EXPECT_FALSE(resolve(arguments).ok());
}

TEST(Resolve, InPlaceChoosesTheColumns) {
  PerfArguments arguments;
  arguments.in_place = "0";
  EXPECT_TRUE(resolve(arguments)->out_of_place);
  EXPECT_FALSE(resolve(arguments)->in_place);
  arguments.in_place = "1";
  EXPECT_FALSE(resolve(arguments)->out_of_place);
  EXPECT_TRUE(resolve(arguments)->in_place);
}

TEST(Resolve, WhatACollectiveHasNotIsNotSwept) {
  PerfArguments arguments;
  arguments.collective = "all_to_all_v";
  arguments.op = "all";
  arguments.data_type = "all";
  EXPECT_EQ(resolve(arguments)->ops.size(), 1u);
  EXPECT_EQ(resolve(arguments)->types.size(), all_data_types().size());
  EXPECT_FALSE(resolve(arguments)->in_place);
  EXPECT_TRUE(resolve(arguments)->out_of_place);
  arguments.collective = "barrier";
  EXPECT_EQ(resolve(arguments)->types.size(), 1u);
}

TEST(CheckRanks, NamesWhatDoesNotFitTheJob) {
  const auto message = [](auto change) {
    PerfOptions options;
    change(options);
    const Status fits = check_ranks(options, 4);
    return fits ? "" : fits.error().message;
  };
  EXPECT_EQ(message([](PerfOptions& o) { o.root = 3, o.nodes = 4, o.corrupt = 3; }), "");
  EXPECT_EQ(message([](PerfOptions& o) { o.root = 4; }), "--root: \"4\" is not a number from 0 to 3");
  EXPECT_EQ(message([](PerfOptions& o) { o.root = -1; }), "--root: \"-1\" is not a number from 0 to 3");
  EXPECT_EQ(message([](PerfOptions& o) { o.nodes = 5; }), "--nodes 5: 4 ranks can be on at most 4 machines");
  EXPECT_EQ(message([](PerfOptions& o) { o.corrupt = 4; }), "--corrupt: \"4\" is not a number from 0 to 3");
  PerfOptions direct;
  direct.algorithm = Algorithm::kTwoShot;
  EXPECT_NE(check_ranks(direct, 1025).error().message.find("at most 1024 ranks"), std::string::npos);
}

TEST(Resolve, SaysWhichOptionIsWrong) {
  const auto refused = [](auto change, const std::string& part) {
    PerfArguments arguments;
    change(arguments);
    const Result<PerfOptions> options = resolve(arguments);
    ASSERT_FALSE(options.ok()) << part;
    EXPECT_EQ(options.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(options.error().message.find(part), std::string::npos) << options.error().message;
  };
  refused([](PerfArguments& a) { a.collective = "all_gather_x"; }, "is not one of all_reduce, broadcast");
  refused([](PerfArguments& a) { a.collective = "barrier_v"; }, "barrier_v");
  refused([](PerfArguments& a) { a.collective = "gather", a.algorithm = "two_shot"; },
          "--algorithm: \"two_shot\" is not one of auto, binomial, direct");
  refused([](PerfArguments& a) { a.collective = "send_recv", a.algorithm = "ring"; }, "is not one of auto, direct");
  refused([](PerfArguments& a) { a.collective = "all_to_all_v", a.in_place = "1"; }, "no in-place form");
  refused([](PerfArguments& a) { a.transport = "rdma"; }, R"(--transport: "rdma")");
  refused([](PerfArguments& a) { a.transport = "shm", a.nodes = 2; }, "--nodes 2");
  refused([](PerfArguments& a) { a.nodes = 0; }, R"(--nodes: "0")");
  refused([](PerfArguments& a) { a.corrupt = 0, a.check = 0; }, "--corrupt 0");
  refused([](PerfArguments& a) { a.corrupt = 0, a.collective = "barrier"; }, "--corrupt 0");
  refused([](PerfArguments& a) { a.min_bytes = "8", a.max_bytes = "4"; }, "--minbytes 8");
  refused([](PerfArguments& a) { a.min_bytes = "many"; }, R"(--minbytes: "many")");
  refused([](PerfArguments& a) { a.step_bytes = "0"; }, "--stepbytes");
  refused([](PerfArguments& a) { a.step_bytes = "1"; }, "--stepbytes");  // this would give 64 Mi sizes
  refused([](PerfArguments& a) { a.step_factor = "1"; }, "--stepfactor");
  refused([](PerfArguments& a) { a.data_type = "float8"; }, R"(--datatype: "float8")");
  refused([](PerfArguments& a) { a.op = "xor"; }, R"(--op: "xor")");
  refused([](PerfArguments& a) { a.algorithm = "star"; }, R"(--algorithm: "star")");
  refused([](PerfArguments& a) { a.memory = "device"; }, R"(--memory: "device")");
  refused([](PerfArguments& a) { a.in_place = std::string("2"); }, R"(--in-place: "2")");
  refused([](PerfArguments& a) { a.check = 2; }, R"(--check: "2")");
  refused([](PerfArguments& a) { a.iterations = -1; }, "--iters");
  refused([](PerfArguments& a) { a.ranks = -1; }, R"(--ranks: "-1")");
  refused([](PerfArguments& a) { a.timeout_s = std::numeric_limits<double>::quiet_NaN(); }, "--timeout-s");
}

}  // namespace
}  // namespace tutti::tool
