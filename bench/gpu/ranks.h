// Ranks: the ranks of one job on one GPU, in this process. Each rank has a communicator, a stream and buffers. The
// calls of all ranks are submitted together: as a group by one thread, or by one thread per rank. Ranks uses
// communicators only through the public API, so that the results are valid for applications. Only one thread may use a
// Ranks object, which has threads of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "bench/gpu/gpu.h"
#include "tutti/communicator.h"

namespace tutti::bench {

class Ranks {
 public:
  static constexpr int kMaxRanks = 8;  // limit of rank_digits() in values.h

  // Creates the ranks, with inputs and outputs of `bytes` bytes each. The input of rank r contains rank_digits(r).
  static Result<std::unique_ptr<Ranks>> create(const Gpu& gpu, int count, std::size_t bytes);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks();

  int count() const { return static_cast<int>(communicators_.size()); }

  // Calls `put`, which submits work to the streams. Returns the microseconds from an event in the first stream, for
  // which all streams wait, until the work in all streams has ended.
  Result<double> time_us(const std::function<Status()>& put) const;

  // Submits an all-reduce (float32, sum) of `count` elements from inputs to outputs, as a group by one thread.
  Status put_as_group(std::size_t count, Algorithm algorithm) const;
  // Submits the same all-reduce, but by one thread per rank. The threads exist already, and start at a barrier.
  Status put_by_threads(std::size_t count, Algorithm algorithm);
  // Submits an all_gather of `count` elements of each input, as a group by one thread. Each output then has count()
  // times as many elements.
  Status put_gather(std::size_t count) const;
  // Launches a kernel without arguments in every stream.
  Status put_kernels(cuda::CUfunction kernel) const;

  // Overwrites the outputs, calls `put`, and compares the first `count` elements of every output with the sum, byte by
  // byte. Returns the number of ranks with a wrong result. With `corrupt`, one byte of rank 0's output is changed
  // before the check.
  Result<std::uint64_t> count_wrong(std::size_t count, const std::function<Status()>& put, bool corrupt) const;
  // Like count_wrong(), but calls put_gather(`count`), and expects in every output the inputs of all ranks.
  Result<std::uint64_t> count_wrong_gathers(std::size_t count, bool corrupt) const;

 private:
  class Threads;
  explicit Ranks(const Gpu& gpu);
  Status add_rank(int rank, std::size_t bytes);
  Status overwrite_and_run(std::size_t bytes, const std::function<Status()>& put, bool corrupt) const;
  CollectiveCall call_of(std::size_t rank, std::size_t count) const;
  CallOptions options_of(std::size_t rank, Algorithm algorithm) const;
  Status put_one(std::size_t rank, std::size_t count, Algorithm algorithm) const;

  const Gpu& gpu_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<cuda::Stream> streams_;
  std::vector<cuda::Event> ends_;    // indexed by rank: recorded in the rank's stream after its work
  std::vector<cuda::Event> timers_;  // two events, recorded at the start and at the end of a measurement
  std::vector<cuda::DeviceMemory> inputs_;
  std::vector<cuda::DeviceMemory> outputs_;
  // The last member, so that it is destroyed first: the threads use the other members.
  std::unique_ptr<Threads> threads_;
};

}  // namespace tutti::bench
