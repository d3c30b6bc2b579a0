// ProcessRanks: the ranks of one communicator that share a process and a GPU, and the threads that make their calls.
// Calls on GPU memory need it, because the streams of these ranks share hardware queues: a stream that waits for
// another rank can hold up the very work of that rank. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace tutti::detail {

// A number that no other thread of this process has or had. (The system gives the std::thread::id of a thread that has
// ended to later threads.) Never 0.
std::uint64_t this_thread_number();

class ProcessRanks {
 public:
  // Adds `rank` of the communicator with the number `communicator`, which uses the GPU with the CUDA number `device`,
  // until the returned object is destroyed. Add all ranks before their first calls.
  static std::shared_ptr<ProcessRanks> join(std::uint64_t communicator, int device, std::uint32_t rank);
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;
  ~ProcessRanks();

  // Records that this thread makes a call of the rank.
  void call();
  // Whether there are other ranks.
  bool has_others() const;
  // How many of them were last called by this thread, and how many by another thread or never.
  struct Others {
    std::size_t here = 0;
    std::size_t elsewhere = 0;
  };
  Others others() const;

 private:
  struct Shared {
    std::mutex mutex;
    std::map<std::uint32_t, std::uint64_t> threads;  // by rank: the thread of the last call; 0: no call yet
  };
  ProcessRanks(std::shared_ptr<Shared> shared, std::uint32_t rank) : shared_(std::move(shared)), rank_(rank) {}

  const std::shared_ptr<Shared> shared_;  // shared by these ranks
  const std::uint32_t rank_;
};

}  // namespace tutti::detail
