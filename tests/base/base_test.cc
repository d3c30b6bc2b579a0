// Tests Result, the names of enums, and call tags.
#include <gtest/gtest.h>

#include <cerrno>
#include <system_error>
#include <thread>

#include "base/assert.h"
#include "base/call_tag.h"
#include "base/exceptions.h"
#include "base/system_error.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

const Error kError{ErrorCode::kTimeout, ErrorScope::kCall, 3, "rank 3 is late"};

Result<int> half(int number) {
  if (number % 2 != 0) return kError;
  return number / 2;
}

Status quarter(int number) {
  TUTTI_TRY(half(number));
  TUTTI_TRY(half(number / 2));
  return {};
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_EQ(half(4).value(), 2);
  EXPECT_EQ(half(3).error(), kError);
  EXPECT_TRUE(quarter(8).ok());
  EXPECT_EQ(quarter(6).error().rank, 3);
  EXPECT_EQ(to_string(kError), "timeout: rank 3 is late");
}

// std::thread throws this exception. Its message is only "Resource temporarily unavailable".
TEST(SystemErrors, OfThreadsThatCannotBeStartedSayWhichLimitToRaise) {
  const std::system_error refused(EAGAIN, std::generic_category());
  EXPECT_EQ(describe_thread_start_error(refused),
            "no thread can be started: Resource temporarily unavailable; raise the limit of processes (ulimit -u, the "
            "cgroup's pids.max) or of memory");
  const Status failed = guarded("no thread can be started", [&]() -> Status { throw refused; });
  EXPECT_EQ(failed.error().message, describe_thread_start_error(refused));
}

TEST(ResultDeathTest, MisuseEndsTheProcessWithTheError) {
  EXPECT_DEATH(half(3).value(), "rank 3 is late");
  EXPECT_DEATH(static_cast<void>(half(4).error()), "good Result");
  EXPECT_DEATH(static_cast<void>(Status().error()), "good Status");
}

TEST(AssertDeathTest, SaysWhereAndWhy) {
  EXPECT_DEATH(TUTTI_ASSERT(1 > 2, "number {}", 7), "base_test.cc.*1 > 2.*number 7");
}

TEST(Names, RoundTripAndRefuseStrangers) {
  for (const DataType type : all_data_types()) EXPECT_EQ(parse_data_type(to_string(type)), type);
  for (const ReduceOp op : all_reduce_ops()) EXPECT_EQ(parse_reduce_op(to_string(op)), op);
  for (const Algorithm algorithm : all_algorithms()) EXPECT_EQ(parse_algorithm(to_string(algorithm)), algorithm);
  EXPECT_EQ(parse_data_type("half"), DataType::kFloat16);
  EXPECT_EQ(parse_data_type("f8e4m3"), DataType::kFloat8E4M3);
  EXPECT_EQ(parse_data_type("f8e5m2"), DataType::kFloat8E5M2);
  EXPECT_EQ(size_of(DataType::kFloat8E5M2), 1u);
  EXPECT_TRUE(is_floating(DataType::kFloat8E4M3));
  EXPECT_FALSE(parse_data_type("float128").has_value());
  EXPECT_FALSE(parse_reduce_op("").has_value());
  EXPECT_FALSE(is_valid(static_cast<DataType>(12)));
  EXPECT_FALSE(is_valid(static_cast<ReduceOp>(6)));
  EXPECT_EQ(to_string(static_cast<Algorithm>(200)), "invalid");
  EXPECT_EQ(all_data_types().size(), 12u);
  EXPECT_EQ(all_reduce_ops().size(), 6u);
  EXPECT_EQ(version(), "0.1.0");
}

TEST(CallTag, NamesTheFirstArgumentThatDiffers) {
  const CallTag tag{.sequence = 5, .count = 8, .kind = 0, .type = 7, .op = 0, .algorithm = 1, .tile_bytes = 64};
  EXPECT_EQ(first_difference(tag, tag), CallArgument::kNone);
  EXPECT_EQ(describe(tag), "all_reduce #5 (8 float32, sum, ring)");
  const auto differs = [&](auto change, CallArgument argument, const char* text) {
    CallTag other = tag;
    change(other);
    EXPECT_EQ(first_difference(tag, other), argument);
    EXPECT_EQ(describe(other, argument), text);
  };
  differs([](CallTag& t) { t.sequence = 6; }, CallArgument::kSequence, "call number 6");
  differs([](CallTag& t) { t.count = 9; }, CallArgument::kCount, "count 9");
  differs([](CallTag& t) { t.type = 2; }, CallArgument::kType, "type int32");
  differs([](CallTag& t) { t.op = 2; }, CallArgument::kOp, "operation max");
  differs([](CallTag& t) { t.algorithm = 3; }, CallArgument::kAlgorithm, "algorithm one_shot");
  differs([](CallTag& t) { t.tile_bytes = 128; }, CallArgument::kTileBytes,
          "longest message 128 bytes (TUTTI_SLOT_BYTES differs, or only some ranks name the algorithm)");
  differs([](CallTag& t) { t.kind = 9; }, CallArgument::kCollective, "collective send_recv");
  differs([](CallTag& t) { t.type = kUserTag; }, CallArgument::kType, "a reduction of the caller's own");
  differs([](CallTag& t) { t.algorithm = static_cast<std::uint8_t>(Algorithm::kUser); }, CallArgument::kAlgorithm,
          "algorithm user (a plan given to use_plan())");
}

TEST(CallTag, SaysWhatEntersADigest) {
  const auto text = [](const CallTag& tag) { return describe(tag, CallArgument::kDigest); };
  constexpr auto kGather = static_cast<std::uint8_t>(CollectiveKind::kAllGather);
  constexpr auto kPlan = static_cast<std::uint8_t>(Algorithm::kUser);
  EXPECT_EQ(text({.kind = kGather, .digest = 0xbad}), "counts of blocks with digest 00000bad");
  EXPECT_EQ(text({.kind = kGather}), "blocks of equal length");
  EXPECT_EQ(text({.algorithm = kPlan, .digest = 1}), "plan with digest 00000001");
  EXPECT_EQ(text({.type = kUserTag, .algorithm = kPlan, .digest = 2}),
            "plan and reduction (its id, element_bytes and commutative) with digest 00000002");
}

TEST(CallTag, NamesThePurposeOfACallThatTuttiMakes) {
  const CallTag plain{.sequence = 3, .count = 1, .kind = 0, .type = 2, .op = 3, .algorithm = 3};
  CallTag vote = plain;
  vote.digest = static_cast<std::uint32_t>(CallPurpose::kVote);
  EXPECT_EQ(purpose_of(plain), CallPurpose::kApplication);
  EXPECT_EQ(purpose_of({.digest = 12345}), CallPurpose::kApplication);
  EXPECT_EQ(purpose_of(vote), CallPurpose::kVote);
  EXPECT_EQ(describe(vote), "the vote on a uniform call, " + describe(plain));
  EXPECT_EQ(first_difference(plain, vote), CallArgument::kDigest);
  EXPECT_EQ(describe(vote, CallArgument::kDigest), "the vote on a uniform call");
  EXPECT_EQ(describe(plain, CallArgument::kDigest), "an ordinary call");
}

}  // namespace
}  // namespace tutti
