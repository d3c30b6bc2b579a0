// One rank of a job whose recordings the tests examine: recorded_job MODE FOLDER.
//
// Every rank calls all_reduce again and again. After five calls, rank 2 behaves as the mode requires. killed: it
// kills itself. stopped: it stops itself. other: it calls another collective. never: it makes no further call.
// leaves: it destroys its communicator. work: it continues, until the job is ended. dance: the ranks also send and
// receive, and then end normally. A rank that has made its five calls creates the file ready-RANK in FOLDER.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

namespace {

constexpr int kCalls = 5;
constexpr std::int32_t kCulprit = 2;

int misbehave(std::string_view mode, tutti::Communicator& communicator, std::vector<float>& data) {
  if (mode == "killed") std::raise(SIGKILL);
  if (mode == "stopped") std::raise(SIGSTOP);
  if (mode == "never") std::this_thread::sleep_for(std::chrono::minutes(5));
  if (mode == "other") {
    const tutti::Status status =
        communicator.broadcast(data.data(), data.data(), data.size(), tutti::DataType::kFloat32, 0);
    if (!status.ok()) std::fprintf(stderr, "%s\n", to_string(status.error()).c_str());
    return 1;
  }
  return mode == "leaves" ? 0 : -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string_view mode = argv[1];
  auto made = tutti::Communicator::create();
  if (!made) return std::fprintf(stderr, "%s\n", to_string(made.error()).c_str()), 1;
  tutti::Communicator& communicator = **made;
  const std::int32_t rank = communicator.rank();
  std::vector<float> data(1024, 1.0F);
  for (int call = 0;; ++call) {
    if (call == kCalls) std::ofstream(std::string(argv[2]) + "/ready-" + std::to_string(rank)) << "yes\n";
    if (call == kCalls && rank == kCulprit) {
      const int status = misbehave(mode, communicator, data);
      if (status >= 0) return status;
    }
    if (mode == "dance" && call == 2 * kCalls) return 0;
    const tutti::Status status = communicator.all_reduce(data.data(), data.data(), data.size(),
                                                         tutti::DataType::kFloat32, tutti::ReduceOp::kMin);
    if (!status.ok()) return std::fprintf(stderr, "%s\n", to_string(status.error()).c_str()), 1;
    if (mode != "dance") {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    const tutti::Status passed = rank == 0   ? communicator.send(data.data(), 8, tutti::DataType::kFloat32, 1)
                                 : rank == 1 ? communicator.receive(data.data(), 8, tutti::DataType::kFloat32, 0)
                                             : tutti::Status();
    if (!passed.ok()) return 1;
  }
}
