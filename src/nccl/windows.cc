#include "nccl/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "cuda/driver.h"
#include "nccl/memory.h"
#include "nccl/streams.h"
#include "tutti/group.h"

namespace tutti::nccl {
namespace {

// Of puts under way from one rank; a further put then waits for the oldest.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::size_t kMostPuts = 4096;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

}  // namespace

Windows::~Windows() = default;

Result<ncclWindow_t> Windows::add(Communicator& parent, void* data, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  if (channel_ == nullptr) {
    auto channel = parent.duplicate();
    if (!channel) return channel.error();
    channel_ = *std::move(channel);
  }
  auto window = std::make_unique<Window>();
  window->data = static_cast<std::byte*>(data);
  window->bytes = bytes;
  window->all_bytes.resize(static_cast<std::size_t>(parent.size()));
  const std::uint64_t own = bytes;
  TUTTI_TRY(parent.all_gather(&own, window->all_bytes.data(), 1, DataType::kUint64));
  auto registration = register_if_useful(parent, data, bytes);
  if (!registration) return registration.error();
  window->registration = *std::move(registration);
  window->number = ++last_number_;
  const auto handle = reinterpret_cast<ncclWindow_t>(window.get());
  windows_[handle] = std::move(window);
  return handle;
}

Status Windows::remove(ncclWindow_t handle) {
  const std::scoped_lock lock(mutex_);
  if (windows_.erase(handle) > 0) return {};
  return invalid("the window is none of this communicator's, or was deregistered already");
}

Result<const Window*> Windows::find(ncclWindow_t handle) {
  const std::scoped_lock lock(mutex_);
  const auto found = windows_.find(handle);
  if (found != windows_.end()) return found->second.get();
  return invalid("the window is none of this communicator's, or was deregistered");
}

bool Windows::empty() {
  const std::scoped_lock lock(mutex_);
  return windows_.empty();
}

Status Windows::put(const Signal& to, const Window* window, std::uint64_t offset, const void* data, std::size_t bytes,
                    void* stream) {
  const std::scoped_lock lock(mutex_);
  if (channel_ == nullptr) return invalid("this communicator has no window yet: register one on all ranks first");
  Put put{.header = std::make_unique<Header>(Header{.window = window == nullptr ? 0 : window->number,
                                                    .index = to.index,
                                                    .context = to.context,
                                                    .unused = 0,
                                                    .offset = offset,
                                                    .bytes = bytes}),
          .payload = std::vector<std::byte>(bytes),
          .work = {}};
  if (window != nullptr) {
    const std::uint64_t room = window->all_bytes[static_cast<std::size_t>(to.peer)];
    if (offset > room || bytes > room - offset) {
      return invalid(fmt::format("{} bytes at offset {} are not inside the window of rank {}, which has {}", bytes,
                                 offset, to.peer, room));
    }
  }
  if (bytes > 0) TUTTI_TRY(read_in_stream(data, put.payload.data(), bytes, stream));
  if (to.peer == rank_) {
    if (bytes > 0) TUTTI_TRY(write_memory(window->data + offset, put.payload.data(), bytes));
    ++arrived_[to];
    return {};
  }
  return send(to.peer, std::move(put));
}

Status Windows::send(std::int32_t peer, Put put) {
  forget_done();
  while (!puts_.empty() && (puts_.size() >= kMostPuts || bytes_under_way_ + put.payload.size() > kMostBytes)) {
    TUTTI_TRY(puts_.front().work.wait());
    forget_done();
  }
  Group both;
  TUTTI_TRY(both.send(*channel_, put.header.get(), sizeof(Header), DataType::kUint8, peer));
  if (!put.payload.empty()) {
    TUTTI_TRY(both.send(*channel_, put.payload.data(), put.payload.size(), DataType::kUint8, peer));
  }
  auto work = both.start();
  if (!work) return work.error();
  put.work = *std::move(work);
  bytes_under_way_ += put.payload.size();
  puts_.push_back(std::move(put));
  return {};
}

void Windows::forget_done() {
  std::erase_if(puts_, [&](Put& put) {
    if (!put.work.test()) return false;
    bytes_under_way_ -= put.payload.size();
    return true;
  });
}

Status Windows::wait(const Signal& from, std::uint64_t count) {
  const std::scoped_lock lock(mutex_);
  if (channel_ == nullptr) return invalid("this communicator has no window yet: register one on all ranks first");
  while (arrived_[from] < count) {
    if (from.peer == rank_) {
      return invalid(fmt::format("{} signals of this rank itself are waited for, {} were sent", count, arrived_[from]));
    }
    TUTTI_TRY(take_one(from.peer));
  }
  arrived_[from] -= count;
  forget_done();
  return {};
}

Status Windows::take_one(std::int32_t peer) {
  Header header;
  TUTTI_TRY(channel_->receive(&header, sizeof(header), DataType::kUint8, peer));
  if (header.bytes > 0) TUTTI_TRY(land(header.window, header.offset, header.bytes, peer));
  ++arrived_[{.peer = peer, .index = header.index, .context = header.context}];
  return {};
}

Status Windows::land(std::uint32_t number, std::uint64_t offset, std::uint64_t bytes, std::int32_t peer) {
  const auto same = [&](const auto& entry) { return entry.second->number == number; };
  const auto found = std::find_if(windows_.begin(), windows_.end(), same);
  const bool fits = found != windows_.end() && offset <= found->second->bytes && bytes <= found->second->bytes - offset;
  std::byte* to = fits ? found->second->data + offset : nullptr;
  if (fits && is_host_memory(to)) return channel_->receive(to, bytes, DataType::kUint8, peer);
  std::vector<std::byte> payload(bytes);  // what cannot land is taken all the same: the next message is behind it
  TUTTI_TRY(channel_->receive(payload.data(), bytes, DataType::kUint8, peer));
  if (fits) return write_memory(to, payload.data(), bytes);
  return invalid(
      fmt::format("rank {} has put {} bytes at offset {} into window {}, which this rank has deregistered or "
                  "which is shorter here",
                  peer, bytes, offset, number));
}

void Windows::abort() {
  if (channel_ != nullptr) channel_->abort();
}

}  // namespace tutti::nccl
