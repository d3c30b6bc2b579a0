#include "transports/tcp/links.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

constexpr std::int64_t kPumpEveryNs = 1'000'000;     // status() checks the sockets again after this time
constexpr std::int64_t kCloseLimitNs = 500'000'000;  // longest time to wait until all close frames could be sent
// Data that a dead peer sent before its end may still be read during this time. If the peer does not accept
// connections, this rank also waits for this time before it counts the peer as lost.
constexpr std::int64_t kReadOnNs = 500'000'000;
// If a receive has waited for this time and there is no data connection to the peer, this rank opens a control
// connection to it, so that it notices if the peer has exited.
constexpr std::int64_t kAbsentNs = 50'000'000;

// Returns the result of `step`. Returns true if `step` threw an exception, usually because memory has run out, so that
// no caller waits for something that will not happen.
template <class Step>
bool unless_starved(Step&& step) {
  bool done = true;
  runs_through([&] { done = step(); });
  return done;
}

// Sends a close frame. Returns false if the socket cannot take all of it now.
bool send_close_on(TcpStream& stream, const FrameHeader& close_frame) {
  return !stream.is_open() || unless_starved([&] { return stream.send_close_frame(close_frame); });
}

}  // namespace

TcpLinks::TcpLinks(const TcpTransportOptions& options, std::shared_ptr<TcpEndpoint> endpoint)
    : process_(getpid()),
      options_(options),
      clock_(options.clock != nullptr ? *options.clock : system_clock_),
      endpoint_(std::move(endpoint)),
      peers_(options.ranks),
      retransmissions_(options.ranks) {}

Result<std::shared_ptr<TcpLinks>> TcpLinks::create(const TcpTransportOptions& options,
                                                   std::shared_ptr<TcpEndpoint> endpoint,
                                                   const std::vector<std::string>& addresses) {
  TUTTI_ASSERT(options.rank < options.ranks && addresses.size() == options.ranks && options.slots > 0 &&
               options.slot_bytes > 0 && options.lanes > 0 && options.lanes <= 65535);
  std::shared_ptr<TcpLinks> links(new TcpLinks(options, std::move(endpoint)));  // the constructor is private
  for (std::uint32_t peer = 0; peer < options.ranks; ++peer) {
    links->addresses_.emplace_back();
    if (peer == options.rank || addresses[peer].empty()) continue;
    auto address = PeerAddress::parse(addresses[peer], static_cast<std::int32_t>(peer));
    if (!address) return address.error();
    links->addresses_.back() = *address;
  }
  auto doorbell = EpollDoorbell::create();
  if (!doorbell) return doorbell.error();
  links->doorbell_ = std::move(*doorbell);
  TcpEndpoint* listener = links->endpoint_.get();
  TUTTI_TRY(links->doorbell_->add_serviced(listener->wait_fd(), [listener] { listener->service(); }));
  links->pusher_ = std::make_unique<StatePusher>(links->preamble(options.rank, 0), links->addresses_, *links->endpoint_,
                                                 *links->doorbell_, links->clock_);
  links->mailbox_ = links->endpoint_->attach(options.communicator, options.rank, *links->doorbell_);
  return links;
}

Preamble TcpLinks::preamble(std::uint32_t peer, std::uint16_t lane) const {
  Preamble preamble;
  preamble.communicator = options_.communicator;
  preamble.sender = options_.rank;
  preamble.receiver = peer;
  preamble.ranks = options_.ranks;
  preamble.slot_bytes = options_.slot_bytes;
  preamble.lane = lane;
  if (!addresses_[peer]) return preamble;
  preamble.nonce = addresses_[peer]->nonce;
  endpoint_->sign(preamble);
  return preamble;
}

Result<Socket> TcpLinks::connect(std::uint32_t peer) {
  TUTTI_ASSERT(reaches(peer), "rank {} is not reached by TCP", peer);
  auto socket = connect_to(addresses_[peer]->socket, options_.socket_buffer_bytes, static_cast<std::int32_t>(peer));
  if (socket) doorbell_->watch(socket->get());
  return socket;
}

void TcpLinks::add(TcpLink& link) {
  // The destructor of a link moves up to two sockets into orphans_, so that a close frame can be sent on them later.
  // An allocation in a destructor could fail, so the space for the sockets of all links is reserved here.
  const std::size_t room = orphans_.size() + 2 * (links_.size() + 1);
  if (room > orphans_.capacity()) orphans_.reserve(2 * room);
  links_.push_back(&link);
}

void TcpLinks::remove(TcpLink& link) {
  std::erase(links_, &link);
  std::erase(dirty_, &link);
}

void TcpLinks::keep_for_close(Orphan orphan) {
  // No close frame can be sent: the transport or the socket was already closed, or this is a copy in a forked child.
  if (mailbox_ == nullptr || !orphan.socket->socket.is_open() || !own_process()) return;
  orphans_.push_back(std::move(orphan));
}

void TcpLinks::take_back(const LaneSocket& socket) {
  std::erase_if(orphans_, [&](const Orphan& orphan) { return orphan.socket.get() == &socket; });
}

TcpStream TcpLinks::claim(std::uint32_t peer, std::uint16_t lane) {
  admit();
  const auto found = waiting_.find(key(peer, lane));
  if (found == waiting_.end()) return {};
  TcpStream socket = std::move(found->second.socket);
  waiting_.erase(found);
  claimed_[key(peer, lane)] = true;
  return socket;
}

void TcpLinks::admit() {
  if (mailbox_ == nullptr) return;
  endpoint_->service();
  for (AcceptedLink& link : endpoint_->take(*mailbox_)) admit(std::move(link));
}

void TcpLinks::admit(AcceptedLink link) {
  const Preamble& from = link.preamble;
  if (from.ranks != options_.ranks || from.slot_bytes != options_.slot_bytes || from.lane >= options_.lanes ||
      from.sender >= options_.ranks || from.sender == options_.rank || from.kind == TcpLinkKind::kDatagrams) {
    return endpoint_->refuse(std::move(link), Refusal::kShape);
  }
  const LaneKey lane = key(from.sender, from.lane);
  PeerBoard& board = peers_[from.sender].board;
  const bool control = from.kind == TcpLinkKind::kControl;
  const bool twice = control ? board.connected() : waiting_.contains(lane) || claimed_.contains(lane);
  if (twice) return endpoint_->refuse(std::move(link), Refusal::kDuplicate);
  tune(link.socket.get(), options_.socket_buffer_bytes);
  doorbell_->watch(link.socket.get());
  if (control) {
    board.accept(std::move(link.socket));
  } else {
    waiting_[lane].socket = std::move(link.socket);
  }
}

// Records a close frame or a refusal of a peer, or that one of its connections ended without such a frame or brought
// invalid data. No effect for kNothing.
void TcpLinks::note_reply(std::uint32_t peer, const Reply& reply) {
  Peer& known = peers_[peer];
  if (reply.kind == Reply::Kind::kNothing) return;
  if (reply.kind == Reply::Kind::kClose) {
    known.close_received = true;
    known.board.note_progress(reply.entered, reply.left);
    if (reply.failure) known.board.note_failure(reply.left, *reply.failure);
    return;
  }
  if (known.ended_since_ns == 0) known.ended_since_ns = std::max<std::int64_t>(clock_.now_ns(), 1);
  describe_end(peer, reply);
}

void TcpLinks::describe_end(std::uint32_t peer, const Reply& reply) {
  Peer& known = peers_[peer];
  if (reply.kind == Reply::Kind::kRefused) {
    known.refused = true;
    known.trouble = fmt::format("rank {} refused a connection of this rank: {}", peer, to_string(reply.refusal));
    // If the nonce is wrong, another process has the address of the peer now; that is not tampering.
    if (reply.refusal != Refusal::kNonce) known.tampering = known.trouble;
    return;
  }
  if (reply.kind == Reply::Kind::kInvalid) {
    known.trouble = fmt::format("rank {} sent data on its control connection that is no valid state frame", peer);
    known.tampering = known.trouble;
    return;
  }
  const std::string text = fmt::format("a connection to rank {} ended: {}", peer, describe_end_error(reply.error));
  if (known.trouble.empty()) known.trouble = text;
  if (known.tampering.empty() && is_tampering(reply.error)) known.tampering = text;
}

// Records the end of a connection on which this rank sends messages, or the frame that the peer sent on it. If the
// connection had not been accepted when the peer closed its endpoint properly, it ends without a close frame. The peer
// may still send a close frame on another connection, and other ranks may report that the peer is lost. So this rank
// waits for kReadOnNs before it draws conclusions, unless the error is a sign of tampering.
void TcpLinks::note_answer(std::uint32_t peer, const Reply& reply) {
  if (reply.kind != Reply::Kind::kEnded || is_tampering(reply.error)) return note_reply(peer, reply);
  if (peers_[peer].unanswered_since_ns == 0)
    peers_[peer].unanswered_since_ns = std::max<std::int64_t>(clock_.now_ns(), 1);
  describe_end(peer, reply);
}

// Records the end of a control connection that this rank has opened, or the frame that the peer sent on it. A process
// that has exited accepts no connection, whether it ended properly or not. So after such an end alone, the peer counts
// as lost only if this rank still waits for a connection from it (see status()). If another connection to the peer is
// open, the end of that connection will show whether the peer ended properly. A network error does not prove that the
// process of the peer has exited.
void TcpLinks::note_control_end(std::uint32_t peer, const Reply& reply) {
  if (reply.kind != Reply::Kind::kEnded) return note_reply(peer, reply);
  if (is_network_error(reply.error)) return describe_end(peer, reply);
  if (peers_[peer].rejects_since_ns == 0) peers_[peer].rejects_since_ns = std::max<std::int64_t>(clock_.now_ns(), 1);
  describe_end(peer, reply);
}

// Whether a link waits for a connection that the peer must open.
bool TcpLinks::awaits_connection(std::uint32_t peer) const {
  return std::any_of(links_.begin(), links_.end(),
                     [=](const TcpLink* link) { return link->peer() == peer && link->missing(); });
}

bool TcpLinks::flush() {
  unsent_ = false;
  std::erase_if(dirty_, [](TcpLink* link) {
    link->dirty_ = !link->push();
    return !link->dirty_;
  });
  return dirty_.empty();
}

void TcpLinks::look() {
  for (TcpLink* link : links_) link->look();
  std::erase_if(orphans_, [this](Orphan& orphan) {
    TcpStream& stream = orphan.socket->socket;
    const Reply reply = orphan.brings_answer ? orphan.replies.read(stream) : stream.final_reply(orphan.stashed);
    note_reply(orphan.peer, reply);
    return reply.kind != Reply::Kind::kNothing;
  });
  for (auto& [lane, waiting] : waiting_) {
    if (waiting.ended) continue;
    const Reply reply = waiting.socket.final_reply({});
    waiting.ended = reply.kind != Reply::Kind::kNothing;
    note_reply(static_cast<std::uint32_t>(lane >> 16), reply);
  }
  for (const StatePusher::PeerEvent& event : pusher_->take_events()) note_control_end(event.peer, event.reply);
}

void TcpLinks::listen_to_boards() {
  bool heard = false;
  for (std::uint32_t peer = 0; peer < options_.ranks; ++peer) {
    PeerBoard& board = peers_[peer].board;
    if (!board.connected()) continue;
    Reply end;
    heard |= board.receive(end);
    if (board.status().life != PeerLife::kLeft) note_reply(peer, end);
  }
  if (heard) pusher_->push_now();  // a peer that reports its call also needs the state of this rank
}

// Connections are opened by their senders. So if a rank only receives from a peer, there may be no connection before
// the first message. If the process of the peer has exited, that message never arrives, and this rank would not notice
// the exit. For this reason this rank connects to the peer itself.
void TcpLinks::connect_to_absent(std::int64_t now_ns) {
  std::vector<bool> waited(peers_.size());
  std::vector<bool> connected(peers_.size());
  for (const TcpLink* link : links_) (link->missing() ? waited : connected)[link->peer()] = true;
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) {
    std::int64_t& since_ns = peers_[peer].absent_since_ns;
    if (!waited[peer] || connected[peer]) {
      since_ns = 0;
    } else if (since_ns == 0) {
      since_ns = now_ns;
    } else if (now_ns - since_ns >= kAbsentNs) {
      pusher_->connect(peer);
    }
  }
}

void TcpLinks::pump() {
  const std::int64_t now_ns = clock_.now_ns();
  const std::int64_t away_ns = now_ns - std::exchange(pumped_ns_, now_ns);
  if (away_ns > kReadOnNs / 2) {  // data that arrived meanwhile could not be read, so the time does not count
    for (Peer& peer : peers_) {
      // A time can be later than the previous pump(), so it must not be moved into the future.
      for (std::int64_t* since_ns : {&peer.ended_since_ns, &peer.unanswered_since_ns, &peer.rejects_since_ns}) {
        if (*since_ns != 0) *since_ns = std::min(*since_ns + away_ns, now_ns);
      }
    }
  }
  admit();
  flush();
  listen_to_boards();
  look();
  connect_to_absent(now_ns);
  pusher_->push_if_late();
  pusher_->flush();
}

// Decides how to report a peer if its connections ended without a close frame. If that depends on a probe, the peer
// stays kLive, with `cut` set, until the probe has a result. (status() clears `cut` again if the reason is a control
// connection that the peer did not accept.)
void TcpLinks::classify_end(std::uint32_t peer, PeerStatus& status) {
  Peer& known = peers_[peer];
  if (!known.tampering.empty()) {
    status.life = PeerLife::kUnreachable;
    return;
  }
  if (known.refused || !addresses_[peer]) {
    known.finding = PeerProbe::Finding::kEnded;
  } else if (!known.probe) {
    known.probe.emplace(addresses_[peer]->socket, clock_.now_ns());
  }
  if (known.probe) known.finding = known.probe->look(clock_.now_ns());
  status.cut = known.finding == PeerProbe::Finding::kNone;
  if (!status.cut) status.life = PeerLife::kLost;
}

bool TcpLinks::is_probing(std::uint32_t peer) const {
  return peers_[peer].probe && peers_[peer].finding == PeerProbe::Finding::kNone;
}

std::string TcpLinks::loss(std::uint32_t peer) const {
  const Peer& known = peers_[peer];
  const std::string cause = describe_finding(known.finding);
  return cause.empty() ? cause : fmt::format("{}, {}", known.trouble, cause);
}

PeerStatus TcpLinks::status(std::uint32_t peer) {
  const std::int64_t now_ns = clock_.now_ns();
  if (now_ns - pumped_ns_ >= kPumpEveryNs) pump();
  const Peer& known = peers_.at(peer);
  PeerStatus status = known.board.status();
  if (status.life != PeerLife::kLive) return status;
  if (known.close_received) {
    status.life = PeerLife::kLeft;
  } else if (known.ended_since_ns != 0) {
    // Data that the peer sent before its end is still valid, and may be all that the call of this rank needs. While
    // more of it arrives, the kernel of the peer still has data to send, possibly followed by a close frame.
    bool wait = false;
    for (const TcpLink* link : links_) {
      if (link->peer() != peer) continue;
      const TcpLink::Unread unread = link->unread();
      wait |= unread == TcpLink::Unread::kMore ||
              (unread == TcpLink::Unread::kSome && now_ns - known.ended_since_ns < kReadOnNs);
    }
    if (!wait) classify_end(peer, status);
  } else if (known.unanswered_since_ns != 0 && now_ns - known.unanswered_since_ns >= kReadOnNs) {
    classify_end(peer, status);
  } else if (known.unanswered_since_ns != 0 || known.rejects_since_ns != 0) {
    // The peer does not count as lost before kReadOnNs has passed, because a connection of the peer may have arrived
    // already, with its first bytes in transit.
    const bool late = known.rejects_since_ns != 0 && now_ns - known.rejects_since_ns >= kReadOnNs;
    if (late && awaits_connection(peer)) classify_end(peer, status);
    // The peer may have left properly, without a connection on which it could send a close frame. So
    // Communicator::next_sender() must not count it as dead, see FailureAnalyzer::look().
    status.ended = status.life != PeerLife::kUnreachable;
    status.cut = false;
  }
  return status;
}

std::string TcpLinks::troubles() {
  const TcpEndpoint::Refusals refusals = endpoint_->refusals();
  std::string text;
  const auto add = [&text](const std::string& more) {
    if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
  };
  const std::string place = endpoint_->address().substr(0, endpoint_->address().find('/'));  // without the nonce
  if (refusals.count > 0) {
    add(fmt::format("refused {} connection{} on port {}, the last from {}", refusals.count,
                    refusals.count == 1 ? "" : "s", place, refusals.last));
  }
  add(refusals.trouble);
  add(pusher_->trouble());
  for (const Peer& peer : peers_) {
    if (!peer.close_received) add(peer.trouble);
  }
  return text;
}

// Connections that no receiving connection has claimed yet are not counted, because no data is sent on them.
std::span<const std::optional<std::uint64_t>> TcpLinks::count_retransmissions() {
  if (!own_process()) return {};  // in a forked child, other files may have the descriptors of the sockets
  for (const TcpLink* link : links_) {
    for (LaneSocket* socket : link->sockets()) {
      if (socket != nullptr) socket->socket.count_retransmissions(retransmissions_[link->peer()]);
    }
  }
  for (const Orphan& orphan : orphans_) orphan.socket->socket.count_retransmissions(retransmissions_[orphan.peer]);
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    peers_[peer].board.socket().count_retransmissions(retransmissions_[peer]);
  }
  pusher_->count_retransmissions(retransmissions_);
  return retransmissions_;
}

bool TcpLinks::send_close_to_orphans(const FrameHeader& close_frame) {
  for (Orphan& orphan : orphans_) {
    if (!orphan.close_sent) orphan.close_sent = send_close_on(orphan.socket->socket, close_frame);
  }
  return std::all_of(orphans_.begin(), orphans_.end(), [](const Orphan& orphan) { return orphan.close_sent; });
}

bool TcpLinks::send_close_to_links(const FrameHeader& close_frame) {
  for (TcpLink* link : links_) {
    if (!link->close_sent_) link->close_sent_ = unless_starved([&] { return link->send_close(close_frame); });
  }
  return std::all_of(links_.begin(), links_.end(), [](const TcpLink* link) { return link->close_sent_; });
}

// Sends a close frame, if possible, on each open data connection and on each control connection of a peer, and kLeft or
// kAborted on the control connections of this rank. Then closes the data connections. A destructor may call this
// function, perhaps after memory has run out. So each step is executed even if the steps before it have failed.
void TcpLinks::send_close() {
  if (mailbox_ == nullptr) return;  // already closed
  runs_through([this] { flush(); });
  pusher_->send_close();
  const StateRecord record = pusher_->record();
  std::optional<CallFailure> failure;
  if (record.failed != 0 && record.failed == record.left) {
    failure = {.code = static_cast<ErrorCode>(record.code),
               .culprit = record.culprit,
               .argument = static_cast<CallArgument>(record.argument)};
  }
  const FrameHeader close_frame = make_close_frame(record.entered, record.left, failure);
  runs_through([this] { admit(); });
  // Close frames are sent on all connections before any of them is closed. If a peer then finds one connection closed,
  // it finds the close frame on another one. A connection may have to wait until its socket can take more data, or
  // until its TLS handshake is complete. This wait is necessary, because a peer that gets no complete close frame would
  // conclude that this process has died. Its time is limited.
  const std::int64_t latest_ns = clock_.now_ns() + kCloseLimitNs;
  while (true) {
    bool sent = send_close_to_orphans(close_frame);
    for (auto& [lane, waiting] : waiting_) sent &= send_close_on(waiting.socket, close_frame);
    for (Peer& peer : peers_) sent &= send_close_on(peer.board.socket(), close_frame);
    sent &= send_close_to_links(close_frame);
    // Peers may wait in the same loop until this rank continues their TLS handshakes.
    runs_through([this] { endpoint_->service(); });
    const bool pushed = unless_starved([this] { return pusher_->flush(); });
    // In clear there is no reason to wait for a control connection: one that was never accepted needs no close frame.
    sent &= pushed || !endpoint_->encrypts();
    if (sent || clock_.now_ns() >= latest_ns) break;
    poll(nullptr, 0, 1);
  }
  for (TcpLink* link : links_) link->end();
  for (const Orphan& orphan : orphans_) orphan.socket->end();
  orphans_.clear();
  waiting_.clear();
  for (auto& [key, lane] : lanes_) lane.common.reset();
  endpoint_->detach(*mailbox_, close_frame);
  mailbox_ = nullptr;
}

}  // namespace tutti
