#include "transports/tcp/endpoint.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system_error.h"
#include "transports/shm/mapping.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxGreetings = 256;              // connections that have not said yet who they are
constexpr std::int64_t kLeastPatienceNs = 250'000'000;  // that each of them has, however many others come
constexpr std::size_t kMaxDepartures = 1024;            // communicators that ended here, remembered for late callers
constexpr int kAcceptsAtOnce = 64;                      // per look
constexpr int kLooksAtOnce = 4;                         // per service()
constexpr std::int64_t kAcceptPauseNs = 50'000'000;     // after the system refused a descriptor

// The first port of the range that can be had.
Result<Socket> listen_in_range(SocketAddress& address, const TcpEndpointOptions& options) {
  if (options.first_port > options.last_port) {
    return Error{ErrorCode::kConfig, ErrorScope::kCommunicator, -1,
                 fmt::format("the port range {}..{} is empty", options.first_port, options.last_port)};
  }
  Result<Socket> made = Error{};
  for (std::uint32_t port = options.first_port; port <= options.last_port; ++port) {
    address.set_port(static_cast<std::uint16_t>(port));
    made = listen_on(address);
    if (made) return made;
  }
  if (options.last_port == 0) return made;
  return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
               fmt::format("no free port in {}..{} (at the last: {}); widen the range or end what listens there",
                           options.first_port, options.last_port, made.error().message)};
}

}  // namespace

bool TcpEndpoint::Come::first_time(std::uint64_t serial) {
  if (serial == 0 || serial + kWindow <= highest) return false;
  if (serial > highest) {
    const std::uint64_t fresh = std::min<std::uint64_t>(serial - highest, kWindow);
    for (std::uint64_t i = 0; i < fresh; ++i) seen.reset((serial - i) % kWindow);
    highest = serial;
  }
  if (seen.test(serial % kWindow)) return false;
  seen.set(serial % kWindow);
  return true;
}

Refusal TcpEndpoint::fault_of(const Preamble& preamble) {
  if (preamble.magic != kWireMagic) return Refusal::kProtocol;
  if (preamble.version != kWireVersion) return Refusal::kVersion;
  if (preamble.nonce != address_.nonce) return Refusal::kNonce;
  const Tag proof = proof_of(preamble, options_.key);
  if (!equal_in_constant_time(bytes_of(proof), bytes_of(preamble.proof))) return Refusal::kProof;
  if (preamble.kind < TcpLinkKind::kData || preamble.kind > TcpLinkKind::kNotes) return Refusal::kProtocol;
  if (preamble.encrypted != (options_.encrypt ? 1 : 0)) return Refusal::kEncryption;
  return come_[preamble.source].first_time(preamble.serial) ? Refusal::kNone : Refusal::kReplay;
}

void TcpEndpoint::sign(Preamble& preamble) {
  preamble.source = source_;
  preamble.encrypted = options_.encrypt ? 1 : 0;
  {
    const std::scoped_lock lock(signing_);
    preamble.serial = ++serials_[preamble.nonce];
  }
  preamble.proof = proof_of(preamble, options_.key);
}

Result<TcpStream> TcpEndpoint::begin(Socket socket, const Preamble& preamble) const {
  if (!options_.encrypt) return TcpStream(std::move(socket));
  return TcpStream::encrypted(std::move(socket), TlsSession::End::kClient, key_of_connection(preamble, options_.key),
                              std::as_bytes(std::span(&preamble, 1)));
}

// Before there is a TLS session. What is no refusal is proved.
void TcpEndpoint::answer(const Preamble& preamble, const Socket& socket, const FrameHeader& frame) const {
  FrameHeader said = frame;
  Tag proof{};
  std::array<iovec, 2> parts{
      {{.iov_base = &said, .iov_len = sizeof(said)}, {.iov_base = &proof, .iov_len = sizeof(proof)}}};
  const bool proved = options_.encrypt && frame.kind != FrameKind::kRefusal;
  if (proved) proof = answer_proof(key_of_connection(preamble, options_.key), frame);
  send_some(socket.get(), std::span(parts).first(proved ? 2 : 1));
}

TcpEndpoint::TcpEndpoint(const TcpEndpointOptions& options)
    : options_(options), clock_(options.clock != nullptr ? *options.clock : system_clock_) {}

TcpEndpoint::~TcpEndpoint() = default;

Result<std::shared_ptr<TcpEndpoint>> TcpEndpoint::listen(const TcpEndpointOptions& options) {
  auto host = parse_host(options.address);
  if (!host) return host.error();
  if (host->is_wildcard()) {
    return Error{ErrorCode::kConfig, ErrorScope::kCommunicator, -1,
                 fmt::format("{} is no address that peers can reach; name one of this machine's", options.address)};
  }
  if (options.encrypt) {
    auto tls = TlsLibrary::open();
    if (!tls) return tls.error();
  }
  std::shared_ptr<TcpEndpoint> endpoint(new TcpEndpoint(options));  // private constructor
  auto listener = listen_in_range(*host, options);
  if (!listener) return listener.error();
  endpoint->listener_ = std::move(*listener);
  endpoint->address_.socket = local_address(endpoint->listener_.get());
  WireNonce& nonce = endpoint->address_.nonce;
  TUTTI_ASSERT(options.key != Key{}, "an endpoint without a key");
  std::array<std::uint8_t, 8> source{};
  if (!random_bytes(nonce) || !random_bytes(source)) return socket_error("getrandom", errno);
  std::memcpy(&endpoint->source_, source.data(), source.size());
  endpoint->epoll_ = Socket(above_standard(epoll_create1(EPOLL_CLOEXEC)));
  if (!endpoint->epoll_.is_open()) return socket_error("epoll_create1", errno);
  TUTTI_TRY(endpoint->watch(endpoint->listener_.get()));
  return endpoint;
}

Status TcpEndpoint::watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  const bool watched = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST;
  return watched ? Status() : socket_error("epoll_ctl", errno);
}

std::shared_ptr<TcpMailbox> TcpEndpoint::attach(std::uint64_t communicator, std::uint32_t rank, Doorbell& bell) {
  auto mailbox = std::make_shared<TcpMailbox>(communicator, rank, bell);
  const std::scoped_lock lock(mutex_);
  auto& entry = mailboxes_[{communicator, rank}];
  TUTTI_ASSERT(entry.expired(), "rank {} of communicator {} is attached twice", rank, communicator);
  entry = mailbox;
  for (auto& link : std::exchange(parked_, {})) route(std::move(link));
  return mailbox;
}

void TcpEndpoint::detach(const TcpMailbox& mailbox, const FrameHeader& goodbye) {
  const std::scoped_lock lock(mutex_);
  const auto found = mailboxes_.find({mailbox.communicator, mailbox.rank});
  TUTTI_ASSERT(found != mailboxes_.end());
  const std::shared_ptr<TcpMailbox> own = found->second.lock();
  mailboxes_.erase(found);
  // Without memory for it, who connects later is parked, as if the communicator were still to come.
  runs_through([&] { departures_.push_back({.key = {mailbox.communicator, mailbox.rank}, .goodbye = goodbye}); });
  if (departures_.size() > kMaxDepartures) departures_.pop_front();
  if (own == nullptr) return;
  for (auto& link : own->links) route(std::move(link));  // which says goodbye to them
  own->links.clear();
}

std::vector<AcceptedLink> TcpEndpoint::take(TcpMailbox& mailbox) {
  if (!mailbox.filled.load(std::memory_order_acquire)) return {};
  const std::scoped_lock lock(mutex_);
  mailbox.filled.store(false, std::memory_order_relaxed);
  return std::exchange(mailbox.links, {});
}

void TcpEndpoint::service() {
  std::array<epoll_event, 32> events{};
  const std::scoped_lock lock(mutex_);
  const std::int64_t now_ns = clock_.now_ns();
  if (accept_again_ns_ != 0 && now_ns >= accept_again_ns_) {
    accept_again_ns_ = watch(listener_.get()).ok() ? 0 : now_ns + kAcceptPauseNs;
  }
  // Who could not be heard, because nobody has listened, gets the time anew.
  if (now_ns - std::exchange(serviced_ns_, now_ns) > options_.patience_ns / 2) {
    for (auto& [fd, greeting] : greetings_) greeting.since_ns = now_ns;
  }
  evict(now_ns);
  look_at_unwatched();
  for (int look = 0; look < kLooksAtOnce; ++look) {  // no longer, however many connect: our own calls wait behind
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        accept_some(now_ns);
      } else {
        greet(fd);
        shake(fd);
      }
    }
    if (count <= 0) return;
  }
}

// What is not accepted stays in the kernel's queue; sleepers must not be woken by it again and again.
void TcpEndpoint::pause_accepting(std::int64_t now_ns) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  accept_again_ns_ = now_ns + kAcceptPauseNs;
}

void TcpEndpoint::accept_some(std::int64_t now_ns) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    if (greetings_.size() >= kMaxGreetings && !evict_oldest(now_ns)) return pause_accepting(now_ns);
    Socket socket(above_standard(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
    if (!socket.is_open()) {
      const bool starved = is_shortage(errno);
      if (!starved) return;
      refusals_.trouble = socket_error("accept", errno).message;
      if (evict_oldest(now_ns)) continue;
      return pause_accepting(now_ns);
    }
    refusals_.trouble.clear();
    const int fd = socket.get();
    // The connection may be a rank's, and closing it would look like this process's end: so it is kept.
    if (!watch(fd).ok()) unwatched_.push_back(fd);
    Greeting& greeting = greetings_[fd];
    greeting.socket = std::move(socket);
    greeting.since_ns = now_ns;
    greet(fd);  // the preamble mostly is there already
  }
}

// What could not be watched, because the system was short of memory or of watches.
void TcpEndpoint::look_at_unwatched() {
  for (const int fd : std::exchange(unwatched_, {})) {
    if (!greetings_.contains(fd) && !shaking_.contains(fd)) continue;
    if (!watch(fd).ok()) unwatched_.push_back(fd);
    greet(fd);
    shake(fd);
  }
}

// Ends the greetings that have lasted too long.
void TcpEndpoint::evict(std::int64_t now_ns) {
  const auto silent = [&](const auto& one) { return now_ns - one.second.since_ns > options_.patience_ns; };
  while (std::any_of(greetings_.begin(), greetings_.end(), silent)) evict_oldest(now_ns);
}

// Makes room. False: all have come just now, and may be ours on a slow way.
bool TcpEndpoint::evict_oldest(std::int64_t now_ns) {
  const auto oldest = std::min_element(greetings_.begin(), greetings_.end(), [](const auto& a, const auto& b) {
    return a.second.since_ns < b.second.since_ns;
  });
  const std::int64_t least_ns = std::min(kLeastPatienceNs, options_.patience_ns);
  if (oldest == greetings_.end() || now_ns - oldest->second.since_ns < least_ns) return false;
  Socket socket = std::move(oldest->second.socket);
  greetings_.erase(oldest);
  refuse_locked({.preamble = {}, .socket = TcpStream(std::move(socket))}, Refusal::kSilence);
  return true;
}

void TcpEndpoint::greet(int fd) {
  const auto found = greetings_.find(fd);
  if (found == greetings_.end()) return;
  Greeting& greeting = found->second;
  const Moved moved = receive_some(fd, greeting.bytes.data() + greeting.have, greeting.bytes.size() - greeting.have);
  greeting.have += moved.bytes;
  Preamble preamble;
  std::memcpy(&preamble, greeting.bytes.data(), sizeof(preamble));
  const bool wrong_start =
      std::memcmp(&preamble, &kWireMagic, std::min(greeting.have, sizeof(kWireMagic))) != 0;  // refused at once
  const bool whole = greeting.have == greeting.bytes.size();
  if (!whole && !moved.ended && !wrong_start) return;
  Socket socket = std::move(greeting.socket);
  const bool probe = moved.ended && greeting.have == 0;  // a peer's PeerProbe, which says nothing
  greetings_.erase(found);
  if (probe) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);  // a forked child may keep a copy of the socket open
    return;
  }
  const Refusal fault = wrong_start ? Refusal::kProtocol : !whole ? Refusal::kSilence : fault_of(preamble);
  if (fault != Refusal::kNone) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    return refuse_locked({.preamble = preamble, .socket = TcpStream(std::move(socket))}, fault);
  }
  tune(fd, 0);
  welcome(preamble, std::move(socket));
}

// Who has shown the key.
void TcpEndpoint::welcome(const Preamble& preamble, Socket socket) {
  const int fd = socket.get();
  if (!options_.encrypt) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    return route({.preamble = preamble, .socket = TcpStream(std::move(socket))});
  }
  if (const Departure* departed = departure_of(preamble)) return answer(preamble, socket, departed->goodbye);
  auto stream =
      TcpStream::encrypted(std::move(socket), TlsSession::End::kServer, key_of_connection(preamble, options_.key));
  if (!stream) return;  // no memory: it is closed, which the other end takes for our end
  shaking_[fd] = {.preamble = preamble, .socket = std::move(*stream)};
  shake(fd);
}

// Its TLS session goes on. Where it fails, its receiver is to know, too.
void TcpEndpoint::shake(int fd) {
  const auto found = shaking_.find(fd);
  if (found == shaking_.end()) return;
  found->second.socket.advance();
  if (!found->second.socket.ready() && !found->second.socket.over()) return;
  AcceptedLink link = std::move(found->second);
  shaking_.erase(found);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  route(std::move(link));
}

const TcpEndpoint::Departure* TcpEndpoint::departure_of(const Preamble& preamble) const {
  const Place key{preamble.communicator, preamble.receiver};
  if (const auto found = mailboxes_.find(key); found != mailboxes_.end() && !found->second.expired()) return nullptr;
  const auto departed =
      std::find_if(departures_.begin(), departures_.end(), [&](const Departure& d) { return d.key == key; });
  return departed == departures_.end() ? nullptr : &*departed;
}

void TcpEndpoint::route(AcceptedLink link) {
  const Place key{link.preamble.communicator, link.preamble.receiver};
  const auto found = mailboxes_.find(key);
  const std::shared_ptr<TcpMailbox> mailbox = found == mailboxes_.end() ? nullptr : found->second.lock();
  if (mailbox != nullptr) {
    mailbox->links.push_back(std::move(link));
    mailbox->filled.store(true, std::memory_order_release);
    mailbox->bell.ring();
    return;
  }
  const Departure* const departed = departure_of(link.preamble);
  if (departed == nullptr) return park(std::move(link));
  link.socket.say(departed->goodbye);
}

void TcpEndpoint::park(AcceptedLink link) {
  if (parked_.size() >= options_.most_parked) {  // those whose other end has gone make room
    std::erase_if(parked_, [](const AcceptedLink& parked) { return remote_has_closed(parked.socket.get()); });
  }
  if (parked_.size() >= options_.most_parked) return refuse_locked(std::move(link), Refusal::kFull);
  parked_.push_back(std::move(link));
}

void TcpEndpoint::refuse(AcceptedLink link, Refusal refusal) {
  const std::scoped_lock lock(mutex_);
  refuse_locked(std::move(link), refusal);
}

void TcpEndpoint::refuse_locked(AcceptedLink link, Refusal refusal) {
  ++refusals_.count;
  refusals_.last = fmt::format("{}: {}", remote_address(link.socket.get()).text(), to_string(refusal));
  if (link.preamble.magic != kWireMagic) return;  // strangers get no answer
  link.socket.say(refusal_frame(refusal));
}

TcpEndpoint::Refusals TcpEndpoint::refusals() {
  const std::scoped_lock lock(mutex_);
  return refusals_;
}

}  // namespace tutti
