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

constexpr std::int64_t kPumpEveryNs = 1'000'000;  // status() looks at the sockets again after this time
constexpr std::int64_t kGoodbyeNs = 500'000'000;  // longest wait for room for goodbyes
constexpr std::int64_t kReadOnNs = 500'000'000;   // what a dead peer has sent may be read for this long
// A receive that has waited so long without any connection to the peer makes this rank connect.
constexpr std::int64_t kAbsentNs = 50'000'000;

// What `step` returns; true if memory was exhausted in it, so that nothing waits for what it did not do.
template <class Step>
bool unless_starved(Step&& step) {
  bool done = true;
  runs_through([&] { done = step(); });
  return done;
}

// False: there is no room.
bool say(TcpStream& stream, const FrameHeader& frame) {
  if (!stream.is_open()) return true;
  return unless_starved([&] {
    const Moved moved = stream.say(frame);
    return moved.bytes > 0 || moved.ended;
  });
}

}  // namespace

TcpLinks::TcpLinks(const TcpTransportOptions& options, std::shared_ptr<TcpEndpoint> endpoint)
    : process_(getpid()),
      options_(options),
      clock_(options.clock != nullptr ? *options.clock : system_clock_),
      endpoint_(std::move(endpoint)),
      peers_(options.ranks) {}

Result<std::shared_ptr<TcpLinks>> TcpLinks::create(const TcpTransportOptions& options,
                                                   std::shared_ptr<TcpEndpoint> endpoint,
                                                   const std::vector<std::string>& addresses) {
  TUTTI_ASSERT(options.rank < options.ranks && addresses.size() == options.ranks && options.slots > 0 &&
               options.slot_bytes > 0 && options.lanes > 0 && options.lanes <= 65535);
  std::shared_ptr<TcpLinks> links(new TcpLinks(options, std::move(endpoint)));  // private constructor
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
  // The destructor of a link moves up to two sockets into orphans_, to send a goodbye on them. It must not allocate, so
  // the space for the sockets of all links is reserved here.
  const std::size_t room = orphans_.size() + 2 * (links_.size() + 1);
  if (room > orphans_.capacity()) orphans_.reserve(2 * room);
  links_.push_back(&link);
}

void TcpLinks::remove(TcpLink& link) {
  std::erase(links_, &link);
  std::erase(dirty_, &link);
}

void TcpLinks::keep_for_goodbye(Orphan orphan) {
  if (mailbox_ == nullptr || !orphan.socket->socket.is_open() || !own_process()) return;  // the transport has ended
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
      from.sender >= options_.ranks || from.sender == options_.rank || from.kind == TcpLinkKind::kNotes) {
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

void TcpLinks::note_reply(std::uint32_t peer, const Reply& reply) {
  Peer& known = peers_[peer];
  if (reply.kind == Reply::Kind::kNothing) return;
  if (reply.kind == Reply::Kind::kGoodbye) {
    known.goodbye = true;
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
    if (reply.refusal != Refusal::kNonce) known.tampering = known.trouble;  // that is another process, in its place
    return;
  }
  const std::string words = fmt::format("a connection to rank {} ended: {}", peer, words_of_end(reply.error));
  if (known.trouble.empty()) known.trouble = words;
  if (known.tampering.empty() && is_tampering(reply.error)) known.tampering = words;
}

// On a connection that this rank has opened. One that had not been accepted when its listener ended well brings no
// goodbye, so one on another connection, and other ranks' words, are given time.
void TcpLinks::note_answer(std::uint32_t peer, const Reply& reply) {
  if (reply.kind != Reply::Kind::kEnded || is_tampering(reply.error)) return note_reply(peer, reply);
  if (peers_[peer].silent_since_ns == 0) peers_[peer].silent_since_ns = std::max<std::int64_t>(clock_.now_ns(), 1);
  describe_end(peer, reply);
}

// A process that has ended takes no connection, however it has ended. That it died follows only where it still owes
// this rank something; if a connection to it is open, the end of that connection will show it. A network error does not
// prove that the peer's process has ended.
void TcpLinks::note_deaf(std::uint32_t peer, const Reply& reply) {
  if (reply.kind != Reply::Kind::kEnded) return note_reply(peer, reply);
  if (is_network_error(reply.error)) return describe_end(peer, reply);
  if (peers_[peer].deaf_since_ns == 0) peers_[peer].deaf_since_ns = std::max<std::int64_t>(clock_.now_ns(), 1);
  describe_end(peer, reply);
}

bool TcpLinks::misses(std::uint32_t peer) const {
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
    const Reply reply = orphan.brings_answer ? orphan.replies.read(stream) : stream.last_words(orphan.stashed);
    note_reply(orphan.peer, reply);
    return reply.kind != Reply::Kind::kNothing;
  });
  for (auto& [lane, waiting] : waiting_) {
    if (waiting.ended) continue;
    const Reply reply = waiting.socket.last_words({});
    waiting.ended = reply.kind != Reply::Kind::kNothing;
    note_reply(static_cast<std::uint32_t>(lane >> 16), reply);
  }
  for (const StatePusher::News& news : pusher_->news()) note_deaf(news.peer, news.reply);
}

void TcpLinks::listen_to_boards() {
  bool heard = false;
  for (std::uint32_t peer = 0; peer < options_.ranks; ++peer) {
    PeerBoard& board = peers_[peer].board;
    if (!board.connected()) continue;
    bool ended = false;
    heard |= board.receive(ended);
    if (ended && board.status().life != PeerLife::kLeft) note_reply(peer, {.kind = Reply::Kind::kEnded});
  }
  if (heard) pusher_->push_now();  // who tells of a call wants to know of us
}

// Connections are opened by their senders, so a rank that only receives from a peer has none until the first message.
// If the peer's process has ended, that message never comes, and nothing would tell: so this rank connects.
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
  if (away_ns > kReadOnNs / 2) {  // what came meanwhile could not be read
    for (Peer& peer : peers_) {
      if (peer.ended_since_ns != 0) peer.ended_since_ns += away_ns;
      if (peer.deaf_since_ns != 0) peer.deaf_since_ns += away_ns;
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

// Decides what is reported of a peer whose connections ended without a goodbye. Until the probe answers: kLive, with
// `cut`.
void TcpLinks::judge(std::uint32_t peer, PeerStatus& status) {
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
  const std::string cause = words_of(known.finding);
  return cause.empty() ? cause : fmt::format("{}, {}", known.trouble, cause);
}

PeerStatus TcpLinks::status(std::uint32_t peer) {
  const std::int64_t now_ns = clock_.now_ns();
  if (now_ns - pumped_ns_ >= kPumpEveryNs) pump();
  const Peer& known = peers_.at(peer);
  PeerStatus status = known.board.status();
  if (status.life != PeerLife::kLive) return status;
  if (known.goodbye) {
    status.life = PeerLife::kLeft;
  } else if (known.ended_since_ns != 0) {
    // What it sent before it ended is still good, and may be all that this rank's call wants of it. And while more of
    // it comes, its own kernel still has some, and maybe a goodbye behind it.
    bool wait = false;
    for (const TcpLink* link : links_) {
      if (link->peer() != peer) continue;
      const TcpLink::Unread unread = link->unread();
      wait |= unread == TcpLink::Unread::kMore ||
              (unread == TcpLink::Unread::kSome && now_ns - known.ended_since_ns < kReadOnNs);
    }
    if (!wait) judge(peer, status);
  } else if (known.silent_since_ns != 0 && now_ns - known.silent_since_ns >= kReadOnNs) {
    judge(peer, status);
  } else if (known.silent_since_ns != 0 || known.deaf_since_ns != 0) {
    // Its connection may be here, and the first words on it under way.
    const bool late = known.deaf_since_ns != 0 && now_ns - known.deaf_since_ns >= kReadOnNs;
    if (late && misses(peer)) judge(peer, status);
    // The peer never connected, so it may have said goodbye to nobody: next_sender() must not count it as dead.
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
    if (!peer.goodbye) add(peer.trouble);
  }
  return text;
}

bool TcpLinks::tell_orphans(const FrameHeader& goodbye) {
  for (Orphan& orphan : orphans_) {
    if (!orphan.told) orphan.told = say(orphan.socket->socket, goodbye);
  }
  return std::all_of(orphans_.begin(), orphans_.end(), [](const Orphan& orphan) { return orphan.told; });
}

bool TcpLinks::tell_links(const FrameHeader& goodbye) {
  for (TcpLink* link : links_) {
    if (!link->told_) link->told_ = unless_starved([&] { return link->say_goodbye(goodbye); });
  }
  return std::all_of(links_.begin(), links_.end(), [](const TcpLink* link) { return link->told_; });
}

// A destructor calls this, perhaps after memory has run out: each step goes on without those before it.
void TcpLinks::say_goodbye() {
  if (mailbox_ == nullptr) return;  // said already
  runs_through([this] { flush(); });
  pusher_->goodbye();
  const StateRecord record = pusher_->record();
  std::optional<CallFailure> failure;
  if (record.failed != 0 && record.failed == record.left) {
    failure = {.code = static_cast<ErrorCode>(record.code),
               .culprit = record.culprit,
               .argument = static_cast<CallArgument>(record.argument)};
  }
  const FrameHeader goodbye = goodbye_frame(record.entered, record.left, failure);
  runs_through([this] { admit(); });
  // All are told before any is closed: a peer that finds one closed finds the goodbye on another.
  tell_orphans(goodbye);
  for (auto& [lane, waiting] : waiting_) say(waiting.socket, goodbye);
  for (Peer& peer : peers_) say(peer.board.socket(), goodbye);
  // Encrypted, it may wait for a handshake or for room: that is given a moment, since without a goodbye the peer would
  // take us for dead.
  const std::int64_t latest_ns = clock_.now_ns() + kGoodbyeNs;
  while (true) {
    const bool links_told = tell_links(goodbye);
    if (!endpoint_->encrypts()) break;
    runs_through([this] { endpoint_->service(); });  // peers that set up connections may be in the same place
    const bool pushed = unless_starved([this] { return pusher_->flush(); });
    if (tell_orphans(goodbye) && links_told && pushed) break;
    if (clock_.now_ns() >= latest_ns) break;
    poll(nullptr, 0, 1);
  }
  for (TcpLink* link : links_) link->end();
  for (const Orphan& orphan : orphans_) orphan.socket->end();
  orphans_.clear();
  waiting_.clear();
  for (auto& [key, lane] : lanes_) lane.common.reset();
  endpoint_->detach(*mailbox_, goodbye);
  mailbox_ = nullptr;
}

}  // namespace tutti
