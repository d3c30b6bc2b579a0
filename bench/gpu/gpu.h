// The GPU that gpu_bench measures: the driver, a context that is the thread's own, a stream, the library's kernels by
// name, and times by events. tests/device/hardware uses it too. One thread, but for what is const.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/resources.h"

namespace tutti::bench {

struct Grid {
  unsigned blocks = 1;
  unsigned threads = 32;
};

// Medians of rounds, each of several passes between two events, after a warm-up.
struct Rounds {
  unsigned rounds = 7;
  unsigned passes = 1;
  double limit_s = 5;  // of one cell: no further round begins after it, but for the first
};

// A cell's samples, of one pass each, in microseconds.
struct Samples {
  std::vector<double> us;
  double median() const;
};

class Gpu {
 public:
  // `image` is the library's kernels::device_image(), or what a test has in its place; may be empty.
  // Errors: kUnsupported (no driver, no device), kInvalidArgument (no device of that number), kSystem.
  static Result<std::unique_ptr<Gpu>> open(int device, std::span<const std::byte> image);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  const cuda::Driver& driver() const { return driver_; }
  cuda::CUcontext context() const { return context_.context(); }
  cuda::CUstream stream() const { return stream_->handle(); }
  const std::string& name() const { return name_; }
  int multiprocessors() const { return multiprocessors_; }
  Result<std::size_t> free_bytes() const;

  // The library's kernel of that name (kernels/device/entry.cu). Errors: kUnsupported where this build has no device
  // code; what the driver says where it has nothing for this GPU or is a double without kernels.
  Result<cuda::CUfunction> kernel(const char* name);
  // Blocks of a kernel that are on the whole device at once.
  Result<unsigned> blocks_at_once(cuda::CUfunction kernel, unsigned threads) const;
  Status launch(cuda::CUfunction kernel, Grid grid, void* argument, cuda::CUstream stream) const;  // null: no argument

  Result<cuda::DeviceMemory> allocate(std::size_t bytes) const;
  // Both return when the copy is done.
  Status put(cuda::CUdeviceptr to, std::span<const std::byte> from) const;
  Status get(std::span<std::byte> to, cuda::CUdeviceptr from) const;
  Status copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes) const;  // in the stream
  Status synchronize() const { return stream_->synchronize(); }

  // What each of `bodies` takes in this stream. In every round each gets its turn, so that all have the same clocks.
  Result<std::vector<Samples>> measure(const Rounds& rounds, std::span<const std::function<Status()>> bodies) const;
  // The same of one body that has events of its own: it returns the microseconds of one pass.
  static Result<Samples> measure(const Rounds& rounds, const std::function<Result<double>()>& body);

 private:
  Gpu(const cuda::Driver& driver, cuda::PrimaryContext context, std::span<const std::byte> image)
      : driver_(driver), context_(std::move(context)), image_(image) {}
  Status finish_opening(int device);
  Result<double> time_us(unsigned passes, const std::function<Status()>& body) const;

  const cuda::Driver& driver_;
  cuda::PrimaryContext context_;
  std::span<const std::byte> image_;
  std::optional<cuda::ContextScope> scope_;
  std::optional<cuda::Stream> stream_;
  std::optional<cuda::Event> start_;
  std::optional<cuda::Event> stop_;
  std::optional<cuda::Module> module_;
  std::string name_;
  int multiprocessors_ = 0;
};

inline std::byte* pointer_to(const cuda::DeviceMemory& memory) {
  return reinterpret_cast<std::byte*>(memory.address());  // NOLINT: a device's address
}

}  // namespace tutti::bench
