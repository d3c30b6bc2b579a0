#include "nccl/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "nccl/streams.h"
#include "tutti/group.h"

namespace tutti::nccl {
namespace {

// Of puts under way from one rank; a further put then waits for the oldest.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::size_t kMostPuts = 4096;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

Error no_window() { return invalid("this communicator has no window yet: register one on all ranks first"); }

// What a rank says of its window in the round that registers it.
struct Offer {
  std::uint64_t bytes = 0;
  std::uint64_t failed = 0;
};

// Of a communicator of its own, whose GPU memory nobody needs.
Result<std::shared_ptr<Communicator>> make_channel(Communicator& parent) {
  auto channel = parent.duplicate();
  if (!channel) return channel.error();
  TUTTI_TRY((*channel)->suspend());
  return std::shared_ptr<Communicator>(*std::move(channel));
}

}  // namespace

Windows::~Windows() {
  abort();
  channel_.reset();  // sends nothing any more: the puts can go
}

std::shared_ptr<Communicator> Windows::channel() {
  const std::scoped_lock lock(channel_mutex_);
  return channel_;
}

Result<ncclWindow_t> Windows::add(Communicator& parent, void* data, std::size_t bytes) {
  if (channel() == nullptr) {
    auto made = make_channel(parent);
    if (!made) return made.error();
    const std::scoped_lock lock(channel_mutex_);
    channel_ = *std::move(made);
  }
  auto window = std::make_shared<Window>();
  window->data = static_cast<std::byte*>(data);
  window->bytes = bytes;
  window->number = ++last_number_;  // also where it fails: the numbers stay the same on all ranks
  auto registration = register_if_useful(parent, data, bytes);
  const Offer own{.bytes = bytes, .failed = registration.ok() ? 0U : 1U};
  std::vector<Offer> offers(static_cast<std::size_t>(parent.size()));
  TUTTI_TRY(parent.all_gather(&own, offers.data(), sizeof(own), DataType::kUint8));
  if (!registration) return registration.error();
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    window->all_bytes.push_back(offers[rank].bytes);
    if (offers[rank].failed == 0) continue;
    return Error{ErrorCode::kSystem, ErrorScope::kCall, static_cast<std::int32_t>(rank),
                 fmt::format("rank {} could not register its part of the window", rank)};
  }
  window->registration = *std::move(registration);
  const auto handle = reinterpret_cast<ncclWindow_t>(window.get());
  const std::scoped_lock lock(mutex_);
  windows_[handle] = std::move(window);
  return handle;
}

Status Windows::remove(ncclWindow_t handle) {
  std::shared_ptr<Window> removed;  // ends after the lock, for that may take its time
  const std::scoped_lock lock(mutex_);
  const auto found = windows_.find(handle);
  if (found == windows_.end()) return invalid("the window is none of this communicator's, or was deregistered already");
  removed = std::move(found->second);
  windows_.erase(found);
  return {};
}

Result<std::byte*> Windows::data_of(ncclWindow_t handle) {
  const std::scoped_lock lock(mutex_);
  const auto found = windows_.find(handle);
  if (found != windows_.end()) return found->second->data;
  return invalid("the window is none of this communicator's, or was deregistered");
}

Result<Windows::Put> Windows::prepare(const Signal& to, ncclWindow_t handle, std::uint64_t offset, const void* data,
                                      std::size_t bytes, void* stream) {
  Put put{.header = std::make_unique<Header>(), .payload = std::vector<std::byte>(bytes), .work = {}};
  *put.header = {.window = 0, .index = to.index, .context = to.context, .unused = 0, .offset = offset, .bytes = bytes};
  if (handle != nullptr) {
    const std::scoped_lock lock(mutex_);
    const auto found = windows_.find(handle);
    if (found == windows_.end()) return invalid("the window is none of this communicator's, or was deregistered");
    const std::uint64_t room = found->second->all_bytes[static_cast<std::size_t>(to.peer)];
    if (offset > room || bytes > room - offset) {
      return invalid(fmt::format("{} bytes at offset {} are not inside the window of rank {}, which has {}", bytes,
                                 offset, to.peer, room));
    }
    put.header->window = found->second->number;
  }
  if (bytes > 0) TUTTI_TRY(read_in_stream(data, put.payload.data(), bytes, stream));
  return put;
}

Status Windows::put(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
                    void* stream) {
  const std::shared_ptr<Communicator> channel = this->channel();
  if (channel == nullptr) return no_window();
  auto made = prepare(to, window, offset, data, bytes, stream);
  if (!made) return made.error();
  const std::scoped_lock lock(mutex_);
  if (to.peer != rank_) return send(*channel, to.peer, *std::move(made));
  const auto found = windows_.find(window);
  if (bytes > 0 && found == windows_.end()) return invalid("the window was deregistered");
  if (bytes > 0) TUTTI_TRY(write_memory(found->second->data + offset, made->payload.data(), bytes));
  ++arrived_[to];
  changed_.notify_all();
  return {};
}

Status Windows::send(Communicator& channel, std::int32_t peer, Put put) {
  forget_done();
  while (!puts_.empty() && (puts_.size() >= kMostPuts || bytes_under_way_ + put.payload.size() > kMostBytes)) {
    TUTTI_TRY(puts_.front().work.wait());
    forget_done();
  }
  {
    const std::scoped_lock lock(channel_mutex_);
    Group both;
    TUTTI_TRY(both.send(channel, put.header.get(), sizeof(Header), DataType::kUint8, peer));
    if (!put.payload.empty()) {
      TUTTI_TRY(both.send(channel, put.payload.data(), put.payload.size(), DataType::kUint8, peer));
    }
    auto work = both.start();
    if (!work) return work.error();
    put.work = *std::move(work);
  }
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
  const std::shared_ptr<Communicator> channel = this->channel();
  if (channel == nullptr) return no_window();
  std::unique_lock lock(mutex_);
  while (arrived_[from] < count) {
    if (from.peer == rank_) {
      return invalid(fmt::format("{} signals of this rank itself are waited for, {} were sent", count, arrived_[from]));
    }
    if (!receiving_.insert(from.peer).second) {
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    auto taken = take_one(*channel, from.peer);
    lock.lock();
    receiving_.erase(from.peer);
    if (taken) ++arrived_[*taken];
    changed_.notify_all();
    if (!taken) return taken.error();
  }
  arrived_[from] -= count;
  forget_done();
  return {};
}

Status Windows::receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer) {
  Work work;
  {
    const std::scoped_lock lock(channel_mutex_);  // else a put's open group would have this refused
    Group one;
    TUTTI_TRY(one.receive(channel, to, bytes, DataType::kUint8, peer));
    auto started = one.start();
    if (!started) return started.error();
    work = *std::move(started);
  }
  return work.wait();
}

Result<Signal> Windows::take_one(Communicator& channel, std::int32_t peer) {
  Header header;
  TUTTI_TRY(receive(channel, &header, sizeof(header), peer));
  if (header.bytes > 0) TUTTI_TRY(land(channel, header, peer));
  return Signal{.peer = peer, .index = header.index, .context = header.context};
}

Status Windows::land(Communicator& channel, const Header& header, std::int32_t peer) {
  std::shared_ptr<Window> window;
  {
    const std::scoped_lock lock(mutex_);
    const auto same = [&](const auto& entry) { return entry.second->number == header.window; };
    const auto found = std::find_if(windows_.begin(), windows_.end(), same);
    if (found != windows_.end()) window = found->second;
  }
  const bool fits =
      window != nullptr && header.offset <= window->bytes && header.bytes <= window->bytes - header.offset;
  std::byte* to = fits ? window->data + header.offset : nullptr;
  if (fits && is_host_memory(to)) return receive(channel, to, header.bytes, peer);
  std::vector<std::byte> payload(
      header.bytes);  // what cannot land is taken all the same: the next message is behind it
  TUTTI_TRY(receive(channel, payload.data(), header.bytes, peer));
  if (fits) return write_memory(to, payload.data(), header.bytes);
  return invalid(
      fmt::format("rank {} has put {} bytes at offset {} into window {}, which this rank has deregistered or "
                  "which is shorter here",
                  peer, header.bytes, header.offset, header.window));
}

Status Windows::finish() {
  const std::scoped_lock lock(mutex_);
  for (Put& put : puts_) TUTTI_TRY(put.work.wait());
  puts_.clear();
  bytes_under_way_ = 0;
  const std::shared_ptr<Communicator> channel = this->channel();
  return channel == nullptr ? Status() : channel->finalize();
}

void Windows::abort() {
  if (const auto channel = this->channel(); channel != nullptr) channel->abort();
}

}  // namespace tutti::nccl
