// Tests a rank that cannot receive or map the registered memory of another process, because it has no free
// descriptors or address space. The call must fail on every rank at once with the limit to raise, and the next call
// must succeed.
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <ostream>
#include <string>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

constexpr std::size_t kCount = std::size_t{1} << 18;         // number of float32 of each rank
constexpr std::size_t kRegistered = std::size_t{256} << 20;  // in bytes; few of the pages are touched
constexpr rlim_t kFreeSpace = kRegistered / 4;

enum class Limit { kDescriptors, kSpace };

struct Case {
  const char* name;
  Limit limit;
  // true: all ranks use each other's memory; false: a rank reads memory that another one has published
  bool all_registered;
  friend void PrintTo(const Case& tested, std::ostream* out) { *out << tested.name; }
};
constexpr Case kCases[] = {{"DescriptorsDirect", Limit::kDescriptors, true},
                           {"DescriptorsPublished", Limit::kDescriptors, false},
                           {"SpaceDirect", Limit::kSpace, true},
                           {"SpacePublished", Limit::kSpace, false}};

rlimit lower(Limit limit) {
  const auto which = limit == Limit::kDescriptors ? RLIMIT_NOFILE : RLIMIT_AS;
  rlimit before{};
  getrlimit(which, &before);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t space = pages * static_cast<std::size_t>(getpagesize()) + kFreeSpace;
  const rlimit lowered{.rlim_cur = limit == Limit::kDescriptors ? 3 : space, .rlim_max = before.rlim_max};
  setrlimit(which, &lowered);
  return before;
}

void restore(Limit limit, const rlimit& before) {
  setrlimit(limit == Limit::kDescriptors ? RLIMIT_NOFILE : RLIMIT_AS, &before);
}

bool barrier(Communicator& rank) { return rank.all_reduce(nullptr, nullptr, 0, DataType::kInt8, ReduceOp::kSum).ok(); }

// Gathers kCount elements from each rank. The elements of rank r have the value r.
Status gather(Communicator& rank, float* data) {
  float* const own = data + static_cast<std::size_t>(rank.rank()) * kCount;
  std::fill(data, data + static_cast<std::size_t>(rank.size()) * kCount, -1.0F);
  std::fill(own, own + kCount, static_cast<float>(rank.rank()));
  return rank.all_gather(own, data, kCount, DataType::kFloat32, with(Algorithm::kDirect));
}

bool names_the_limit(const Status& failed, Limit limit) {
  if (failed.ok()) {
    std::fprintf(stderr, "the call has succeeded\n");
    return false;
  }
  const Error& error = failed.error();
  const char* remedy = limit == Limit::kDescriptors ? "ulimit -n" : "vm.max_map_count";
  const bool right = error.code == ErrorCode::kSystem && error.scope == ErrorScope::kCall && error.rank == 1 &&
                     error.message.find(remedy) != std::string::npos;
  if (!right) std::fprintf(stderr, "%s\n", to_string(error).c_str());
  return right;
}

// Rank 1 has too few descriptors or too little address space when rank 0 registers its memory.
int run(const Case& one, std::int32_t number, std::int32_t size, std::uint16_t port) {
  CommunicatorOptions options = job(number, size, port);
  options.attach = "off";
  auto made = Communicator::create(options);
  if (!made) return 2;
  Communicator& rank = **made;
  std::vector<float> plain(kCount * static_cast<std::size_t>(size));
  std::optional<Memory> memory;
  const auto allocate = [&] {
    auto given = rank.allocate(kRegistered);
    if (given) memory.emplace(*std::move(given));
  };
  if (one.all_registered && number != 0) allocate();
  if (!barrier(rank)) return 3;
  const rlimit before = number == 1 ? lower(one.limit) : rlimit{};
  if (!barrier(rank)) return 4;
  if (number == 0) allocate();
  if (!barrier(rank)) return 5;
  float* const data = !memory ? plain.data() : static_cast<float*>(static_cast<void*>(memory->data()));
  const Status failed = gather(rank, data);
  if (number == 1) restore(one.limit, before);
  if (!names_the_limit(failed, one.limit)) return 6;
  const Status again = gather(rank, data);
  if (!again) std::fprintf(stderr, "rank %d: %s\n", number, to_string(again.error()).c_str());
  if (!again) return 7;
  for (std::int32_t of = 0; of < size; ++of) {
    if (data[static_cast<std::size_t>(of + 1) * kCount - 1] != static_cast<float>(of)) return 8;
  }
  return barrier(rank) ? 0 : 9;  // a rank must not free its memory before all ranks have read it
}

class LostMemoryProcesses : public testing::TestWithParam<Case> {};

TEST_P(LostMemoryProcesses, FailsTheCallOnEveryRankAndIsFoundByTheNext) {
  constexpr std::int32_t kRanks = 3;
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    children.push_back(start([=] { return run(GetParam(), rank, kRanks, port); }));
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, LostMemoryProcesses, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tutti::test
