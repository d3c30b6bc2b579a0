// Tests all_reduce() through the public API, with ranks as threads. Every algorithm, type of memory, data type and
// operation must give the result of a plain loop, and the same bits in every run.
#include <cstring>
#include <random>
#include <set>

#include "communicator/support.h"
#include "kernels/cpu/reduce.h"

namespace tutti::test {
namespace {

// Returns random values of `type`. Most are small integers, so that every operation is exact or wraps around.
std::vector<std::byte> make_input(DataType type, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const float small =
        // 1, 2 or 3, so that products of 7 ranks are in the range in which bfloat16 is exact
        static_cast<float>(random() % 3) + 1.0f;
    const auto put = [&](auto value) { std::memcpy(&bytes[i * sizeof(value)], &value, sizeof(value)); };
    if (!is_floating(type)) {
      const std::uint64_t bits = size_of(type) == 1   ? static_cast<std::uint64_t>(small)
                                 : size_of(type) == 8 ? std::uint64_t{random()} << 31
                                                      : random();
      std::memcpy(&bytes[i * size_of(type)], &bits, size_of(type));  // assumes little-endian byte order
      continue;
    }
    switch (type) {
      case DataType::kFloat32: put(small); break;
      case DataType::kFloat64: put(static_cast<double>(small)); break;
      case DataType::kBfloat16:  // the bit patterns of 1, 2 and 3
      case DataType::kFloat16: {
        constexpr std::uint16_t kHalf[] = {0x3c00, 0x4000, 0x4200};
        constexpr std::uint16_t kBrain[] = {0x3f80, 0x4000, 0x4040};
        const auto which = static_cast<std::size_t>(small) - 1;
        put(type == DataType::kFloat16 ? kHalf[which] : kBrain[which]);
        break;
      }
      case DataType::kFloat8E4M3:  // 1, 2 or 4: products are powers of two, and sums of 3 ranks are rounded once
      case DataType::kFloat8E5M2: {
        constexpr std::uint8_t kE4M3[] = {0x38, 0x40, 0x48};
        constexpr std::uint8_t kE5M2[] = {0x3c, 0x40, 0x44};
        const auto which = static_cast<std::size_t>(small) - 1;
        put(type == DataType::kFloat8E4M3 ? kE4M3[which] : kE5M2[which]);
        break;
      }
      default: ADD_FAILURE() << to_string(type) << " has no values here";
    }
  }
  return bytes;
}

// The expected result: the operation over all ranks in rank order. For these inputs the order does not matter,
// except for floating-point products that need more bits than the mantissa has.
std::vector<std::byte> expected(const std::vector<std::vector<std::byte>>& inputs, DataType type, ReduceOp op,
                                Scale scale) {
  std::vector<std::vector<std::byte>> scaled = inputs;
  const std::size_t count = inputs[0].size() / size_of(type);
  if (op == ReduceOp::kPreMulSum) {
    for (auto& input : scaled) {
      const std::byte* source = input.data();
      std::byte* destination = input.data();
      kernels::reduce_reference({.type = type, .op = op, .scaled_source = 0, .scale = scale, .divisor = 1},
                                {&source, 1}, {&destination, 1}, count);
    }
  }
  std::vector<const std::byte*> sources;
  for (const auto& input : scaled) sources.push_back(input.data());
  std::vector<std::byte> result(inputs[0].size());
  std::byte* destination = result.data();
  const auto divisor = op == ReduceOp::kAvg ? static_cast<std::uint32_t>(inputs.size()) : 1u;
  kernels::reduce_reference({.type = type, .op = op, .scaled_source = -1, .scale = {}, .divisor = divisor}, sources,
                            {&destination, 1}, count);
  return result;
}

struct Case {
  Algorithm algorithm;
  bool registered;
  bool in_place;
};

// Makes one call on every rank. The output of every rank must be `want`.
void check(Communicators& ranks, const std::vector<std::vector<std::byte>>& inputs, const std::vector<std::byte>& want,
           DataType type, ReduceOp op, Scale scale, const Case& test) {
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto& input = inputs[static_cast<std::size_t>(rank.rank())];
    const std::size_t bytes = std::max<std::size_t>(input.size(), 1);
    std::vector<std::byte> plain_in(bytes);
    std::vector<std::byte> plain_out(bytes);
    Memory memory_in;
    Memory memory_out;
    std::byte* in = plain_in.data();
    std::byte* out = plain_out.data();
    if (test.registered) {
      memory_in = rank.allocate(bytes).value();
      memory_out = rank.allocate(bytes).value();
      in = memory_in.data();
      out = memory_out.data();
    }
    if (test.in_place) out = in;
    std::copy(input.begin(), input.end(), in);
    CallOptions options = with(test.algorithm);
    options.scale = scale;
    const Status status = rank.all_reduce(in, out, input.size() / size_of(type), type, op, options);
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    ASSERT_TRUE(std::equal(want.begin(), want.end(), out))
        << "rank " << rank.rank() << " of " << rank.size() << " " << to_string(type) << " " << to_string(op) << " "
        << to_string(test.algorithm) << (test.registered ? " registered" : " plain")
        << (test.in_place ? " in place" : "") << " count " << input.size() / size_of(type);
    ASSERT_TRUE(test.in_place || std::equal(input.begin(), input.end(), in)) << "the input was changed";
    // This call is a barrier: a rank must not free its memory before all ranks have compared their outputs.
    ASSERT_TRUE(rank.all_reduce(nullptr, nullptr, 0, type, op).ok());
  });
}

void check_all_ways(Communicators& ranks, std::size_t count, DataType type, ReduceOp op) {
  std::vector<std::vector<std::byte>> inputs;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    inputs.push_back(make_input(type, count, static_cast<std::uint32_t>(count * 64 + rank)));
  }
  const Scale scale{.real = 2.0, .integer = 3};
  const std::vector<std::byte> want = expected(inputs, type, op, scale);
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    for (const bool registered : {false, true}) {
      for (const bool in_place : {false, true}) {
        check(ranks, inputs, want, type, op, scale, {algorithm, registered, in_place});
        if (testing::Test::HasFatalFailure() || testing::Test::HasFailure()) return;
      }
    }
  }
}

class AllReduceRanks : public testing::TestWithParam<std::int32_t> {};

TEST_P(AllReduceRanks, EveryAlgorithmAndMemoryGivesTheSum) {
  Communicators ranks = make_ranks(GetParam());
  for (const std::size_t count : {0, 1, 2, 3, 17, 4099, 60'003}) {
    check_all_ways(ranks, count, DataType::kFloat32, ReduceOp::kSum);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllReduceRanks, testing::Values(1, 2, 3, 4, 5, 7, 8, 16));

TEST(AllReduce, EveryTypeAndOperationIsExact) {
  Communicators ranks = make_ranks(3);
  for (const DataType type : all_data_types()) {
    for (const ReduceOp op : all_reduce_ops()) {
      for (const std::size_t count : {1, 33, 9'001}) check_all_ways(ranks, count, type, op);
    }
  }
}

TEST(AllReduce, TilesAreManyWhenMessagesAreLong) {
  ASSERT_EQ(setenv("TUTTI_SLOT_BYTES", "4096", 1), 0);
  ASSERT_EQ(setenv("TUTTI_SLOTS", "2", 1), 0);
  Communicators ranks = make_ranks(3);
  unsetenv("TUTTI_SLOT_BYTES");
  unsetenv("TUTTI_SLOTS");
  check_all_ways(ranks, 200'017, DataType::kFloat32, ReduceOp::kSum);
}

// The bits of these sums depend on the order of the additions. The same plan must give the same bits in every run,
// on all ranks, with plain and with registered memory.
TEST(AllReduce, SamePlanGivesSameBitsRunAfterRunAndOnAllRanks) {
  constexpr std::size_t kCount = 50'021;
  Communicators ranks = make_ranks(5);
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    std::mutex mutex;
    std::set<std::vector<float>> results;
    for (int run = 0; run < 6; ++run) {
      on_every_rank(ranks, [&](Communicator& rank) {
        std::mt19937 random(static_cast<std::uint32_t>(rank.rank()));
        std::uniform_real_distribution<float> values(-1.0f, 1.0f);
        Memory memory = rank.allocate(kCount * sizeof(float)).value();
        std::vector<float> plain(kCount);
        float* data = run % 2 == 0 ? plain.data() : reinterpret_cast<float*>(memory.data());
        for (std::size_t i = 0; i < kCount; ++i) data[i] = values(random);
        ASSERT_TRUE(rank.all_reduce(data, data, kCount, DataType::kFloat32, ReduceOp::kSum, with(algorithm)).ok());
        const std::scoped_lock lock(mutex);
        results.emplace(data, data + kCount);
      });
    }
    EXPECT_EQ(results.size(), 1u) << to_string(algorithm);
  }
}

TEST(AllReduce, RegisteredAndPlainRanksMix) {
  Communicators ranks = make_ranks(4);
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    on_every_rank(ranks, [&](Communicator& rank) {
      constexpr std::size_t kCount = 20'011;
      Memory memory = rank.allocate(kCount * sizeof(float)).value();
      std::vector<float> plain(kCount);
      const bool registered_in = rank.rank() % 2 == 0;
      const bool registered_out = rank.rank() < 2;
      float* in = registered_in ? reinterpret_cast<float*>(memory.data()) : plain.data();
      std::vector<float> other(kCount);
      Memory other_memory = rank.allocate(kCount * sizeof(float)).value();
      float* out = registered_out ? reinterpret_cast<float*>(other_memory.data()) : other.data();
      if (rank.rank() == 3) out = in;
      for (std::size_t i = 0; i < kCount; ++i) in[i] = input_of(rank.rank(), i);
      const Status status = rank.all_reduce(in, out, kCount, DataType::kFloat32, ReduceOp::kSum, with(algorithm));
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], sum_of(4, i));
      ASSERT_TRUE(rank.all_reduce(nullptr, nullptr, 0, DataType::kInt8, ReduceOp::kSum).ok());
    });
  }
}

TEST(AllReduce, EachRankScalesItsOwnInput) {
  Communicators ranks = make_ranks(3);
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    on_every_rank(ranks, [&](Communicator& rank) {
      std::vector<float> data(1000, 1.0f);
      CallOptions options = with(algorithm);
      options.scale.real = static_cast<double>(rank.rank() + 1);
      ASSERT_TRUE(
          rank.all_reduce(data.data(), data.data(), 1000, DataType::kFloat32, ReduceOp::kPreMulSum, options).ok());
      for (const float value : data) ASSERT_EQ(value, 6.0f);
    });
  }
}

TEST(AllReduce, AsynchronousOperationsEndInOrderWithAndWithoutWaiting) {
  Communicators ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    constexpr std::size_t kCount = 10'007;
    std::vector<std::vector<float>> data(12, std::vector<float>(kCount));
    std::vector<Work> works;
    for (std::size_t n = 0; n < data.size(); ++n) {
      for (std::size_t i = 0; i < kCount; ++i) data[n][i] = input_of(rank.rank(), i + n);
      auto work = start_sum(rank, data[n].data(), data[n].data(), kCount);
      ASSERT_TRUE(work.ok()) << to_string(work.error());
      works.push_back(std::move(*work));
    }
    // no thread waits for the first five, and they must end anyway
    while (!works[5].test()) std::this_thread::yield();
    for (std::size_t n = 0; n < 5; ++n) ASSERT_TRUE(works[n].test());
    ASSERT_TRUE(sum_is_right(rank, 100));  // a blocking call is queued behind the asynchronous ones
    for (Work& work : works) ASSERT_TRUE(work.wait().ok());
    for (std::size_t n = 0; n < data.size(); ++n) {
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[n][i], sum_of(3, i + n));
    }
  });
}

// The thread that waits for the first operation exits. The second operation must make progress although no thread
// calls the library any more.
TEST(AllReduce, WhatIsQueuedBehindAWaitedOperationGoesOnByItself) {
  for (int round = 0; round < 100; ++round) {
    std::vector<std::vector<float>> buffers(4, std::vector<float>(20'000, 1.0f));
    Communicators ranks = make_ranks(2);
    std::vector<Work> second(2);
    on_every_rank(ranks, [&](Communicator& rank) {
      const auto me = static_cast<std::size_t>(rank.rank());
      const auto sum = [&](std::vector<float>& data) {
        return std::move(start_sum(rank, data.data(), data.data(), data.size())).value();
      };
      Work first = sum(buffers[me]);
      second[me] = sum(buffers[2 + me]);
      ASSERT_TRUE(first.wait().ok());
    });
    // Only the operation of rank 0 is waited for. Rank 1 has only the threads of the library.
    ASSERT_TRUE(second[0].wait().ok()) << "round " << round;
    EXPECT_EQ(buffers[2], std::vector<float>(20'000, 2.0f));
  }
}

TEST(AllReduce, AnOperationThatNobodyWaitsForEnds) {
  // These buffers outlive the communicators, because rank 1 may still use its buffer when rank 0 has finished.
  std::vector<float> a(1000, 1.0f);
  std::vector<float> b(1000, 2.0f);
  Communicators ranks = make_ranks(2);
  auto first = start_sum(*ranks[0], a.data(), a.data(), a.size());
  {
    auto dropped = start_sum(*ranks[1], b.data(), b.data(), b.size());
    ASSERT_TRUE(dropped.ok());
  }
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(first->wait().ok());
  EXPECT_EQ(a, std::vector<float>(1000, 3.0f));
}

TEST(Memory, RegisteringExistingPagesKeepsContentsAndAddress) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    constexpr std::size_t kBytes = 64 * 4096;
    constexpr std::size_t kCount = kBytes / sizeof(float);
    auto* data = static_cast<float*>(std::aligned_alloc(4096, kBytes));
    for (std::size_t i = 0; i < kCount; ++i) data[i] = input_of(rank.rank(), i);
    {
      auto memory = rank.register_memory(data, kBytes);
      ASSERT_TRUE(memory.ok()) << to_string(memory.error());
      EXPECT_EQ(static_cast<void*>(memory->data()), static_cast<void*>(data));
      EXPECT_EQ(data[77], input_of(rank.rank(), 77));
      EXPECT_FALSE(rank.register_memory(data, 4096).ok()) << "registered twice";
      ASSERT_TRUE(rank.all_reduce(data, data, kCount, DataType::kFloat32, ReduceOp::kSum).ok());
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], sum_of(2, i));
      ASSERT_TRUE(sum_is_right(rank, 1));  // both ranks have compared
    }
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(data[i], sum_of(2, i)) << "the contents were lost at the end of the registration";
    std::free(data);
  });
}

}  // namespace
}  // namespace tutti::test
