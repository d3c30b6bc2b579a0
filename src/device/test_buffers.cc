#include "device/test_buffers.h"

#include "base/assert.h"

namespace tutti::detail {

Result<std::unique_ptr<TestBuffers>> TestBuffers::make(const RankDevice& device, std::size_t bytes) {
  auto scope = cuda::ContextScope::enter(device.driver(), device.context());
  if (!scope) return scope.error();
  auto stream = cuda::Stream::create(device.driver());
  if (!stream) return stream.error();
  auto first = cuda::DeviceMemory::allocate(device.driver(), bytes);
  if (!first) return first.error();
  auto second = cuda::DeviceMemory::allocate(device.driver(), bytes);
  if (!second) return second.error();
  // The constructor is private, so make_unique cannot be used.
  return std::unique_ptr<TestBuffers>(
      new TestBuffers(device, *std::move(scope), *std::move(stream), *std::move(first), *std::move(second)));
}

Status TestBuffers::put(int buffer, std::span<const std::byte> bytes) {
  const cuda::Driver& driver = device_.driver();
  TUTTI_TRY(driver.check(
      driver.api().memcpy_htod_async(memory(buffer).address(), bytes.data(), bytes.size(), stream_.handle()),
      "copying to a GPU"));
  return wait();
}

Status TestBuffers::get(int buffer, std::span<std::byte> bytes) {
  const cuda::Driver& driver = device_.driver();
  TUTTI_TRY(driver.check(
      driver.api().memcpy_dtoh_async(bytes.data(), memory(buffer).address(), bytes.size(), stream_.handle()),
      "copying from a GPU"));
  return wait();
}

}  // namespace tutti::detail
