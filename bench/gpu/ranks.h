// The ranks of one job on one GPU, in this process: a communicator, a stream and buffers for each, and calls of all of
// them together: in a group by one thread, or by one thread a rank. Only the public API, so that what is measured is
// what users get. One thread, but for the threads that it starts itself.
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
  static constexpr int kMost = 8;  // values.h has values for so many

  // `bytes` of each input and output; the input of rank r holds rank_digits(r).
  static Result<std::unique_ptr<Ranks>> create(const Gpu& gpu, int count, std::size_t bytes);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks();

  int count() const { return static_cast<int>(communicators_.size()); }

  // Microseconds from an event in the first stream, behind which all streams wait, to the end of all streams, while
  // `put` puts work into them.
  Result<double> time_us(const std::function<Status()>& put) const;

  // A float32 sum over all ranks of `count` elements, from inputs to outputs, put into the streams by one thread.
  Status put_as_group(std::size_t count, Algorithm algorithm) const;
  // The same by the ranks' threads, which run already and wait for each other at a barrier.
  Status put_by_threads(std::size_t count, Algorithm algorithm);
  // The all_gather of `count` elements of each input, by one thread: outputs have count() times as many.
  Status put_gather(std::size_t count) const;
  // A kernel without arguments in every stream.
  Status put_kernels(cuda::CUfunction kernel) const;

  // Overwrites the outputs, lets `put` work, and compares every byte of every output with the sum. The number of
  // ranks with a wrong result. `corrupt`: changes a byte of rank 0's before that.
  Result<std::uint64_t> count_wrong(std::size_t count, const std::function<Status()>& put, bool corrupt) const;
  // The same of put_gather().
  Result<std::uint64_t> count_wrong_gathers(std::size_t count, bool corrupt) const;

 private:
  class Threads;
  explicit Ranks(const Gpu& gpu);
  Status add_rank(int rank, std::size_t bytes);
  Status spoil(std::size_t bytes, const std::function<Status()>& put, bool corrupt) const;
  CollectiveCall call_of(std::size_t rank, std::size_t count) const;
  CallOptions options_of(std::size_t rank, Algorithm algorithm) const;
  Status put_one(std::size_t rank, std::size_t count, Algorithm algorithm) const;

  const Gpu& gpu_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<cuda::Stream> streams_;
  std::vector<cuda::Event> ends_;    // by rank
  std::vector<cuda::Event> timers_;  // start and stop
  std::vector<cuda::DeviceMemory> inputs_;
  std::vector<cuda::DeviceMemory> outputs_;
  std::unique_ptr<Threads> threads_;  // the last: they use the others
};

}  // namespace tutti::bench
