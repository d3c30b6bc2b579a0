// Fails each allocation of the set-up of two ranks once (see tests/support/allocation_sweep.h). The allocations that
// fail are those of rank 0, those of rank 1, or those of all threads of the process, which include the rendezvous
// server.
#include <dirent.h>

#include "communicator/support.h"
#include "support/allocation_sweep.h"

namespace tutti::test {
namespace {

// Selects the threads in which allocations fail.
enum class FailingThreads : std::uint8_t { kRank0, kRank1, kAll };

struct SetUpKind {
  const char* name;
  JobConfiguration world;
  FailingThreads failing_threads;
  bool in_background = false;  // the ranks use create_async()
};
std::ostream& operator<<(std::ostream& stream, const SetUpKind& kind) { return stream << kind.name; }

constexpr std::chrono::milliseconds kSetUpTimeout{400};
constexpr std::chrono::milliseconds kSumTimeout{200};

CommunicatorOptions options_of(const JobConfiguration& world) {
  CommunicatorOptions options;
  options.timeout = kSumTimeout;
  options.setup_timeout = kSetUpTimeout;
  options.transport = world.transport;
  options.attach = world.attach;
  return options;
}

using CreateResult = Result<std::unique_ptr<Communicator>>;

// If the set-up succeeded, the communicator must be usable: an all_reduce must return, and its result must be right
// if it reports success.
int judge(const CreateResult& made) {
  if (!made) return made.error().message.empty() ? kNoMessage : kReached;
  float sum = input_of((*made)->rank(), 1);
  const Status status = (*made)->all_reduce(&sum, &sum, 1, DataType::kFloat32, ReduceOp::kSum);
  return status.ok() && sum != sum_of((*made)->size(), 1) ? kWrongData : kReached;
}

// Sets up two ranks as threads that meet with a unique id, as two processes would.
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
    const bool fails = rank == (kind.failing_threads == FailingThreads::kRank0 ? 0 : 1);
    if (fails) failing_allocations::fail_after(n, kind.failing_threads == FailingThreads::kAll);
    meet.arrive_and_wait();
    CreateResult made = kind.in_background ? Communicator::create_async(options).wait() : Communicator::create(options);
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
  // a copy of the reference, because clang 14 cannot capture structured bindings
  sweep(std::string("set-up, ") + kind.name, [&its_kind = kind](std::int64_t n) { return try_set_up(its_kind, n); });
}

constexpr JobConfiguration kShm = kConfigurations[0], kTcp = kConfigurations[1], kMixed = kConfigurations[2];
constexpr SetUpKind kSetUps[] = {
    {"ShmRank0", kShm, FailingThreads::kRank0},     {"ShmRank1", kShm, FailingThreads::kRank1},
    {"ShmAll", kShm, FailingThreads::kAll},         {"TcpRank0", kTcp, FailingThreads::kRank0},
    {"TcpRank1", kTcp, FailingThreads::kRank1},     {"TcpAll", kTcp, FailingThreads::kAll},
    {"MixedRank0", kMixed, FailingThreads::kRank0}, {"MixedRank1", kMixed, FailingThreads::kRank1},
    {"MixedAll", kMixed, FailingThreads::kAll},     {"ShmAllAsync", kShm, FailingThreads::kAll, true},
};
std::string name_of(const testing::TestParamInfo<SetUpSweep::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Lasting" : "Once");
}
INSTANTIATE_TEST_SUITE_P(SetUps, SetUpSweep, testing::Combine(testing::ValuesIn(kSetUps), testing::Bool()), name_of);

// Creates both ranks with one call of create_all().
int try_create_all(const JobConfiguration& world, std::int64_t n) {
  const CommunicatorOptions options = options_of(world);
  failing_allocations::fail_after(n, true);
  auto made = Communicator::create_all(2, options, world.nodes);
  failing_allocations::fail_after(0, false);
  if (!made && made.error().message.empty()) return kNoMessage;
  if (made) on_every_rank(*made, [](Communicator& rank) { static_cast<void>(sum_is_right(rank, 5)); });
  if (testing::Test::HasFailure()) return kWrongData;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

class CreateAllSweep : public testing::TestWithParam<std::tuple<JobConfiguration, bool>> {};

TEST_P(CreateAllSweep, NoFailureHangsCrashesOrLies) {
  const auto& [world, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  // a copy of the reference, because clang 14 cannot capture structured bindings
  sweep(std::string("create_all, ") + world.name,
        [&its_world = world](std::int64_t n) { return try_create_all(its_world, n); });
}

std::string name_of_all(const testing::TestParamInfo<CreateAllSweep::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Lasting" : "Once");
}
INSTANTIATE_TEST_SUITE_P(Worlds, CreateAllSweep, testing::Combine(testing::ValuesIn(kConfigurations), testing::Bool()),
                         name_of_all);

// Counts the threads of the process. It does not use `operator new`, because allocations fail at this time.
int thread_count() {
  DIR* const folder = opendir("/proc/self/task");
  int count = -2;  // do not count "." and ".."
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Creates a unique id. Its rendezvous server, to which no rank connects, must end without an error.
int try_unique_id(std::int64_t n) {
  UniqueIdOptions options;
  options.timeout = std::chrono::milliseconds(50);
  failing_allocations::fail_after(n, true);
  auto id = UniqueId::create(options);
  if (!eventually([] { return thread_count() == 1; })) return kBadTrial;  // the thread of the server has ended
  failing_allocations::fail_after(0, false);
  if (!id && id.error().message.empty()) return kNoMessage;
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

TEST(UniqueIdSweep, NoFailureCrashesOrHangs) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own threads would be counted";
#endif
  for (const bool lasts : {false, true}) {
    failing_allocations::set_lasting(lasts);
    sweep("unique id", try_unique_id);
  }
}

}  // namespace
}  // namespace tutti::test
