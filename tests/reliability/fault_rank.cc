// One rank of a job to which fault_table.py does something: fault_rank PHASE SECONDS. Rank, size, root and deadlines
// come from the environment. It makes call after call until SECONDS have passed or one fails; every result is checked.
// After a failure that names a rank it goes on without that one.
//
//   setup        the communicator is made, and 20 calls follow
//   idle         8 bytes now and then: most of the time is between calls
//   small        8 bytes, back to back
//   large        4 MiB of plain memory
//   registered   4 MiB of registered memory
//
// It says, a line each on stdout, beginning with the monotonic clock's ns: "begin", "ready", "error CODE RANK MESSAGE"
// (RANK -1: nobody is named), "shrunk SIZE", "wrong WHERE", "end CALLS FDS" (descriptors that are left when all is
// destroyed, over those at the beginning). Status: 0 unless a result was wrong (1).
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

namespace {

using tutti::Communicator;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLarge = (std::size_t{4} << 20) / sizeof(float);
constexpr int kCallsAfterwards = 10;

template <class... Values>
void say(const char* format, Values... values) {
  const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  std::printf("%lld ", static_cast<long long>(now_ns));
  std::printf(format, values...);
  std::printf("\n");
  std::fflush(stdout);
}

// Needs none itself.
int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

void tell(const tutti::Error& error) {
  std::string message = error.message;
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  std::string code(to_string(error.code));
  for (char& c : code) {
    if (c == ' ') c = '_';
  }
  say("error %s %d %s", code.c_str(), error.rank, message.c_str());
}

// A number that every rank's every element of every call differs in, and whose sums float32 holds exactly.
float input_of(int rank, std::size_t element, long call) {
  return static_cast<float>((static_cast<std::size_t>(rank) * 31 + element * 7 + static_cast<std::size_t>(call) * 13) %
                            1021);
}

// The calls of one phase on one communicator. The first element asks whether to end: all ranks end after the same call.
class Calls {
 public:
  Calls(Communicator& communicator, std::string_view phase) : communicator_(communicator), idle_(phase == "idle") {
    const std::size_t count = phase == "large" || phase == "registered" ? kLarge : 2;
    if (phase == "registered") {
      auto memory = communicator.allocate(count * sizeof(float));
      if (memory) {
        memory_ = std::move(*memory);
        data_ = reinterpret_cast<float*>(memory_.data());
      } else {
        trouble_ = memory.error();
      }
    } else {
      plain_.resize(count);
      data_ = plain_.data();
    }
    count_ = count;
  }

  // False: it failed, or was wrong. `last`: whether any rank asked for the end.
  bool make(bool ask_for_end, bool& last) {
    if (trouble_) return told(*trouble_);
    for (std::size_t i = 1; i < count_; ++i) data_[i] = input_of(communicator_.rank(), i, made_);
    data_[0] = ask_for_end ? 1 : 0;
    const tutti::Status status =
        communicator_.all_reduce(data_, data_, count_, tutti::DataType::kFloat32, tutti::ReduceOp::kSum);
    if (!status.ok()) return told(status.error());
    for (std::size_t i = 1; i < count_; ++i) {
      float sum = 0;
      for (int rank = 0; rank < communicator_.size(); ++rank) sum += input_of(rank, i, made_);
      if (data_[i] == sum) continue;
      say("wrong call %ld element %zu: %g in place of %g", made_, i, static_cast<double>(data_[i]),
          static_cast<double>(sum));
      std::exit(1);
    }
    last = data_[0] > 0;
    ++made_;
    if (idle_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return true;
  }
  long made() const { return made_; }

 private:
  bool told(const tutti::Error& error) {
    tell(error);
    return false;
  }

  Communicator& communicator_;
  const bool idle_;
  tutti::Memory memory_;
  std::vector<float> plain_;
  float* data_ = nullptr;
  std::size_t count_ = 0;
  std::optional<tutti::Error> trouble_;
  long made_ = 0;
};

void go_on(Communicator& broken) {
  auto smaller = broken.shrink();
  if (!smaller) return tell(smaller.error());
  Calls calls(**smaller, "large");
  for (int i = 0; i < kCallsAfterwards; ++i) {
    bool ignored = false;
    if (!calls.make(false, ignored)) return;
  }
  say("shrunk %d", (*smaller)->size());
}

long run(std::string_view phase, std::chrono::seconds how_long) {
  auto communicator = Communicator::create();
  if (!communicator) {
    tell(communicator.error());
    return 0;
  }
  Communicator& all = **communicator;
  Calls calls(all, phase);
  bool last = false;
  for (int i = 0; i < 3; ++i) {  // connections are open then
    if (!calls.make(false, last)) break;
  }
  if (calls.made() == 3) say("ready");
  const auto end = Clock::now() + how_long;
  while (calls.made() >= 3 && !last) {
    const bool enough = phase == "setup" ? calls.made() >= 20 : Clock::now() >= end;
    if (!calls.make(enough, last)) break;
  }
  if (!last) go_on(all);
  return calls.made();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fault_rank setup|idle|small|large|registered SECONDS\n");
    return 2;
  }
  alarm(120);  // no rank outlives a broken run
  const int before = open_descriptors();
  say("begin");
  const long made = run(argv[1], std::chrono::seconds(std::atoi(argv[2])));
  say("end %ld %d", made, open_descriptors() - before);
  return 0;
}
