// machines_rank MODE [ARGUMENTS]: one rank of a job over several machines. machines_test.sh starts it once for every
// rank, in the network namespace of its machine. Rank, size and root come from the environment. All ranks of a job get
// the same MODE. Exit status: 0; 1 if a result was wrong; 2 if the set-up failed; 3 if a collective failed.
//
//   collectives          makes every collective with every algorithm, and compares the results exactly
//   split LOCAL_RANK     splits into the ranks of this machine, and into the ranks with this number on all machines
//   bytes ALGORITHM      measures the bytes that one all_reduce of 4 MiB sends over the machine's cable
//   loop ALGORITHM MIB [INTERFACE]   repeats all_reduce until one fails, and prints the error; INTERFACE is
//                        CommunicatorOptions::interface
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>

#include "conformance/suite.h"
#include "tests/support/patience.h"

namespace tutti::test {
namespace {

// No rank outlives a broken test.
const unsigned kLifeSeconds = static_cast<unsigned>(4 * patience() / std::chrono::seconds(1));

bool failed() { return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed(); }

// Returns the number of bytes that this machine has sent through its cable.
std::int64_t bytes_sent() {
  std::ifstream devices("/proc/net/dev");
  std::string line;
  while (std::getline(devices, line)) {
    long long received = 0, sent = 0;
    if (std::sscanf(line.c_str(), " eth0: %lld %*d %*d %*d %*d %*d %*d %*d %lld", &received, &sent) == 2) return sent;
  }
  ADD_FAILURE() << "this machine has no eth0";
  return 0;
}

// Returns the number of bytes that this machine sends while all ranks execute `work`. The bytes of the barriers and
// of acknowledgements are included.
std::int64_t bytes_moved(Communicator& all, const std::function<void()>& work) {
  EXPECT_TRUE(all.barrier().ok());
  const std::int64_t before = bytes_sent();
  EXPECT_TRUE(all.barrier().ok());
  work();
  EXPECT_TRUE(all.barrier().ok());
  const std::int64_t after = bytes_sent();
  EXPECT_TRUE(all.barrier().ok());
  return after - before;
}

std::vector<Case> cases_of(std::int32_t ranks) {
  std::vector<Case> cases;
  for (const CollectiveKind kind : all_collectives()) {
    std::vector<Algorithm> algorithms = algorithms_of(kind);
    algorithms.push_back(Algorithm::kAuto);
    for (const Algorithm algorithm : algorithms) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4099}, std::size_t{70'001}}) {
        for (const bool registered : {false, true}) {
          const std::int32_t root = count == 1 ? ranks - 1 : static_cast<std::int32_t>(count) % ranks;
          cases.push_back({.kind = kind,
                           .count = kind == CollectiveKind::kBarrier ? 0 : count,
                           .type = count == 1 ? DataType::kInt64 : DataType::kFloat32,
                           .root = root,
                           .in_place = registered == (count == 1),
                           .registered = registered,
                           .algorithm = algorithm});
        }
      }
    }
  }
  return cases;
}

// Block r has 1000 r + r % 2 elements.
void all_gather_v_case(Communicator& rank) {
  std::vector<std::size_t> counts;
  for (std::int32_t r = 0; r < rank.size(); ++r) counts.push_back(static_cast<std::size_t>(1000 * r + r % 2));
  std::vector<std::int32_t> own(counts[static_cast<std::size_t>(rank.rank())], rank.rank());
  std::vector<std::int32_t> whole(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), -1), want;
  for (std::int32_t r = 0; r < rank.size(); ++r) want.insert(want.end(), counts[static_cast<std::size_t>(r)], r);
  const Status status = rank.all_gather_v(own.data(), whole.data(), {.counts = counts}, DataType::kInt32);
  ASSERT_TRUE(status.ok()) << to_string(status.error());
  ASSERT_EQ(whole, want);
}

// Rank r sends q + 1 elements with the value 100 r + q to rank q.
void all_to_all_v_case(Communicator& rank) {
  std::vector<std::size_t> to, from;
  std::vector<std::int32_t> in, want;
  for (std::int32_t q = 0; q < rank.size(); ++q) {
    to.push_back(static_cast<std::size_t>(q) + 1);
    from.push_back(static_cast<std::size_t>(rank.rank()) + 1);
    in.insert(in.end(), to.back(), 100 * rank.rank() + q);
    want.insert(want.end(), from.back(), 100 * q + rank.rank());
  }
  std::vector<std::int32_t> out(want.size(), -1);
  const Status status = rank.all_to_all_v(in.data(), {.counts = to}, out.data(), {.counts = from}, DataType::kInt32);
  ASSERT_TRUE(status.ok()) << to_string(status.error());
  ASSERT_EQ(out, want);
}

// Each rank sends to the next one in a ring, and receives from the previous one.
void transfer_case(Communicator& rank) {
  const std::int32_t ranks = rank.size();
  const std::int32_t next = (rank.rank() + 1) % ranks, previous = (rank.rank() + ranks - 1) % ranks;
  std::vector<std::int32_t> in(100'003, rank.rank()), out(in.size(), -1);
  Group group;
  ASSERT_TRUE(group.send(rank, in.data(), in.size(), DataType::kInt32, next).ok());
  ASSERT_TRUE(group.receive(rank, out.data(), out.size(), DataType::kInt32, previous).ok());
  const Status status = group.run();
  ASSERT_TRUE(status.ok()) << to_string(status.error());
  ASSERT_EQ(out, std::vector<std::int32_t>(out.size(), previous));
}

void run_collectives(Communicator& rank) {
  const std::vector<Case> cases = cases_of(rank.size());
  for (const Case& each : cases) {
    run_case(rank, each);
    if (failed()) return;
  }
  all_gather_v_case(rank);
  all_to_all_v_case(rank);
  transfer_case(rank);
  std::printf("rank %d of %d: %zu calls right\n", rank.rank(), rank.size(), cases.size() + 3);
}

// A machine is identified by the number of its network namespace.
std::int32_t lowest_rank_of_this_machine(Communicator& rank) {
  std::array<char, 64> name{};
  EXPECT_GT(readlink("/proc/self/ns/net", name.data(), name.size() - 1), 0);
  std::vector<std::array<char, 64>> names(static_cast<std::size_t>(rank.size()));
  EXPECT_TRUE(rank.all_gather(name.data(), names.data(), name.size(), DataType::kInt8).ok());
  return static_cast<std::int32_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

void run_split(Communicator& rank, std::int32_t local_rank) {
  constexpr std::size_t kCount = 1 << 20;
  const std::int32_t machine = lowest_rank_of_this_machine(rank);
  std::printf("rank %d: splitting by machine\n", rank.rank());
  auto inside = rank.split(machine);
  ASSERT_TRUE(inside.ok()) << to_string(inside.error());
  std::printf("rank %d: splitting across\n", rank.rank());
  auto across = rank.split(local_rank, -rank.rank());
  ASSERT_TRUE(across.ok()) << to_string(across.error());
  ASSERT_EQ((*inside)->rank(), local_rank);
  const std::int64_t by_inside = bytes_moved(rank, [&] { EXPECT_TRUE(sum_is_right(**inside, kCount)); });
  const std::int64_t by_across = bytes_moved(rank, [&] { EXPECT_TRUE(sum_is_right(**across, kCount)); });
  std::printf("rank %d: inside has %d ranks and sends %lld bytes, across has %d ranks and sends %lld bytes\n",
              rank.rank(), (*inside)->size(), static_cast<long long>(by_inside), (*across)->size(),
              static_cast<long long>(by_across));
  EXPECT_LT(by_inside, 100'000) << "a call inside the machine must cause no traffic";
  EXPECT_GT(by_across, 2'000'000) << "a call across the machines must cause traffic";
}

void run_bytes(Communicator& rank, Algorithm algorithm) {
  const std::size_t count = 1 << 20;
  EXPECT_TRUE(sum_is_right(rank, count, with(algorithm)));  // opens the connections
  const std::int64_t moved = bytes_moved(rank, [&] { EXPECT_TRUE(sum_is_right(rank, count, with(algorithm))); });
  std::printf("rank %d: %lld bytes left this machine\n", rank.rank(), static_cast<long long>(moved));
}

int run_loop(Communicator& rank, Algorithm algorithm, std::size_t mebibytes) {
  std::vector<float> data(mebibytes << 18);
  using Clock = std::chrono::steady_clock;
  for (int call = 0;; ++call) {
    if (call == 5) std::printf("rank %d runs\n", rank.rank());
    const auto before = Clock::now();
    const Status status =
        rank.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax, with(algorithm));
    if (status.ok()) continue;
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - before);
    std::printf("rank %d: call %d ended after %lld ms, blames %d: %s\n", rank.rank(), call,
                static_cast<long long>(waited.count()), status.error().rank, to_string(status.error()).c_str());
    return 3;
  }
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  CommunicatorOptions options;
  if (mode == "loop" && argc > 4) options.interface = argv[4];
  auto rank = Communicator::create(options);
  if (!rank.ok()) {
    std::printf("set-up: %s\n", to_string(rank.error()).c_str());
    return 2;
  }
  const Algorithm algorithm = parse_algorithm(argument).value_or(Algorithm::kAuto);
  if (mode == "collectives") {
    run_collectives(**rank);
  } else if (mode == "split") {
    run_split(**rank, std::stoi(argument));
  } else if (mode == "bytes") {
    run_bytes(**rank, algorithm);
  } else if (mode == "loop") {
    return run_loop(**rank, algorithm, std::stoul(argv[3]));
  } else {
    ADD_FAILURE() << "mode \"" << mode << "\"";
  }
  if (!failed()) {
    EXPECT_TRUE((*rank)->finalize().ok());
  }
  return failed() ? 1 : 0;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  testing::InitGoogleTest(&argc, argv);
  alarm(tutti::test::kLifeSeconds);
  return tutti::test::run(argc, argv);
}
