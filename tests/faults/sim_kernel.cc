// Implements SimKernel: simulated TCP sockets, epolls and eventfds.
#include "faults/sim_kernel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti::faults {
namespace {

thread_local SimKernel* current_kernel = nullptr;

constexpr std::size_t kLeastBuffer = 4'600;  // the minimum on Linux
constexpr std::size_t kMostBuffer = 16'000;
// data up to this length is not split if there is space, because real buffers consist of packets
constexpr std::size_t kWholeBytes = 256;

int fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

// One end of a connection.
struct SimKernel::Stream {
  std::uint32_t owner = 0;
  std::uint32_t peer = 0;
  std::uint16_t local_port = 0;
  std::uint16_t remote_port = 0;
  std::weak_ptr<Stream> other;  // the other end
  bool connected = false;
  bool closed = false;          // closed by its owner
  bool finished = false;        // the end of file from the peer has arrived
  bool broken = false;          // no more data is sent or received
  int error = 0;                // the reason, until it was reported
  bool lost = false;            // data that was sent and has not arrived is lost
  std::size_t capacity = 0;     // limit of the bytes that were sent and that the peer has not read
  std::size_t outstanding = 0;  // number of these bytes
  std::int64_t last_arrival_ns = 0;
  std::deque<std::byte> received;
};

struct SimKernel::Object {
  enum class Kind : std::uint8_t { kSocket, kListener, kStream, kEpoll, kEvent };
  struct Watch {
    std::uint32_t events = 0;
    epoll_data_t data{};
  };
  Kind kind = Kind::kSocket;
  std::uint32_t owner = 0;
  std::uint16_t port = 0;           // used by listeners
  std::deque<StreamPtr> backlog{};  // used by listeners
  StreamPtr stream{};
  std::map<int, Watch> watched{};  // used by epolls; indexed by descriptor
};

SimKernel::SimKernel(SimEnvironment& environment) : environment_(environment) {
  environment.on_kill([this](std::uint32_t rank) { end_of(rank); });
  environment.set_reset([this](std::uint32_t rank, std::uint32_t peer) { reset_between(rank, peer); });
}

SimKernel::~SimKernel() = default;

SimKernel* SimKernel::current() { return current_kernel; }
void SimKernel::adopt_thread() { current_kernel = this; }

int SimKernel::add(Object object) {
  object.owner = SimEnvironment::current_rank();
  table_.emplace(next_descriptor_, std::move(object));
  return next_descriptor_++;
}

SimKernel::Object* SimKernel::find(int fd) {
  const auto found = table_.find(fd);
  TUTTI_ASSERT(found != table_.end(), "descriptor {} was used after its end", fd - kFirstDescriptor);
  return &found->second;
}

SimKernel::StreamPtr SimKernel::stream_of(int fd) { return find(fd)->stream; }

int SimKernel::socket() { return add({.kind = Object::Kind::kSocket}); }
int SimKernel::epoll() { return add({.kind = Object::Kind::kEpoll}); }
int SimKernel::event() { return add({.kind = Object::Kind::kEvent}); }

int SimKernel::bind_listener(int fd) {
  Object& object = *find(fd);
  object.kind = Object::Kind::kListener;
  object.port = next_port_++;
  listeners_[object.port] = fd;
  return 0;
}

SimKernel::StreamPtr SimKernel::make_stream(std::uint32_t owner, std::uint32_t peer) {
  auto stream = std::make_shared<Stream>();
  stream->owner = owner;
  stream->peer = peer;
  stream->capacity = kLeastBuffer + environment_.draw(kMostBuffer - kLeastBuffer);
  std::erase_if(streams_, [](const std::weak_ptr<Stream>& each) { return each.expired(); });
  streams_.push_back(stream);
  return stream;
}

// Calls `happen` when a message that is sent now arrives. Calls for the same stream keep their order.
void SimKernel::arrive(const StreamPtr& from, std::function<void()> happen) {
  from->last_arrival_ns = std::max(from->last_arrival_ns, environment_.arrival_ns(from->owner, from->peer));
  environment_.at(from->last_arrival_ns, std::move(happen));
}

int SimKernel::connect(int fd, std::uint16_t port) {
  Object& object = *find(fd);
  const std::uint32_t rank = object.owner;
  environment_.step(rank);
  const auto listener = listeners_.find(port);
  // If no rank listens, the machine itself answers, after a normal latency. Each port belongs to one rank.
  const std::uint32_t peer = listener == listeners_.end() ? rank : find(listener->second)->owner;
  const StreamPtr near = make_stream(rank, peer);
  near->local_port = next_port_++;
  near->remote_port = port;
  object.kind = Object::Kind::kStream;
  object.stream = near;
  if (environment_.dead(rank)) return fail(ENETUNREACH);
  arrive(near, [this, near, port] {
    if (near->closed) return;
    const auto found = listeners_.find(port);
    if (found == listeners_.end()) {
      environment_.at(environment_.arrival_ns(near->peer, near->owner),
                      [this, near] { break_off(near, ECONNREFUSED); });
      return;
    }
    Object& there = *find(found->second);
    const StreamPtr far = make_stream(near->peer, near->owner);
    far->local_port = port;
    far->remote_port = near->local_port;
    far->connected = true;
    far->other = near;
    near->other = far;
    there.backlog.push_back(far);
    environment_.wake(far->owner);
    arrive(far, [this, near] {
      near->connected = !near->broken;
      environment_.wake(near->owner);
    });
  });
  return fail(EINPROGRESS);
}

int SimKernel::accept(int fd) {
  Object& listener = *find(fd);
  if (listener.backlog.empty()) return fail(EAGAIN);
  environment_.step(listener.owner);
  if (environment_.dead(listener.owner)) return fail(EAGAIN);
  Object made{.kind = Object::Kind::kStream, .stream = listener.backlog.front()};
  listener.backlog.pop_front();
  return add(std::move(made));
}

ssize_t SimKernel::send(int fd, const iovec* parts, std::size_t count) {
  const StreamPtr stream = stream_of(fd);
  const auto refused = [&]() -> ssize_t {
    if (environment_.dead(stream->owner)) return fail(EPIPE);
    if (stream->error != 0) return fail(std::exchange(stream->error, 0));
    return stream->broken ? fail(EPIPE) : 0;
  };
  if (const ssize_t result = refused(); result != 0) return result;
  if (!stream->connected || stream->outstanding >= stream->capacity) return fail(EAGAIN);
  environment_.step(stream->owner);
  if (const ssize_t result = refused(); result != 0) return result;
  std::size_t room = std::max(stream->capacity - stream->outstanding, kWholeBytes);
  if (environment_.draw(8) == 0)
    room = std::min<std::size_t>(room, kWholeBytes + environment_.draw(64));  // a short write
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count && bytes.size() < room; ++i) {
    const auto* data = static_cast<const std::byte*>(parts[i].iov_base);
    bytes.insert(bytes.end(), data, data + std::min(parts[i].iov_len, room - bytes.size()));
  }
  const std::size_t sent = bytes.size();
  stream->outstanding += sent;
  if (sent > 0) deliver(stream, std::move(bytes));
  return static_cast<ssize_t>(sent);
}

void SimKernel::deliver(const StreamPtr& from, std::vector<std::byte> bytes) {
  arrive(from, [this, from, bytes = std::move(bytes)] {
    const StreamPtr to = from->other.lock();
    if (from->lost || from->broken) return;
    if (to == nullptr || to->closed) return reset_peer_of(to == nullptr ? from : to);
    if (to->broken) return;
    to->received.insert(to->received.end(), bytes.begin(), bytes.end());
    environment_.wake(to->owner);
  });
}

// The peer of a closed stream gets a reset when it sends.
void SimKernel::reset_peer_of(const StreamPtr& stream) {
  const StreamPtr other = stream->other.lock();
  if (other != nullptr) arrive(stream, [this, other] { break_off(other, ECONNRESET); });
}

void SimKernel::break_off(const StreamPtr& stream, int error) {
  if (stream->broken) return;
  stream->broken = true;
  stream->error = error;
  environment_.wake(stream->owner);
}

ssize_t SimKernel::receive(int fd, const iovec* parts, std::size_t count, bool peek) {
  const StreamPtr stream = stream_of(fd);
  if (environment_.dead(stream->owner)) return fail(ECONNRESET);
  if (stream->received.empty()) {
    if (stream->error != 0) return fail(peek ? stream->error : std::exchange(stream->error, 0));
    return stream->broken || stream->finished ? 0 : fail(EAGAIN);
  }
  if (!peek) environment_.step(stream->owner);
  if (environment_.dead(stream->owner)) return fail(ECONNRESET);
  std::size_t room = stream->received.size();
  if (!peek && environment_.draw(8) == 0)
    room = std::min<std::size_t>(room, 1 + environment_.draw(64));  // the rest is read later
  std::size_t copied = 0;
  for (std::size_t i = 0; i < count && copied < room; ++i) {
    const std::size_t bytes = std::min(parts[i].iov_len, room - copied);
    const auto from = stream->received.begin() + static_cast<std::ptrdiff_t>(copied);
    std::copy(from, from + static_cast<std::ptrdiff_t>(bytes), static_cast<std::byte*>(parts[i].iov_base));
    copied += bytes;
  }
  if (peek || copied == 0) return static_cast<ssize_t>(copied);
  stream->received.erase(stream->received.begin(), stream->received.begin() + static_cast<std::ptrdiff_t>(copied));
  acknowledge(stream, copied);
  return static_cast<ssize_t>(copied);
}

void SimKernel::acknowledge(const StreamPtr& reader, std::size_t bytes) {
  const StreamPtr writer = reader->other.lock();
  if (writer == nullptr) return;
  environment_.at(environment_.arrival_ns(reader->owner, reader->peer), [this, writer, bytes] {
    const bool full = writer->outstanding >= writer->capacity;
    writer->outstanding -= bytes;
    if (full) environment_.wake(writer->owner);
  });
}

short SimKernel::state_of(const Stream& stream) {
  int state = 0;
  if (!stream.received.empty() || stream.finished || stream.broken) state |= POLLIN;
  if (stream.broken || (stream.connected && stream.outstanding < stream.capacity)) state |= POLLOUT;
  if (stream.finished || stream.broken) state |= POLLRDHUP;
  if (stream.broken) state |= POLLHUP | POLLERR;
  return static_cast<short>(state);
}

int SimKernel::poll(pollfd* descriptors, std::size_t count, int timeout_ms) {
  for (bool last = timeout_ms == 0;; last = true) {
    int ready = 0;
    for (std::size_t i = 0; i < count; ++i) {
      pollfd& each = descriptors[i];
      each.revents = static_cast<short>(state_of(*stream_of(each.fd)) & (each.events | POLLHUP | POLLERR));
      ready += each.revents != 0;
    }
    if (ready > 0 || last) return ready;
    environment_.pause(SimEnvironment::current_rank(), std::int64_t{timeout_ms} * 1'000'000);
  }
}

int SimKernel::sleep(std::int64_t ns) {
  environment_.pause(SimEnvironment::current_rank(), ns);
  return 0;
}

int SimKernel::unread(int fd) { return static_cast<int>(stream_of(fd)->received.size()); }

std::uint16_t SimKernel::port(int fd, bool remote) {
  const Object& object = *find(fd);
  if (object.stream == nullptr) return object.port;
  return remote ? object.stream->remote_port : object.stream->local_port;
}

int SimKernel::epoll_control(int fd, int operation, int target, const epoll_event* event) {
  auto& watched = find(fd)->watched;
  if (operation == EPOLL_CTL_DEL) return watched.erase(target) > 0 ? 0 : fail(ENOENT);
  watched[target] = {.events = event->events, .data = event->data};
  return 0;
}

bool SimKernel::readable(int fd) {
  const Object& object = *find(fd);
  if (environment_.dead(object.owner)) return false;
  if (object.kind == Object::Kind::kListener) return !object.backlog.empty();
  if (object.kind == Object::Kind::kStream) return (state_of(*object.stream) & POLLIN) != 0;
  const auto level = [](const auto& each) { return (each.second.events & EPOLLET) == 0; };
  return std::any_of(object.watched.begin(), object.watched.end(),
                     [&](const auto& each) { return level(each) && readable(each.first); });
}

// Edge-triggered descriptors need no event, because every change of a rank's sockets wakes the rank anyway.
int SimKernel::epoll_wait(int fd, epoll_event* events, int most) {
  int count = 0;
  for (const auto& [target, watch] : find(fd)->watched) {
    if (count == most || (watch.events & EPOLLET) != 0 || !readable(target)) continue;
    events[count].events = EPOLLIN;
    events[count++].data = watch.data;
  }
  return count;
}

ssize_t SimKernel::ring(int fd) {
  environment_.wake(find(fd)->owner);
  return sizeof(std::uint64_t);
}

int SimKernel::close(int fd) {
  Object object = std::move(*find(fd));
  table_.erase(fd);
  for (auto& [other, each] : table_) each.watched.erase(fd);
  if (object.port != 0) listeners_.erase(object.port);
  if (object.stream != nullptr) environment_.step(object.owner);
  if (object.stream != nullptr) close_stream(object.stream);
  for (const StreamPtr& stream : object.backlog) close_stream(stream);
  return 0;
}

// Closes a stream once; for a dead rank, the kernel has already closed it. If there are unread bytes, the peer gets
// a reset, which may overtake data that was sent before.
void SimKernel::close_stream(const StreamPtr& stream) {
  if (stream->closed) return;
  stream->closed = true;
  const StreamPtr other = stream->other.lock();
  if (other == nullptr || stream->broken) return;
  const bool resets = !stream->received.empty();
  if (resets) stream->lost = environment_.draw(2) == 0;
  arrive(stream, [this, other, resets] {
    if (resets) return break_off(other, ECONNRESET);
    other->finished = true;
    environment_.wake(other->owner);
  });
}

void SimKernel::end_of(std::uint32_t rank) {
  for (auto& [fd, object] : table_) {
    if (object.owner != rank) continue;
    if (object.port != 0) listeners_.erase(object.port);
    if (object.stream != nullptr) close_stream(object.stream);
    for (const StreamPtr& stream : std::exchange(object.backlog, {})) close_stream(stream);
  }
}

void SimKernel::reset_between(std::uint32_t a, std::uint32_t b) {
  for (const std::weak_ptr<Stream>& each : streams_) {
    const StreamPtr stream = each.lock();
    if (stream == nullptr || stream->closed) continue;
    if ((stream->owner != a || stream->peer != b) && (stream->owner != b || stream->peer != a)) continue;
    stream->lost = true;
    environment_.at(environment_.arrival_ns(stream->peer, stream->owner),
                    [this, stream] { break_off(stream, ECONNRESET); });
  }
}

}  // namespace tutti::faults
