// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
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

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

// After a failure, or after the owner has left: time for the ranks to receive the data that was sent to them.
constexpr milliseconds kFlushTimeout{2000};
// After a successful set-up: how long the destructor of the RendezvousServer waits for ranks that are still
// connected.
constexpr milliseconds kOwnerTimeout{100};
// After a failure while ranks are missing: how long the server still accepts ranks after its owner has left, so that
// late ranks get the reason.
constexpr milliseconds kLateJoinTime{200};
constexpr std::size_t kMaxMessageBytes = 1 + Bootstrap::kMaxBlobBytes + sizeof(Tag);
constexpr std::int64_t kMaxTimeoutMs = 86'400'000;

bool has_joined(const std::shared_ptr<detail::RankConnection>& client) { return client != nullptr; }

bool has_blob(const std::shared_ptr<detail::RankConnection>& client) { return client->blob.has_value(); }

std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }

std::string missing_tls_message(const std::string& where) {
  return fmt::format(
      "TUTTI_ENCRYPT=1 needs OpenSSL 3's libssl.so.3, which cannot be loaded {}: install the package "
      "libssl3 (Debian, Ubuntu) or openssl-libs (Fedora) there, or set TUTTI_ENCRYPT=0 on all ranks",
      where);
}

std::string tampering_message(std::int32_t rank) {
  return fmt::format("a message of rank {} was altered on its way during set-up", rank);
}

}  // namespace

RendezvousServer::Core::Core(std::vector<Listener> listeners, const RendezvousServerOptions& options)
    : options_(options),
      listening_(io_, std::move(listeners)),
      admission_(options_, *this),
      deadline_(io_),
      flush_timer_(io_),
      release_timer_(io_),
      size_(options.size) {
  if (!random_bytes(meeting_)) throw std::runtime_error("the system gives no random bytes");
  if (size_) clients_.resize(index(*size_));
}

// Pending operations share the ownership of the connections, and end when these are closed.
RendezvousServer::Core::~Core() { close_connections(); }

void RendezvousServer::Core::close_connections() {
  for (const ConnectionPtr& client : clients_) {
    if (client != nullptr) client->close();
  }
  admission_.close_all();
}

void RendezvousServer::Core::run() {
  try {
    set_deadline(options_.first_wait_ms);
    const auto accepted = [this](tcp::socket socket) {
      admission_.begin(std::make_shared<detail::RankConnection>(io_, std::move(socket)));
    };
    // Called when an accept has failed, most likely because no file descriptor is free. Closing the oldest connection
    // that is not admitted yet frees one.
    const auto failed = [this](int error) {
      const char* const who = options_.size ? "rank 0" : "the process that made the unique id";
      admission_.note_refusal(fmt::format("{} could not take a connection: {}", who, describe_errno(error)));
      admission_.close_oldest();
    };
    listening_.start(accepted, failed);
    io_.run();
  } catch (...) {
    end_by_exception();
  }
  owner_wait_.release(detail::OwnerWait::Outcome::kEnded);
}

// Reports an exception of the server's thread to the ranks as the reason of the failure, unless a failure was reported
// before or there is no memory for that. Then closes all connections. Must be called in the handler of the exception.
void RendezvousServer::Core::end_by_exception() noexcept {
  const Error error = error_of_exception(ErrorScope::kCommunicator, options_.size ? 0 : -1, "the server of the set-up");
  runs_through([&] {
    listening_.close();
    fail(error.code, error.rank, error.message);
    io_.run();
  });
  listening_.close();
  close_connections();
}

void RendezvousServer::Core::set_deadline(std::int64_t after_ms) {
  deadline_ms_ = std::clamp<std::int64_t>(after_ms, 1, kMaxTimeoutMs);
  deadline_.expires_after(milliseconds(deadline_ms_));
  deadline_.async_wait([this](error_code cancelled) {
    if (!cancelled) deadline_passed();
  });
}

// Checks a rank that has proved that it has the key. Returns the reason for a refusal, or an empty text.
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

// Returns an error if some ranks encrypt and others do not, or if an end that must encrypt cannot. Called when all
// ranks have joined and before they exchange data, because the data of a rank that encrypts would otherwise be sent
// unencrypted to other ranks. Loopback connections are exempt, because other machines cannot read them. A connection
// from another address of this machine is not exempt, although it may come from a local rank: a machine that translates
// addresses (for example a Kubernetes node) gives its own address to connections that come from other machines.
std::optional<Error> RendezvousServer::Core::fault_of_encryption() const {
  const auto fault = [](ErrorCode code, std::int32_t rank, std::string words) {
    return Error{code, ErrorScope::kCommunicator, rank, std::move(words)};
  };
  // Element 0: the first rank that does not encrypt. Element 1: the first rank that does. -1: there is none. Ranks
  // that are connected over loopback do not count.
  std::array<std::int32_t, 2> says{-1, -1};
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

void RendezvousServer::Core::admit(const ConnectionPtr& client, const wire::RankInfo& rank_info) {
  client->rank = rank_info.rank;
  if (!size_) {
    size_ = rank_info.size;
    clients_.resize(index(rank_info.size));
  }
  if (joined_ == 0 && !options_.size) set_deadline(rank_info.timeout_ms);
  clients_[index(rank_info.rank)] = client;
  ++joined_;
  ++alive_;
  if (complete()) listening_.close();
  client->send(wire::with_kind('\1', bytes_of(meeting_)));
  if (failure_) client->send("!" + wire::pack_failure(*failure_));
  read_message(client);
}

void RendezvousServer::Core::read_message(const ConnectionPtr& client) {
  client->read_frame(kMaxMessageBytes,
                     [this, client](error_code error) { error ? end(client) : take_message(client); });
}

void RendezvousServer::Core::take_message(const ConnectionPtr& client) {
  auto opened = client->to_server->open(std::move(client->body));
  if (!opened) {
    fail(ErrorCode::kRefused, client->rank, tampering_message(client->rank));
    return end(client);
  }
  client->body = std::move(*opened);
  const char kind = client->body.empty() ? '\0' : client->body.front();
  if (kind == 'q' || kind == 'x') {
    client->has_quit = true;
    handle_early_leave(client, kind == 'x');
  } else if (kind == 'b' && !client->blob) {
    client->blob = client->body.substr(1);
    finish_round();
  } else {
    return end(client);
  }
  read_message(client);
}

// A rank has announced that it leaves the set-up. If its set-up has not failed but it was waiting for other ranks, the
// rank of the error (Error::rank) is the first of those. If its set-up has failed, or if other ranks have not joined
// yet or are waiting for it, the rank of the error is this rank. Otherwise (all ranks have joined, none is waiting, and
// the set-up of this rank has succeeded), leaving is not a failure.
void RendezvousServer::Core::handle_early_leave(const ConnectionPtr& client, bool has_failed) {
  // The first failure was already sent to all ranks that have joined.
  if (failure_) return;
  const bool waits = client->blob && !has_failed;
  if (!complete()) {
    const std::int32_t missing = ranks_without(has_joined).front();
    fail(waits ? ErrorCode::kTimeout : ErrorCode::kPeerLost, waits ? missing : client->rank,
         fmt::format("rank {} gave up set-up{}", client->rank, missing_text()));
  } else if (waits) {
    const auto silent = ranks_without(has_blob);
    fail(ErrorCode::kTimeout, silent.front(),
         fmt::format("rank {} gave up set-up, waiting for rank(s) {}", client->rank, fmt::join(silent, ", ")));
  } else if (has_failed) {
    fail(ErrorCode::kPeerLost, client->rank, fmt::format("rank {} gave up set-up", client->rank));
  } else if (std::any_of(clients_.begin(), clients_.end(), has_blob)) {
    fail_because_left(client->rank);
  }
}

// Called if the set-up of `rank` has succeeded and `rank` has left, but other ranks are in a round that includes it.
void RendezvousServer::Core::fail_because_left(std::int32_t rank) {
  fail(ErrorCode::kPeerLost, rank, fmt::format("rank {} left set-up before the others", rank));
}

void RendezvousServer::Core::finish_round() {
  if (!complete() || failure_) return;
  for (const ConnectionPtr& client : clients_) {
    if (client->has_quit) return fail_because_left(client->rank);
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
  const auto body = std::make_shared<const Body>("+" + wire::pack(blobs));  // shared by all connections
  for (const ConnectionPtr& client : clients_) client->send(body);
}

// Called when a rank's connection has ended, or when the server ends it because of a malformed or altered message.
void RendezvousServer::Core::end(const ConnectionPtr& client) {
  if (!client->socket.is_open()) return;
  client->close();
  --alive_;
  if (client->altered()) {
    fail(ErrorCode::kRefused, client->rank, tampering_message(client->rank));
  } else if (!client->has_quit) {
    const char* const or_cut = client->same_machine ? "" : ", or a firewall has cut its connection";
    fail(ErrorCode::kPeerLost, client->rank,
         fmt::format("rank {} ended during set-up{}{}", client->rank, or_cut, missing_text()));
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
  const std::vector<std::string>& refused = admission_.refusals();
  if (absent.empty()) return "";
  return fmt::format("; rank(s) {} of {} had not joined{}{}", fmt::join(absent, ", "), clients_.size(),
                     refused.empty() ? "" : "; refused were: ", fmt::join(refused, "; "));
}

void RendezvousServer::Core::deadline_passed() {
  if (joined_ == 0 && !options_.size) {  // a server without an owner, and no rank has joined
    listening_.close();
    io_.stop();
  } else if (!complete()) {
    const auto absent = ranks_without(has_joined);
    const std::vector<std::string>& refused = admission_.refusals();
    fail(ErrorCode::kTimeout, shortage() != 0 ? (options_.size ? 0 : -1) : absent.front(),
         fmt::format("rank(s) {} of {} did not join within {} ms{}{}", fmt::join(absent, ", "), clients_.size(),
                     deadline_ms_, refused.empty() ? "" : "; refused were: ", fmt::join(refused, "; ")));
  } else if (const auto silent = ranks_without(has_blob); !silent.empty()) {
    fail(ErrorCode::kTimeout, silent.front(),
         fmt::format("rank(s) {} did not answer in time during set-up, {} ms", fmt::join(silent, ", "), deadline_ms_));
  }
}

// Only the first failure is reported to the ranks.
void RendezvousServer::Core::fail(ErrorCode code, std::int32_t rank, const std::string& message) {
  if (failure_) return;
  failure_ = Error{code, ErrorScope::kCommunicator, rank, message};
  // If ranks are missing, keep listening for a while, so that they get the reason of the failure when they connect.
  if (complete()) listening_.close();
  const auto body = std::make_shared<const Body>("!" + wire::pack_failure(*failure_));
  for (const ConnectionPtr& client : clients_) {
    if (client != nullptr && client->socket.is_open()) client->send(body);
  }
  flush_timer_.expires_after(kFlushTimeout);
  flush_timer_.async_wait([this](error_code cancelled) {
    if (!cancelled) io_.stop();
  });
  stop_when_empty();
}

void RendezvousServer::Core::owner_left() {
  if (failure_ && listening_.open() && !std::exchange(serves_late_ranks_, true)) {
    flush_timer_.expires_after(kLateJoinTime);
    flush_timer_.async_wait([this](error_code cancelled) {
      if (!cancelled) owner_left();
    });
    return;
  }
  listening_.close();
  flush_timer_.expires_after(kFlushTimeout);
  flush_timer_.async_wait([this](error_code cancelled) {
    if (!cancelled) io_.stop();
  });
  release_timer_.expires_after(kOwnerTimeout);
  release_timer_.async_wait([this](error_code cancelled) {
    if (!cancelled && succeeded_ && !failure_) owner_wait_.release(detail::OwnerWait::Outcome::kServing);
  });
  stop_when_empty();
}

void RendezvousServer::Core::stop_when_empty() {
  if (!listening_.open() && alive_ == 0) io_.stop();
}

}  // namespace tutti
