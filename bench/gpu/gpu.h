// Gpu: the GPU that gpu_bench measures. It has the driver, a context that is current in the thread that called open(),
// a stream, the library's kernels by name, and time measurement with events. tests/device/hardware uses it, too. Other
// threads may only call driver() and context().
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

// The size of a kernel launch.
struct Grid {
  unsigned blocks = 1;
  unsigned threads = 32;
};

// The rounds of a measurement. After a warm-up, each round has one or more passes between two events. The median of the
// rounds counts.
struct Rounds {
  unsigned rounds = 7;
  unsigned passes = 1;
  // Limit in seconds, from the end of the warm-up: after it no further round starts. At least one round takes place.
  double limit_s = 5;
};

// The samples of a measurement: the mean time of a pass in each round, in microseconds.
struct Samples {
  std::vector<double> us;
  double median() const;
};

class Gpu {
 public:
  // Opens a GPU. `image` is kernels::device_image() of the library, or a replacement in a test; it may be empty.
  // Errors: kUnsupported (there is no driver or no device), kInvalidArgument (there is no device with that number), and
  // those of calls to the driver.
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

  // Returns a kernel of the library by its name (kernels/device/entry.cu). Errors: kUnsupported if this build has no
  // device code; an error of the driver if it cannot load the code for this GPU, or if it is a fake driver without
  // kernels.
  Result<cuda::CUfunction> kernel(const char* name);
  // The number of blocks of `threads` threads of a kernel that can be resident on the whole device at the same time.
  Result<unsigned> blocks_at_once(cuda::CUfunction kernel, unsigned threads) const;
  // Launches a kernel. A null `argument` means that the kernel has none.
  Status launch(cuda::CUfunction kernel, Grid grid, void* argument, cuda::CUstream stream) const;

  Result<cuda::DeviceMemory> allocate(std::size_t bytes) const;
  // put() copies from the host to the device, and get() from the device to the host. Both return after the copy has
  // finished.
  Status put(cuda::CUdeviceptr to, std::span<const std::byte> from) const;
  Status get(std::span<std::byte> to, cuda::CUdeviceptr from) const;
  // Starts a copy within the device, in stream(), and does not wait for its end.
  Status copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes) const;
  Status synchronize() const { return stream_->synchronize(); }

  // Measures each of `bodies`, all of which submit their work to stream(). Each round runs all of them in turn, so that
  // the clock rate of the GPU is about the same for all.
  Result<std::vector<Samples>> measure(const Rounds& rounds, std::span<const std::function<Status()>> bodies) const;
  // Measures one body that measures itself: `body` runs one pass and returns its microseconds. `rounds.passes` is
  // ignored.
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
