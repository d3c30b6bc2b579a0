// A rank that runs collectives on memory of malloc(), in a process with or without the shared heap. It prints how many
// segments of heaps this process has mapped, its own and those of other ranks: so whether the calls could do without
// copies.
//
//   tutti run -n N [--shared-heap] -- heap_ranks [fork|close|segments]
//
// fork: forks after each call, and checks that the child has its own memory. close: closes all descriptors above the
// standard streams before the communicator is created, as some programs do when they start. segments: allocates so much
// memory after the first call that the heap needs more segments, and calls with a buffer in the last one.
#include <sys/wait.h>
#include <tutti/tutti.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kCount = 300'000;
using Buffer = std::unique_ptr<float, decltype(&std::free)>;

Buffer allocate() { return {static_cast<float*>(std::malloc(kCount * sizeof(float))), &std::free}; }

// The number of heap segments that this process has mapped.
std::size_t mapped_segments() {
  std::set<std::string> inodes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:tutti heap") == line.npos) continue;
    std::istringstream words(line);
    std::string inode;
    for (int i = 0; i < 5; ++i) words >> inode;
    inodes.insert(inode);
  }
  return inodes.size();
}

// Adds and gathers parts of the buffers, and returns the number of wrong elements.
tutti::Result<std::size_t> call(tutti::Communicator& communicator, float* data) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto rank = static_cast<float>(communicator.rank());
  const std::span numbers(data, kCount);
  std::size_t wrong = 0;
  // An all-reduce of all but the first 7 elements.
  for (std::size_t i = 0; i < kCount; ++i) numbers[i] = (rank + 1) * static_cast<float>(i % 1000);
  const auto reduced =
      communicator.all_reduce(data + 7, data + 7, kCount - 7, tutti::DataType::kFloat32, tutti::ReduceOp::kSum);
  if (!reduced.ok()) return reduced.error();
  const std::size_t sum = ranks * (ranks + 1) / 2;
  const auto factor = static_cast<float>(sum);
  for (std::size_t i = 0; i < kCount; ++i) {
    wrong += numbers[i] == (i < 7 ? rank + 1 : factor) * static_cast<float>(i % 1000) ? 0 : 1;
  }
  // An all-gather into another buffer.
  const std::size_t part = kCount / ranks;
  const Buffer gathered = allocate();
  const auto status = communicator.all_gather(data, gathered.get(), part, tutti::DataType::kFloat32);
  if (!status.ok()) return status.error();
  for (std::size_t i = 0; i < part * ranks; ++i) {
    const std::size_t owner = i / part;
    const std::size_t at = i % part;
    wrong +=
        gathered.get()[i] == (at < 7 ? static_cast<float>(owner + 1) : factor) * static_cast<float>(at % 1000) ? 0 : 1;
  }
  return wrong;
}

// The child must see this process's memory as it was at fork(). After that, neither process may see what the other one
// writes.
bool child_is_separate(float* data) {
  const std::span numbers(data, kCount);
  std::fill(numbers.begin(), numbers.end(), 5.0F);
  int go[2];
  if (pipe(go) != 0) return false;
  const auto all_are = [numbers](float value) {
    return std::all_of(numbers.begin(), numbers.end(), [value](float number) { return number == value; });
  };
  const pid_t pid = fork();
  if (pid == 0) {
    char byte = 0;
    if (read(go[0], &byte, 1) != 1 || !all_are(5)) _exit(1);  // the parent has written
    std::fill(numbers.begin(), numbers.end(), 7.0F);
    const Buffer own = allocate();
    std::fill_n(own.get(), kCount, 8.0F);
    _exit(all_are(7) ? 0 : 2);
  }
  std::fill(numbers.begin(), numbers.end(), 6.0F);
  int status = 0;
  const bool right = write(go[1], "", 1) == 1 && waitpid(pid, &status, 0) == pid && status == 0 && all_are(6);
  close(go[0]);
  close(go[1]);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  Buffer data = allocate();
  std::vector<Buffer> others;
  if (mode == "close") {
    const char* const root = std::getenv("TUTTI_ROOT_FD");
    for (int fd = 3; fd < 1000; ++fd) {
      if (root == nullptr || fd != std::atoi(root)) close(fd);
    }
  }
  auto communicator = tutti::Communicator::create();
  if (!communicator.ok()) {
    std::fprintf(stderr, "%s\n", tutti::to_string(communicator.error()).c_str());
    return 1;
  }
  for (int round = 0; round < 3; ++round) {
    const auto wrong = call(**communicator, data.get());
    if (!wrong.ok()) {
      std::fprintf(stderr, "%s\n", tutti::to_string(wrong.error()).c_str());
      return 1;
    }
    if (*wrong > 0) {
      std::fprintf(stderr, "round %d: %zu wrong elements\n", round, *wrong);
      return 1;
    }
    for (int i = 0; mode == "segments" && i < 100; ++i) others.push_back(allocate());
    if (mode == "segments") data = allocate();
    if (mode == "fork" && !child_is_separate(data.get())) {
      std::fprintf(stderr, "the child of a fork is not separate\n");
      return 1;
    }
  }
  // Counted before any rank leaves, because a rank that leaves withdraws its memory.
  const std::size_t segments = mapped_segments();
  if (!(*communicator)->barrier().ok()) return 1;
  std::printf("%zu heap segments are mapped\n", segments);
  return 0;
}
