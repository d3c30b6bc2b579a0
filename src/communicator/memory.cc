#include "communicator/memory.h"

#include <fmt/format.h>

#include <cstdint>

#include "engine/arguments.h"
#include "transports/shm/mapping.h"

namespace tutti {
namespace detail {

Result<std::unique_ptr<MemoryImpl>> allocate_memory(Transport& transport, std::size_t bytes) {
  if (bytes == 0) return invalid_argument("0 bytes cannot be allocated");
  if (bytes > kMaxBytes) return invalid_argument(fmt::format("{} bytes are more than any memory holds", bytes));
  auto window = transport.allocate_window(bytes);
  if (!window) return window.error();
  return std::make_unique<MemoryImpl>(std::move(*window), bytes);
}

Result<std::unique_ptr<MemoryImpl>> register_host_memory(Transport& transport, void* data, std::size_t bytes) {
  const std::size_t page = page_size();
  if (reinterpret_cast<std::uintptr_t>(data) % page != 0 || bytes % page != 0 || bytes > kMaxBytes) {
    return invalid_argument(
        fmt::format("{} bytes at {} are not whole pages of {} bytes: align with aligned_alloc, or use allocate()",
                    bytes, data, page));
  }
  auto window = transport.adopt_window(data, bytes);
  if (!window) return window.error();
  return std::make_unique<MemoryImpl>(std::move(*window), bytes);
}

}  // namespace detail

Memory::Memory() = default;
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
Memory::~Memory() = default;
Memory::Memory(std::unique_ptr<detail::MemoryImpl> impl) : impl_(std::move(impl)) {}
std::byte* Memory::data() const { return impl_ == nullptr ? nullptr : impl_->data(); }
std::size_t Memory::size() const { return impl_ == nullptr ? 0 : impl_->size(); }

}  // namespace tutti
