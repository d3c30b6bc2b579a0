// Tests all_reduce over registered memory, which needs no messages. The bits must be those of the plan, whichever
// ranks have registered their memory, and no rank may store into memory after the call of its owner has ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "communicator/support.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

enum class Buffers : std::uint8_t { kPlain, kInPlace, kApart };

struct Shape {
  std::size_t count;
  DataType type;
  ReduceOp op;
};

// Makes one two-shot all_reduce of random bits, and returns the output of every rank.
std::vector<std::vector<std::byte>> outputs_of(Communicators& ranks, const Shape& shape,
                                               const std::vector<Buffers>& buffers) {
  const std::size_t bytes = shape.count * size_of(shape.type);
  std::vector<std::vector<std::byte>> outputs(ranks.size(), std::vector<std::byte>(bytes));
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto number = static_cast<std::size_t>(rank.rank());
    std::mt19937 random(static_cast<std::uint32_t>(number) + 1);
    std::vector<std::byte> drawn(bytes);
    for (std::byte& byte : drawn) byte = static_cast<std::byte>(random());
    const std::size_t room = (bytes + 63) / 64 * 64;
    Result<Memory> memory = rank.allocate(2 * room);
    ASSERT_TRUE(memory.ok());
    std::byte* output = buffers[number] == Buffers::kPlain ? outputs[number].data() : memory->data();
    std::byte* input = buffers[number] == Buffers::kApart ? memory->data() + room : output;
    std::memcpy(input, drawn.data(), bytes);
    const Status status = rank.all_reduce(input, output, shape.count, shape.type, shape.op, with(Algorithm::kTwoShot));
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    std::memcpy(outputs[number].data(), output, bytes);
    ASSERT_TRUE(rank.barrier().ok());  // a rank must not free memory that others still use
  });
  return outputs;
}

// One rank's buffers may be of another type than those of the others. The plan transfers the data that the others
// cannot access directly.
TEST(Direct, GivesTheBitsOfThePlanWhoeverHasRegistered) {
  constexpr auto kIn = Buffers::kInPlace, kOut = Buffers::kApart, kNot = Buffers::kPlain;
  for (const std::int32_t size : {2, 3, 5}) {
    Communicators by_messages = make_ranks(size, patience(), "off");
    Communicators by_pointers = make_ranks(size);
    Communicators by_calls = make_ranks(size, patience(), "calls");
    const auto all = [&](Buffers first, Buffers others) {
      std::vector<Buffers> buffers(static_cast<std::size_t>(size), others);
      buffers[0] = first;
      return buffers;
    };
    for (const DataType type : {DataType::kInt8, DataType::kFloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kAvg, ReduceOp::kPreMulSum}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{100}, std::size_t{5003}, std::size_t{700'001}}) {
          if (count > 100'000 && (type != DataType::kFloat32 || op != ReduceOp::kSum)) continue;
          const Shape shape{.count = count, .type = type, .op = op};
          SCOPED_TRACE(testing::Message()
                       << size << " ranks " << to_string(type) << " " << to_string(op) << " " << count);
          const auto by_plan = outputs_of(by_messages, shape, all(kNot, kNot));
          EXPECT_EQ(outputs_of(by_messages, shape, all(kIn, kIn)), by_plan);
          EXPECT_EQ(outputs_of(by_messages, shape, all(kOut, kIn)), by_plan);
          EXPECT_EQ(outputs_of(by_messages, shape, all(kNot, kIn)), by_plan)
              << "one rank has not registered its memory";
          EXPECT_EQ(outputs_of(by_messages, shape, all(kIn, kNot)), by_plan)
              << "only one rank has registered its memory";
          for (Communicators* attached : {&by_pointers, &by_calls}) {
            EXPECT_EQ(outputs_of(*attached, shape, all(kNot, kNot)), by_plan);
            EXPECT_EQ(outputs_of(*attached, shape, all(kOut, kNot)), by_plan)
                << "only one rank has registered its memory";
          }
        }
      }
    }
  }
}

// Calls of all types alternate, and now and then a rank is late.
TEST(Direct, TakesTurnsWithAllOtherCalls) {
  Communicators ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    std::mt19937 same(11);
    std::mt19937 own(static_cast<std::uint32_t>(rank.rank()));
    constexpr std::size_t kMost = 30'000;
    Result<Memory> memory = rank.allocate(kMost * sizeof(float));
    ASSERT_TRUE(memory.ok());
    auto* registered = reinterpret_cast<float*>(memory->data());
    std::vector<float> plain(kMost);
    for (int round = 0; round < 3000; ++round) {
      const std::size_t count = 1 + same() % (same() % 2 == 0 ? 50 : kMost);
      float* data = same() % 3 == 0 && own() % 2 == 0 ? plain.data() : registered;
      const std::uint32_t kind = same() % 4;
      if (own() % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::fill_n(data, count, static_cast<float>(round % 1000 + rank.rank()));
      if (kind == 0) {
        const auto root = static_cast<std::int32_t>(same() % 3);
        ASSERT_TRUE(rank.broadcast(data, data, count, DataType::kFloat32, root).ok());
        ASSERT_EQ(data[count - 1], static_cast<float>(round % 1000 + root));
      } else {
        ASSERT_TRUE(rank.all_reduce(data, data, count, DataType::kFloat32, ReduceOp::kSum).ok());
        ASSERT_EQ(data[0], static_cast<float>(3 * (round % 1000) + 3));
        ASSERT_EQ(data[count - 1], static_cast<float>(3 * (round % 1000) + 3));
      }
    }
    ASSERT_TRUE(rank.barrier().ok());
  });
}

// Rank 0 times out. Rank 1 enters the call only then. It finds the values of rank 0 in memory, but it must not store
// anything into that memory.
TEST(Direct, WhoGivesUpHasItsMemoryBack) {
  constexpr std::size_t kCount = 100'000;
  Communicators ranks = make_ranks(2);
  std::barrier given_up(2);
  std::barrier come_late(2);
  on_every_rank(ranks, [&](Communicator& rank) {
    Result<Memory> memory = rank.allocate(kCount * sizeof(float));
    ASSERT_TRUE(memory.ok());
    auto* data = reinterpret_cast<float*>(memory->data());
    for (int round = 0; round < 3; ++round) {
      std::fill_n(data, kCount, 1.0f);
      CallOptions options;
      if (rank.rank() == 0) options.timeout = scaled(std::chrono::milliseconds(500));
      if (rank.rank() == 1) given_up.arrive_and_wait();
      const Status status = rank.all_reduce(data, data, kCount, DataType::kFloat32, ReduceOp::kSum, options);
      EXPECT_FALSE(status.ok());
      if (rank.rank() == 0) {
        EXPECT_THAT(to_string(status.error()), HasSubstr("not entered by rank 1"));
        std::fill_n(data, kCount, 7.0f);
        given_up.arrive_and_wait();
      }
      come_late.arrive_and_wait();
      EXPECT_EQ(std::count(data, data + kCount, rank.rank() == 0 ? 7.0f : 1.0f), static_cast<std::ptrdiff_t>(kCount));
    }
    float one = 1.0f;
    ASSERT_TRUE(rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum).ok());
    std::fill_n(data, kCount, 1.0f);
    ASSERT_TRUE(rank.all_reduce(data, data, kCount, DataType::kFloat32, ReduceOp::kSum).ok());
    EXPECT_EQ(std::count(data, data + kCount, 2.0f), static_cast<std::ptrdiff_t>(kCount));
    ASSERT_TRUE(rank.barrier().ok());
  });
}

TEST(Direct, DisagreementIsNamed) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    Result<Memory> memory = rank.allocate(1 << 20);
    ASSERT_TRUE(memory.ok());
    const std::size_t count = rank.rank() == 0 ? 100'000 : 100'001;
    const Status status = rank.all_reduce(memory->data(), memory->data(), count, DataType::kFloat32, ReduceOp::kSum);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(status.error().message, HasSubstr("count 100001"));
    ASSERT_TRUE(rank.all_reduce(memory->data(), memory->data(), 50'000, DataType::kFloat32, ReduceOp::kSum).ok());
  });
}

}  // namespace
}  // namespace tutti::test
