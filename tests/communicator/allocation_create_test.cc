// Every allocation of the set-up of two ranks fails once (runtime/allocation_sweep.h): of rank 0, of rank 1, and of
// every thread of the process, that of the rendezvous server among them.
#include <dirent.h>

#include "communicator/support.h"
#include "support/allocation_sweep.h"

namespace tutti::test {
namespace {

// Whose allocations fail.
enum class Whose : std::uint8_t { kRank0, kRank1, kAll };

struct SetUpKind {
  const char* name;
  WorldKind world;
  Whose whose;
  bool in_background = false;  // by create_async()
};
std::ostream& operator<<(std::ostream& stream, const SetUpKind& kind) { return stream << kind.name; }

constexpr std::chrono::milliseconds kSetUpTimeout{400};
constexpr std::chrono::milliseconds kSumTimeout{200};

CommunicatorOptions options_of(const WorldKind& world) {
  CommunicatorOptions options;
  options.timeout = kSumTimeout;
  options.setup_timeout = kSetUpTimeout;
  options.transport = world.transport;
  options.attach = world.attach;
  return options;
}

using Made = Result<std::unique_ptr<Communicator>>;

// What a rank has got can be used: a sum comes back, and is right where it is reported as good.
int judge(const Made& made) {
  if (!made) return made.error().message.empty() ? kNoMessage : kReached;
  float sum = input_of((*made)->rank(), 1);
  const Status status = (*made)->all_reduce(&sum, &sum, 1, DataType::kFloat32, ReduceOp::kSum);
  return status.ok() && sum != sum_of((*made)->size(), 1) ? kWrongData : kReached;
}

// Two ranks as threads, which meet by a unique id, as two processes would.
int try_set_up(const SetUpKind& kind, std::int64_t n) {
  auto id = UniqueId::create();
  if (!id) return kBadTrial;
  std::barrier<> meet(2);
  std::atomic<int> worst = kReached;
  const auto body = [&](std::int32_t rank) {
    CommunicatorOptions options = options_of(kind.world);
    options.unique_id = *id;
    options.rank = rank;
    options.size = 2;
    if (kind.world.nodes > 1) options.node_id = rank == 0 ? "a" : "b";
    const bool fails = rank == (kind.whose == Whose::kRank0 ? 0 : 1);
    if (fails) failing_allocations::fail_after(n, kind.whose == Whose::kAll);
    meet.arrive_and_wait();
    Made made = kind.in_background ? Communicator::create_async(options).wait() : Communicator::create(options);
    meet.arrive_and_wait();
    if (fails) failing_allocations::fail_after(0, false);
    meet.arrive_and_wait();
    if (const int judged = judge(made); judged != kReached) worst = judged;
  };
  std::thread rank_0(body, 0);
  std::thread rank_1(body, 1);
  rank_0.join();
  rank_1.join();
  if (worst != kReached) return worst;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

class SetUpSweep : public testing::TestWithParam<std::tuple<SetUpKind, bool>> {};

TEST_P(SetUpSweep, NoFailureHangsCrashesOrLies) {
  const auto& [kind, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  sweep(std::string("set-up, ") + kind.name, [&](std::int64_t n) { return try_set_up(kind, n); });
}

constexpr WorldKind kShm = kWorlds[0], kTcp = kWorlds[1], kMixed = kWorlds[2];
constexpr SetUpKind kSetUps[] = {
    {"ShmRank0", kShm, Whose::kRank0},        {"ShmRank1", kShm, Whose::kRank1},     {"ShmAll", kShm, Whose::kAll},
    {"TcpRank0", kTcp, Whose::kRank0},        {"TcpRank1", kTcp, Whose::kRank1},     {"TcpAll", kTcp, Whose::kAll},
    {"MixedRank0", kMixed, Whose::kRank0},    {"MixedRank1", kMixed, Whose::kRank1}, {"MixedAll", kMixed, Whose::kAll},
    {"ShmAllAsync", kShm, Whose::kAll, true},
};
std::string name_of(const testing::TestParamInfo<SetUpSweep::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Lasting" : "Once");
}
INSTANTIATE_TEST_SUITE_P(SetUps, SetUpSweep, testing::Combine(testing::ValuesIn(kSetUps), testing::Bool()), name_of);

// Both ranks by one call.
int try_create_all(const WorldKind& world, std::int64_t n) {
  const CommunicatorOptions options = options_of(world);
  failing_allocations::fail_after(n, true);
  auto made = Communicator::create_all(2, options, world.nodes);
  failing_allocations::fail_after(0, false);
  if (!made && made.error().message.empty()) return kNoMessage;
  if (made) on_every_rank(*made, [](Communicator& rank) { static_cast<void>(sum_is_right(rank, 5)); });
  if (testing::Test::HasFailure()) return kWrongData;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

class CreateAllSweep : public testing::TestWithParam<std::tuple<WorldKind, bool>> {};

TEST_P(CreateAllSweep, NoFailureHangsCrashesOrLies) {
  const auto& [world, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  sweep(std::string("create_all, ") + world.name, [&](std::int64_t n) { return try_create_all(world, n); });
}

std::string name_of_all(const testing::TestParamInfo<CreateAllSweep::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Lasting" : "Once");
}
INSTANTIATE_TEST_SUITE_P(Worlds, CreateAllSweep, testing::Combine(testing::ValuesIn(kWorlds), testing::Bool()),
                         name_of_all);

// Without `operator new`.
int thread_count() {
  DIR* const folder = opendir("/proc/self/task");
  int count = -2;  // "." and ".."
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// The id is made, and a rendezvous server that nobody comes to ends in peace.
int try_unique_id(std::int64_t n) {
  UniqueIdOptions options;
  options.patience = std::chrono::milliseconds(50);
  failing_allocations::fail_after(n, true);
  auto id = UniqueId::create(options);
  if (!eventually([] { return thread_count() == 1; })) return kBadTrial;  // the server's thread has ended
  failing_allocations::fail_after(0, false);
  if (!id && id.error().message.empty()) return kNoMessage;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

TEST(UniqueIdSweep, NoFailureCrashesOrHangs) {
  for (const bool lasts : {false, true}) {
    failing_allocations::set_lasting(lasts);
    sweep("unique id", try_unique_id);
  }
}

}  // namespace
}  // namespace tutti::test
