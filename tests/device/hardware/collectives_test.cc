// Tests of collectives on device memory through the public API, with several ranks of this process on one GPU. They
// check the results by the definition of each collective, the order of work in streams, and the rejection of wrong
// arguments.
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "conformance/suite.h"
#include "tests/device/hardware/support.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

constexpr std::byte kUntouched{0xA5};
constexpr std::size_t kGuardBytes = 64;

std::size_t bytes_of(const Case& each, std::int32_t ranks) {
  return 2 * static_cast<std::size_t>(ranks) * each.count * size_of(each.type) + kGuardBytes;
}

// Runs a case like run_case() of the conformance suite, but on device memory. There is one buffer, which has the output
// and then the input. If the call is in place, the input is at the position in the output that the collective defines.
void run_on_device(Communicator& rank, const RankResources& resources, const Case& each) {
  const CaseShape shape = shape_of(each, rank.rank(), rank.size());
  const std::size_t width = size_of(each.type);
  const std::size_t block = each.count * width;
  const bool in_place = each.in_place && shape.in > 0 && shape.out > 0;
  const std::size_t input_at = (in_place ? shape.in_offset : shape.out) * block;
  const std::size_t output_at = in_place ? shape.out_offset * block : 0;
  const std::size_t blocks = in_place ? std::max(shape.in, shape.out) : shape.in + shape.out;
  std::vector<std::byte> bytes(blocks * block + kGuardBytes, kUntouched);
  for (std::size_t i = 0; i < shape.in * each.count; ++i)
    put(bytes.data() + input_at + i * width, each.type, given(rank.rank(), i, each.type, each.op));
  resources.put(resources.memory(), bytes);
  CallOptions options = resources.options(each.algorithm);
  options.scale = {.real = static_cast<double>(factor_of(rank.rank())), .integer = factor_of(rank.rank())};
  const Status status = rank.run({.kind = each.kind,
                                  .input = shape.in > 0 ? resources.data() + input_at : nullptr,
                                  .output = shape.out > 0 ? resources.data() + output_at : nullptr,
                                  .count = each.count,
                                  .type = each.type,
                                  .op = each.op,
                                  .root = each.root},
                                 options);
  ASSERT_TRUE(status.ok()) << to_string(each) << ": " << tutti::to_string(status.error());
  bytes = resources.get(resources.memory(), bytes.size());
  const Status later = rank.async_status();
  ASSERT_TRUE(later.ok()) << to_string(each) << ": " << tutti::to_string(later.error());
  check_output(rank, each, bytes.data() + output_at, shape.out);
  EXPECT_EQ(std::vector<std::byte>(bytes.end() - kGuardBytes, bytes.end()),
            std::vector<std::byte>(kGuardBytes, kUntouched))
      << to_string(each) << ": written past the end";
}

class GpuCollectives : public GpuCalls {
 protected:
  void run_all(std::int32_t ranks, const std::vector<Case>& cases) {
    std::size_t bytes = 0;
    for (const Case& each : cases) bytes = std::max(bytes, bytes_of(each, ranks));
    run_with_resources(ranks, bytes, [&](Communicator& rank, const RankResources& resources) {
      for (const Case& each : cases) {
        run_on_device(rank, resources, each);
        if (HasFatalFailure()) return;
      }
    });
  }
};

std::vector<Case> cases_of_every_kind(std::int32_t ranks, const std::vector<std::size_t>& counts) {
  std::vector<Case> cases;
  for (const CollectiveKind kind : all_collectives()) {
    if (kind == CollectiveKind::kBarrier) continue;
    for (const std::size_t count : counts) {
      for (const bool in_place : {false, true}) {
        cases.push_back({.kind = kind, .count = count, .root = ranks / 2, .in_place = in_place});
      }
    }
  }
  return cases;
}

TEST_F(GpuCollectives, ShortOnesGiveTheirResult) { run_all(2, cases_of_every_kind(2, {1, 33})); }

TEST_F(GpuCollectives, GiveTheirResultForEveryNumberOfRanks) {
  for (const std::int32_t ranks : {1, 2, 3, 4, 8}) run_all(ranks, cases_of_every_kind(ranks, {0, 1, 4099, 300'007}));
}

TEST_F(GpuCollectives, GiveTheirResultByEveryAlgorithm) {
  std::vector<Case> cases;
  for (const CollectiveKind kind : all_collectives()) {
    if (kind == CollectiveKind::kBarrier) continue;
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (const bool in_place : {false, true}) {
        cases.push_back({.kind = kind, .count = 5003, .root = 2, .in_place = in_place, .algorithm = algorithm});
      }
    }
  }
  run_all(3, cases);
}

TEST_F(GpuCollectives, TakeEveryTypeAndOperation) {
  std::vector<Case> cases;
  for (const DataType type : all_data_types()) {
    for (const ReduceOp op : all_reduce_ops()) {
      for (const CollectiveKind kind :
           {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kReduce}) {
        cases.push_back({.kind = kind, .count = 1003, .type = type, .op = op, .root = 1});
      }
    }
    cases.push_back({.kind = CollectiveKind::kAllToAll, .count = 77, .type = type});
  }
  run_all(3, cases);
}

// One thread makes the calls of all ranks, in a Group.
TEST_F(GpuCollectives, OneThreadServesAllRanks) {
  constexpr std::size_t kCount = 10'000;
  Communicators all = make_ranks(4);
  const std::vector<RankResources> all_resources = make_resources(all, kCount);
  for (int round = 1; round <= 5; ++round) {
    Group group;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all_resources[i].put(all_resources[i].memory(), std::vector<std::byte>(kCount, std::byte(round * 10 + int(i))));
      const CollectiveCall call{.input = all_resources[i].data(),
                                .output = all_resources[i].data(),
                                .count = kCount,
                                .type = DataType::kUint8};
      ASSERT_TRUE(group.add(*all[i], call, all_resources[i].options()).ok());
    }
    const Status status = group.run();
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    for (const RankResources& resources : all_resources) {
      EXPECT_EQ(resources.get(resources.memory(), kCount), std::vector<std::byte>(kCount, std::byte(round * 40 + 6)))
          << "round " << round;
    }
  }
  all.clear();
}

// A call must use the data that the stream writes before it, and a copy after the call must see its result. The host
// does not wait in between.
TEST_F(GpuCollectives, KeepTheOrderOfTheStream) {
  constexpr std::size_t kBytes = 1 << 20;
  run_with_resources(2, kBytes, [](Communicator& rank, const RankResources& resources) {
    for (int round = 0; round < 10; ++round) {
      const auto start = static_cast<unsigned char>(1 + round);
      const cuda::CUdeviceptr data = resources.memory().address();
      ASSERT_EQ(resources.api().memset_d8_async(data, start, kBytes, resources.stream()), cuda::CUresult::kSuccess);
      for (int call = 0; call < 3; ++call) {
        const Status status = rank.all_reduce(resources.data(), resources.data(), kBytes, DataType::kUint8,
                                              ReduceOp::kSum, resources.options());
        ASSERT_TRUE(status.ok()) << to_string(status.error());
      }
      ASSERT_EQ(resources.api().memcpy_dtod_async(resources.other().address(), data, kBytes, resources.stream()),
                cuda::CUresult::kSuccess);
      ASSERT_EQ(resources.api().memset_d8_async(data, 0xEE, kBytes, resources.stream()), cuda::CUresult::kSuccess);
      EXPECT_EQ(resources.get(resources.other(), kBytes), std::vector<std::byte>(kBytes, std::byte(8 * start)))
          << "round " << round;
    }
    EXPECT_TRUE(rank.async_status().ok());
  });
}

TEST_F(GpuCollectives, SendAndReceiveRoundARing) {
  constexpr std::size_t kBytes = 70'000;
  run_with_resources(3, kBytes, [](Communicator& rank, const RankResources& resources) {
    resources.put(resources.memory(), std::vector<std::byte>(kBytes, std::byte(rank.rank() + 1)));
    const std::int32_t next = (rank.rank() + 1) % 3;
    const std::int32_t before = (rank.rank() + 2) % 3;
    std::byte* const target = bench::pointer_to(resources.other());
    Group group;
    ASSERT_TRUE(group.send(rank, resources.data(), kBytes, DataType::kUint8, next, resources.options()).ok());
    ASSERT_TRUE(group.receive(rank, target, kBytes, DataType::kUint8, before, resources.options()).ok());
    const Status status = group.run();
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(resources.get(resources.other(), kBytes), std::vector<std::byte>(kBytes, std::byte(before + 1)));
  });
}

TEST_F(GpuCollectives, RefuseWhatTheyCannotTake) {
  run_with_resources(1, 4096, [](Communicator& rank, const RankResources& resources) {
    float host[16] = {};
    const auto code = [&](const void* input, void* output) {
      const Status status = rank.all_reduce(input, output, 16, DataType::kFloat32, ReduceOp::kSum, resources.options());
      return status.ok() ? std::nullopt : std::optional(status.error().code);
    };
    std::byte* const data = resources.data();
    EXPECT_EQ(code(data, host), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(host, data), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(nullptr, data), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(data + 2, data + 2), ErrorCode::kInvalidArgument) << "not aligned to the element";
    EXPECT_EQ(code(data, data), std::nullopt) << "the communicator must still work";
    static_cast<void>(resources.get(resources.memory(), 4096));
    EXPECT_TRUE(rank.async_status().ok());
  });
}

// If ranks disagree, both must report an error, and the GPU must continue.
TEST_F(GpuCollectives, RanksThatDisagreeAreTold) {
  run_with_resources(2, 4096, [](Communicator& rank, const RankResources& resources) {
    const std::size_t count = rank.rank() == 0 ? 100 : 200;
    Status status = rank.all_reduce(resources.data(), resources.data(), count, DataType::kInt32, ReduceOp::kSum,
                                    resources.options());
    static_cast<void>(resources.get(resources.memory(), 4096));
    if (status.ok()) status = rank.async_status();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
    EXPECT_TRUE(sum_is_right(rank, 1000)) << "the communicator must still work";
  });
}

}  // namespace
}  // namespace tutti::test
