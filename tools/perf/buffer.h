// The buffers of `tutti perf`: memory of the host, plain or registered with the library, or of a GPU. A rank fills and
// checks them on the host; what lies on a GPU has a twin there that is copied to and fro. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/resources.h"
#include "tools/perf/options.h"
#include "tutti/communicator.h"

namespace tutti::tool {

// One rank's GPU, made the thread's own, and a stream that its calls go by.
class PerfDevice {
 public:
  // Errors: kUnsupported (no driver, no GPU), kSystem.
  static Result<std::unique_ptr<PerfDevice>> open(int device);
  ~PerfDevice();

  const cuda::Driver& driver() const { return driver_; }
  cuda::CUstream stream() const { return stream_->handle(); }
  Status synchronize() const { return stream_->synchronize(); }

  // Microseconds that the stream takes from one to the other.
  Status start_timer();
  Result<double> stop_timer();

 private:
  PerfDevice(const cuda::Driver& driver, cuda::PrimaryContext context)
      : driver_(driver), context_(std::move(context)) {}

  const cuda::Driver& driver_;
  cuda::PrimaryContext context_;
  std::unique_ptr<cuda::ContextScope> scope_;
  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<cuda::Event> start_;
  std::unique_ptr<cuda::Event> stop_;
};

// Which GPU a rank takes, of those that its machine has.
int device_of(std::int32_t rank, std::int32_t ranks_per_gpu, int devices);

class Buffer {
 public:
  Buffer() = default;
  // `device` is null for memory of the host, and outlives the buffer.
  static Result<Buffer> create(Communicator& communicator, MemoryKind kind, const PerfDevice* device,
                               std::size_t bytes);

  std::byte* host() const { return host_; }  // what the rank fills and checks
  std::byte* data() const { return data_; }  // what calls are given
  Status push() const;                       // from host() to data(), where they differ; at once
  Status pull() const;                       // and back, behind the calls in the stream

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };

  Memory registered_;
  std::unique_ptr<std::byte, Free> plain_;
  std::unique_ptr<cuda::DeviceMemory> on_device_;
  const PerfDevice* device_ = nullptr;
  std::size_t bytes_ = 0;
  std::byte* host_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace tutti::tool
