// The buffers of `tutti perf`: host memory (plain, or registered with the communicator) or GPU memory. A rank always
// fills and checks its buffers on the host. For GPU memory, a Buffer consists of a host buffer and a GPU buffer of the
// same size, and push() and pull() copy the data between them. Each object is used by one thread.
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

// The GPU of one rank, with a stream for its calls. From open() until the destructor, the GPU's context is current in
// the thread that called open().
class PerfDevice {
 public:
  // Opens the GPU with the CUDA device number `device`. Errors: kUnsupported (no driver or no GPU), and those of calls
  // to the CUDA driver (mostly kDevice).
  static Result<std::unique_ptr<PerfDevice>> open(int device);
  ~PerfDevice();

  const cuda::Driver& driver() const { return driver_; }
  cuda::CUstream stream() const { return stream_->handle(); }
  Status synchronize() const { return stream_->synchronize(); }

  // stop_timer() waits for the work in the stream, and returns the microseconds between two events in the stream: one
  // from start_timer() and one from stop_timer(). Time in which the GPU waits for work in between counts.
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

// The number of the GPU that a rank uses if its machine has `devices` GPUs: `ranks_per_gpu` consecutive ranks share
// one, and after the last GPU the first one follows.
int device_of(std::int32_t rank, std::int32_t ranks_per_gpu, int devices);

// A buffer of one rank. A default-constructed Buffer has no memory.
class Buffer {
 public:
  Buffer() = default;
  // Allocates `bytes` bytes. `device` must be null for host memory, must not be null for GPU memory, and must outlive
  // the buffer.
  static Result<Buffer> create(Communicator& communicator, MemoryKind kind, const PerfDevice* device,
                               std::size_t bytes);

  std::byte* host() const { return host_; }  // the memory that the rank fills and checks
  std::byte* data() const { return data_; }  // the memory that is passed to calls
  // For GPU memory: push() copies host() to data(). pull() copies data() to host(), after the work that is in the
  // stream. Both return when the copy has finished. For host memory they do nothing, because host() and data() are the
  // same.
  Status push() const;
  Status pull() const;

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
