// Tests of the dumps for PyTorch's analyser, on made-up recordings. export_test.py has PyTorch's analyser read dumps of
// real jobs. The pickles are read by a small reader of their own, so that these tests need no Python.
#include "tools/recorder/flight_dump.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/recorder/flight_calls.h"
#include "tools/recorder/pickle.h"
#include "tutti/types.h"

namespace tutti::tool {
namespace {

using Json = nlohmann::json;

// Reads what PickleWriter writes. A pair becomes an array.
class PickleReader {
 public:
  explicit PickleReader(std::string pickle) : pickle_(std::move(pickle)) {}

  Json read() {
    EXPECT_EQ(take(2), std::string("\x80\x02"));
    while (at_ < pickle_.size() && step(pickle_[at_++])) {
    }
    EXPECT_EQ(at_, pickle_.size()) << "bytes follow the end";
    EXPECT_EQ(stack_.size(), 1U);
    EXPECT_TRUE(marks_.empty());
    return stack_.empty() ? Json() : stack_.back();
  }

 private:
  bool step(char opcode) {
    switch (opcode) {
      case '(': marks_.push_back(stack_.size()); return true;
      case '}': stack_.push_back(Json::object()); return true;
      case ']': stack_.push_back(Json::array()); return true;
      case 'u': return close(true);
      case 'e': return close(false);
      case 'X': stack_.emplace_back(take(number(4))); return true;
      case 'J': stack_.emplace_back(static_cast<std::int32_t>(number(4))); return true;
      case '\x8a': stack_.emplace_back(static_cast<std::int64_t>(number(number(1)))); return true;
      case 'G': stack_.emplace_back(real()); return true;
      case '\x88': stack_.emplace_back(true); return true;
      case '\x89': stack_.emplace_back(false); return true;
      case 'N': stack_.emplace_back(nullptr); return true;
      case '\x86': {
        const Json second = pop();
        const Json first = pop();
        stack_.push_back(Json::array({first, second}));
        return true;
      }
      case '.': return false;
      default: ADD_FAILURE() << "unknown opcode " << static_cast<int>(opcode); return false;
    }
  }
  bool close(bool is_dict) {
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    Json& container = stack_[mark - 1];
    EXPECT_EQ(container.is_object(), is_dict);
    for (std::size_t i = mark; i < stack_.size(); i += is_dict ? 2 : 1) {
      if (is_dict) container[stack_.at(i).get<std::string>()] = stack_.at(i + 1);
      if (!is_dict) container.push_back(stack_[i]);
    }
    stack_.resize(mark);
    return true;
  }
  std::string take(std::size_t bytes) {
    const std::string part = pickle_.substr(at_, bytes);
    EXPECT_EQ(part.size(), bytes) << "the pickle is too short";
    at_ += bytes;
    return part;
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string part = take(bytes);
    for (std::size_t i = 0; i < part.size(); ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(part[i])} << (8 * i);
    }
    return value;
  }
  double real() {
    std::uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    return std::bit_cast<double>(bits);
  }
  Json pop() {
    Json top = stack_.back();
    stack_.pop_back();
    return top;
  }

  std::string pickle_;
  std::size_t at_ = 0;
  std::vector<Json> stack_;
  std::vector<std::size_t> marks_;
};

constexpr std::uint32_t kDumpedRanks = 3;

RecordedCall collective(std::uint64_t sequence, recording::State state = recording::State::kDone,
                        CollectiveKind kind = CollectiveKind::kAllReduce) {
  RecordedCall call;
  call.number = sequence;
  call.tag = {.sequence = sequence,
              .count = 8,
              .kind = static_cast<std::uint8_t>(kind),
              .type = static_cast<std::uint8_t>(DataType::kFloat32),
              .algorithm = static_cast<std::uint8_t>(Algorithm::kRing)};
  call.start_ns = static_cast<std::int64_t>(1000 * sequence);
  call.outcome = {.state = state, .way = recording::CallPath::kMessages};
  if (state == recording::State::kDone) call.end_ns = call.start_ns + 500;
  return call;
}

RecordedCall transfer(std::uint64_t sequence, bool sends, std::uint32_t peer,
                      recording::State state = recording::State::kDone, std::uint32_t transfers = 1) {
  RecordedCall call = collective(sequence, state, CollectiveKind::kSendReceive);
  call.outcome.way = recording::CallPath::kTransfers;
  call.outcome.flags = sends ? recording::kSends : std::uint8_t{0};
  call.peer = peer;
  call.transfers = transfers;
  return call;
}

// The recordings of a job's first communicator, without calls.
std::vector<Recording> dumped_job() {
  std::vector<Recording> ranks(kDumpedRanks);
  for (std::uint32_t rank = 0; rank < kDumpedRanks; ++rank) {
    ranks[rank].path = "file-of-" + std::to_string(rank);
    ranks[rank].job = ranks[rank].communicator = 0xabc;
    ranks[rank].rank = ranks[rank].job_rank = rank;
    ranks[rank].ranks = kDumpedRanks;
    ranks[rank].release = "9.8.7";
  }
  return ranks;
}

std::vector<Json> dumps_of(const std::vector<Recording>& ranks) {
  std::vector<Json> dumps;
  for (const FlightDump& dump : flight_dumps(ranks).dumps) dumps.push_back(PickleReader(dump.pickle).read());
  return dumps;
}

// The numbers of the entries of one process group.
std::vector<std::uint64_t> numbers(const Json& dump, const std::string& group) {
  std::vector<std::uint64_t> found;
  for (const Json& entry : dump["entries"]) {
    if (entry["process_group"][0] == group) found.push_back(entry["collective_seq_id"]);
  }
  return found;
}
using Numbers = std::vector<std::uint64_t>;

TEST(Pickle, EveryTypeIsReadBack) {
  PickleWriter pickle;
  pickle.open_list();
  const std::vector<std::int64_t> integers{0,
                                           -1,
                                           255,
                                           std::numeric_limits<std::int32_t>::max(),
                                           std::numeric_limits<std::int32_t>::min(),
                                           std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1,
                                           std::int64_t{std::numeric_limits<std::int32_t>::min()} - 1,
                                           std::numeric_limits<std::int64_t>::max(),
                                           std::numeric_limits<std::int64_t>::min()};
  for (const std::int64_t integer : integers) pickle.integer(integer);
  pickle.real(-0.15625);
  pickle.text("r\xc3\xa9sum\xc3\xa9 (x)");
  pickle.text("");
  pickle.boolean(true);
  pickle.boolean(false);
  pickle.none();
  pickle.pair("name", "desc");
  pickle.open_dict();
  pickle.text("inner");
  pickle.open_list();
  pickle.close_list();
  pickle.text("empty");
  pickle.open_dict();
  pickle.close_dict();
  pickle.close_dict();
  pickle.close_list();
  Json expected = integers;
  expected.insert(expected.end(), {-0.15625, "r\xc3\xa9sum\xc3\xa9 (x)", "", true, false, nullptr});
  expected.push_back(Json::array({"name", "desc"}));
  expected.push_back({{"inner", Json::array()}, {"empty", Json::object()}});
  EXPECT_EQ(PickleReader(std::move(pickle).finish()).read(), expected);
}

TEST(FlightDumps, AnEntryHasTheFieldsThatTheAnalyserReads) {
  auto ranks = dumped_job();
  for (Recording& one : ranks) one.calls = {collective(1), collective(2, recording::State::kRunning)};
  const Json dump = dumps_of(ranks).at(1);
  EXPECT_EQ(dump["version"], "2.10");
  EXPECT_EQ(dump["comm_lib_version"], "Tutti 9.8.7");
  EXPECT_EQ(dump["pg_config"],
            (Json{{"00000abc", {{"name", "00000abc"}, {"desc", "default_pg"}, {"ranks", "[0, 1, 2]"}}}}));
  EXPECT_EQ(
      dump["pg_status"],
      (Json{
          {"0", {{"last_enqueued_collective", 2}, {"last_started_collective", 2}, {"last_completed_collective", 1}}}}));
  Json entry = {
      {"record_id", 0},
      {"pg_id", 0},
      {"process_group", {"00000abc", "default_pg"}},
      {"collective_seq_id", 1},
      {"p2p_seq_id", 0},
      {"op_id", 1},
      {"profiling_name", "nccl:all_reduce"},
      {"is_p2p", false},
      {"input_sizes", {{8}}},
      {"input_dtypes", {"Float"}},
      {"output_sizes", {{8}}},
      {"output_dtypes", {"Float"}},
      {"state", "completed"},
      {"time_created_ns", 1000},
      {"time_discovered_started_ns", 1000},
      {"time_discovered_completed_ns", 1500},
      {"duration_ms", 0.0005},
      {"retired", true},
      {"frames", {{{"name", "all_reduce #1 (8 float32, sum, ring)"}, {"filename", "file-of-1"}, {"line", 1}}}}};
  ASSERT_EQ(dump["entries"].size(), 2U);
  EXPECT_EQ(dump["entries"][0], entry);
  EXPECT_EQ(dump["entries"][1]["state"], "started");
  EXPECT_EQ(dump["entries"][1]["time_discovered_completed_ns"], nullptr);
  EXPECT_EQ(dump["entries"][1]["retired"], false);
}

TEST(FlightDumps, AFailedCallIsNotCompletedAndHasItsError) {
  auto ranks = dumped_job();
  ranks[0].calls = {collective(1, recording::State::kFailed)};
  ranks[0].calls[0].outcome.code = static_cast<std::uint8_t>(ErrorCode::kTimeout);
  ranks[0].calls[0].outcome.culprit = 2;
  ranks[0].first_failure = RecordedFailure{5, 1, ErrorCode::kTimeout, 2, "rank 2 is late"};
  ranks[1].calls = ranks[0].calls;
  ranks[1].calls[0].outcome.flags = recording::kNotStarted;
  const auto dumps = dumps_of(ranks);
  const Json& entry = dumps[0]["entries"][0];
  EXPECT_EQ(entry["state"], "started");
  EXPECT_EQ(entry["retired"], true);
  EXPECT_EQ(entry["frames"][1]["name"], "failed: timeout, caused by rank 2 of the communicator: rank 2 is late");
  EXPECT_EQ(dumps[1]["entries"][0]["state"], "scheduled");
  EXPECT_EQ(dumps[1]["entries"][0]["time_discovered_started_ns"], nullptr);
  EXPECT_EQ(dumps[1]["entries"][0]["frames"][1]["name"], "failed: timeout, caused by rank 2 of the communicator");
}

TEST(FlightDumps, SizesAreThoseOfThisRanksBuffers) {
  struct Row {
    CollectiveKind kind;
    const char* name;
    Json input, output;              // on rank 0, the root
    Json other_input, other_output;  // on rank 1
  };
  const Json one = {{8}};
  const Json all = {{8 * kDumpedRanks}};
  const Json none = {{0}};
  for (const Row& row : {Row{CollectiveKind::kBroadcast, "nccl:broadcast", one, one, one, one},
                         Row{CollectiveKind::kReduce, "nccl:reduce", one, one, one, one},
                         Row{CollectiveKind::kAllGather, "nccl:_all_gather_base", one, all, one, all},
                         Row{CollectiveKind::kReduceScatter, "nccl:_reduce_scatter_base", all, one, all, one},
                         Row{CollectiveKind::kAllToAll, "nccl:all_to_all", all, all, all, all},
                         Row{CollectiveKind::kGather, "nccl:gather", one, all, one, none},
                         Row{CollectiveKind::kScatter, "nccl:scatter", all, one, none, one},
                         Row{CollectiveKind::kBarrier, "nccl:all_reduce_barrier", none, none, none, none}}) {
    auto ranks = dumped_job();
    for (Recording& rank : ranks) rank.calls = {collective(1, recording::State::kDone, row.kind)};
    const auto dumps = dumps_of(ranks);
    const Json& root = dumps[0]["entries"][0];
    const Json& other = dumps[1]["entries"][0];
    EXPECT_EQ(root["profiling_name"], row.name);
    EXPECT_EQ(root["input_sizes"], row.input) << row.name;
    EXPECT_EQ(root["output_sizes"], row.output) << row.name;
    EXPECT_EQ(other["input_sizes"], row.other_input) << row.name;
    EXPECT_EQ(other["output_sizes"], row.other_output) << row.name;
  }
}

TEST(FlightDumps, SegmentsOfALongCallAreOneEntry) {
  auto ranks = dumped_job();
  for (Recording& one : ranks) {
    one.calls = {collective(1), collective(1)};
    one.calls[1].number = 2;
    one.calls[0].bytes = one.calls[1].bytes = 16;  // of 32
    one.calls[1].start_ns = 2000;
    one.calls[1].end_ns = 2700;
  }
  ranks[1].calls.pop_back();  // the second segment has not begun
  ranks[2].calls[1].outcome.state = recording::State::kRunning;
  auto dumps = dumps_of(ranks);
  for (const Json& dump : dumps) ASSERT_EQ(dump["entries"].size(), 1U);
  EXPECT_EQ(dumps[0]["entries"][0]["state"], "completed");
  EXPECT_EQ(dumps[0]["entries"][0]["duration_ms"], 0.0017);
  EXPECT_EQ(dumps[0]["entries"][0]["input_sizes"], (Json{{8}}));
  for (const int rank : {1, 2}) {
    EXPECT_EQ(dumps[rank]["entries"][0]["state"], "started") << rank;
    EXPECT_EQ(dumps[rank]["entries"][0]["time_discovered_completed_ns"], nullptr) << rank;
  }
  // The first segment has failed, so the second one was never started.
  for (RecordedCall& call : ranks[0].calls) call.outcome.state = recording::State::kFailed;
  ranks[0].calls[1].outcome.flags = recording::kNotStarted;
  dumps = dumps_of(ranks);
  EXPECT_EQ(dumps[0]["entries"][0]["state"], "started");
  EXPECT_EQ(dumps[0]["entries"][0]["frames"].size(), 3U) << "the call, and the error of each segment";
}

TEST(FlightDumps, CallsThatARankHasOverwrittenAreLeftOutEverywhere) {
  auto ranks = dumped_job();
  for (std::uint64_t i = 1; i <= 9; ++i) {
    for (std::uint32_t rank = 0; rank < kDumpedRanks; ++rank) {
      if (i > rank * 2) ranks[rank].calls.push_back(collective(i));
    }
  }
  ranks[0].calls.pop_back();
  const auto dumps = dumps_of(ranks);
  EXPECT_EQ(numbers(dumps[0], "00000abc"), (Numbers{5, 6, 7, 8}));
  EXPECT_EQ(numbers(dumps[1], "00000abc"), (Numbers{5, 6, 7, 8, 9}));
  EXPECT_EQ(numbers(dumps[2], "00000abc"), (Numbers{5, 6, 7, 8, 9}));
  EXPECT_EQ(dumps[0]["entries"][0]["record_id"], 0);
}

TEST(FlightDumps, IfARankHasOverwrittenAllOnlyUndoneCallsAreShown) {
  auto ranks = dumped_job();
  ranks[0].calls = {collective(1), collective(2), collective(3, recording::State::kRunning)};
  ranks[1].calls = ranks[0].calls;
  ranks[2].calls = {transfer(700, true, 0)};
  const auto dumps = dumps_of(ranks);
  EXPECT_EQ(numbers(dumps[0], "00000abc"), Numbers{3});
  EXPECT_EQ(numbers(dumps[1], "00000abc"), Numbers{3});
  EXPECT_EQ(numbers(dumps[2], "00000abc"), Numbers{});
}

TEST(FlightDumps, TransfersAreMatchedByTheirNumbers) {
  auto ranks = dumped_job();
  ranks[2].calls = {transfer(1, true, 0), transfer(2, true, 0), transfer(3, true, 0, recording::State::kRunning)};
  ranks[0].calls = {transfer(2, false, 2), transfer(1, true, 2)};
  ranks[0].calls[0].number = 3;  // two older ones were overwritten
  ranks[0].calls[1].number = 4;
  const auto dumps = dumps_of(ranks);
  EXPECT_EQ(numbers(dumps[2], "00000abc 2->0"), (Numbers{2, 3})) << "1 is done, and rank 0 has overwritten it";
  EXPECT_EQ(numbers(dumps[0], "00000abc 2->0"), Numbers{2});
  EXPECT_EQ(numbers(dumps[0], "00000abc 0->2"), Numbers{}) << "done, and unknown on rank 2";
  EXPECT_EQ(flight_dumps(ranks).unmatched_calls, 2U);
  const Json& sent = dumps[2]["entries"][0];
  EXPECT_EQ(sent["profiling_name"], "nccl:send 1->0") << "numbers in the group of the ranks 0 and 2";
  EXPECT_EQ(sent["p2p_seq_id"], 2);
  EXPECT_EQ(sent["is_p2p"], true);
  EXPECT_EQ(dumps[0]["entries"][0]["profiling_name"], "nccl:recv 0<-1");
  EXPECT_EQ(dumps[2]["pg_config"]["00000abc 2->0"]["ranks"], "[0, 2]");
  EXPECT_FALSE(dumps[1]["pg_config"].contains("00000abc 2->0"));
}

TEST(FlightDumps, ATransferThatMayBeInAGroupOfTheOtherRankIsLeftOut) {
  auto ranks = dumped_job();
  ranks[0].calls = {transfer(1, true, 1, recording::State::kRunning)};
  EXPECT_EQ(numbers(dumps_of(ranks)[0], "00000abc 0->1"), Numbers{1}) << "rank 1 is missing";
  ranks[1].calls = {transfer(4, true, 2, recording::State::kRunning, 3)};
  EXPECT_EQ(numbers(dumps_of(ranks)[0], "00000abc 0->1"), Numbers{});
  ranks[1].calls[0].variable_call = 1;  // the group consists of the transfers of an all_to_all_v
  EXPECT_EQ(numbers(dumps_of(ranks)[0], "00000abc 0->1"), Numbers{1});
}

TEST(FlightDumps, VariantsOfSendsAndReceivesAreMatchedByTheirNumbers) {
  auto ranks = dumped_job();
  for (std::uint32_t rank = 0; rank < kDumpedRanks; ++rank) {
    for (std::uint64_t i = 1; i <= 3; ++i) {
      const auto state = i == 3 ? recording::State::kRunning : recording::State::kDone;
      RecordedCall call = transfer(10 * rank + i, true, (rank + 1) % kDumpedRanks, state, 4);
      call.tag.kind = static_cast<std::uint8_t>(CollectiveKind::kAllToAll);
      call.variable_call = i;
      call.number = 2 * i - 1;  // another call lies between them
      ranks[rank].calls.push_back(call);
    }
  }
  ranks[1].calls.erase(ranks[1].calls.begin());  // overwritten
  ranks[2].calls.pop_back();                     // has not entered the third one
  const auto dumps = dumps_of(ranks);
  EXPECT_EQ(numbers(dumps[0], "00000abc v"), (Numbers{2, 3}));
  EXPECT_EQ(numbers(dumps[1], "00000abc v"), (Numbers{2, 3}));
  EXPECT_EQ(numbers(dumps[2], "00000abc v"), Numbers{2});
  EXPECT_EQ(dumps[0]["entries"][0]["profiling_name"], "nccl:all_to_all");
  EXPECT_EQ(dumps[0]["entries"][0]["input_sizes"], Json::array({Json::array()}));
  EXPECT_EQ(dumps[0]["entries"][0]["is_p2p"], false);
  EXPECT_EQ(flight_dumps(ranks).unmatched_calls, 0U);
}

TEST(FlightDumps, CallsOnGpusHaveAGroupAndNumbersOfTheirOwn) {
  auto ranks = dumped_job();
  for (Recording& one : ranks) {
    for (std::uint64_t i = 1; i <= 3; ++i) {
      one.device_calls.push_back(collective(0, recording::State::kEnqueued));
      one.device_calls.back().number = i;
      one.device_calls.back().outcome.way = recording::CallPath::kDevice;
    }
  }
  ranks[1].device_calls[0].tag.algorithm = 0;  // a send
  ranks[1].device_calls.push_back(ranks[1].device_calls[1]);
  ranks[1].device_calls.back().number = 4;
  ranks[2].device_calls.erase(ranks[2].device_calls.begin());  // overwritten
  auto dumps = dumps_of(ranks);
  for (const Json& dump : dumps) EXPECT_EQ(numbers(dump, "00000abc gpu"), (Numbers{2, 3}));
  EXPECT_EQ(dumps[0]["entries"][0]["state"], "scheduled");
  EXPECT_EQ(dumps[0]["entries"][0]["time_discovered_started_ns"], nullptr);
  EXPECT_EQ(flight_dumps(ranks).unmatched_calls, 1U);
  ranks[1].device_calls.erase(ranks[1].device_calls.begin() + 1);
  ranks[1].device_calls[0].number = 2;  // a record before the send was overwritten, so the numbers are unknown
  for (const Json& dump : dumps_of(ranks)) EXPECT_EQ(numbers(dump, "00000abc gpu"), Numbers{});
  EXPECT_EQ(flight_dumps(ranks).unmatched_calls, 8U) << "no rank may seem to be missing";
  ranks[1] = dumped_job()[1];
  ranks[2].totals.kinds[static_cast<std::size_t>(CollectiveKind::kSendReceive)].device_calls = 1;
  for (const Json& dump : dumps_of(ranks)) {
    EXPECT_EQ(numbers(dump, "00000abc gpu"), Numbers{}) << "the overwritten record may have been a send";
  }
}

TEST(FlightDumps, ACommunicatorThatEndedWellWithoutAllRecordingsIsLeftOut) {
  auto ranks = dumped_job();
  for (Recording& one : ranks) one.calls = {collective(1)};
  auto second = dumped_job();
  second.pop_back();
  for (Recording& one : second) {
    one.communicator = 0xdef;
    one.calls = {collective(1)};
    one.ended_ns = 5000;
  }
  ranks.insert(ranks.end(), second.begin(), second.end());
  EXPECT_EQ(numbers(dumps_of(ranks)[0], "00000def"), Numbers{});
  EXPECT_FALSE(dumps_of(ranks)[0]["pg_config"].contains("00000def"));
  ranks.back().first_failure = RecordedFailure{};
  const Json dump = dumps_of(ranks)[0];
  EXPECT_EQ(numbers(dump, "00000def"), Numbers{1});
  EXPECT_EQ(dump["pg_config"]["00000def"]["ranks"], "[0, 1]");
  EXPECT_EQ(dump["pg_config"]["00000def"]["desc"], "undefined");
  EXPECT_EQ(flight_dumps({}).dumps.size(), 0U);
}

}  // namespace
}  // namespace tutti::tool
