// Fails each allocation of a collective, a send or a receive once (see tests/support/allocation_sweep.h).
#include <array>

#include "communicator/allocation_calls.h"

namespace tutti::test {
namespace {

bool has_sum(Communicator& rank, CallData& data) {
  for (std::size_t i = 0; i < data.output.size(); ++i) {
    if (data.output[i] != sum_of(rank.size(), i)) return false;
  }
  return true;
}

bool has_input_of(std::int32_t sender, CallData& data) {
  for (std::size_t i = 0; i < data.output.size(); ++i) {
    if (data.output[i] != input_of(sender, i)) return false;
  }
  return true;
}

Status sum(Communicator& rank, CallData& data) {
  return rank.all_reduce(data.input.data(), data.output.data(), data.input.size(), DataType::kFloat32, ReduceOp::kSum);
}

Status sum_in_background(Communicator& rank, CallData& data) {
  auto work = start_sum(rank, data.input.data(), data.output.data(), data.input.size());
  if (!work) return work.error();
  while (!work->test()) std::this_thread::yield();
  return work->wait();
}

Status broadcast(Communicator& rank, CallData& data) {
  return rank.broadcast(data.input.data(), data.output.data(), data.input.size(), DataType::kFloat32, 0);
}

// Rank 0 sends to rank 1. The allocations of rank 1 fail.
Status send(Communicator& rank, CallData& data) {
  const std::size_t count = data.input.size();
  if (rank.rank() == 0) return rank.send(data.input.data(), count, DataType::kFloat32, 1);
  return rank.receive(data.output.data(), count, DataType::kFloat32, 0);
}

Status exchange(Communicator& rank, CallData& data) {
  const std::size_t count = data.input.size();
  Group& group = data.group;
  if (auto sent = group.send(rank, data.input.data(), count, DataType::kFloat32, 1 - rank.rank()); !sent) return sent;
  auto received = group.receive(rank, data.output.data(), count, DataType::kFloat32, 1 - rank.rank());
  return received.ok() ? group.run() : received;
}

Status all_to_all_v(Communicator& rank, CallData& data) {
  const std::size_t half = data.input.size() / 2;
  const std::size_t rest = data.input.size() - half;
  // A rank sends to its peer as many elements as the peer sends to it.
  const bool first = rank.rank() == 0;
  const std::array<std::size_t, 2> counts = {first ? half : rest, first ? rest : half};
  return rank.all_to_all_v(data.input.data(), {.counts = counts}, data.output.data(), {.counts = counts},
                           DataType::kFloat32);
}

// Checks the result of all_to_all_v() above: rank 0 gets the first parts of both inputs, and rank 1 the second
// parts.
bool has_blocks_of_both(Communicator& rank, CallData& data) {
  const std::size_t half = data.input.size() / 2;
  const std::size_t rest = data.input.size() - half;
  const bool first = rank.rank() == 0;
  const std::size_t from_0 = first ? half : rest;
  for (std::size_t i = 0; i < data.output.size(); ++i) {
    const bool of_0 = i < from_0;
    const std::size_t at = (of_0 ? i : i - from_0) + (first ? 0 : (of_0 ? half : rest));
    if (data.output[i] != input_of(of_0 ? 0 : 1, at)) return false;
  }
  return true;
}

bool accepts_any(Communicator&, CallData&) { return true; }

// Both ranks fail even if no allocation fails, because their lengths differ.
Status differing_sums(Communicator& rank, CallData& data) {
  const std::size_t count = data.input.size() - static_cast<std::size_t>(rank.rank());
  return rank.all_reduce(data.input.data(), data.output.data(), count, DataType::kFloat32, ReduceOp::kSum);
}

// The same for transfers. The group also contains a receive that cannot begin, because the peer sends nothing for
// it.
Status differing_exchange(Communicator& rank, CallData& data) {
  Group& group = data.group;
  const std::int32_t peer = 1 - rank.rank();
  const std::size_t count = data.input.size() - static_cast<std::size_t>(rank.rank());
  Status queued = group.send(rank, data.input.data(), count, DataType::kFloat32, peer);
  if (queued.ok()) queued = group.receive(rank, data.output.data(), count, DataType::kFloat32, peer);
  if (queued.ok()) queued = group.receive(rank, data.output.data(), 1, DataType::kFloat32, peer);
  return queued.ok() ? group.run() : queued;
}

constexpr CallKind kCalls[] = {
    {"ShortSum", 2, sum, has_sum},
    {"LongSum", 300'007, sum, has_sum},
    {"SumInBackground", 1000, sum_in_background, has_sum, 1, true},
    {"Broadcast", 1000, broadcast, [](Communicator&, CallData& data) { return has_input_of(0, data); }},
    {"Send", 100'003, send,
     [](Communicator& rank, CallData& data) { return rank.rank() == 0 || has_input_of(0, data); }},
    {"Exchange", 1000, exchange,
     [](Communicator& rank, CallData& data) { return has_input_of(1 - rank.rank(), data); }},
    {"AllToAllV", 1001, all_to_all_v, has_blocks_of_both},
    {"DifferingSums", 1000, differing_sums, accepts_any, 1, false, true},
};

// Each trial takes as long as the timeout of its call, because a transfer without a peer waits beside the transfers
// with different lengths.
constexpr CallKind kSlowCalls[] = {
    {"DifferingExchange", 100'003, differing_exchange, accepts_any, 1, false, true},
};

class AllocationSweep : public testing::TestWithParam<std::tuple<JobConfiguration, CallKind, bool, bool>> {};

TEST_P(AllocationSweep, NoFailureHangsCrashesOrLies) {
  const auto& [world, kind, warm, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  // copies of the references, because clang 14 cannot capture structured bindings
  const auto try_one = [&on = world, &of = kind, is_warm = warm](std::int64_t n) {
    return try_call(on, of, is_warm, n);
  };
  sweep(std::string(world.name) + ", " + kind.name, try_one);
}

std::string name_of(const testing::TestParamInfo<AllocationSweep::ParamType>& info) {
  const auto& [world, kind, warm, lasts] = info.param;
  static_cast<void>(lasts);
  return std::string(world.name) + kind.name + (warm ? "Repeated" : "First");
}

INSTANTIATE_TEST_SUITE_P(Once, AllocationSweep,
                         testing::Combine(testing::ValuesIn(kConfigurations), testing::ValuesIn(kCalls),
                                          testing::Bool(), testing::Values(false)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(
    Slow, AllocationSweep,
    testing::Combine(testing::ValuesIn(kConfigurations, kConfigurations + (TUTTI_EVERY_ALLOCATION ? 3 : 1)),
                     testing::ValuesIn(kSlowCalls), testing::Values(false), testing::Values(false)),
    name_of);

// Here all further allocations fail as well until the call has returned. Over TCP, a rank without memory cannot
// report its failure, so that each trial lasts until the peers time out. Therefore only the long program has these
// trials over TCP.
INSTANTIATE_TEST_SUITE_P(Lasting, AllocationSweep,
                         testing::Combine(testing::ValuesIn(kConfigurations,
                                                            kConfigurations + (TUTTI_EVERY_ALLOCATION ? 3 : 1)),
                                          testing::ValuesIn(kCalls), testing::Bool(), testing::Values(true)),
                         name_of);

}  // namespace
}  // namespace tutti::test
