#include "nccl/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "communicator/receiver_look.h"
#include "nccl/streams.h"
#include "tutti/group.h"

namespace tutti::nccl {
namespace {

// How many times a wait checks its condition before it begins to sleep between checks, so that short waits stay short.
constexpr int kChecksWithoutPause = 200;
// A rank that waits for a signal checks for messages of other ranks only once in this many checks, because usually the
// message with the signal arrives first.
constexpr int kChecksPerProbe = 16;
constexpr int kMessagesPerProbe = 64;  // the most messages that a wait receives before it checks its condition again
constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};
// check_target() does not check a target again for this long after a check without an error, because a check can be a
// system call.
constexpr std::chrono::milliseconds kBetweenChecks{100};
// How long check_target() waits at most until it is certain whether the target is alive. After this time the target
// counts as alive.
constexpr std::chrono::seconds kLongestCheck{1};

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

Error no_window() { return invalid("this communicator has no window yet: register one on all ranks first"); }

// The information that ranks exchange when a window is registered: the size of the rank's own part, and 1 in `failed`
// if the rank could not register it.
struct WindowInfo {
  std::uint64_t bytes = 0;
  std::uint64_t failed = 0;
};

// Creates the communicator for the messages of windows. It is suspended at once, so that it holds no GPU memory: it
// only sends and receives host memory.
Result<std::shared_ptr<Communicator>> make_channel(Communicator& parent) {
  auto channel = parent.duplicate();
  if (!channel) return channel.error();
  TUTTI_TRY((*channel)->suspend());
  return std::shared_ptr<Communicator>(*std::move(channel));
}

}  // namespace

Windows::~Windows() {
  abort();
  channel_.reset();  // from here on nothing reads the memory of the puts in flight, so they can be destroyed
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
  // Incremented even if registration fails, so that a window has the same number on all ranks.
  window->number = ++last_number_;
  auto registration = register_if_useful(parent, data, bytes);
  const WindowInfo own{.bytes = bytes, .failed = registration.ok() ? 0U : 1U};
  std::vector<WindowInfo> offers(static_cast<std::size_t>(parent.size()));
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
  // Declared before the lock, so that the window is destroyed after the unlock, because that can take long.
  std::shared_ptr<Window> removed;
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

// Checks the arguments of a put and copies its data: into the header if the data has at most kInlineBytes bytes and the
// target is another rank, otherwise into Put::payload.
Result<Windows::Put> Windows::prepare(const Signal& to, ncclWindow_t handle, std::uint64_t offset, const void* data,
                                      std::size_t bytes, void* stream) {
  Put put{.header = std::make_unique<Header>(), .payload = {}, .work = {}};
  if (bytes > kInlineBytes || to.peer == rank_) put.payload.resize(bytes);
  put.header->index = to.index;
  put.header->context = to.context;
  put.header->offset = offset;
  put.header->bytes = bytes;
  if (handle != nullptr) {
    const std::scoped_lock lock(mutex_);
    const auto found = windows_.find(handle);
    if (found == windows_.end()) return invalid("the window is none of this communicator's, or was deregistered");
    const std::uint64_t window_bytes = found->second->all_bytes[static_cast<std::size_t>(to.peer)];
    if (offset > window_bytes || bytes > window_bytes - offset) {
      return invalid(fmt::format("{} bytes at offset {} are not inside the window of rank {}, which has {}", bytes,
                                 offset, to.peer, window_bytes));
    }
    put.header->window = found->second->number;
  }
  std::byte* const copy = put.payload.empty() ? put.header->inside.data() : put.payload.data();
  if (bytes > 0) TUTTI_TRY(read_in_stream("reading the data of a put", data, copy, bytes, stream));
  return put;
}

Status Windows::put(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
                    void* stream) {
  const std::shared_ptr<Communicator> channel = this->channel();
  if (channel == nullptr) return no_window();
  auto made = prepare(to, window, offset, data, bytes, stream);
  if (!made) return made.error();
  Lock lock(mutex_);
  if (to.peer != rank_) {
    TUTTI_TRY(check_target(lock, *channel, to.peer));
    TUTTI_TRY(wait_for_capacity(lock, *channel, bytes));
    return send(*channel, to.peer, *std::move(made));
  }
  const auto found = windows_.find(window);
  if (bytes > 0 && found == windows_.end()) return invalid("the window was deregistered");
  if (bytes > 0) TUTTI_TRY(write_memory(found->second->data + offset, made->payload.data(), bytes));
  ++arrived_[to];
  changed_.notify_all();
  return {};
}

// Returns an error if a check finds that the process of the target has ended. Skips the check shortly after the last
// one (kBetweenChecks). Without this check only a later call would report the lost process, because a put does not wait
// until its message is received.
Status Windows::check_target(Lock& lock, Communicator& channel, std::int32_t peer) {
  const auto start = std::chrono::steady_clock::now();
  const auto last = checked_at_.find(peer);
  if (last != checked_at_.end() && start - last->second < kBetweenChecks) return {};
  lock.unlock();
  auto is_ready = detail::can_receive(channel, sizeof(Header), peer);
  while (is_ready && !*is_ready && std::chrono::steady_clock::now() - start < kLongestCheck) {
    std::this_thread::sleep_for(kLongestPause);
    is_ready = detail::can_receive(channel, sizeof(Header), peer);
  }
  lock.lock();
  if (!is_ready) return is_ready.error();
  checked_at_[peer] = std::chrono::steady_clock::now();
  return {};
}

// Waits until a put of `bytes` bytes may be started under the limits kMostPuts and kMostBytes. A put that is larger
// than kMostBytes waits until no other put is in flight. Returns the error of an earlier put if there is one.
Status Windows::wait_for_capacity(Lock& lock, Communicator& channel, std::size_t bytes) {
  TUTTI_TRY(take_until(lock, channel, 1, [&] {
    remove_completed();
    return puts_in_flight_ == 0 || (puts_in_flight_ < kMostPuts && bytes_in_flight_ + bytes <= kMostBytes);
  }));
  return take_put_error();
}

// Returns put_error_ and clears it.
Status Windows::take_put_error() {
  const auto failed = std::exchange(put_error_, std::nullopt);
  return failed ? Status(*failed) : Status();
}

// Starts the messages of a put: the header, and the payload if it is not inside the header. Both are in one group, so
// that no other message to the same peer comes between them.
Status Windows::send(Communicator& channel, std::int32_t peer, Put put) {
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
  bytes_in_flight_ += put.payload.size();
  ++puts_in_flight_;
  puts_[peer].push_back(std::move(put));
  return {};
}

// Removes completed puts from puts_, and stores the first error of one of them in put_error_.
void Windows::remove_completed() {
  for (auto& [peer, puts] : puts_) {
    while (!puts.empty() && puts.front().work.test()) {
      Put& put = puts.front();
      if (const Status ended = put.work.wait(); !ended.ok() && !put_error_) put_error_ = ended.error();
      bytes_in_flight_ -= put.payload.size();
      --puts_in_flight_;
      puts.pop_front();
    }
  }
}

Status Windows::wait(const Signal& from, std::uint64_t count) {
  const std::shared_ptr<Communicator> channel = this->channel();
  if (channel == nullptr) return no_window();
  Lock lock(mutex_);
  while (arrived_[from] < count) {
    if (const auto refused = store_errors_.extract(from.peer); !refused.empty()) return refused.mapped();
    if (from.peer == rank_) {
      return invalid(
          fmt::format("the wait is for {} signals of this rank itself, but only {} were sent", count, arrived_[from]));
    }
    if (receiving_.contains(from.peer)) {
      changed_.wait(lock);
      continue;
    }
    TUTTI_TRY(take(lock, *channel, from.peer, Arrival::kMayBeLate));
  }
  arrived_[from] -= count;
  remove_completed();
  return {};
}

// Receives the next message from `peer`, stores its payload and counts its signal. Must not be called while another
// thread receives from that peer. With Arrival::kMayBeLate the message may not have arrived yet. Until it arrives,
// take() receives messages of other ranks, because `peer` may be waiting, directly or through other ranks, for a rank
// whose puts to this rank have used up its capacity. If an exception is thrown (exhausted memory), take() aborts the
// channel, because a part of the message may not have been read.
Status Windows::take(Lock& lock, Communicator& channel, std::int32_t peer, Arrival when) {
  receiving_.insert(peer);
  ++receives_begun_;
  const auto end = [&] {
    if (!lock.owns_lock()) lock.lock();
    receiving_.erase(peer);
    changed_.notify_all();
  };
  try {
    Status stored;
    Status received = receive_and_store(lock, channel, peer, when, stored);
    if (!stored.ok()) store_errors_.try_emplace(peer, stored.error());
    end();
    return received;
  } catch (...) {
    channel.abort();
    end();
    throw;
  }
}

// The body of take(). Returns errors of the connection. If the payload was received but could not be stored, sets
// `stored` to that error and returns success.
Status Windows::receive_and_store(Lock& lock, Communicator& channel, std::int32_t peer, Arrival when, Status& stored) {
  Header& header = headers_[peer];
  auto work = start_receive(channel, &header, sizeof(header), peer);
  Status waited;
  if (work && when == Arrival::kMayBeLate)
    waited = take_until(lock, channel, kChecksPerProbe, [&] { return work->test(); });
  lock.unlock();
  // Waits even after an error, because the receive may still write to `header`.
  Status received = work ? work->wait() : Status(work.error());
  if (received.ok() && header.bytes > 0) received = store_payload(channel, header, peer, stored);
  lock.lock();
  if (received.ok() && stored.ok()) ++arrived_[{.peer = peer, .index = header.index, .context = header.context}];
  return received.ok() ? waited : received;
}

// Receives one message that has arrived, from any peer, and returns true. Returns false, and receives nothing, if no
// message has arrived, if another thread is receiving from the sender of the message, or if another thread has begun to
// receive a message since take_any() was called, because that may have been this message.
Result<bool> Windows::take_any(Lock& lock, Communicator& channel) {
  const std::uint64_t receives_begun = receives_begun_;
  lock.unlock();
  const auto sender = channel.try_next_sender();
  lock.lock();
  if (!sender) return sender.error();
  if (!*sender || receiving_.contains(**sender) || receives_begun_ != receives_begun) return false;
  TUTTI_TRY(take(lock, channel, **sender, Arrival::kArrived));
  return true;
}

// Waits until done() returns true. done() is called with the lock held. Once in `checks_per_probe` checks, receives
// messages of other ranks that have arrived, so that ranks that wait for capacity for a put to this rank can continue.
// Up to kMessagesPerProbe messages are received before done() is checked again, for the same reason.
Status Windows::take_until(Lock& lock, Communicator& channel, int checks_per_probe, const std::function<bool()>& done) {
  auto pause = kShortestPause;
  for (int checks = 1; !done(); ++checks) {
    bool taken = checks % checks_per_probe == 0;
    for (int messages = 0; taken && messages < kMessagesPerProbe; ++messages) {
      const auto one = take_any(lock, channel);
      if (!one) return one.error();
      taken = *one;
      if (taken) checks = 0;
      if (taken) pause = kShortestPause;
    }
    if (checks == 0) continue;
    lock.unlock();
    if (checks < kChecksWithoutPause) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
    lock.lock();
  }
  return {};
}

Result<Work> Windows::start_receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer) {
  // As in send(): operations on the channel are started only while channel_mutex_ is held.
  const std::scoped_lock lock(channel_mutex_);
  Group one;
  TUTTI_TRY(one.receive(channel, to, bytes, DataType::kUint8, peer));
  return one.start();
}

Status Windows::receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer) {
  auto work = start_receive(channel, to, bytes, peer);
  return work ? work->wait() : Status(work.error());
}

// Receives the payload of a message, unless it is inside the header, and stores it in the window. Returns errors of the
// connection. If the payload cannot be stored, sets `stored` to that error and returns success.
Status Windows::store_payload(Communicator& channel, const Header& header, std::int32_t peer, Status& stored) {
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
  const bool inside = header.bytes <= kInlineBytes;
  if (fits && !inside && is_host_memory(to)) return receive(channel, to, header.bytes, peer);
  // A payload that cannot be stored is received all the same, because the next message of the peer is behind it.
  std::vector<std::byte> payload(inside ? 0 : header.bytes);
  if (!inside) TUTTI_TRY(receive(channel, payload.data(), header.bytes, peer));
  stored = fits ? write_memory(to, inside ? header.inside.data() : payload.data(), header.bytes)
                : invalid(fmt::format("rank {} has put {} bytes at offset {} into window {}, which this rank has "
                                      "deregistered or which is shorter here",
                                      peer, header.bytes, header.offset, header.window));
  return {};
}

Status Windows::finish() {
  const std::shared_ptr<Communicator> channel = this->channel();
  if (channel == nullptr) return {};
  {
    Lock lock(mutex_);
    TUTTI_TRY(take_until(lock, *channel, 1, [&] {
      remove_completed();
      return puts_in_flight_ == 0;
    }));
    TUTTI_TRY(take_put_error());
  }
  return channel->finalize();
}

void Windows::abort() {
  if (const auto channel = this->channel(); channel != nullptr) channel->abort();
}

}  // namespace tutti::nccl
