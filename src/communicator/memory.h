// MemoryImpl: the implementation of the public class Memory, which is allocated or registered host memory, or
// registered device memory. It owns no threads or locks. It is immutable, so any thread may read it. Internal to
// src/communicator.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "device/native/device_windows.h"
#include "transports/transport.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class MemoryImpl {
 public:
  MemoryImpl(std::unique_ptr<Window> window, std::size_t bytes)
      : data_(window->data()), bytes_(bytes), window_(std::move(window)) {}
  MemoryImpl(std::unique_ptr<DeviceWindow> window, void* data, std::size_t bytes)
      : data_(static_cast<std::byte*>(data)), bytes_(bytes), device_window_(std::move(window)) {}
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;  // the size that the caller asked for; the window may be longer
  std::unique_ptr<Window> window_;
  std::unique_ptr<DeviceWindow> device_window_;  // set instead of window_ if the memory is device memory
};

// Implements Communicator::allocate(). The result must be destroyed before `transport`.
Result<std::unique_ptr<MemoryImpl>> allocate_memory(Transport& transport, std::size_t bytes);
// Implements Communicator::register_memory() for host memory. The result must be destroyed before `transport`.
Result<std::unique_ptr<MemoryImpl>> register_host_memory(Transport& transport, void* data, std::size_t bytes);

}  // namespace tutti::detail
