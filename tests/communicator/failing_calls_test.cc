// Fails each call of the operating system that a rank makes once. For each n, the test starts a job of processes. In
// one of them, the victim, the n-th call of one type fails (see failing_calls.h). It fails either during the set-up
// or during the calls after it. The requirements are:
// - No process hangs or crashes.
// - A result that is reported as good is right.
// - The victim's error states the cause and a remedy, and the errors of the other ranks name the victim.
// - After the ranks are destroyed, no descriptor and no shared memory is left.
//
// The sweep over n ends when a job finishes before its n-th call. The long program tries every n, the short one a
// few values that are spread evenly.
#include "support/failing_calls.h"

#include <deque>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <thread>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using failing_calls::Fault;
using std::chrono::milliseconds;

enum class Stage { kCreate, kCalls };

[[maybe_unused]] void PrintTo(Stage stage, std::ostream* out) {
  *out << (stage == Stage::kCreate ? "kCreate" : "kCalls");
}

struct ProcessJob {
  const char* name;
  const char* transport;
  std::int32_t ranks;
  bool two_nodes = false;  // the last rank is on a machine of its own
  bool encrypt = false;
  friend void PrintTo(const ProcessJob& world, std::ostream* out) { *out << world.name; }
};
constexpr ProcessJob kJobs[] = {{"Shm", "shm", 2}, {"Tcp", "tcp", 2}, {"Mixed", "auto", 3, true}};
[[maybe_unused]] constexpr ProcessJob kEncryptedJobs[] = {{"Tls", "tcp", 2, false, true}};

struct FaultKind {
  const char* name;
  Fault fault;
  const char* cause;   // text that the victim's error must contain: the cause
  const char* remedy;  // text that the victim's error must contain: the remedy
  [[maybe_unused]] friend void PrintTo(const FaultKind& kind, std::ostream* out) { *out << kind.name; }
};
constexpr FaultKind kFaults[] = {
    {"Mapping", Fault::kMapping, "emory", "raise"},
    {"Descriptor", Fault::kDescriptor, "open files", "ulimit -n"},
    {"Descriptors", Fault::kDescriptors, "open files", "ulimit -n"},
    {"Message", Fault::kMessage, "emory", "raise"},
    {"LostDescriptor", Fault::kLostDescriptor, "descriptor", "ulimit -n"},
    {"Library", Fault::kLibrary, "lib", ""},
    {"Thread", Fault::kThread, "no thread can be started", "ulimit -u"},
    {"FileSpace", Fault::kFileSpace, "space", ""},
};
[[maybe_unused]] constexpr FaultKind kLibraryFault[] = {kFaults[5]};

struct Trial {
  ProcessJob world;
  FaultKind kind;
  Stage stage;
  std::int32_t victim;
  std::int64_t n;
};

// Exit statuses of a rank's process.
enum Outcome : int { kFine = 0, kNotReached = 10, kWrongData = 11, kWrongMessage = 12, kLeft = 13 };

constexpr std::size_t kCount = 300'007;
constexpr std::size_t kRegistered = std::size_t{2} << 20;  // in bytes

bool verbose() { return std::getenv("TUTTI_TEST_VERBOSE") != nullptr; }

// The resources that a communicator must release: descriptors, and mappings of shared memory.
struct OpenResources {
  std::size_t descriptors = 0;
  std::size_t mappings = 0;
};

OpenResources open_resources() {
  OpenResources open_resources;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++open_resources.descriptors;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) open_resources.mappings += line.find("tutti") != line.npos ? 1 : 0;
  return open_resources;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Makes the calls of one rank on one communicator, and checks their results.
class Rank {
 public:
  Rank(const Trial& trial, std::int32_t number) : trial_(trial), number_(number) {}

  // noexcept: an exception ends the process, as it would in a program that does not catch it
  int run(const CommunicatorOptions& options) noexcept {
    const OpenResources before = open_resources();
    if (trial_.stage == Stage::kCreate) begin_to_fail();
    auto made = Communicator::create(options);
    if (!made) {
      judge(made.error(), "create");
    } else {
      if (trial_.stage == Stage::kCalls) begin_to_fail();
      make_calls(**made);
      made->reset();
    }
    failing_calls::fail_nth(trial_.kind.fault, 0);  // open_resources() opens files, so no call may fail any more
    const OpenResources after = open_resources();
    if (after.descriptors > before.descriptors || after.mappings > before.mappings) {
      std::fprintf(stderr, "rank %d: %zu descriptors and %zu mappings left, of %zu and %zu\n", number_,
                   after.descriptors - before.descriptors, after.mappings - before.mappings, before.descriptors,
                   before.mappings);
      worst_ = kLeft;
    }
    if (worst_ != kFine || number_ != trial_.victim) return worst_;
    return failing_calls::counted() < trial_.n ? kNotReached : kFine;
  }

 private:
  void begin_to_fail() const {
    if (number_ == trial_.victim) failing_calls::fail_nth(trial_.kind.fault, trial_.n);
  }

  void make_calls(Communicator& rank) {
    std::vector<float> output(kCount);
    const auto sum_into = [&](const char* name, float* data) {
      for (std::size_t i = 0; i < kCount; ++i) data[i] = input_of(number_, i);
      const Status status = rank.all_reduce(data, data, kCount, DataType::kFloat32, ReduceOp::kSum);
      expect(status, name, data, [&](std::size_t i) { return sum_of(rank.size(), i); });
    };
    sum_into("all_reduce", output.data());
    auto memory = rank.allocate(kRegistered);
    if (!memory) judge(memory.error(), "allocate");
    sum_into("all_reduce of registered memory",
             memory ? static_cast<float*>(static_cast<void*>(memory->data())) : output.data());
    std::vector<float> input(kCount);
    for (std::size_t i = 0; i < kCount; ++i) input[i] = input_of(number_, i);
    if (number_ == 0) {
      expect(rank.send(input.data(), kCount, DataType::kFloat32, 1), "send");
    } else if (number_ == 1) {
      const Status status = rank.receive(output.data(), kCount, DataType::kFloat32, 0);
      expect(status, "receive", output.data(), [](std::size_t i) { return input_of(0, i); });
    }
    auto work = start_sum(rank, input.data(), output.data(), kCount);
    while (work.ok() && !work->test()) std::this_thread::yield();
    const Status status = work.ok() ? work->wait() : Status(work.error());
    expect(status, "all_reduce in the background", output.data(),
           [&](std::size_t i) { return sum_of(rank.size(), i); });
    // This is a barrier: a rank must not free its memory before all ranks have read it.
    expect(rank.all_reduce(nullptr, nullptr, 0, DataType::kInt8, ReduceOp::kSum), "barrier");
  }

  void expect(const Status& status, const char* call) {
    if (!status.ok()) judge(status.error(), call);
  }
  void expect(const Status& status, const char* call, const float* data,
              const std::function<float(std::size_t)>& right) {
    expect(status, call);
    if (!status.ok()) return;
    for (std::size_t i = 0; i < kCount; ++i) {
      if (data[i] == right(i)) continue;
      std::fprintf(stderr, "rank %d, %s: element %zu is wrong\n", number_, call, i);
      worst_ = kWrongData;
      return;
    }
  }

  // Checks only the first error, because later errors may just report that the communicator is broken. A timeout
  // need not name the victim, because a third rank cannot detect which of the other ranks is at fault.
  void judge(const Error& error, const char* call) {
    if (verbose()) std::fprintf(stderr, "  rank %d, %s: %s\n", number_, call, to_string(error).c_str());
    if (std::exchange(failed_, true)) return;
    const std::string victim = std::to_string(trial_.victim);
    const bool right = number_ == trial_.victim
                           ? contains(error.message, trial_.kind.cause) && contains(error.message, trial_.kind.remedy)
                           : error.rank == trial_.victim || error.code == ErrorCode::kTimeout ||
                                 contains(error.message, "rank " + victim) ||
                                 contains(error.message, "rank(s) " + victim);
    if (right) return;
    std::fprintf(stderr, "rank %d, %s: the message is no help: %s\n", number_, call, to_string(error).c_str());
    worst_ = kWrongMessage;
  }

  const Trial& trial_;
  const std::int32_t number_;
  bool failed_ = false;
  int worst_ = kFine;
};

std::string described(const Trial& trial) {
  return std::string(trial.kind.name) + " " + std::to_string(trial.n) + " of rank " + std::to_string(trial.victim) +
         (trial.stage == Stage::kCreate ? " while creating, " : " in calls, ") + trial.world.name;
}

// Starts the processes of one job.
std::vector<pid_t> start_job(const Trial& trial, const std::filesystem::path& recordings) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (std::int32_t number = 0; number < trial.world.ranks; ++number) {
    ranks.push_back(start([=] {
      setenv("TUTTI_RECORD_DIR", recordings.c_str(), 1);
      if (!verbose()) setenv("TUTTI_LOG", "error", 1);
      CommunicatorOptions options = job(number, trial.world.ranks, port);
      options.transport = trial.world.transport;
      options.attach = "off";
      options.setup_timeout = scaled(milliseconds(4000));
      options.timeout = scaled(milliseconds(1500));
      options.encrypt = trial.world.encrypt;
      if (trial.world.two_nodes) options.node_id = number + 1 == trial.world.ranks ? "b" : "a";
      return Rank(trial, number).run(options);
    }));
  }
  return ranks;
}

// Runs several jobs at the same time, because they mostly wait.
class FailingCalls {
 public:
  FailingCalls()
      : recordings_(std::filesystem::path(testing::TempDir()) / ("failing-calls-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(recordings_);
    std::filesystem::permissions(recordings_, std::filesystem::perms::owner_all);
  }
  ~FailingCalls() { std::filesystem::remove_all(recordings_); }
  FailingCalls(const FailingCalls&) = delete;
  FailingCalls& operator=(const FailingCalls&) = delete;

  // Starts a job. If kMaxConcurrentJobs jobs are running, it waits for the oldest one, and returns false if that job
  // finished before the call that should have failed.
  bool add(const Trial& trial) {
    jobs_.push_back({trial, start_job(trial, recordings_)});
    return jobs_.size() < kMaxConcurrentJobs || finish_oldest();
  }
  void finish() {
    while (!jobs_.empty()) finish_oldest();
  }

 private:
  static constexpr std::size_t kMaxConcurrentJobs = 12;
  struct Job {
    Trial trial;
    std::vector<pid_t> ranks;
  };

  bool finish_oldest() {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    const std::string name = described(job.trial);
    if (verbose()) std::fprintf(stderr, "%s\n", name.c_str());
    bool reached = true;
    for (std::int32_t rank = 0; rank < job.trial.world.ranks; ++rank) {
      const int ended = status_of(job.ranks[static_cast<std::size_t>(rank)]);
      const bool not_reached = rank == job.trial.victim && ended == kNotReached;
      if (not_reached) reached = false;
      EXPECT_TRUE(ended == kFine || not_reached)
          << name << ": rank " << rank << " ends with " << ended << (ended == 128 + SIGALRM ? ", hangs" : "");
    }
    return reached;
  }

  const std::filesystem::path recordings_;
  std::deque<Job> jobs_;
};

#if TUTTI_EVERY_CALL

class FailingCallsSweep : public testing::TestWithParam<std::tuple<ProcessJob, FaultKind, Stage, std::int32_t>> {};

constexpr std::int64_t kMost = 150;

TEST_P(FailingCallsSweep, NoneHangsCrashesLiesOrLeaks) {
  const auto& [world, kind, stage, victim] = GetParam();
  FailingCalls jobs;
  std::int64_t n = 1;
  // kMost limits n, because a rank that repeats an attempt while another rank starts slowly makes any number of
  // calls.
  while (n < kMost && jobs.add({world, kind, stage, victim, n})) ++n;
  jobs.finish();
  std::printf("%ld jobs up to %s\n", static_cast<long>(n), described({world, kind, stage, victim, n}).c_str());
}

std::string name_of(const testing::TestParamInfo<FailingCallsSweep::ParamType>& tested) {
  const auto& [world, kind, stage, victim] = tested.param;
  return std::string(world.name) + kind.name + (stage == Stage::kCreate ? "Create" : "Calls") + "Rank" +
         std::to_string(victim);
}

INSTANTIATE_TEST_SUITE_P(Every, FailingCallsSweep,
                         testing::Combine(testing::ValuesIn(kJobs), testing::ValuesIn(kFaults),
                                          testing::Values(Stage::kCreate, Stage::kCalls), testing::Values(0, 1)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Encrypted, FailingCallsSweep,
                         testing::Combine(testing::ValuesIn(kEncryptedJobs), testing::ValuesIn(kLibraryFault),
                                          testing::Values(Stage::kCreate), testing::Values(0, 1)),
                         name_of);

#else

class FailingCallsSample : public testing::TestWithParam<ProcessJob> {};

// Alternates between ranks 0 and 1 as the victim.
TEST_P(FailingCallsSample, NoneHangsCrashesLiesOrLeaks) {
  FailingCalls jobs;
  std::int32_t victim = 0;
  for (const FaultKind& kind : kFaults) {
    const bool many = kind.fault == Fault::kDescriptor || kind.fault == Fault::kDescriptors;
    for (const Stage stage : {Stage::kCreate, Stage::kCalls}) {
      const std::int64_t last = stage == Stage::kCalls ? 2 : many ? 43 : 3;
      for (std::int64_t n = 1; n <= last; n += last > 3 ? 5 : 1) {
        static_cast<void>(jobs.add({GetParam(), kind, stage, victim, n}));
        victim = 1 - victim;
      }
    }
  }
  jobs.finish();
}

INSTANTIATE_TEST_SUITE_P(Some, FailingCallsSample, testing::ValuesIn(kJobs),
                         [](const auto& tested) { return std::string(tested.param.name); });

#endif

}  // namespace
}  // namespace tutti::test
