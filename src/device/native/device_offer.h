// DeviceOffer: the description of one rank's GPU and settings, with which the ranks agree on how calls on device memory
// run (device_resources_maker.cc). pack() and unpack() convert such values to text and back. Any thread may use them.
#pragma once

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cuda/driver_types.h"
#include "device/native/block_budget.h"

namespace tutti::detail {

inline std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

inline bool from_hex(std::string_view text, std::span<std::byte> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  const auto digit = [](char c) { return std::string_view("0123456789abcdef").find(c); };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::size_t high = digit(text[2 * i]);
    const std::size_t low = digit(text[2 * i + 1]);
    if (high > 15 || low > 15) return false;
    bytes[i] = static_cast<std::byte>(16 * high + low);
  }
  return true;
}

// The contribution of a rank to the first round, if its calls can run on a GPU. Its bytes are sent as hexadecimal text,
// which is possible because all ranks of a job run the same build.
struct DeviceOffer {
  cuda::CUuuid uuid;
  std::uint64_t process = 0;
  std::uint64_t context = 0;  // address of the CUDA context, comparable only between ranks of one process
  std::uint32_t blocks_at_once = 0;
  BlockBudget::Left left;
  std::uint32_t blocks = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t protocol = 0;
  std::uint32_t threads = 0;
  std::uint32_t copies = 0;

  bool same_process(const DeviceOffer& other) const { return process == other.process; }
  bool same_device(const DeviceOffer& other) const { return uuid == other.uuid; }
};

// A number that identifies this process. It is random, so that another process with the same process id, for example in
// another container, has another number. It is combined with the process id, so that a forked child has another number
// than its parent. Returns nothing if the system has no random numbers.
inline std::optional<std::uint64_t> process_nonce() {
  static const std::optional<std::uint64_t> nonce = []() -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    if (getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) return std::nullopt;
    return value;
  }();
  if (!nonce) return std::nullopt;
  return *nonce ^ static_cast<std::uint64_t>(getpid());
}

template <class T>
std::string pack(const T& value) {
  return to_hex(std::as_bytes(std::span(&value, 1)));
}

template <class T>
std::optional<T> unpack(std::string_view text) {
  T value;
  if (!from_hex(text, std::as_writable_bytes(std::span(&value, 1)))) return std::nullopt;
  return value;
}

}  // namespace tutti::detail
