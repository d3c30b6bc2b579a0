// Collectives on device memory by the public API, several ranks on one GPU in this process: results by each
// collective's definition, the order of streams, and arguments that are refused.
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

// As run_case() of the conformance suite, on device memory: one buffer, the output's blocks first, the input's behind
// them or, in place, where the collective has them.
void run_on_device(Communicator& rank, const Seat& seat, const Case& each) {
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
  seat.put(seat.memory(), bytes);
  CallOptions options = seat.options(each.algorithm);
  options.scale = {.real = static_cast<double>(factor_of(rank.rank())), .integer = factor_of(rank.rank())};
  const Status status = rank.run({.kind = each.kind,
                                  .input = shape.in > 0 ? seat.data() + input_at : nullptr,
                                  .output = shape.out > 0 ? seat.data() + output_at : nullptr,
                                  .count = each.count,
                                  .type = each.type,
                                  .op = each.op,
                                  .root = each.root},
                                 options);
  ASSERT_TRUE(status.ok()) << to_string(each) << ": " << tutti::to_string(status.error());
  bytes = seat.get(seat.memory(), bytes.size());
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
    on_every_seat(ranks, bytes, [&](Communicator& rank, const Seat& seat) {
      for (const Case& each : cases) {
        run_on_device(rank, seat, each);
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

// All ranks in a group, by one thread.
TEST_F(GpuCollectives, OneThreadServesAllRanks) {
  constexpr std::size_t kCount = 10'000;
  Communicators all = make_ranks(4);
  const std::vector<Seat> seats = seats_for(all, kCount);
  for (int round = 1; round <= 5; ++round) {
    Group group;
    for (std::size_t i = 0; i < all.size(); ++i) {
      seats[i].put(seats[i].memory(), std::vector<std::byte>(kCount, std::byte(round * 10 + int(i))));
      const CollectiveCall call{
          .input = seats[i].data(), .output = seats[i].data(), .count = kCount, .type = DataType::kUint8};
      ASSERT_TRUE(group.add(*all[i], call, seats[i].options()).ok());
    }
    const Status status = group.run();
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    for (const Seat& seat : seats) {
      EXPECT_EQ(seat.get(seat.memory(), kCount), std::vector<std::byte>(kCount, std::byte(round * 40 + 6)))
          << "round " << round;
    }
  }
  all.clear();
}

// What the stream writes before a call is what the call takes, and what it copies after it is what the call gave; the
// host waits for nothing in between.
TEST_F(GpuCollectives, KeepTheOrderOfTheStream) {
  constexpr std::size_t kBytes = 1 << 20;
  on_every_seat(2, kBytes, [](Communicator& rank, const Seat& seat) {
    for (int round = 0; round < 10; ++round) {
      const auto start = static_cast<unsigned char>(1 + round);
      const cuda::CUdeviceptr data = seat.memory().address();
      ASSERT_EQ(seat.api().memset_d8_async(data, start, kBytes, seat.stream()), cuda::CUresult::kSuccess);
      for (int call = 0; call < 3; ++call) {
        const Status status =
            rank.all_reduce(seat.data(), seat.data(), kBytes, DataType::kUint8, ReduceOp::kSum, seat.options());
        ASSERT_TRUE(status.ok()) << to_string(status.error());
      }
      ASSERT_EQ(seat.api().memcpy_dtod_async(seat.other().address(), data, kBytes, seat.stream()),
                cuda::CUresult::kSuccess);
      ASSERT_EQ(seat.api().memset_d8_async(data, 0xEE, kBytes, seat.stream()), cuda::CUresult::kSuccess);
      EXPECT_EQ(seat.get(seat.other(), kBytes), std::vector<std::byte>(kBytes, std::byte(8 * start)))
          << "round " << round;
    }
    EXPECT_TRUE(rank.async_status().ok());
  });
}

TEST_F(GpuCollectives, SendAndReceiveRoundARing) {
  constexpr std::size_t kBytes = 70'000;
  on_every_seat(3, kBytes, [](Communicator& rank, const Seat& seat) {
    seat.put(seat.memory(), std::vector<std::byte>(kBytes, std::byte(rank.rank() + 1)));
    const std::int32_t next = (rank.rank() + 1) % 3;
    const std::int32_t before = (rank.rank() + 2) % 3;
    std::byte* const target = bench::pointer_to(seat.other());
    Group group;
    ASSERT_TRUE(group.send(rank, seat.data(), kBytes, DataType::kUint8, next, seat.options()).ok());
    ASSERT_TRUE(group.receive(rank, target, kBytes, DataType::kUint8, before, seat.options()).ok());
    const Status status = group.run();
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(seat.get(seat.other(), kBytes), std::vector<std::byte>(kBytes, std::byte(before + 1)));
  });
}

TEST_F(GpuCollectives, RefuseWhatTheyCannotTake) {
  on_every_seat(1, 4096, [](Communicator& rank, const Seat& seat) {
    float host[16] = {};
    const auto code = [&](const void* input, void* output) {
      const Status status = rank.all_reduce(input, output, 16, DataType::kFloat32, ReduceOp::kSum, seat.options());
      return status.ok() ? std::nullopt : std::optional(status.error().code);
    };
    std::byte* const data = seat.data();
    EXPECT_EQ(code(data, host), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(host, data), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(nullptr, data), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(data + 2, data + 2), ErrorCode::kInvalidArgument) << "not aligned to the element";
    EXPECT_EQ(code(data, data), std::nullopt) << "and works on";
    static_cast<void>(seat.get(seat.memory(), 4096));
    EXPECT_TRUE(rank.async_status().ok());
  });
}

// Ranks that disagree are told, and the GPU goes on.
TEST_F(GpuCollectives, RanksThatDisagreeAreTold) {
  on_every_seat(2, 4096, [](Communicator& rank, const Seat& seat) {
    const std::size_t count = rank.rank() == 0 ? 100 : 200;
    Status status = rank.all_reduce(seat.data(), seat.data(), count, DataType::kInt32, ReduceOp::kSum, seat.options());
    static_cast<void>(seat.get(seat.memory(), 4096));
    if (status.ok()) status = rank.async_status();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
    EXPECT_TRUE(sum_is_right(rank, 1000)) << "the communicator works on";
  });
}

}  // namespace
}  // namespace tutti::test
