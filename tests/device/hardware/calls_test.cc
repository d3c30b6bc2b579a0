// What calls on a GPU promise beyond their results, several ranks of this process on one GPU: that the GPU carries them
// out, by every protocol; replays of captured graphs; several communicators at once; ranks that do not come.
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

// For the communicators that are made while it lives.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    const char* const before = std::getenv(name);
    if (before != nullptr) before_ = before;
    had_ = before != nullptr;
    EXPECT_EQ(setenv(name, value.c_str(), 1), 0);
  }
  ~Setting() {
    if (had_) setenv(name_, before_.c_str(), 1);
    if (!had_) unsetenv(name_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
  std::string before_;
  bool had_ = false;
};

// Of whole bytes, so that every sum is known: rank r gives r + 1.
void check_sums(Communicator& rank, const Seat& seat, std::size_t bytes) {
  const auto ranks = static_cast<int>(rank.size());
  seat.put(seat.memory(), Bytes(bytes, static_cast<std::byte>(rank.rank() + 1)));
  const Status status =
      rank.all_reduce(seat.data(), seat.data(), bytes, DataType::kUint8, ReduceOp::kSum, seat.options());
  ASSERT_TRUE(status.ok()) << to_string(status.error());
  EXPECT_EQ(seat.get(seat.memory(), bytes), Bytes(bytes, static_cast<std::byte>(ranks * (ranks + 1) / 2)))
      << bytes << " bytes";
}

using GpuProtocols = GpuCalls;

// Lengths on both sides of what a line, a slot's payload and a tile hold.
TEST_F(GpuProtocols, GiveTheSameSums) {
  const std::vector<std::size_t> lengths = {1, 7, 8, 9, 119, 120, 121, 4'095, 4'097, 16'384, 16'385, 70'001};
  for (const char* protocol : {"simple", "ll", "ll128"}) {
    const Setting setting("TUTTI_DEVICE_PROTOCOL", protocol);
    on_every_seat(3, lengths.back(), [&](Communicator& rank, const Seat& seat) {
      for (const std::size_t bytes : lengths) check_sums(rank, seat, bytes);
      EXPECT_TRUE(rank.async_status().ok());
      expect_on_the_gpu(rank, lengths.size());
    });
  }
}

class Graph {
 public:
  // What `body` puts into the stream.
  template <class Body>
  Graph(const Seat& seat, const Body& body) : api_(seat.api()) {
    EXPECT_EQ(api_.stream_begin_capture(seat.stream(), cuda::CaptureMode::kThreadLocal), cuda::CUresult::kSuccess);
    body();
    cuda::CUgraph graph = nullptr;
    EXPECT_EQ(api_.stream_end_capture(seat.stream(), &graph), cuda::CUresult::kSuccess);
    EXPECT_EQ(api_.graph_instantiate(&executable_, graph, 0), cuda::CUresult::kSuccess);
    EXPECT_EQ(api_.graph_destroy(graph), cuda::CUresult::kSuccess);
  }
  ~Graph() { EXPECT_EQ(api_.graph_exec_destroy(executable_), cuda::CUresult::kSuccess); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const Seat& seat) const {
    EXPECT_EQ(api_.graph_launch(executable_, seat.stream()), cuda::CUresult::kSuccess);
  }

 private:
  const cuda::DriverApi& api_;
  cuda::CUgraphExec executable_ = nullptr;
};

using GpuGraphs = GpuCalls;

// Makes the second stream take part in the capture of the first, and the first wait for what it has captured.
void order(const Seat& first, const Seat& second) {
  const auto event = cuda::Event::create(first.driver());
  ASSERT_TRUE(event.ok()) << to_string(event.error());
  ASSERT_TRUE(event->record(first.stream()).ok());
  ASSERT_EQ(first.api().stream_wait_event(second.stream(), event->handle(), 0), cuda::CUresult::kSuccess);
}

// Ranks of one process and GPU are captured in one graph, by one thread, in a Group. Each replay sums anew.
TEST_F(GpuGraphs, AreReplayed) {
  constexpr std::size_t kBytes = 50'000;
  Communicators all = make_ranks(2);
  {
    const std::vector<Seat> seats = seats_for(all, kBytes);
    const Seat& first = seats[0];
    for (const Seat& seat : seats) seat.put(seat.memory(), Bytes(kBytes, std::byte{1}));
    const Graph graph(first, [&] {
      order(first, seats[1]);
      for (int call = 0; call < 2; ++call) {
        Group group;
        for (std::size_t i = 0; i < all.size(); ++i) {
          const CollectiveCall sum{
              .input = seats[i].data(), .output = seats[i].data(), .count = kBytes, .type = DataType::kUint8};
          ASSERT_TRUE(group.add(*all[i], sum, seats[i].options()).ok());
        }
        const Status status = group.run();
        ASSERT_TRUE(status.ok()) << to_string(status.error());
      }
      order(seats[1], first);
    });
    for (int replay = 0; replay < 3; ++replay) graph.launch(first);  // twice 2 x each
    EXPECT_EQ(first.get(seats[0].memory(), kBytes), Bytes(kBytes, std::byte{64}));
    EXPECT_EQ(first.get(seats[1].memory(), kBytes), Bytes(kBytes, std::byte{64}));
    for (const auto& rank : all) {
      EXPECT_TRUE(rank->async_status().ok());
      expect_on_the_gpu(*rank, 2);  // as they were captured
    }
    for (const Seat& seat : seats) seat.put(seat.memory(), Bytes(kBytes, std::byte{3}));
    graph.launch(first);
    EXPECT_EQ(first.get(seats[1].memory(), kBytes), Bytes(kBytes, std::byte{12}));
  }
  all.clear();
}

using GpuCommunicators = GpuCalls;

// Calls of three communicators are under way at once, each in a stream of its own.
TEST_F(GpuCommunicators, ShareTheGpu) {
  constexpr std::size_t kBytes = 40'000;
  constexpr int kMany = 3;
  std::array<Communicators, kMany> all;
  for (Communicators& each : all) each = make_ranks(2);
  {
    std::vector<std::vector<Seat>> seats;
    for (const Communicators& each : all) seats.push_back(seats_for(each, kBytes));
    on_every_rank(all[0], [&](Communicator& one) {
      const auto me = static_cast<std::size_t>(one.rank());
      const auto scope = seats[0][me].enter();
      for (int round = 0; round < 4; ++round) {
        for (std::size_t i = 0; i < kMany; ++i) {
          const Seat& seat = seats[i][me];
          if (round == 0) seat.put(seat.memory(), Bytes(kBytes, static_cast<std::byte>(i + me + 1)));
          const Status status = all[i][me]->all_reduce(seat.data(), seat.data(), kBytes, DataType::kUint8,
                                                       ReduceOp::kSum, seat.options());
          ASSERT_TRUE(status.ok()) << to_string(status.error());
        }
      }
      for (std::size_t i = 0; i < kMany; ++i) {  // 2 i + 3, then thrice twice as much
        EXPECT_EQ(seats[i][me].get(seats[i][me].memory(), kBytes),
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

// A rank that does not come: the others' streams go on, the error names it, another communicator works.
TEST_F(GpuFailures, ARankThatDoesNotComeIsNamed) {
  constexpr std::size_t kBytes = 4'096;
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(500);
  auto made = Communicator::create_all(2, options);
  ASSERT_TRUE(made.ok()) << to_string(made.error());
  Communicators broken = *std::move(made);
  Communicators sound = make_ranks(2);
  {
    const std::vector<Seat> seats = seats_for(broken, kBytes);
    const Seat& seat = seats[0];
    auto work = broken[0]->start(
        {.input = seat.data(), .output = seat.data(), .count = kBytes, .type = DataType::kUint8}, seat.options());
    ASSERT_TRUE(work.ok()) << to_string(work.error());
    const Status status = work->wait();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
    EXPECT_EQ(status.error().rank, 1) << to_string(status.error());
    static_cast<void>(seat.get(seat.memory(), kBytes));
    EXPECT_FALSE(broken[0]->async_status().ok()) << "it was forgotten";
    on_every_rank(sound, [&](Communicator& rank) {
      const Seat& its = seats[static_cast<std::size_t>(rank.rank())];
      const auto scope = its.enter();
      check_sums(rank, its, kBytes);
    });
  }
  sound.clear();
  broken.clear();
}

}  // namespace
}  // namespace tutti::test
