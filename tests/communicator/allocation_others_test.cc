// Fails each allocation of a call once (see tests/support/allocation_sweep.h), for calls that are not collectives:
// agree(), shrink() and others that create communicators, registered memory, plans, and the destruction of a
// communicator.
#include <sys/mman.h>

#include <ostream>

#include "base/assert.h"
#include "communicator/allocation_calls.h"

namespace tutti::test {
namespace {

Status agree(Communicator& rank, CallData& data) {
  auto agreement = rank.agree({.value = 5 + rank.rank()});
  if (!agreement) return agreement.error();
  data.agreement = *std::move(agreement);
  return {};
}

// The agreement may contain both ranks or only this rank, because the call of the other rank may have failed.
bool has_agreement(Communicator& rank, CallData& data) {
  const std::vector<std::int32_t> all = {0, 1};
  const std::vector<std::int32_t> alone = {rank.rank()};
  if (data.agreement.survivors == all) return data.agreement.value == 5;
  return data.agreement.survivors == alone && data.agreement.value == 5 + rank.rank();
}

Status keep(Result<std::unique_ptr<Communicator>> child, CallData& data) {
  if (!child) return child.error();
  data.child = *std::move(child);
  return {};
}

Status shrink(Communicator& rank, CallData& data) { return keep(rank.shrink(), data); }
Status shrink_by_none(Communicator& rank, CallData& data) {
  return keep(rank.shrink(std::span<const std::int32_t>()), data);
}
Status shrink_to_one(Communicator& rank, CallData& data) {
  const std::int32_t other = 1 - rank.rank();
  return keep(rank.shrink({&other, 1}), data);
}
Status split(Communicator& rank, CallData& data) { return keep(rank.split(0, 1 - rank.rank()), data); }
Status split_apart(Communicator& rank, CallData& data) {
  return keep(rank.split(rank.rank() == 1 ? Communicator::kNoColour : 0), data);
}
Status duplicate(Communicator& rank, CallData& data) { return keep(rank.duplicate(), data); }

// If there is a new communicator, a sum on it must return, and must be right if it reports success.
bool has_child(Communicator&, CallData& data) {
  if (data.child == nullptr) return true;
  float sum = input_of(data.child->rank(), 1);
  const Status status = data.child->all_reduce(&sum, &sum, 1, DataType::kFloat32, ReduceOp::kSum);
  return !status.ok() || sum == sum_of(data.child->size(), 1);
}

// A sum over the registered memory must return, and must be right if it reports success.
bool has_memory(Communicator& rank, CallData& data) {
  auto* values = reinterpret_cast<float*>(data.memory.data());
  const std::size_t count = data.memory.size() / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) values[i] = input_of(rank.rank(), i);
  const Status status = rank.all_reduce(values, values, count, DataType::kFloat32, ReduceOp::kSum);
  for (std::size_t i = 0; status.ok() && i < count; ++i) {
    if (values[i] != sum_of(rank.size(), i)) return false;
  }
  data.memory = {};
  return true;
}

Status allocate(Communicator& rank, CallData& data) {
  auto memory = rank.allocate(10'000);
  if (!memory) return memory.error();
  data.memory = *std::move(memory);
  return {};
}

// The pages must stay readable and keep their contents, whether or not the registration succeeds.
Status register_memory(Communicator& rank, CallData& data) {
  constexpr std::size_t kBytes = 1 << 16;
  void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "mmap"};
  auto* const values = static_cast<float*>(pages);
  values[100] = 7;
  auto memory = rank.register_memory(pages, kBytes);
  if (values[100] != 7) std::abort();
  if (!memory) return memory.error();
  data.memory = *std::move(memory);
  return {};
}

// One rank registers and releases memory while both ranks make collectives that use it.
Status sum_in_memory(Communicator& rank, CallData& data) {
  TUTTI_TRY(allocate(rank, data));
  return has_memory(rank, data) ? Status() : Error{ErrorCode::kSystem, ErrorScope::kCall, -1, ""};
}

Status finalize(Communicator& rank, CallData&) { return rank.rank() == 1 ? rank.finalize() : Status(); }
Status abort(Communicator& rank, CallData&) {
  if (rank.rank() == 1) rank.abort();
  return {};
}

// Rank 0 is in an all_reduce when rank 1 calls abort().
Status abort_in_call(Communicator& rank, CallData& data) {
  if (rank.rank() == 1) rank.abort();
  return rank.all_reduce(data.input.data(), data.output.data(), data.input.size(), DataType::kFloat32, ReduceOp::kSum);
}

Status next_sender(Communicator& rank, CallData& data) {
  if (rank.rank() == 0) return rank.send(data.input.data(), 1, DataType::kFloat32, 1);
  auto sender = rank.next_sender();
  if (!sender) return sender.error();
  return rank.receive(data.output.data(), 1, DataType::kFloat32, *sender);
}

// A user plan in its file format: rank 0 adds the inputs and sends the sum to rank 1. It is made once, before
// allocations fail.
const std::string& text_of_plan() {
  static const std::string text = [] {
    PlanBuilder plan({.name = "star", .ranks = 2, .order = Order::kByRank});
    PlanBuilder::Step centre = plan.channel(0).step();
    centre.local(Space::kInput, 0).receive(1).store(Space::kOutput, 0).send(1).completes();
    PlanBuilder::Channel leaf = plan.channel(1);
    leaf.step().local(Space::kInput, 0).send(0);
    leaf.step().receive(0).store(Space::kOutput, 0);
    auto built = plan.build();
    return built ? built->to_json() : std::string();
  }();
  return text;
}

Status use_plan(Communicator& rank, CallData& data) {
  auto plan = UserPlan::parse_json(text_of_plan());
  if (!plan) return plan.error();
  TUTTI_TRY(rank.use_plan(*plan));
  return rank.all_reduce(data.input.data(), data.output.data(), data.input.size(), DataType::kFloat32, ReduceOp::kSum);
}

Status predict(Communicator& rank, CallData&) {
  static_cast<void>(rank.auto_algorithm(CollectiveKind::kAllReduce, 1000, DataType::kFloat32));
  static_cast<void>(rank.predicted_us(CollectiveKind::kAllReduce, 1000, DataType::kFloat32));
  return {};
}

bool always(Communicator&, CallData&) { return true; }
bool has_sum(Communicator& rank, CallData& data) {
  for (std::size_t i = 0; i < data.output.size(); ++i) {
    if (data.output[i] != sum_of(rank.size(), i)) return false;
  }
  return true;
}

// For agree() and shrink() the lowest rank is the coordinator, so both ranks are tested.
constexpr CallKind kCalls[] = {
    {"Agree0", 0, agree, has_agreement, 0},
    {"Agree1", 0, agree, has_agreement, 1},
    {"Shrink0", 0, shrink, has_child, 0},
    {"Shrink1", 0, shrink, has_child, 1},
    {"ShrinkByNone0", 0, shrink_by_none, has_child, 0},
    {"ShrinkByNone1", 0, shrink_by_none, has_child, 1},
    {"ShrinkToOne", 0, shrink_to_one, has_child},
    {"Split", 0, split, has_child},
    {"SplitApart", 0, split_apart, has_child},
    {"Duplicate", 0, duplicate, has_child},
    {"Allocate", 0, allocate, has_memory},
    {"Register", 0, register_memory, has_memory},
    {"SumInMemory", 0, sum_in_memory, always},
    {"Finalize", 0, finalize, always},
    {"Abort", 0, abort, always},
    {"AbortInCall", 1000, abort_in_call, always},
    {"NextSender", 1, next_sender,
     [](Communicator& rank, CallData& data) { return rank.rank() == 0 || data.output[0] == input_of(0, 0); }},
    {"UsePlan", 1000, use_plan, has_sum},
    {"Predict", 0, predict, always},
};

class OtherCallsSweep : public testing::TestWithParam<std::tuple<JobConfiguration, CallKind, bool>> {};

TEST_P(OtherCallsSweep, NoFailureHangsCrashesOrLies) {
  const auto& [world, kind, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  ASSERT_NE(text_of_plan(), "");
  // copies of the references, because clang 14 cannot capture structured bindings
  const auto try_one = [&on = world, &of = kind](std::int64_t n) { return try_call(on, of, false, n); };
  sweep(std::string(world.name) + ", " + kind.name, try_one);
}

std::string name_of(const testing::TestParamInfo<OtherCallsSweep::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Once, OtherCallsSweep,
                         testing::Combine(testing::ValuesIn(kConfigurations), testing::ValuesIn(kCalls),
                                          testing::Values(false)),
                         name_of);

// Here all further allocations fail as well until the call has returned.
INSTANTIATE_TEST_SUITE_P(Lasting, OtherCallsSweep,
                         testing::Combine(testing::ValuesIn(kConfigurations,
                                                            kConfigurations + (TUTTI_EVERY_ALLOCATION ? 3 : 1)),
                                          testing::ValuesIn(kCalls), testing::Values(true)),
                         name_of);

// Destroys both communicators: after a completed sum, while a call is in progress, or after an abort.
enum class Before : std::uint8_t { kSum, kWork, kAbort };

void PrintTo(Before before, std::ostream* out) {
  constexpr const char* kNames[] = {"kSum", "kWork", "kAbort"};
  *out << kNames[static_cast<std::size_t>(before)];
}

int try_to_destroy(const JobConfiguration& world, Before before, std::int64_t n) {
  Communicators ranks = make_pair(world);
  float one = 1;
  float sum = 0;
  std::vector<float> more(1000);
  on_every_rank(ranks, [&](Communicator& rank) { static_cast<void>(sum_is_right(rank, 10)); });
  auto work = before == Before::kWork ? start_sum(*ranks[1], &one, &sum, 1) : Result<Work>(Work());
  if (!work) return kBadTrial;
  if (before == Before::kAbort) ranks[0]->abort();
  failing_allocations::fail_after(n, true);
  ranks.clear();
  failing_allocations::fail_after(0, false);
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

class EndSweep : public testing::TestWithParam<std::tuple<JobConfiguration, Before, bool>> {};

TEST_P(EndSweep, OfACommunicatorNeverThrowsHangsOrLeaks) {
  const auto& [world, before, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  // copies of the references, because clang 14 cannot capture structured bindings
  const auto try_one = [&on = world, first = before](std::int64_t n) { return try_to_destroy(on, first, n); };
  sweep(std::string(world.name) + ", end", try_one);
}

std::string name_of_end(const testing::TestParamInfo<EndSweep::ParamType>& info) {
  const auto& [world, before, lasts] = info.param;
  constexpr const char* kBefore[] = {"AfterSum", "InWork", "AfterAbort"};
  return std::string(world.name) + kBefore[static_cast<int>(before)] + (lasts ? "Lasting" : "Once");
}

INSTANTIATE_TEST_SUITE_P(Ends, EndSweep,
                         testing::Combine(testing::ValuesIn(kConfigurations),
                                          testing::Values(Before::kSum, Before::kWork, Before::kAbort),
                                          testing::Bool()),
                         name_of_end);

}  // namespace
}  // namespace tutti::test
