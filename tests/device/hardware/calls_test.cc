// Tests of calls on a GPU, with several ranks of this process on one GPU: the GPU must carry out the calls with every
// protocol; captured graphs are replayed; several communicators are used at the same time; a rank does not make its
// call.
#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/device/hardware/support.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using Bytes = std::vector<std::byte>;

// Sets an environment variable while this object exists. The setting applies to communicators that are created
// meanwhile.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    const char* const before = std::getenv(name);
    if (before != nullptr) before_ = before;
    had_ = before != nullptr;
    EXPECT_EQ(setenv(name, value.c_str(), 1), 0);
  }
  ~ScopedVariable() {
    if (had_) setenv(name_, before_.c_str(), 1);
    if (!had_) unsetenv(name_);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
  std::string before_;
  bool had_ = false;
};

// Runs an all_reduce of bytes and checks the result. All input bytes of rank r are r + 1.
void check_sums(Communicator& rank, const RankResources& resources, std::size_t bytes) {
  const auto ranks = static_cast<int>(rank.size());
  resources.put(resources.memory(), Bytes(bytes, static_cast<std::byte>(rank.rank() + 1)));
  const Status status =
      rank.all_reduce(resources.data(), resources.data(), bytes, DataType::kUint8, ReduceOp::kSum, resources.options());
  ASSERT_TRUE(status.ok()) << to_string(status.error());
  EXPECT_EQ(resources.get(resources.memory(), bytes), Bytes(bytes, static_cast<std::byte>(ranks * (ranks + 1) / 2)))
      << bytes << " bytes";
}

using GpuProtocols = GpuCalls;

// The lengths are just below and above the capacity of a line, of a slot and of a tile.
TEST_F(GpuProtocols, GiveTheSameSums) {
  const std::vector<std::size_t> lengths = {1, 7, 8, 9, 119, 120, 121, 4'095, 4'097, 16'384, 16'385, 70'001};
  for (const char* protocol : {"simple", "ll", "ll128"}) {
    const ScopedVariable setting("TUTTI_DEVICE_PROTOCOL", protocol);
    run_with_resources(3, lengths.back(), [&](Communicator& rank, const RankResources& resources) {
      for (const std::size_t bytes : lengths) check_sums(rank, resources, bytes);
      EXPECT_TRUE(rank.async_status().ok());
      expect_on_the_gpu(rank, lengths.size());
    });
  }
}

// An executable graph of the work that `body` adds to the stream.
class Graph {
 public:
  template <class Body>
  Graph(const RankResources& resources, const Body& body) : api_(resources.api()) {
    EXPECT_EQ(api_.stream_begin_capture(resources.stream(), cuda::CaptureMode::kThreadLocal), cuda::CUresult::kSuccess);
    body();
    cuda::CUgraph graph = nullptr;
    EXPECT_EQ(api_.stream_end_capture(resources.stream(), &graph), cuda::CUresult::kSuccess);
    EXPECT_EQ(api_.graph_instantiate(&executable_, graph, 0), cuda::CUresult::kSuccess);
    EXPECT_EQ(api_.graph_destroy(graph), cuda::CUresult::kSuccess);
  }
  ~Graph() { EXPECT_EQ(api_.graph_exec_destroy(executable_), cuda::CUresult::kSuccess); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const RankResources& resources) const {
    EXPECT_EQ(api_.graph_launch(executable_, resources.stream()), cuda::CUresult::kSuccess);
  }

 private:
  const cuda::DriverApi& api_;
  cuda::CUgraphExec executable_ = nullptr;
};

using GpuGraphs = GpuCalls;

// Makes the second stream wait for the work that the first stream has so far. If the first stream is capturing, the
// second stream thereby becomes part of the capture.
void order(const RankResources& first, const RankResources& second) {
  const auto event = cuda::Event::create(first.driver());
  ASSERT_TRUE(event.ok()) << to_string(event.error());
  ASSERT_TRUE(event->record(first.stream()).ok());
  ASSERT_EQ(first.api().stream_wait_event(second.stream(), event->handle(), 0), cuda::CUresult::kSuccess);
}

// One thread captures the calls of two ranks on one GPU into one graph, with a Group. Each replay makes the sums again.
TEST_F(GpuGraphs, AreReplayed) {
  constexpr std::size_t kBytes = 50'000;
  Communicators all = make_ranks(2);
  {
    const std::vector<RankResources> all_resources = make_resources(all, kBytes);
    const RankResources& first = all_resources[0];
    for (const RankResources& resources : all_resources) resources.put(resources.memory(), Bytes(kBytes, std::byte{1}));
    const Graph graph(first, [&] {
      order(first, all_resources[1]);
      for (int call = 0; call < 2; ++call) {
        Group group;
        for (std::size_t i = 0; i < all.size(); ++i) {
          const CollectiveCall sum{.input = all_resources[i].data(),
                                   .output = all_resources[i].data(),
                                   .count = kBytes,
                                   .type = DataType::kUint8};
          ASSERT_TRUE(group.add(*all[i], sum, all_resources[i].options()).ok());
        }
        const Status status = group.run();
        ASSERT_TRUE(status.ok()) << to_string(status.error());
      }
      order(all_resources[1], first);
    });
    for (int replay = 0; replay < 3; ++replay) graph.launch(first);  // each replay doubles the values twice
    EXPECT_EQ(first.get(all_resources[0].memory(), kBytes), Bytes(kBytes, std::byte{64}));
    EXPECT_EQ(first.get(all_resources[1].memory(), kBytes), Bytes(kBytes, std::byte{64}));
    for (const auto& rank : all) {
      EXPECT_TRUE(rank->async_status().ok());
      expect_on_the_gpu(*rank, 2);  // the two captured calls; replays do not count
    }
    for (const RankResources& resources : all_resources) resources.put(resources.memory(), Bytes(kBytes, std::byte{3}));
    graph.launch(first);
    EXPECT_EQ(first.get(all_resources[1].memory(), kBytes), Bytes(kBytes, std::byte{12}));
  }
  all.clear();
}

using GpuCommunicators = GpuCalls;

// Calls of three communicators are in progress at the same time, each in a stream of its own.
TEST_F(GpuCommunicators, ShareTheGpu) {
  constexpr std::size_t kBytes = 40'000;
  constexpr int kMany = 3;
  std::array<Communicators, kMany> all;
  for (Communicators& each : all) each = make_ranks(2);
  {
    std::vector<std::vector<RankResources>> all_resources;
    for (const Communicators& each : all) all_resources.push_back(make_resources(each, kBytes));
    on_every_rank(all[0], [&](Communicator& one) {
      const auto me = static_cast<std::size_t>(one.rank());
      const auto scope = all_resources[0][me].enter();
      for (int round = 0; round < 4; ++round) {
        for (std::size_t i = 0; i < kMany; ++i) {
          const RankResources& resources = all_resources[i][me];
          if (round == 0) resources.put(resources.memory(), Bytes(kBytes, static_cast<std::byte>(i + me + 1)));
          const Status status = all[i][me]->all_reduce(resources.data(), resources.data(), kBytes, DataType::kUint8,
                                                       ReduceOp::kSum, resources.options());
          ASSERT_TRUE(status.ok()) << to_string(status.error());
        }
      }
      for (std::size_t i = 0; i < kMany; ++i) {  // the first sum is 2 i + 3, and three more calls double it
        EXPECT_EQ(all_resources[i][me].get(all_resources[i][me].memory(), kBytes),
                  Bytes(kBytes, static_cast<std::byte>(8 * (2 * i + 3))))
            << "communicator " << i;
        EXPECT_TRUE(all[i][me]->async_status().ok());
        expect_on_the_gpu(*all[i][me], 4);
      }
    });
  }
  for (Communicators& each : all) each.clear();
}

using GpuFailures = GpuCalls;

// Rank 1 does not make the call. The stream of rank 0 must continue, the error must name rank 1, and another
// communicator must still work.
TEST_F(GpuFailures, ARankThatDoesNotComeIsNamed) {
  constexpr std::size_t kBytes = 4'096;
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(500);
  auto made = Communicator::create_all(2, options);
  ASSERT_TRUE(made.ok()) << to_string(made.error());
  Communicators broken = *std::move(made);
  Communicators sound = make_ranks(2);
  {
    const std::vector<RankResources> all_resources = make_resources(broken, kBytes);
    const RankResources& resources = all_resources[0];
    auto work = broken[0]->start(
        {.input = resources.data(), .output = resources.data(), .count = kBytes, .type = DataType::kUint8},
        resources.options());
    const Status status = work.ok() ? work->wait() : Status(work.error());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
    EXPECT_EQ(status.error().rank, 1) << to_string(status.error());
    static_cast<void>(resources.get(resources.memory(), kBytes));
    EXPECT_FALSE(broken[0]->async_status().ok()) << "async_status() does not report the error";
    on_every_rank(sound, [&](Communicator& rank) {
      const RankResources& its = all_resources[static_cast<std::size_t>(rank.rank())];
      const auto scope = its.enter();
      check_sums(rank, its, kBytes);
    });
  }
  sound.clear();
  broken.clear();
}

}  // namespace
}  // namespace tutti::test
