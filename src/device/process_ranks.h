// ProcessRanks: the ranks of one communicator that are in one process, and their GPUs. Calls on GPU memory that the
// host carries out need it, because streams of a context share hardware queues: if ranks share a GPU, a stream of one
// rank that waits for another rank can hold up the very work of that rank. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace tutti::detail {

class ProcessRanks {
 public:
  static constexpr int kUnknownDevice = -1;
  // Adds `rank` of the communicator with the number `communicator`, until the returned object is destroyed. Add all
  // ranks before their first calls. `device`: the CUDA number of the rank's GPU, or kUnknownDevice.
  static std::shared_ptr<ProcessRanks> join(std::uint64_t communicator, std::uint32_t rank, int device);
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;
  ~ProcessRanks();

  // Whether this rank shares its GPU with another rank of this communicator and process. False if its GPU is unknown.
  bool share_device() const;

 private:
  struct Shared {
    std::mutex mutex;
    std::map<std::uint32_t, int> devices;  // the GPU of each rank
  };
  ProcessRanks(std::shared_ptr<Shared> shared, std::uint32_t rank, int device)
      : shared_(std::move(shared)), rank_(rank), device_(device) {}

  const std::shared_ptr<Shared> shared_;  // shared by the ranks of the communicator in this process
  const std::uint32_t rank_;
  const int device_;
};

}  // namespace tutti::detail
