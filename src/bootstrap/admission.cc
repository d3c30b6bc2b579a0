#include "bootstrap/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <chrono>
#include <utility>

#include "bootstrap/bootstrap.h"
#include "bootstrap/job_key.h"

namespace tutti::detail {
namespace {

// Without TLS: time between the moment at which a refused client closes its side of the connection, or sends more data,
// and the close() of this side.
constexpr std::chrono::milliseconds kRefusalPause{50};
constexpr std::size_t kMaxRefusals = 4;
// Maximum number of connections at the same time that are not admitted yet.
constexpr std::size_t kMaxUnauthenticated = 256;

}  // namespace

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

Admission::Admission(const RendezvousServerOptions& options, AdmissionHost& host)
    : options_(options), host_(host), job_(wire::job_tag(options.job_id)) {}

void Admission::begin(const ConnectionPtr& client) {
  if (unauthenticated_.size() >= kMaxUnauthenticated) close_oldest();
  error_code ignored;
  client->socket.set_option(tcp::no_delay(true), ignored);
  client->number = ++connection_count_;
  const auto from = client->socket.remote_endpoint(ignored);
  client->same_machine =
      from.address().is_loopback() || from.address() == client->socket.local_endpoint(ignored).address();
  unauthenticated_[client->number] = client;
  client->timer.expires_after(std::chrono::milliseconds(options_.handshake_wait_ms));
  client->timer.async_wait([this, client](error_code cancelled) {
    if (!cancelled && client->rank < 0) end(client);
  });
  read(client, wire::kMaxHelloBytes, &Admission::take_hello);
}

void Admission::close_oldest() {
  if (unauthenticated_.empty()) return;
  note_refusal("connections that did not say who they are");
  end(ConnectionPtr(unauthenticated_.begin()->second));
}

void Admission::note_refusal(const std::string& reason) {
  const bool known = std::find(refusals_.begin(), refusals_.end(), reason) != refusals_.end();
  if (!known && refusals_.size() < kMaxRefusals) refusals_.push_back(reason);
}

void Admission::close_all() {
  for (const auto& [number, client] : unauthenticated_) client->close();
}

void Admission::read(const ConnectionPtr& client, std::size_t longest, Step next) {
  client->read_frame(longest, [this, client, next](error_code error) {
    if (error && error != asio::error::message_size) return end(client);
    (this->*next)(client);
  });
}

void Admission::take_hello(const ConnectionPtr& client) {
  const std::string fault = fault_of_hello(client);
  if (!fault.empty()) return refuse(client, fault);
  if (!random_bytes(client->nonce)) return end(client);
  wire::Challenge challenge{.nonce = client->nonce};
  challenge.proof = wire::server_proof(options_.key.key, client->hello, challenge);
  client->send(wire::with_kind('\2', bytes_of(challenge)));
  read(client, sizeof(wire::Answer), &Admission::take_answer);
}

// Checks a hello before the client has proved that it has the key. Returns the reason for a refusal, or an empty text.
// Anyone may get such a reason, so it discloses only that Tutti listens here, the protocol version, whether the job id
// is that of this job, and how this job got its key.
std::string Admission::fault_of_hello(const ConnectionPtr& client) const {
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

void Admission::take_answer(const ConnectionPtr& client) {
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
  client->when_sent([this, client, rank_info = answer.rank_info](error_code error) {
    error ? end(client) : begin_tls(client, rank_info);
  });
  // The server opens the TLS library only for clients that, as this one, have proved that they have the key.
  client->send(wire::can_encrypt(TlsLibrary::open().ok()));
}

// Called when the frame that reports whether the server can encrypt has been written. If the server can, all
// further data of this connection uses TLS.
void Admission::begin_tls(const ConnectionPtr& client, const wire::RankInfo& rank_info) {
  const auto key = [&] { return wire::tls_key(options_.key.key, client->hello, client->nonce); };
  if (TlsLibrary::open() && !client->encrypt(key())) return end(client);
  take_rank_info(client, rank_info);
}

void Admission::take_rank_info(const ConnectionPtr& client, const wire::RankInfo& rank_info) {
  const std::string fault = host_.fault_of_rank(rank_info);
  if (!fault.empty()) return host_.has_failed() ? end(client) : refuse(client, fault);
  unauthenticated_.erase(client->number);
  client->timer.cancel();
  host_.admit(client, rank_info);
}

void Admission::refuse(const ConnectionPtr& client, const std::string& reason) {
  note_refusal(reason);
  client->when_sent([client](error_code) {
    error_code ignored;
    client->socket.shutdown(tcp::socket::shutdown_send, ignored);
  });
  client->send('\0' + reason);
  if (client->encrypted()) {
    return client->read(asio::buffer(client->header), [this, client](error_code) { end(client); });
  }
  // Wait until the client has closed its side or sent more data, and kRefusalPause longer, before closing this
  // side. The reason is that closing a socket with unread bytes can discard the refusal that was just sent. If the
  // client does neither, the timeout of the handshake closes the connection.
  client->socket.async_wait(tcp::socket::wait_read, [this, client](error_code) {
    client->timer.expires_after(kRefusalPause);
    client->timer.async_wait([this, client](error_code) { end(client); });
  });
}

void Admission::end(const ConnectionPtr& client) {
  if (!client->socket.is_open()) return;
  client->close();
  client->timer.cancel();
  unauthenticated_.erase(client->number);
  host_.unadmitted_ended();
}

}  // namespace tutti::detail

namespace tutti {

Status can_encrypt() {
  const auto library = TlsLibrary::open();
  return library ? Status() : Status(library.error());
}

}  // namespace tutti
