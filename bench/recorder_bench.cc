// Benchmark of the flight recorder: the time that it adds to an operation, in ns of processor time of this thread, so
// that the time of other programs on the machine is not counted:
//   read_ticks   reading once the clock that the recorder uses, for comparison: the processor's time-stamp counter or,
//                if that has no constant rate, CLOCK_MONOTONIC
//   short_call   a call through mailboxes or mapped memory: writes its tag and its start, and counts it. The end time
//                is taken from the wait, if there was one
//   long_call    any other call: reads the clock at its start and its end
//   transfers    an exchange: also writes bytes and peer
//   wait         the record that a waiting rank writes at most once every kWaitEveryNs (job/recorder.h)
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/recording.h"
#include "job/recorder.h"

namespace tutti {
namespace {

// A recorder with a temporary folder, which the destructor removes.
class TemporaryRecorder {
 public:
  TemporaryRecorder() {
    std::string name = recording::folders("", process_environment()).front() + "-bench-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) return;
    folder_ = name;
    auto opened = std::make_shared<RecordingFolder>(std::vector<std::string>{folder_}, Log(LogLevel::kWarn, 0));
    recorder_ = Recorder::create(opened, {.job = 1, .communicator = 1, .ranks = 4, .transport = "none"});
  }
  ~TemporaryRecorder() {
    recorder_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  TemporaryRecorder(const TemporaryRecorder&) = delete;
  TemporaryRecorder& operator=(const TemporaryRecorder&) = delete;
  Recorder* get() const { return recorder_.get(); }

 private:
  std::string folder_;
  std::unique_ptr<Recorder> recorder_;
};

void read_ticks(benchmark::State& state) {
  const auto ticks = recording::has_cpu_counter() ? recording::Ticks::kCpuCounter : recording::Ticks::kSteadyNs;
  for (auto _ : state) benchmark::DoNotOptimize(recording::read_ticks(ticks));
}
BENCHMARK(read_ticks);

template <class Operation>
void record(benchmark::State& state, const Operation& operation) {
  const TemporaryRecorder recorded;
  Recorder* recorder = recorded.get();
  if (recorder == nullptr) return state.SkipWithError("no folder for recordings");
  CallTag tag{.count = 1024, .algorithm = 3};
  for (auto _ : state) {
    ++tag.sequence;
    benchmark::DoNotOptimize(tag);
    operation(*recorder, tag);
    benchmark::ClobberMemory();
  }
}

void short_call(benchmark::State& state) {
  record(state, [](Recorder& recorder, const CallTag& tag) {
    const std::uint64_t serial = recorder.begin(tag, recording::CallPath::kMailboxes);
    recorder.count(tag.kind, tag.count, true);
    recorder.end(serial, tag.sequence);
  });
}
BENCHMARK(short_call);

void long_call(benchmark::State& state) {
  record(state, [](Recorder& recorder, const CallTag& tag) {
    const std::uint64_t serial = recorder.begin(tag, recording::CallPath::kMessages);
    recorder.count(tag.kind, tag.count, true);
    recorder.end(serial, recorder.now());
  });
}
BENCHMARK(long_call);

void transfers(benchmark::State& state) {
  record(state, [](Recorder& recorder, const CallTag& tag) {
    const std::uint64_t serial = recorder.begin(tag, recording::CallPath::kTransfers);
    recorder.count(tag.kind, 4096, true);
    recorder.add(serial, {.bytes = 4096, .peer = 1, .transfers = 1});
    recorder.end(serial, recorder.now());
  });
}
BENCHMARK(transfers);

void wait(benchmark::State& state) {
  const std::vector<std::uint32_t> ranks{1, 2, 3};
  record(state, [&](Recorder& recorder, const CallTag& tag) {
    recorder.waits({.serial = 2, .sequence = tag.sequence, .waited = ranks, .absent = ranks, .text = "no message"}, 0);
  });
}
BENCHMARK(wait);

}  // namespace
}  // namespace tutti
