#include "transports/tcp/endpoint.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system/system_calls.h"
#include "base/system_error.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxPendingPreambles = 256;  // maximum number of connections with an incomplete preamble
// For at least this time (or preamble_timeout_ns, if that is shorter), a connection with an incomplete preamble is not
// refused to make space for others.
constexpr std::int64_t kMinPreambleTimeNs = 250'000'000;
// Maximum number of detached mailboxes for which the close frame is kept, for peers that connect later.
constexpr std::size_t kMaxClosedMailboxes = 1024;
constexpr int kAcceptsAtOnce = 64;  // maximum number of connections that one call of accept_some() accepts
constexpr int kLooksAtOnce = 4;     // maximum number of calls of epoll_wait() in one service()
// Shortest time for which pause_accepting() stops accepting connections. It is called if the system is short of
// descriptors or memory, or if too many preambles or handshakes are incomplete.
constexpr std::int64_t kAcceptPauseNs = 50'000'000;

// Listens on the first free port of the range in `options`, and sets the port of `address` to it (to 0 if any port will
// do).
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
               fmt::format("no free port in {}..{} (error at the last one: {}); use a larger range, or end the "
                           "programs that listen there",
                           options.first_port, options.last_port, made.error().message)};
}

}  // namespace

bool TcpEndpoint::SeenSerials::first_time(std::uint64_t serial) {
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

Refusal TcpEndpoint::check_preamble(const Preamble& preamble) {
  if (preamble.magic != kWireMagic) return Refusal::kProtocol;
  if (preamble.version != kWireVersion) return Refusal::kVersion;
  if (preamble.nonce != address_.nonce) return Refusal::kNonce;
  const Tag proof = proof_of(preamble, options_.key);
  if (!equal_in_constant_time(bytes_of(proof), bytes_of(preamble.proof))) return Refusal::kProof;
  if (preamble.kind < TcpLinkKind::kData || preamble.kind > TcpLinkKind::kDatagrams) return Refusal::kProtocol;
  if (preamble.encrypted != (options_.encrypt ? 1 : 0)) return Refusal::kEncryption;
  return seen_serials_[preamble.source].first_time(preamble.serial) ? Refusal::kNone : Refusal::kReplay;
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

// Sends a frame in clear on a new connection. If this endpoint encrypts, a proof of the frame follows, except after a
// refusal.
void TcpEndpoint::answer(const Preamble& preamble, const Socket& socket, const FrameHeader& frame) const {
  FrameHeader sent_frame = frame;
  Tag proof{};
  std::array<iovec, 2> parts{
      {{.iov_base = &sent_frame, .iov_len = sizeof(sent_frame)}, {.iov_base = &proof, .iov_len = sizeof(proof)}}};
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
                 fmt::format("peers cannot reach the address {}; use an address of this machine", options.address)};
  }
  if (options.encrypt) {
    auto tls = TlsLibrary::open();
    if (!tls) return tls.error();
  }
  std::shared_ptr<TcpEndpoint> endpoint(new TcpEndpoint(options));  // the constructor is private
  auto listener = listen_in_range(*host, options);
  if (!listener) return listener.error();
  endpoint->listener_ = std::move(*listener);
  endpoint->address_.socket = local_address(endpoint->listener_.get());
  WireNonce& nonce = endpoint->address_.nonce;
  TUTTI_ASSERT(options.key != Key{}, "an endpoint needs a key");
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

std::shared_ptr<TcpMailbox> TcpEndpoint::attach(std::uint64_t communicator, std::uint32_t rank,
                                                Doorbell& owner_doorbell) {
  auto mailbox = std::make_shared<TcpMailbox>(communicator, rank, owner_doorbell);
  const std::scoped_lock lock(mutex_);
  auto& entry = mailboxes_[{communicator, rank}];
  TUTTI_ASSERT(entry.expired(), "rank {} of communicator {} is attached twice", rank, communicator);
  entry = mailbox;
  for (auto& link : std::exchange(parked_, {})) route(std::move(link));
  return mailbox;
}

void TcpEndpoint::detach(const TcpMailbox& mailbox, const FrameHeader& close_frame) {
  const std::scoped_lock lock(mutex_);
  const auto found = mailboxes_.find({mailbox.communicator, mailbox.rank});
  TUTTI_ASSERT(found != mailboxes_.end());
  const std::shared_ptr<TcpMailbox> own = found->second.lock();
  mailboxes_.erase(found);
  // Remembers the close frame for connections that arrive later. If there is no memory for the entry in
  // closed_mailboxes_, such connections are parked, as if the communicator did not exist yet.
  runs_through([&] {
    closed_mailboxes_.push_back({.key = {mailbox.communicator, mailbox.rank}, .close_frame = close_frame});
  });
  if (closed_mailboxes_.size() > kMaxClosedMailboxes) closed_mailboxes_.pop_front();
  if (own == nullptr) return;
  for (auto& link : own->links) route(std::move(link));  // sends the close frame on them
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
  // If service() was not called for a long time, data that arrived could not be read. So each pending connection gets
  // its full time again.
  if (now_ns - std::exchange(serviced_ns_, now_ns) > options_.preamble_timeout_ns / 2) {
    for (auto& [fd, pending] : pending_preambles_) pending.since_ns = now_ns;
    for (auto& [fd, pending] : handshakes_) pending.since_ns = now_ns;
  }
  evict(now_ns);
  evict_handshakes(now_ns);
  poll_unwatched();
  // The number of rounds is limited, even if many connections arrive, because the calls of this process make no
  // progress meanwhile.
  for (int look = 0; look < kLooksAtOnce; ++look) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        accept_some(now_ns);
      } else {
        read_preamble(fd);
        advance_handshake(fd);
      }
    }
    if (count <= 0) return;
  }
}

// Stops accepting for at least kAcceptPauseNs. New connections stay in the queue of the kernel. The listener is removed
// from the epoll set, because otherwise it would wake sleeping ranks again and again.
void TcpEndpoint::pause_accepting(std::int64_t now_ns) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  accept_again_ns_ = now_ns + kAcceptPauseNs;
}

void TcpEndpoint::accept_some(std::int64_t now_ns) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    // The handshakes belong to ranks, so none is refused to make space. New connections wait in the kernel's queue.
    if (pending_preambles_.size() + handshakes_.size() >= options_.most_handshakes) return pause_accepting(now_ns);
    if (pending_preambles_.size() >= kMaxPendingPreambles && !evict_oldest(now_ns)) return pause_accepting(now_ns);
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
    // The connection may be one of a rank. If it were closed, that rank would conclude that this process has exited.
    // So it is kept, even though it cannot be watched.
    if (!watch(fd).ok()) unwatched_.push_back(fd);
    PendingPreamble& pending = pending_preambles_[fd];
    pending.socket = std::move(socket);
    pending.since_ns = now_ns;
    read_preamble(fd);  // called at once, because usually the preamble has already arrived
  }
}

// Handles connections that epoll_ctl() refused to watch, because the system was short of memory or of watches.
void TcpEndpoint::poll_unwatched() {
  for (const int fd : std::exchange(unwatched_, {})) {
    if (!pending_preambles_.contains(fd) && !handshakes_.contains(fd)) continue;
    if (!watch(fd).ok()) unwatched_.push_back(fd);
    read_preamble(fd);
    advance_handshake(fd);
  }
}

// Refuses each connection if its preamble did not arrive in time.
void TcpEndpoint::evict(std::int64_t now_ns) {
  const auto silent = [&](const auto& one) { return now_ns - one.second.since_ns > options_.preamble_timeout_ns; };
  while (std::any_of(pending_preambles_.begin(), pending_preambles_.end(), silent)) evict_oldest(now_ns);
}

// Refuses each connection if its TLS handshake was not completed in time.
void TcpEndpoint::evict_handshakes(std::int64_t now_ns) {
  for (auto at = handshakes_.begin(); at != handshakes_.end();) {
    if (now_ns - at->second.since_ns <= options_.handshake_timeout_ns) {
      ++at;
      continue;
    }
    AcceptedLink link = std::move(at->second.link);
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, at->first, nullptr);
    at = handshakes_.erase(at);
    refuse_locked(std::move(link), Refusal::kSilence);
  }
}

// Refuses the connection that has waited longest for its preamble, to make space for others, or because its time is
// over. Returns false if there is none, or if it has waited for less than the time that kMinPreambleTimeNs describes,
// because it may come from a rank over a slow network.
bool TcpEndpoint::evict_oldest(std::int64_t now_ns) {
  const auto oldest =
      std::min_element(pending_preambles_.begin(), pending_preambles_.end(),
                       [](const auto& a, const auto& b) { return a.second.since_ns < b.second.since_ns; });
  const std::int64_t least_ns = std::min(kMinPreambleTimeNs, options_.preamble_timeout_ns);
  if (oldest == pending_preambles_.end() || now_ns - oldest->second.since_ns < least_ns) return false;
  Socket socket = std::move(oldest->second.socket);
  pending_preambles_.erase(oldest);
  refuse_locked({.preamble = {}, .socket = TcpStream(std::move(socket))}, Refusal::kSilence);
  return true;
}

void TcpEndpoint::read_preamble(int fd) {
  const auto found = pending_preambles_.find(fd);
  if (found == pending_preambles_.end()) return;
  PendingPreamble& pending = found->second;
  const Moved moved = receive_some(fd, pending.bytes.data() + pending.have, pending.bytes.size() - pending.have);
  pending.have += moved.bytes;
  Preamble preamble;
  std::memcpy(&preamble, pending.bytes.data(), sizeof(preamble));
  // A connection that does not start with kWireMagic is refused at once.
  const bool wrong_start = std::memcmp(&preamble, &kWireMagic, std::min(pending.have, sizeof(kWireMagic))) != 0;
  const bool whole = pending.have == pending.bytes.size();
  if (!whole && !moved.ended && !wrong_start) return;
  Socket socket = std::move(pending.socket);
  // A peer sends nothing before it closes the connection of its PeerProbe.
  const bool probe = moved.ended && pending.have == 0;
  pending_preambles_.erase(found);
  if (probe) {
    // Closing the socket would not remove it from the epoll set if a forked child has a copy that stays open.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    return;
  }
  const Refusal fault = wrong_start ? Refusal::kProtocol : !whole ? Refusal::kSilence : check_preamble(preamble);
  if (fault != Refusal::kNone) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    return refuse_locked({.preamble = preamble, .socket = TcpStream(std::move(socket))}, fault);
  }
  tune(fd, 0);
  handle_authenticated(preamble, std::move(socket));
}

// Handles a connection after its preamble has proved that the other end has the key of the job.
void TcpEndpoint::handle_authenticated(const Preamble& preamble, Socket socket) {
  const int fd = socket.get();
  if (!options_.encrypt) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    return route({.preamble = preamble, .socket = TcpStream(std::move(socket))});
  }
  if (const ClosedMailbox* closed = closed_mailbox_of(preamble)) return answer(preamble, socket, closed->close_frame);
  auto stream =
      TcpStream::encrypted(std::move(socket), TlsSession::End::kServer, key_of_connection(preamble, options_.key));
  if (!stream) return;  // for example no memory; closes the socket, so the other end finds that the connection ended
  handshakes_[fd] = {.link = {.preamble = preamble, .socket = std::move(*stream)}, .since_ns = serviced_ns_};
  advance_handshake(fd);
}

// Continues the TLS handshake of `fd`, if it is in handshakes_. When the handshake has ended, route() passes the
// connection on to its receiver. This also happens if the handshake failed, so that the receiver learns of the failure.
void TcpEndpoint::advance_handshake(int fd) {
  const auto found = handshakes_.find(fd);
  if (found == handshakes_.end()) return;
  TcpStream& socket = found->second.link.socket;
  socket.advance();
  if (!socket.ready() && !socket.over()) return;
  AcceptedLink link = std::move(found->second.link);
  handshakes_.erase(found);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  route(std::move(link));
}

const TcpEndpoint::ClosedMailbox* TcpEndpoint::closed_mailbox_of(const Preamble& preamble) const {
  const MailboxKey key{preamble.communicator, preamble.receiver};
  if (const auto found = mailboxes_.find(key); found != mailboxes_.end() && !found->second.expired()) return nullptr;
  const auto closed = std::find_if(closed_mailboxes_.begin(), closed_mailboxes_.end(),
                                   [&](const ClosedMailbox& d) { return d.key == key; });
  return closed == closed_mailboxes_.end() ? nullptr : &*closed;
}

void TcpEndpoint::route(AcceptedLink link) {
  const MailboxKey key{link.preamble.communicator, link.preamble.receiver};
  const auto found = mailboxes_.find(key);
  const std::shared_ptr<TcpMailbox> mailbox = found == mailboxes_.end() ? nullptr : found->second.lock();
  if (mailbox != nullptr) {
    mailbox->links.push_back(std::move(link));
    mailbox->filled.store(true, std::memory_order_release);
    mailbox->owner_doorbell.ring();
    return;
  }
  const ClosedMailbox* const closed = closed_mailbox_of(link.preamble);
  if (closed == nullptr) return park(std::move(link));
  link.socket.send_frame(closed->close_frame);
}

void TcpEndpoint::park(AcceptedLink link) {
  if (parked_.size() >= options_.most_parked) {  // first drop parked connections that the other end has closed
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
  if (link.preamble.magic != kWireMagic) return;  // a process whose first bytes differ from kWireMagic gets no answer
  link.socket.send_frame(refusal_frame(refusal));
}

TcpEndpoint::Refusals TcpEndpoint::refusals() {
  const std::scoped_lock lock(mutex_);
  return refusals_;
}

}  // namespace tutti
