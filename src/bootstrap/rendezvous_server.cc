// clang-format off
#include <utility>  // needed because Asio before 1.74 does not include it
// clang-format on

#include "bootstrap/rendezvous_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system_error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/server_core.h"

namespace tutti {
namespace {

// Not inlined, because GCC 12 warns of a memcpy beyond the string if it knows the length of `body`.
[[gnu::noinline]] std::string frame(char kind, std::string_view body) {
  std::string made(1, kind);
  made += body;
  return made;
}

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kRetryPause{50};
constexpr milliseconds kFlushTimeout{2000};  // for ranks to receive the data that was sent to them
constexpr milliseconds kOwnerTimeout{100};   // the same, after a successful set-up
constexpr milliseconds kLateJoinTime{200};   // how long a rank that joins a failed set-up can still get the reason
constexpr std::size_t kMaxRefusals = 4;
constexpr std::size_t kMaxUnauthenticated = 256;  // connections that have not yet proved that they have the key
constexpr std::size_t kMaxMessageBytes = 1 + Bootstrap::kMaxBlobBytes + sizeof(Tag);
constexpr std::int64_t kMaxTimeoutMs = 86'400'000;

std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }

std::string missing_tls_message(const std::string& where) {
  return fmt::format(
      "TUTTI_ENCRYPT=1 needs OpenSSL 3's libssl.so.3, which cannot be loaded {}: install the package "
      "libssl3 (Debian, Ubuntu) or openssl-libs (Fedora) there, or set TUTTI_ENCRYPT=0 on all ranks",
      where);
}

std::string tampering_message(std::int32_t rank) {
  return fmt::format("what rank {} said during set-up was altered on its way", rank);
}

}  // namespace

RendezvousServer::Core::Core(std::vector<Listener> listeners, const RendezvousServerOptions& options)
    : options_(options),
      deadline_(io_),
      flush_timer_(io_),
      release_timer_(io_),
      size_(options.size),
      job_(wire::job_tag(options.job_id)) {
  if (!random_bytes(meeting_)) throw std::runtime_error("the system gives no random bytes");
  for (Listener& listener : listeners) {
    const auto family = listener.is_v6() ? tcp::v6() : tcp::v4();
    listening_sockets_.emplace_back(io_).acceptor.assign(family, listener.release());
  }
  if (size_) clients_.resize(index(*size_));
}

RendezvousServer::Core::~Core() {  // pending operations hold references to their connections
  for (const ConnectionPtr& client : clients_) {
    if (client != nullptr) client->close();
  }
  for (const auto& [number, client] : unauthenticated_) client->close();
}

void RendezvousServer::Core::run() {
  try {
    set_deadline(options_.first_wait_ms);
    for (ListeningSocket& listening : listening_sockets_) accept_next(listening);
    io_.run();
  } catch (...) {
    end_by_exception();
  }
  release_owner(true);
}

// Reports to the ranks why their set-up fails. If there is no memory for that either, closes their connections.
// Must be called while the exception is being handled.
void RendezvousServer::Core::end_by_exception() noexcept {
  const Error error = error_of_exception(ErrorScope::kCommunicator, options_.size ? 0 : -1, "the server of the set-up");
  runs_through([&] {
    close_listening_sockets();
    fail(error.code, error.rank, error.message);
    io_.run();
  });
  close_listening_sockets();
  for (const ConnectionPtr& client : clients_) {
    if (client != nullptr) client->close();
  }
  for (const auto& [number, client] : unauthenticated_) client->close();
}

void RendezvousServer::Core::set_deadline(std::int64_t after_ms) {
  deadline_ms_ = std::clamp<std::int64_t>(after_ms, 1, kMaxTimeoutMs);
  deadline_.expires_after(milliseconds(deadline_ms_));
  deadline_.async_wait([this](error_code cancelled) {
    if (!cancelled) deadline_passed();
  });
}

void RendezvousServer::Core::close_listening_sockets() {
  error_code ignored;
  for (ListeningSocket& listening : listening_sockets_) listening.acceptor.close(ignored);
}

void RendezvousServer::Core::accept_next(ListeningSocket& listening) {
  if (!listening.acceptor.is_open()) return;  // a completion may still be queued when the acceptor is closed
  listening.acceptor.async_accept([this, &listening](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {  // probably out of descriptors; some may be closed soon
      accept_error_ = error.value();
      const char* const who = options_.size ? "rank 0" : "the process that made the unique id";
      note_refusal(fmt::format("{} could not take a connection: {}", who, describe_errno(accept_error_)));
      close_oldest_unauthenticated();
      listening.retry.expires_after(kRetryPause);
      listening.retry.async_wait([this, &listening](error_code cancelled) {
        if (!cancelled) accept_next(listening);
      });
      return;
    }
    accept_error_ = 0;
    if (unauthenticated_.size() >= kMaxUnauthenticated) close_oldest_unauthenticated();
    greet(std::make_shared<Connection>(io_, std::move(socket)));
    accept_next(listening);
  });
}

// Closes the oldest unauthenticated connection. A rank that has the key needs only a moment, and connects again.
void RendezvousServer::Core::close_oldest_unauthenticated() {
  if (unauthenticated_.empty()) return;
  note_refusal("connections that did not say who they are");
  end(ConnectionPtr(unauthenticated_.begin()->second));
}

// Reads the hello of a new connection. The server accepts other connections meanwhile.
void RendezvousServer::Core::greet(const ConnectionPtr& client) {
  error_code ignored;
  client->socket.set_option(tcp::no_delay(true), ignored);
  client->number = ++connection_count_;
  const auto from = client->socket.remote_endpoint(ignored);
  client->same_machine =
      from.address().is_loopback() || from.address() == client->socket.local_endpoint(ignored).address();
  unauthenticated_[client->number] = client;
  client->timer.expires_after(milliseconds(options_.handshake_wait_ms));
  client->timer.async_wait([this, client](error_code cancelled) {
    if (!cancelled && client->rank < 0) end(client);
  });
  read_frame(client, wire::kMaxHelloBytes, &Core::take_hello);
}

void RendezvousServer::Core::read_frame(const ConnectionPtr& client, std::size_t longest, Next next) {
  client->read(asio::buffer(client->header), [=, this](error_code error) {
    if (error) return end(client);
    const std::size_t length = wire::frame_length(client->header);
    // take_hello() refuses the empty body with a reason; an admitted rank never sends such a frame.
    if (length > longest) {
      client->body.clear();
      return client->rank < 0 ? (this->*next)(client) : end(client);
    }
    client->body.assign(length, '\0');
    client->read(asio::buffer(client->body), [=, this](error_code body_error) {
      if (body_error) return end(client);
      (this->*next)(client);
    });
  });
}

// Checks that need no proof of the key. The reason shows strangers only that Tutti listens here, and its protocol.
std::string RendezvousServer::Core::fault_of_hello(const ConnectionPtr& client) const {
  const auto protocol = wire::read_protocol(client->body);
  if (protocol && *protocol != wire::kProtocol) {
    return fmt::format("protocol {} is spoken here, not {}: install one version of Tutti", wire::kProtocol, *protocol);
  }
  const auto hello = wire::read_hello(client->body);
  if (!hello) return "this is not the Tutti protocol";
  client->hello = *hello;
  if (client->hello.job != job_) return "this is another job (TUTTI_JOB_ID differs)";
  if (client->hello.key_source != options_.key.kind) {
    return other_key_message(options_.key.kind, client->hello.key_source, fmt::format("rank {}", client->hello.rank));
  }
  return "";
}

// Checks of a rank that has the key.
std::string RendezvousServer::Core::fault_of_rank(const wire::RankInfo& rank) const {
  if (rank.version != wire::library_version()) {
    return fmt::format("rank {} runs Tutti {}, the server {}: install one version", rank.rank,
                       wire::version_text(rank.version), wire::version_text(wire::library_version()));
  }
  if (rank.size < 1 || rank.size > 65535) return fmt::format("size {} is outside 1..65535", rank.size);
  if (size_ && rank.size != *size_) {
    return options_.size
               ? fmt::format("rank {} says that there are {} ranks, rank 0 says {}", rank.rank, rank.size, *size_)
               : fmt::format("rank {} says that there are {} ranks, the first to come said {}", rank.rank, rank.size,
                             *size_);
  }
  if (rank.rank < 0 || rank.rank >= rank.size) return fmt::format("rank {} is outside 0..{}", rank.rank, rank.size - 1);
  if (size_ && clients_[index(rank.rank)] != nullptr) return fmt::format("rank {} has joined already", rank.rank);
  return "";
}

// Checked when all ranks have joined and before they exchange data: otherwise a rank that must encrypt could get or
// send unencrypted data. Loopback connections are exempt, because no other machine can read them.
std::optional<Error> RendezvousServer::Core::fault_of_encryption() const {
  const auto fault = [](ErrorCode code, std::int32_t rank, std::string words) {
    return Error{code, ErrorScope::kCommunicator, rank, std::move(words)};
  };
  std::array<std::int32_t, 2> says{-1, -1};  // the first rank on another machine that does not encrypt, and that does
  for (const ConnectionPtr& client : clients_) {
    error_code error;
    const auto from = client->socket.remote_endpoint(error);
    if (!error && from.address().is_loopback()) continue;
    const wire::Encryption encryption = client->hello.encryption;
    if (encryption == wire::Encryption::kMissing) {
      return fault(ErrorCode::kConfig, client->rank, missing_tls_message(fmt::format("on rank {}", client->rank)));
    }
    std::int32_t& first = says[encryption == wire::Encryption::kOn ? 1 : 0];
    if (first < 0) first = client->rank;
  }
  if (says[0] >= 0 && says[1] >= 0) {
    return fault(ErrorCode::kMismatch, says[1],
                 fmt::format("rank {} has TUTTI_ENCRYPT=0, rank {} has TUTTI_ENCRYPT=1: give all ranks the same",
                             says[0], says[1]));
  }
  if (says[1] < 0 || TlsLibrary::open()) return std::nullopt;
  return fault(ErrorCode::kConfig, options_.size ? 0 : -1,
               missing_tls_message(options_.size ? "on rank 0" : "where the unique id was made"));
}

void RendezvousServer::Core::refuse(const ConnectionPtr& client, const std::string& reason) {
  note_refusal(reason);
  client->refused = true;
  send(client, '\0' + reason);
  if (client->encrypted())
    return client->read(asio::buffer(client->header), [this, client](error_code) { end(client); });
  // Closes the connection a moment after the other side has closed it or sent more data, or at its timeout. Closing
  // a connection with unread bytes could discard the reason that was just sent.
  client->socket.async_wait(tcp::socket::wait_read, [this, client](error_code) {
    client->timer.expires_after(kRetryPause);
    client->timer.async_wait([this, client](error_code) { end(client); });
  });
}

void RendezvousServer::Core::take_hello(const ConnectionPtr& client) {
  const std::string fault = fault_of_hello(client);
  if (!fault.empty()) return refuse(client, fault);
  if (!random_bytes(client->nonce)) return end(client);
  wire::Challenge challenge{.nonce = client->nonce};
  challenge.proof = wire::server_proof(options_.key.key, client->hello, challenge);
  send(client, frame('\2', bytes_of(challenge)));
  read_frame(client, sizeof(wire::Answer), &Core::take_answer);
}

void RendezvousServer::Core::take_answer(const ConnectionPtr& client) {
  const auto read = wire::read_answer(client->body);
  const wire::Answer answer = read.value_or(wire::Answer{});
  const Key& key = options_.key.key;
  const Digest wanted = wire::rank_proof(key, client->hello, client->nonce, answer.rank_info);
  if (!read || !equal_in_constant_time(bytes_of(wanted), bytes_of(answer.proof))) {
    return refuse(client, other_key_message(options_.key.kind, client->hello.key_source,
                                            fmt::format("rank {}", client->hello.rank)));
  }
  client->to_server.emplace(key, client->hello, client->nonce, wire::Seal::Direction::kToServer);
  client->to_rank.emplace(key, client->hello, client->nonce, wire::Seal::Direction::kToRank);
  if (client->hello.encryption != wire::Encryption::kOn) return take_rank_info(client, answer.rank_info);
  // Only a connection that has proved that it has the key makes the server load the library.
  client->proved = answer.rank_info;
  send(client, wire::can_encrypt(TlsLibrary::open().ok()));
}

// Called when the answer whether the server can encrypt has been written. After a "yes", all further data uses TLS.
void RendezvousServer::Core::begin_tls(const ConnectionPtr& client) {
  const wire::RankInfo rank_info = *std::exchange(client->proved, std::nullopt);
  const auto key = [&] { return wire::tls_key(options_.key.key, client->hello, client->nonce); };
  if (TlsLibrary::open() && !client->encrypt(key())) return end(client);
  take_rank_info(client, rank_info);
}

void RendezvousServer::Core::take_rank_info(const ConnectionPtr& client, const wire::RankInfo& rank_info) {
  const std::string fault = fault_of_rank(rank_info);
  if (failure_ && !fault.empty()) return end(client);  // a rank that retries must look for the next server
  if (!fault.empty()) return refuse(client, fault);
  admit(client, rank_info);
}

void RendezvousServer::Core::admit(const ConnectionPtr& client, const wire::RankInfo& rank_info) {
  unauthenticated_.erase(client->number);
  client->timer.cancel();
  client->rank = rank_info.rank;
  if (!size_) {
    size_ = rank_info.size;
    clients_.resize(index(rank_info.size));
  }
  if (joined_ == 0 && !options_.size) set_deadline(rank_info.timeout_ms);
  clients_[index(rank_info.rank)] = client;
  ++joined_;
  ++alive_;
  if (complete()) close_listening_sockets();
  send(client, frame('\1', bytes_of(meeting_)));
  if (failure_) send(client, "!" + wire::pack_failure(*failure_));
  read_frame(client, kMaxMessageBytes, &Core::take_message);
}

void RendezvousServer::Core::take_message(const ConnectionPtr& client) {
  auto opened = client->to_server->open(std::move(client->body));
  if (!opened) {
    fail(ErrorCode::kRefused, client->rank, tampering_message(client->rank));
    return end(client);
  }
  client->body = std::move(*opened);
  const char kind = client->body.empty() ? '\0' : client->body.front();
  if (kind == 'q') {
    client->has_quit = true;
    handle_early_leave(client);
  } else if (kind == 'b' && !client->blob) {
    client->blob = client->body.substr(1);
    finish_round();
  } else {
    return end(client);
  }
  read_frame(client, kMaxMessageBytes, &Core::take_message);
}

// A rank leaves early. If it was waiting for others, they are the cause. If others wait for it, it is the cause.
void RendezvousServer::Core::handle_early_leave(const ConnectionPtr& client) {
  if (failure_) return;  // all ranks have been notified, and the rest of the round is irrelevant
  if (!complete()) {
    const std::int32_t missing = ranks_without(has_joined).front();
    fail(client->blob ? ErrorCode::kTimeout : ErrorCode::kPeerLost, client->blob ? missing : client->rank,
         fmt::format("rank {} gave up set-up{}", client->rank, missing_text()));
  } else if (client->blob) {
    const auto silent = ranks_without(has_blob);
    fail(ErrorCode::kTimeout, silent.front(),
         fmt::format("rank {} gave up set-up, waiting for rank(s) {}", client->rank, fmt::join(silent, ", ")));
  } else if (std::any_of(clients_.begin(), clients_.end(), has_blob)) {
    fail(ErrorCode::kPeerLost, client->rank, fmt::format("rank {} gave up set-up", client->rank));
  }
}

void RendezvousServer::Core::finish_round() {
  if (!complete() || failure_) return;
  for (const ConnectionPtr& client : clients_) {
    if (client->has_quit) {
      fail(ErrorCode::kPeerLost, client->rank, fmt::format("rank {} left set-up before the others", client->rank));
      return;
    }
  }
  if (!ranks_without(has_blob).empty()) return;
  if (!std::exchange(encryption_checked_, true)) {
    if (const auto fault = fault_of_encryption()) return fail(fault->code, fault->rank, fault->message);
  }
  std::vector<std::string> blobs;
  for (const ConnectionPtr& client : clients_) {
    blobs.push_back(std::move(*client->blob));
    client->blob.reset();
  }
  const auto body = std::make_shared<const Body>("+" + wire::pack(blobs));  // one copy for all ranks
  for (const ConnectionPtr& client : clients_) send(client, body);
}

void RendezvousServer::Core::send(const ConnectionPtr& client, std::shared_ptr<const Body> body) {
  client->push(std::move(body));
  if (client->outbox.size() == 1) write_next(client);
}

void RendezvousServer::Core::write_next(const ConnectionPtr& client) {
  client->write([this, client](error_code error) {
    client->outbox.pop_front();
    if (error) client->outbox.clear();  // the pending read reports the error
    error_code ignored;
    if (!client->outbox.empty()) {
      write_next(client);
    } else if (client->proved) {
      if (error) return end(client);
      begin_tls(client);
    } else if (client->refused) {
      client->socket.shutdown(tcp::socket::shutdown_send, ignored);
    }
  });
}

// A connection has ended: the other side or this server has closed it.
void RendezvousServer::Core::end(const ConnectionPtr& client) {
  if (!client->socket.is_open()) return;
  client->close();
  client->timer.cancel();
  unauthenticated_.erase(client->number);
  if (client->rank >= 0) {
    --alive_;
    if (client->altered()) {
      fail(ErrorCode::kRefused, client->rank, tampering_message(client->rank));
    } else if (!client->has_quit) {
      const char* const or_cut = client->same_machine ? "" : ", or a firewall has cut its connection";
      fail(ErrorCode::kPeerLost, client->rank,
           fmt::format("rank {} ended during set-up{}{}", client->rank, or_cut, missing_text()));
    }
  }
  stop_when_empty();
}

std::vector<std::int32_t> RendezvousServer::Core::ranks_without(bool (*has)(const ConnectionPtr&)) const {
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < clients_.size(); ++rank) {
    if (!has(clients_[rank])) ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return ranks;
}

std::string RendezvousServer::Core::missing_text() const {
  const auto absent = ranks_without(has_joined);
  if (absent.empty()) return "";
  return fmt::format("; rank(s) {} of {} had not joined{}{}", fmt::join(absent, ", "), clients_.size(),
                     refusals_.empty() ? "" : "; refused were: ", fmt::join(refusals_, "; "));
}

void RendezvousServer::Core::deadline_passed() {
  if (joined_ == 0 && !options_.size) {  // no rank joined
    close_listening_sockets();
    io_.stop();
  } else if (!complete()) {
    const auto absent = ranks_without(has_joined);
    fail(ErrorCode::kTimeout, accept_error_ != 0 ? (options_.size ? 0 : -1) : absent.front(),
         fmt::format("rank(s) {} of {} did not join within {} ms{}{}", fmt::join(absent, ", "), clients_.size(),
                     deadline_ms_, refusals_.empty() ? "" : "; refused were: ", fmt::join(refusals_, "; ")));
  } else if (const auto silent = ranks_without(has_blob); !silent.empty()) {
    fail(ErrorCode::kTimeout, silent.front(),
         fmt::format("rank(s) {} did not answer in time during set-up, {} ms", fmt::join(silent, ", "), deadline_ms_));
  }
}

// Only the first failure is reported to the ranks.
void RendezvousServer::Core::fail(ErrorCode code, std::int32_t rank, const std::string& message) {
  if (failure_) return;
  failure_ = Error{code, ErrorScope::kCommunicator, rank, message};
  if (complete()) close_listening_sockets();  // otherwise keep listening, so that late ranks get the reason
  const auto body = std::make_shared<const Body>("!" + wire::pack_failure(*failure_));
  for (const ConnectionPtr& client : clients_) {
    if (client != nullptr && client->socket.is_open()) send(client, body);
  }
  flush_timer_.expires_after(kFlushTimeout);
  flush_timer_.async_wait([this](error_code cancelled) {
    if (!cancelled) io_.stop();
  });
  stop_when_empty();
}

void RendezvousServer::Core::owner_left() {
  if (failure_ && listens() && !std::exchange(serves_late_ranks_, true)) {
    flush_timer_.expires_after(kLateJoinTime);
    flush_timer_.async_wait([this](error_code cancelled) {
      if (!cancelled) owner_left();
    });
    return;
  }
  close_listening_sockets();
  flush_timer_.expires_after(kFlushTimeout);
  flush_timer_.async_wait([this](error_code cancelled) {
    if (!cancelled) io_.stop();
  });
  release_timer_.expires_after(kOwnerTimeout);
  release_timer_.async_wait([this](error_code cancelled) {
    if (!cancelled && succeeded_ && !failure_) release_owner(false);
  });
  stop_when_empty();
}

void RendezvousServer::Core::stop_when_empty() {
  if (!listens() && alive_ == 0) io_.stop();
}

void RendezvousServer::Core::note_refusal(const std::string& reason) {
  const bool known = std::find(refusals_.begin(), refusals_.end(), reason) != refusals_.end();
  if (!known && refusals_.size() < kMaxRefusals) refusals_.push_back(reason);
}

}  // namespace tutti
