#include "tools/perf/buffer.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "base/assert.h"

namespace tutti::tool {
namespace {

constexpr std::size_t kAlignment = 4096;

}  // namespace

Result<std::unique_ptr<PerfDevice>> PerfDevice::open(int device) {
  auto driver = cuda::Driver::open();
  if (!driver) return driver.error();
  auto context = cuda::PrimaryContext::retain(**driver, device);
  if (!context) return context.error();
  // unique_ptr's constructor instead of make_unique(), which cannot call the private constructor
  std::unique_ptr<PerfDevice> made(new PerfDevice(**driver, std::move(*context)));
  auto scope = cuda::ContextScope::enter(made->driver_, made->context_.context());
  if (!scope) return scope.error();
  made->scope_ = std::make_unique<cuda::ContextScope>(std::move(*scope));
  auto stream = cuda::Stream::create(made->driver_);
  if (!stream) return stream.error();
  made->stream_ = std::make_unique<cuda::Stream>(std::move(*stream));
  for (std::unique_ptr<cuda::Event>* event : {&made->start_, &made->stop_}) {
    auto one = cuda::Event::create(made->driver_, {.flags = cuda::kEventDefault});
    if (!one) return one.error();
    *event = std::make_unique<cuda::Event>(std::move(*one));
  }
  return made;
}

PerfDevice::~PerfDevice() {
  stop_.reset();
  start_.reset();
  stream_.reset();
  scope_.reset();
}

Status PerfDevice::start_timer() { return start_->record(stream_->handle()); }

Result<double> PerfDevice::stop_timer() {
  TUTTI_TRY(stop_->record(stream_->handle()));
  TUTTI_TRY(stop_->synchronize());
  auto milliseconds = cuda::elapsed_ms(driver_, *start_, *stop_);
  if (!milliseconds) return milliseconds.error();
  return *milliseconds * 1000;
}

int device_of(std::int32_t rank, std::int32_t ranks_per_gpu, int devices) { return rank / ranks_per_gpu % devices; }

void Buffer::Free::operator()(std::byte* data) const { std::free(data); }

Result<Buffer> Buffer::create(Communicator& communicator, MemoryKind kind, const PerfDevice* device,
                              std::size_t bytes) {
  TUTTI_ASSERT((device != nullptr) == (kind == MemoryKind::kCuda));
  Buffer buffer;
  buffer.bytes_ = bytes;
  if (kind == MemoryKind::kRegistered) {
    Result<Memory> memory = communicator.allocate(bytes);
    if (!memory) return memory.error();
    buffer.registered_ = std::move(*memory);
    buffer.host_ = buffer.data_ = buffer.registered_.data();
    return buffer;
  }
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  buffer.plain_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (!buffer.plain_) {
    return Error{.code = ErrorCode::kSystem,
                 .message = "no memory for a buffer of " + std::to_string(bytes) + " bytes"};
  }
  buffer.host_ = buffer.data_ = buffer.plain_.get();
  if (device == nullptr) return buffer;
  auto memory = cuda::DeviceMemory::allocate(device->driver(), bytes);
  if (!memory) return memory.error();
  buffer.device_ = device;
  buffer.on_device_ = std::make_unique<cuda::DeviceMemory>(std::move(*memory));
  buffer.data_ = reinterpret_cast<std::byte*>(buffer.on_device_->address());  // NOLINT: an address in GPU memory
  return buffer;
}

Status Buffer::push() const {
  if (device_ == nullptr) return {};
  const cuda::DriverApi& api = device_->driver().api();
  TUTTI_TRY(device_->driver().check(api.memcpy_htod_async(on_device_->address(), host_, bytes_, device_->stream()),
                                    "copying a buffer to the GPU"));
  return device_->synchronize();
}

Status Buffer::pull() const {
  if (device_ == nullptr) return {};
  const cuda::DriverApi& api = device_->driver().api();
  TUTTI_TRY(device_->driver().check(api.memcpy_dtoh_async(host_, on_device_->address(), bytes_, device_->stream()),
                                    "copying a buffer from the GPU"));
  return device_->synchronize();
}

}  // namespace tutti::tool
