// Tests every type of collective over memory that is not registered, with pointers and with system calls. The
// results must have the bits of the plan, and must be right even if some ranks time out, disagree or have
// inaccessible memory.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>
#include <barrier>
#include <random>

#include "communicator/single_copy_support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr const char* kAttached[] = {"auto", "calls"};

void on_threads(std::int32_t ranks, const std::function<void(std::size_t)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank)
    threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

class DirectKinds : public testing::TestWithParam<std::int32_t> {};

TEST_P(DirectKinds, GiveTheBitsOfTheirPlansAndTouchNothingElse) {
  const std::int32_t size = GetParam();
  Communicators by_messages = make_ranks(size, patience(), "off");
  Communicators by_pointers = make_ranks(size, patience(), "auto");
  Communicators by_calls = make_ranks(size, patience(), "calls");
  on_threads(size, [&](std::size_t rank) {
    Communicator* const ways[] = {by_messages[rank].get(), by_pointers[rank].get(), by_calls[rank].get()};
    EXPECT_EQ(differences(ways, parts_of(static_cast<std::int32_t>(rank), size)), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DirectKinds, testing::Values(2, 3, 5));

// The ranks call at random times and have short timeouts, so that some time out while others are in the middle of
// the call. Sometimes all but one time out, and that one calls afterwards. A rank that has timed out fills its
// memory with another value at once, and the other ranks must not change it.
TEST(DirectFaults, WhoGivesUpFindsItsMemoryAsItLeftIt) {
  constexpr std::int32_t kSize = 3;
  constexpr std::size_t kCount = (1 << 18) + 16;
  constexpr std::byte kMine{0x77};
  for (const char* attach : kAttached) {
    Communicators ranks = make_ranks(kSize, patience(), attach);
    std::barrier all(kSize);
    std::atomic<int> failed = 0;
    std::atomic<int> ended = 0;  // number of calls in all rounds
    on_every_rank(ranks, [&](Communicator& rank) {
      std::mt19937 same(5);
      std::mt19937 own(static_cast<std::uint32_t>(rank.rank()) + 1);
      for (int round = 0; round < 120; ++round) {
        const std::vector<CollectiveKind> kinds = direct_kinds();
        const bool one_is_late = round % 30 == 15;
        const Part part{.kind = one_is_late ? CollectiveKind::kAllReduce : kinds[same() % kinds.size()],
                        .count = kCount,
                        .type = DataType::kInt32,
                        .root = static_cast<std::int32_t>(same() % kSize),
                        .in_place = own() % 2 == 0};
        Buffers buffers(part, rank.rank(), kSize);
        buffers.draw(1);
        all.arrive_and_wait();
        std::this_thread::sleep_for(std::chrono::microseconds(own() % 12'000));
        while (one_is_late && rank.rank() == round / 30 % kSize && ended < kSize * (round + 1) - 1) {
          std::this_thread::yield();
        }
        const Status status = buffers.run(rank, directly(part.kind, milliseconds(4 + own() % 4)));
        ++ended;
        if (!status.ok()) {
          std::fill(buffers.bytes().begin(), buffers.bytes().end(), kMine);
          EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
          ++failed;
        }
        all.arrive_and_wait();
        if (!status.ok()) {
          const auto others = std::count_if(buffers.bytes().begin(), buffers.bytes().end(),
                                            [=](std::byte byte) { return byte != kMine; });
          EXPECT_EQ(others, 0) << attach << ", rank " << rank.rank() << ", " << to_string(part);
        } else {
          EXPECT_TRUE(buffers.rest_is_as_before()) << attach << ", rank " << rank.rank() << ", " << to_string(part);
        }
      }
      EXPECT_TRUE(sum_is_right(rank, kCount));
    });
    EXPECT_GT(failed, 0) << "no rank timed out, so the test has no effect";
  }
}

TEST(DirectFaults, AnAbortInTheMiddleIsNamedAndLeavesMemoryAlone) {
  constexpr std::int32_t kSize = 3;
  constexpr std::byte kMine{0x77};
  for (const char* attach : kAttached) {
    for (const CollectiveKind kind : direct_kinds()) {
      SCOPED_TRACE(std::string(attach) + " " + std::string(to_string(kind)));
      Communicators ranks = make_ranks(kSize, patience(), attach);
      std::barrier all(kSize);
      std::atomic<int> calls = 0;
      std::thread aborter([&] {
        while (calls < 3) std::this_thread::yield();
        ranks[1]->abort();
      });
      on_every_rank(ranks, [&](Communicator& rank) {
        const Part part{.kind = kind, .count = 1 << 18, .type = DataType::kInt32, .root = 2};
        Buffers buffers(part, rank.rank(), kSize);
        Status status;
        while (status.ok()) {
          buffers.draw(1);
          status = buffers.run(rank, directly(kind));
          ++calls;
        }
        std::fill(buffers.bytes().begin(), buffers.bytes().end(), kMine);
        EXPECT_EQ(status.error().code, ErrorCode::kAborted) << to_string(status.error());
        EXPECT_EQ(status.error().rank, rank.rank() == 1 ? -1 : 1) << to_string(status.error());
        all.arrive_and_wait();
        EXPECT_EQ(std::count(buffers.bytes().begin(), buffers.bytes().end(), kMine),
                  static_cast<std::ptrdiff_t>(buffers.bytes().size()));
      });
      aborter.join();
    }
  }
}

// A range of `bytes` bytes of which only the first `mapped` bytes, whole pages, are accessible.
class CutMemory {
 public:
  CutMemory(std::size_t bytes, std::size_t mapped)
      : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), bytes_(bytes) {
    std::memset(data_, 1, mapped);
    if (mapped < bytes) mprotect(static_cast<std::byte*>(data_) + mapped, bytes - mapped, PROT_NONE);
  }
  ~CutMemory() { munmap(data_, bytes_); }
  CutMemory(const CutMemory&) = delete;
  CutMemory& operator=(const CutMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;  // the rest stays mapped without access, because other memory could be mapped there otherwise
  std::size_t bytes_;
};

// A case in which rank 1's memory is shorter than its count claims. Only other ranks, or system calls of rank 1,
// access the missing part.
struct Cut {
  CollectiveKind kind;
  std::int32_t root;
  bool in_place;
  bool input;             // true if the input is cut, false if the output is cut; only for calls that are not in place
  std::size_t thirds_in;  // accessible part of the cut buffer, in thirds of a block
};

TEST(DirectFaults, ABufferThatIsTooShortIsNamedByAll) {
  constexpr std::int32_t kSize = 3;
  constexpr std::size_t kBlock = 96 * 4096;
  // all_reduce and reduce are not in the list, because rank 1 may do parts of the work of others and would then
  // access the missing memory itself.
  constexpr Cut kCuts[] = {
      {CollectiveKind::kReduceScatter, 0, false, true, 6}, {CollectiveKind::kBroadcast, 1, true, true, 1},
      {CollectiveKind::kBroadcast, 0, false, false, 1},    {CollectiveKind::kBroadcast, 0, false, false, 2},
      {CollectiveKind::kScatter, 2, false, false, 1},      {CollectiveKind::kScatter, 1, true, true, 6},
      {CollectiveKind::kGather, 0, false, true, 1},        {CollectiveKind::kGather, 1, true, false, 6},
      {CollectiveKind::kAllGather, 0, true, false, 6},     {CollectiveKind::kAllToAll, 0, false, true, 6},
      {CollectiveKind::kAllToAll, 0, false, false, 6},
  };
  Communicators ranks = make_ranks(kSize, patience(), "calls");
  std::barrier all(kSize);
  on_every_rank(ranks, [&](Communicator& rank) {
    for (const Cut& cut : kCuts) {
      const Part part{.kind = cut.kind, .count = kBlock / 4, .root = cut.root, .in_place = cut.in_place};
      SCOPED_TRACE("rank " + std::to_string(rank.rank()) + ", " + to_string(part));
      const Layout layout = layout_of(part, rank.rank(), kSize, 0);
      const auto mapped = [&](bool input, std::size_t bytes) {
        const bool whole = rank.rank() != 1 || (!cut.in_place && cut.input != input);
        return whole ? bytes : cut.thirds_in * kBlock / 3;
      };
      const bool one = layout.end < layout.input_bytes + layout.output_bytes;  // input and output are in one range
      const std::size_t first = std::max<std::size_t>(one ? layout.end : layout.input_bytes, 1);
      const std::size_t second = std::max<std::size_t>(one ? 0 : layout.output_bytes, 1);
      const CutMemory in(first, mapped(true, first));
      const CutMemory out(second, one ? second : mapped(false, second));
      const Status status = rank.run({.kind = part.kind,
                                      .input = in.data() + layout.input,
                                      .output = one ? in.data() + layout.output : out.data(),
                                      .count = part.count,
                                      .root = part.root},
                                     directly(part.kind));
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument) << to_string(status.error());
      EXPECT_EQ(status.error().rank, 1) << to_string(status.error());
      EXPECT_THAT(status.error().message, HasSubstr("rank 1's input or output is not memory as long as the call says"));
      all.arrive_and_wait();
    }
    EXPECT_TRUE(sum_is_right(rank, 100'000));
  });
}

// A call in which one rank passes different arguments.
struct DifferingCall {
  Part part;
  const char* says;
};

std::vector<DifferingCall> differing_calls(const Part& agreed) {
  std::vector<DifferingCall> differing_calls;
  const auto add = [&](const char* says, const std::function<void(Part&)>& change) {
    Part part = agreed;
    change(part);
    differing_calls.push_back({part, says});
  };
  add("count 50001", [](Part& part) { part.count = 50'001; });
  add("type int32", [](Part& part) { part.type = DataType::kInt32; });
  if (reduces(agreed.kind)) add("operation max", [](Part& part) { part.op = ReduceOp::kMax; });
  if (has_root(agreed.kind)) {
    add("root 1", [](Part& part) { part.root = 1; });  // the rank itself is the root, then another one
    add("root 2", [](Part& part) { part.root = 2; });
  }
  return differing_calls;
}

// If all ranks wait for each other, or for the root, which waits for them, the call must fail on every rank. Only
// messages let some ranks of a call with a root finish early.
TEST(DirectFaults, DisagreementsAreNamedByAll) {
  constexpr std::int32_t kSize = 3;
  for (const char* attach : {"auto", "calls", "off"}) {
    const bool attached = std::string_view(attach) != "off";
    Communicators ranks = make_ranks(kSize, patience(), attach);
    std::barrier all(kSize);
    on_every_rank(ranks, [&](Communicator& rank) {
      for (const CollectiveKind kind : direct_kinds()) {
        const Part agreed{.kind = kind, .count = 50'000};
        for (const DifferingCall& differing : differing_calls(agreed)) {
          SCOPED_TRACE(std::string(attach) + ", rank " + std::to_string(rank.rank()) + ", " +
                       to_string(differing.part) + ", " + differing.says);
          Buffers buffers(rank.rank() == 1 ? differing.part : agreed, rank.rank(), kSize);
          buffers.draw(1);
          const Status status = buffers.run(rank, directly(kind));
          EXPECT_TRUE(!status.ok() || (!attached && has_root(kind)));
          if (!status.ok()) {
            EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
            EXPECT_THAT(status.error().message, HasSubstr(differing.says));
          }
          all.arrive_and_wait();
        }
      }
      EXPECT_TRUE(sum_is_right(rank, 100'000));
    });
  }
}

}  // namespace
}  // namespace tutti::test
