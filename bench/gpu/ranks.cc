#include "bench/gpu/ranks.h"

#include <barrier>
#include <utility>

#include "base/assert.h"
#include "base/thread_group.h"
#include "bench/gpu/values.h"
#include "tutti/group.h"

namespace tutti::bench {

// One thread per rank, in which the GPU's context is current. In each round all threads pass the barrier begin_, do
// the work, and pass the barrier end_. The barriers have no timeout, because every call of a communicator has one.
class Ranks::Threads {
 public:
  using Work = std::function<Status(std::size_t rank)>;

  Threads(const Gpu& gpu, std::size_t count)
      : begin_(static_cast<std::ptrdiff_t>(count) + 1), end_(static_cast<std::ptrdiff_t>(count) + 1), results_(count) {
    for (std::size_t rank = 0; rank < count; ++rank) threads_.add([this, &gpu, rank] { serve(gpu, rank); });
    threads_.open();
  }
  ~Threads() {
    work_ = nullptr;
    begin_.arrive_and_wait();
    threads_.join();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  Status run(Work work) {
    work_ = std::move(work);
    begin_.arrive_and_wait();
    end_.arrive_and_wait();
    for (const Status& result : results_) TUTTI_TRY(result);
    return {};
  }

 private:
  void serve(const Gpu& gpu, std::size_t rank) {
    const auto scope = cuda::ContextScope::enter(gpu.driver(), gpu.context());
    while (true) {
      begin_.arrive_and_wait();
      if (!work_) return;
      results_[rank] = scope ? work_(rank) : Status(scope.error());
      end_.arrive_and_wait();
    }
  }

  std::barrier<> begin_;
  std::barrier<> end_;
  Work work_;                    // written before begin_, read after it; null ends the threads
  std::vector<Status> results_;  // indexed by rank; read after end_
  ThreadGroup threads_;
};

Ranks::Ranks(const Gpu& gpu) : gpu_(gpu) {}

Result<std::unique_ptr<Ranks>> Ranks::create(const Gpu& gpu, int count, std::size_t bytes) {
  TUTTI_ASSERT(count > 0 && count <= kMaxRanks);
  std::unique_ptr<Ranks> ranks(new Ranks(gpu));  // private constructor
  auto communicators = Communicator::create_all(count);
  if (!communicators) return std::move(communicators).error();
  ranks->communicators_ = *std::move(communicators);
  for (int i = 0; i < 2; ++i) {
    auto timer = cuda::Event::create(gpu.driver(), {.flags = cuda::kEventDefault});
    if (!timer) return std::move(timer).error();
    ranks->timers_.push_back(*std::move(timer));
  }
  for (int rank = 0; rank < count; ++rank) TUTTI_TRY(ranks->add_rank(rank, bytes));
  ranks->threads_ = std::make_unique<Threads>(gpu, static_cast<std::size_t>(count));
  return ranks;
}

Status Ranks::add_rank(int rank, std::size_t bytes) {
  auto stream = cuda::Stream::create(gpu_.driver());
  if (!stream) return std::move(stream).error();
  streams_.push_back(*std::move(stream));
  auto end = cuda::Event::create(gpu_.driver());
  if (!end) return std::move(end).error();
  ends_.push_back(*std::move(end));
  for (std::vector<cuda::DeviceMemory>* list : {&inputs_, &outputs_}) {
    auto memory = gpu_.allocate(bytes);
    if (!memory) return std::move(memory).error();
    list->push_back(*std::move(memory));
  }
  return fill(gpu_, inputs_.back(), rank_digits(rank));
}

// Waits until all calls have finished with the buffers, and destroys the communicators before the streams.
Ranks::~Ranks() {
  threads_.reset();
  for (const cuda::Stream& stream : streams_) static_cast<void>(stream.synchronize());
  communicators_.clear();
}

Result<double> Ranks::time_us(const std::function<Status()>& put) const {
  const cuda::CUstream first = streams_.front().handle();
  TUTTI_TRY(timers_[0].record(first));
  for (std::size_t rank = 1; rank < streams_.size(); ++rank) TUTTI_TRY(streams_[rank].wait(timers_[0]));
  TUTTI_TRY(put());
  for (std::size_t rank = 1; rank < streams_.size(); ++rank) {
    TUTTI_TRY(ends_[rank].record(streams_[rank].handle()));
    TUTTI_TRY(streams_.front().wait(ends_[rank]));
  }
  TUTTI_TRY(timers_[1].record(first));
  TUTTI_TRY(timers_[1].synchronize());
  const Result<double> milliseconds = cuda::elapsed_ms(gpu_.driver(), timers_[0], timers_[1]);
  TUTTI_TRY(milliseconds);
  for (const auto& communicator : communicators_) TUTTI_TRY(communicator->async_status());
  return *milliseconds * 1000;
}

CollectiveCall Ranks::call_of(std::size_t rank, std::size_t count) const {
  return {.kind = CollectiveKind::kAllReduce,
          .input = pointer_to(inputs_[rank]),
          .output = pointer_to(outputs_[rank]),
          .count = count,
          .type = DataType::kFloat32,
          .op = ReduceOp::kSum};
}

CallOptions Ranks::options_of(std::size_t rank, Algorithm algorithm) const {
  CallOptions options;
  options.algorithm = algorithm;
  options.stream = streams_[rank].handle();
  return options;
}

Status Ranks::put_as_group(std::size_t count, Algorithm algorithm) const {
  Group group;
  for (std::size_t rank = 0; rank < communicators_.size(); ++rank) {
    TUTTI_TRY(group.add(*communicators_[rank], call_of(rank, count), options_of(rank, algorithm)));
  }
  return group.run();
}

Status Ranks::put_one(std::size_t rank, std::size_t count, Algorithm algorithm) const {
  return communicators_[rank]->run(call_of(rank, count), options_of(rank, algorithm));
}

Status Ranks::put_by_threads(std::size_t count, Algorithm algorithm) {
  return threads_->run([this, count, algorithm](std::size_t rank) { return put_one(rank, count, algorithm); });
}

Status Ranks::put_kernels(cuda::CUfunction kernel) const {
  for (const cuda::Stream& stream : streams_) {
    TUTTI_TRY(gpu_.launch(kernel, {.blocks = 1, .threads = 32}, nullptr, stream.handle()));
  }
  return {};
}

Status Ranks::put_gather(std::size_t count) const {
  Group group;
  for (std::size_t rank = 0; rank < communicators_.size(); ++rank) {
    CollectiveCall call = call_of(rank, count);
    call.kind = CollectiveKind::kAllGather;
    TUTTI_TRY(group.add(*communicators_[rank], call, options_of(rank, Algorithm::kAuto)));
  }
  return group.run();
}

// Overwrites the outputs with a value that is never a result, calls `put`, and, with `corrupt`, changes one byte.
Status Ranks::overwrite_and_run(std::size_t bytes, const std::function<Status()>& put, bool corrupt) const {
  const cuda::DriverApi& api = gpu_.driver().api();
  for (const cuda::DeviceMemory& output : outputs_) {
    TUTTI_TRY(
        gpu_.driver().check(api.memset_d8_async(output.address(), 0x5A, bytes, gpu_.stream()), "cuMemsetD8Async"));
  }
  TUTTI_TRY(gpu_.synchronize());
  TUTTI_TRY(time_us(put));
  if (!corrupt) return {};
  TUTTI_TRY(gpu_.driver().check(api.memset_d8_async(outputs_[0].address() + bytes / 2, 0x77, 1, gpu_.stream()),
                                "cuMemsetD8Async"));
  return gpu_.synchronize();
}

Result<std::uint64_t> Ranks::count_wrong(std::size_t count, const std::function<Status()>& put, bool corrupt) const {
  const std::size_t bytes = count * sizeof(float);
  TUTTI_TRY(overwrite_and_run(bytes, put, corrupt));
  const Period expected = sum_of_digits(this->count());
  std::uint64_t wrong = 0;
  for (const cuda::DeviceMemory& output : outputs_) {
    const Result<std::uint64_t> bad = wrong_bytes(gpu_, output.address(), bytes, expected);
    TUTTI_TRY(bad);
    wrong += *bad > 0 ? 1 : 0;
  }
  return wrong;
}

Result<std::uint64_t> Ranks::count_wrong_gathers(std::size_t count, bool corrupt) const {
  const std::size_t block = count * sizeof(float);
  TUTTI_TRY(overwrite_and_run(
      block * communicators_.size(), [&] { return put_gather(count); }, corrupt));
  std::uint64_t wrong = 0;
  for (const cuda::DeviceMemory& output : outputs_) {
    std::uint64_t bad = 0;
    for (int rank = 0; rank < this->count(); ++rank) {
      const cuda::CUdeviceptr from = output.address() + static_cast<std::size_t>(rank) * block;
      const Result<std::uint64_t> found = wrong_bytes(gpu_, from, block, rank_digits(rank));
      TUTTI_TRY(found);
      bad += *found;
    }
    wrong += bad > 0 ? 1 : 0;
  }
  return wrong;
}

}  // namespace tutti::bench
