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

// Between two looks at what this rank waits for: at first no pause, so that short waits stay short.
constexpr int kLooksWithoutPause = 200;
// How often a rank looks for what others have put: one that waits for a signal mostly finds that first.
constexpr int kLooksPerProbe = 16;
constexpr int kMessagesPerProbe = 64;
constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};
// A target that was looked at is not looked at again for this long, because a look is a system call.
constexpr std::chrono::milliseconds kBetweenLooks{100};
constexpr std::chrono::seconds kLongestLook{1};

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
  Put put{.header = std::make_unique<Header>(), .payload = {}, .work = {}};
  if (bytes > kInsideBytes || to.peer == rank_) put.payload.resize(bytes);
  put.header->index = to.index;
  put.header->context = to.context;
  put.header->offset = offset;
  put.header->bytes = bytes;
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
  std::byte* const copy = put.payload.empty() ? put.header->inside.data() : put.payload.data();
  if (bytes > 0) TUTTI_TRY(read_in_stream(data, copy, bytes, stream));
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
    TUTTI_TRY(look_at_target(lock, *channel, to.peer));
    TUTTI_TRY(make_room(lock, *channel, bytes));
    return send(*channel, to.peer, *std::move(made));
  }
  const auto found = windows_.find(window);
  if (bytes > 0 && found == windows_.end()) return invalid("the window was deregistered");
  if (bytes > 0) TUTTI_TRY(write_memory(found->second->data + offset, made->payload.data(), bytes));
  ++arrived_[to];
  changed_.notify_all();
  return {};
}

// A put does not wait for its message to go, so only a later call would tell that the target's process had ended.
Status Windows::look_at_target(Lock& lock, Communicator& channel, std::int32_t peer) {
  const auto start = std::chrono::steady_clock::now();
  const auto last = looked_at_.find(peer);
  if (last != looked_at_.end() && start - last->second < kBetweenLooks) return {};
  lock.unlock();
  auto lives = detail::can_receive(channel, sizeof(Header), peer);
  while (lives && !*lives && std::chrono::steady_clock::now() - start < kLongestLook) {
    std::this_thread::sleep_for(kLongestPause);
    lives = detail::can_receive(channel, sizeof(Header), peer);
  }
  lock.lock();
  if (!lives) return lives.error();
  looked_at_[peer] = std::chrono::steady_clock::now();
  return {};
}

Status Windows::make_room(Lock& lock, Communicator& channel, std::size_t bytes) {
  TUTTI_TRY(take_until(lock, channel, 1, [&] {
    forget_done();
    return puts_under_way_ == 0 || (puts_under_way_ < kMostPuts && bytes_under_way_ + bytes <= kMostBytes);
  }));
  return take_failure();
}

// Of a put whose work has failed since the last call that could say so.
Status Windows::take_failure() {
  const auto failed = std::exchange(lost_put_, std::nullopt);
  return failed ? Status(*failed) : Status();
}

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
  bytes_under_way_ += put.payload.size();
  ++puts_under_way_;
  puts_[peer].push_back(std::move(put));
  return {};
}

void Windows::forget_done() {
  for (auto& [peer, puts] : puts_) {
    while (!puts.empty() && puts.front().work.test()) {
      Put& put = puts.front();
      if (const Status ended = put.work.wait(); !ended.ok() && !lost_put_) lost_put_ = ended.error();
      bytes_under_way_ -= put.payload.size();
      --puts_under_way_;
      puts.pop_front();
    }
  }
}

Status Windows::wait(const Signal& from, std::uint64_t count) {
  const std::shared_ptr<Communicator> channel = this->channel();
  if (channel == nullptr) return no_window();
  Lock lock(mutex_);
  while (arrived_[from] < count) {
    if (const auto refused = not_landed_.extract(from.peer); !refused.empty()) return refused.mapped();
    if (from.peer == rank_) {
      return invalid(fmt::format("{} signals of this rank itself are waited for, {} were sent", count, arrived_[from]));
    }
    if (receiving_.contains(from.peer)) {
      changed_.wait(lock);
      continue;
    }
    TUTTI_TRY(take(lock, *channel, from.peer, When::kMayBeLate));
  }
  arrived_[from] -= count;
  forget_done();
  return {};
}

// Takes the next message from `peer`, for which it waits; kMayBeLate: and takes what others put until it is there,
// because `peer` may be held up by one of them. Not while another thread receives from that peer. If an exception
// passes (exhausted memory), it aborts the channel, because a part of the message may not have been read.
Status Windows::take(Lock& lock, Communicator& channel, std::int32_t peer, When when) {
  receiving_.insert(peer);
  ++takes_;
  const auto end = [&] {
    if (!lock.owns_lock()) lock.lock();
    receiving_.erase(peer);
    changed_.notify_all();
  };
  try {
    Status landed;
    Status received = receive_and_land(lock, channel, peer, when, landed);
    if (!landed.ok()) not_landed_.try_emplace(peer, landed.error());
    end();
    return received;
  } catch (...) {
    channel.abort();
    end();
    throw;
  }
}

Status Windows::receive_and_land(Lock& lock, Communicator& channel, std::int32_t peer, When when, Status& landed) {
  Header& header = headers_[peer];
  auto work = start_receive(channel, &header, sizeof(header), peer);
  Status waited;
  if (work && when == When::kMayBeLate)
    waited = take_until(lock, channel, kLooksPerProbe, [&] { return work->test(); });
  lock.unlock();
  Status received = work ? work->wait() : Status(work.error());  // in any case: it writes into `header`
  if (received.ok() && header.bytes > 0) received = land(channel, header, peer, landed);
  lock.lock();
  if (received.ok() && landed.ok()) ++arrived_[{.peer = peer, .index = header.index, .context = header.context}];
  return received.ok() ? waited : received;
}

// Takes a message that is there, of whichever peer. False: no message is there, or another thread receives from its
// sender or has taken a message meanwhile, which may have been this one.
Result<bool> Windows::take_any(Lock& lock, Communicator& channel) {
  const std::uint64_t takes = takes_;
  lock.unlock();
  const auto sender = channel.try_next_sender();
  lock.lock();
  if (!sender) return sender.error();
  if (!*sender || receiving_.contains(**sender) || takes_ != takes) return false;
  TUTTI_TRY(take(lock, channel, **sender, When::kIsThere));
  return true;
}

// Until done() is true, which is called under the lock. Peers that wait for room themselves get it by what is taken,
// and so several messages are taken at once.
Status Windows::take_until(Lock& lock, Communicator& channel, int looks_per_probe, const std::function<bool()>& done) {
  auto pause = kShortestPause;
  for (int looks = 1; !done(); ++looks) {
    bool taken = looks % looks_per_probe == 0;
    for (int messages = 0; taken && messages < kMessagesPerProbe; ++messages) {
      const auto one = take_any(lock, channel);
      if (!one) return one.error();
      taken = *one;
      if (taken) looks = 0;
      if (taken) pause = kShortestPause;
    }
    if (looks == 0) continue;
    lock.unlock();
    if (looks < kLooksWithoutPause) {
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
  const std::scoped_lock lock(channel_mutex_);  // else a put's open group would have this refused
  Group one;
  TUTTI_TRY(one.receive(channel, to, bytes, DataType::kUint8, peer));
  return one.start();
}

Status Windows::receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer) {
  auto work = start_receive(channel, to, bytes, peer);
  return work ? work->wait() : Status(work.error());
}

// Errors: of the way here. `landed`: that it could not be written.
Status Windows::land(Communicator& channel, const Header& header, std::int32_t peer, Status& landed) {
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
  const bool inside = header.bytes <= kInsideBytes;
  if (fits && !inside && is_host_memory(to)) return receive(channel, to, header.bytes, peer);
  // What cannot land is taken all the same: the next message is behind it.
  std::vector<std::byte> payload(inside ? 0 : header.bytes);
  if (!inside) TUTTI_TRY(receive(channel, payload.data(), header.bytes, peer));
  landed = fits ? write_memory(to, inside ? header.inside.data() : payload.data(), header.bytes)
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
      forget_done();
      return puts_under_way_ == 0;
    }));
    TUTTI_TRY(take_failure());
  }
  return channel->finalize();
}

void Windows::abort() {
  if (const auto channel = this->channel(); channel != nullptr) channel->abort();
}

}  // namespace tutti::nccl
