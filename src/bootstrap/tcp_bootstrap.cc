// TcpBootstrap: the client of a RendezvousServer. On rank 0 it also starts the server, unless the caller gives a unique
// id. bootstrap_wire.h describes the protocol.

// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
// clang-format on

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "base/loopback.h"
#include "base/system_error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/client_connection.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/pmi.h"
#include "bootstrap/pmix.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/root_addresses.h"
#include "bootstrap/unique_id_parts.h"

namespace tutti {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

constexpr milliseconds kRetryPause{20};
// How long to wait for the look-up of the root's name before the deadline and `stop` are checked again.
constexpr milliseconds kLookUpWait{200};
// A rank waits this much longer than its deadline, because the server usually has the same deadline and then sends
// an error that names the missing ranks.
constexpr milliseconds kServerFirstMargin{100};
// How long to wait, after the deadline, for the server's failure message, which names the missing ranks.
constexpr milliseconds kServerAnswerTimeout{2000};
// Time limit for each handshake if there are several addresses or ports to try, because another program may accept
// a connection and never answer. Also the limit for a connection attempt if there is one address with several
// ports.
constexpr milliseconds kAnswerTimeout{10'000};
// Time limit for a connection attempt if the root has several addresses.
constexpr milliseconds kConnectTimeout{2000};
// How long to begin new attempts to reach the server of a unique id. The server listens before the id exists, so a
// longer wait is useless, unless something answers but is not able to admit this rank yet.
constexpr milliseconds kUniqueIdTimeout{2000};

Error fail(ErrorCode code, std::string message, std::int32_t rank = -1) {
  return {code, ErrorScope::kCommunicator, rank, std::move(message)};
}

// The class has more than 40 methods and members. Six methods implement the interface Bootstrap. Most others are steps
// of joining, which follow each other and share the deadline and the reasons of refusals.
class TcpBootstrap final : public Bootstrap {
 public:
  explicit TcpBootstrap(const RendezvousOptions& options)
      : options_(options), deadline_(Clock::now() + milliseconds(options.timeout_ms)), root_(options.host) {}
  ~TcpBootstrap() override {
    // Announces that this rank leaves, and whether its set-up has failed. If there is no memory for the message, the
    // server still sees that the connection ends.
    if (connection_ != nullptr) {
      runs_through([&] { send_sealed(has_succeeded_ ? "q" : "x", Clock::now() + kRetryPause); });
    }
    // The connection must end before server_: the destructor of server_ waits, up to a limit, for all ranks to leave.
    connection_.reset();
  }

  Status meet();
  Result<std::vector<std::string>> all_gather(const std::string& blob) override;
  bool has_failed() override { return stopped() || connection_->readable(); }
  std::string local_address() const override { return local_address_; }
  bool server_is_here() const override { return server_ != nullptr || is_own_address(address_); }
  Key key() const override { return meeting_key_; }
  void set_succeeded() override {
    has_succeeded_ = true;
    if (server_ != nullptr) server_->set_succeeded();
  }

 private:
  using Connection = detail::ClientConnection;
  enum class Attempt : std::uint8_t { kJoined, kNoAnswer, kWrongServer };

  Result<UniqueId> share_by_pmix() const;
  Status resolve_root();
  Result<std::vector<Listener>> open_listeners() const;
  Status start_server();
  Status take_unique_id(const UniqueId& id);
  Status join();
  Result<Attempt> try_all();
  Result<Attempt> try_to_join(std::uint16_t port);
  error_code dial(Connection& connection, std::uint16_t port) const;
  std::size_t candidate_count() const { return root_.list().size() * options_.ports.size(); }
  void pause();
  Result<Attempt> introduce(Connection& connection, std::uint16_t port, TimePoint limit);
  Result<Attempt> refused(std::uint16_t port, const std::string& reason);
  Result<Attempt> take_welcome(Connection& connection, std::uint16_t port, TimePoint limit);
  bool send_sealed(const std::string& body, TimePoint until) { return connection_->write(body + seal_of(body), until); }
  wire::Encryption encryption(Connection& connection);
  std::string seal_of(const std::string& body) { return std::string(bytes_of(to_server_->next(sha256({body})))); }
  Error no_answer_error() const;
  std::string server_name() const { return options_.unique_id ? "the process that made the unique id" : "rank 0"; }
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  Error given_up() const { return fail(ErrorCode::kAborted, "set-up was given up on this rank", options_.rank); }

  RendezvousOptions options_;
  TimePoint deadline_;
  RootAddresses root_;
  // The address of root_ that is being tried, or, later, the one by which this rank has joined.
  std::string address_;
  std::unique_ptr<RendezvousServer> server_;  // only on rank 0, and only if the ranks do not meet by a unique id
  asio::io_context io_;
  std::unique_ptr<Connection> connection_;
  std::optional<Error> no_tls_;  // the error if this rank must encrypt but cannot
  std::optional<wire::Seal> to_server_, to_rank_;
  // The key for TLS. Set while this rank waits for the server's report whether the server can encrypt.
  std::optional<Key> awaited_tls_;
  Key meeting_key_{};
  bool has_succeeded_ = false;  // set_succeeded() was called
  std::string local_address_;
  std::string network_error_;  // for messages: why the last connection failed; empty if it was refused or timed out
  // By port: a text about the program that was reached there but did not admit this rank. Used in the error if the
  // server is not found.
  std::map<std::uint16_t, std::string> wrong_servers_;
};

Status TcpBootstrap::meet() {
  if ((options_.pmi_fd || options_.pmix) && !options_.unique_id) {
    auto id = options_.pmi_fd ? share_unique_id(options_, deadline_) : share_by_pmix();
    if (!id) return id.error();
    options_.unique_id = *id;
    explicit_bzero(&*id, sizeof(*id));
  }
  if (options_.unique_id) {
    TUTTI_TRY(take_unique_id(*options_.unique_id));
  } else {
    TUTTI_TRY(resolve_root());
    if (options_.rank == 0) TUTTI_TRY(start_server());
  }
  const std::vector<std::string>& addresses = root_.list();
  if (std::all_of(addresses.begin(), addresses.end(), is_own_address)) TUTTI_TRY(check_loopback());
  TUTTI_TRY(join());
  auto all_there = all_gather("");
  if (!all_there) return no_tls_ ? *no_tls_ : all_there.error();
  return {};
}

Result<UniqueId> TcpBootstrap::share_by_pmix() const {
  const auto make = [this]() -> Result<std::string> {
    auto id =
        serve_unique_id(options_.host, options_.port_range, milliseconds(options_.timeout_ms), options_.configured_key);
    if (!id) return id.error();
    return id->to_text();
  };
  auto text = share_through_pmix(options_.rank, make, deadline_);
  if (!text) return text.error();
  const WipesText wipes(*text);
  return UniqueId::from_text(*text);
}

Status TcpBootstrap::take_unique_id(const UniqueId& id) {
  auto parts = unpack_unique_id(id);
  if (!parts) return parts.error();
  options_.host = parts->address;
  root_.fix({parts->address});
  options_.ports = {parts->port};
  options_.job_id = parts->job_id;
  options_.key = key_of_id(parts->key, options_.configured_key);
  return {};
}

// Waits, at most to the deadline or `stop`, for an address of the root's name, which may be published late.
Status TcpBootstrap::resolve_root() {
  bool warned = false;
  while (true) {
    root_.look_up(kLookUpWait);
    if (!root_.list().empty()) return {};
    if (stopped()) return given_up();
    if (Clock::now() >= deadline_) {
      return fail(ErrorCode::kConfig, fmt::format("root host \"{}\" could not be resolved within {} ms ({}): is the "
                                                  "name of rank 0's host right (TUTTI_ROOT, MASTER_ADDR)?",
                                                  options_.host, options_.timeout_ms, root_.trouble()));
    }
    if (!std::exchange(warned, true)) {
      Log(options_.log_level, options_.rank)
          .write(LogLevel::kWarn, "root host \"{}\" has no address yet ({}): it is looked up again for up to {} ms",
                 options_.host, root_.trouble(), options_.timeout_ms);
    }
    pause();
  }
}

// Opens the listeners of rank 0: Listener::inherit_or_open() if a socket is inherited, otherwise Listener::open_all()
// for the addresses of the root and, in the cases that RendezvousOptions describes, other_host.
Result<std::vector<Listener>> TcpBootstrap::open_listeners() const {
  if (options_.listening_fd >= 0) {
    auto inherited =
        Listener::inherit_or_open(options_.listening_fd, options_.listening_port, root_.list().front(), options_.ports);
    if (!inherited) return inherited.error();
    std::vector<Listener> one;
    one.push_back(std::move(*inherited));
    return one;
  }
  std::vector<std::string> addresses = root_.list();
  if (root_.is_loopback_by_hosts_file() && !options_.other_host.empty()) addresses.push_back(options_.other_host);
  auto listeners = Listener::open_all(addresses, options_.ports);
  const bool forwarded = std::none_of(addresses.begin(), addresses.end(), is_own_address);
  if (!listeners && forwarded && options_.may_be_forwarded && !options_.other_host.empty()) {
    return Listener::open_all({options_.other_host}, options_.ports);
  }
  return listeners;
}

Status TcpBootstrap::start_server() {
  auto listeners = open_listeners();
  if (!listeners) {
    if (listeners.error().code == ErrorCode::kConfig) return listeners.error();
    return fail(ErrorCode::kSystem,
                "rank 0 " + listeners.error().message + "; choose another TUTTI_ROOT if others use that one", 0);
  }
  options_.ports = {listeners->front().port()};
  std::vector<std::string> addresses;
  for (const Listener& listener : *listeners) addresses.push_back(listener.address());
  root_.fix(std::move(addresses));
  auto server = RendezvousServer::start(
      std::move(*listeners),
      {.job_id = options_.job_id, .key = options_.key, .size = options_.size, .first_wait_ms = options_.timeout_ms});
  if (!server) return server.error();
  server_ = std::move(*server);
  return {};
}

// Connects to address_ and `port`. Returns an empty error code if the connection was made.
error_code TcpBootstrap::dial(Connection& connection, std::uint16_t port) const {
  error_code error;
  const tcp::endpoint where(asio::ip::make_address(address_, error), port);
  if (error) return error;
  const milliseconds limit = root_.list().size() > 1 ? kConnectTimeout : kAnswerTimeout;
  return connection.connect(where, candidate_count() > 1 ? std::min(deadline_, Clock::now() + limit) : deadline_);
}

// Tries to join at address_ and `port`. An error that is returned is final. After kNoAnswer and kWrongServer, the
// caller may try another address or port, or the same again.
Result<TcpBootstrap::Attempt> TcpBootstrap::try_to_join(std::uint16_t port) {
  auto connection = std::make_unique<Connection>(io_, options_.stop.get());
  error_code error = dial(*connection, port);
  if (is_shortage(error.value())) {
    return fail(ErrorCode::kSystem, "no connection can be opened: " + describe_errno(error.value()));
  }
  // If no program listens on a port of this machine, the kernel can connect the socket to itself, because it
  // happens to choose that port as the local one. Both ends then have the same address.
  if (!error && connection->socket().local_endpoint(error) == connection->socket().remote_endpoint(error))
    return Attempt::kNoAnswer;
  if (error) {
    const bool is_usual = error == asio::error::connection_refused || error == asio::error::timed_out;
    network_error_ = is_usual ? "" : fmt::format(" ({})", error.message());
    return Attempt::kNoAnswer;
  }
  // If there are several addresses or ports, limit the time for each, because another program may accept the
  // connection and never answer.
  const TimePoint limit = candidate_count() > 1 ? std::min(deadline_, Clock::now() + kAnswerTimeout) : deadline_;
  auto attempt = introduce(*connection, port, limit);
  if (!attempt || *attempt != Attempt::kJoined) return attempt;
  local_address_ = connection->socket().local_endpoint(error).address().to_string();
  connection_ = std::move(connection);
  return Attempt::kJoined;
}

// Determines the wish for encryption that this rank sends in its hello. If the TLS library is missing, a rank on a
// loopback connection does without encryption, because other machines cannot read the data. On any other connection
// it reports kMissing, and the set-up fails.
wire::Encryption TcpBootstrap::encryption(Connection& connection) {
  if (!options_.encrypt) return wire::Encryption::kOff;
  auto tls = TlsLibrary::open();
  if (tls) return wire::Encryption::kOn;
  error_code error;
  const auto where = connection.socket().remote_endpoint(error);
  if (!error && where.address().is_loopback()) return wire::Encryption::kOff;
  no_tls_ = tls.error();
  return wire::Encryption::kMissing;
}

// Runs the handshake, in which first the server and then this rank proves that it has the key. A returned error is
// final.
Result<TcpBootstrap::Attempt> TcpBootstrap::introduce(Connection& connection, std::uint16_t port, TimePoint limit) {
  wire::Hello hello{.rank = options_.rank,
                    .key_source = options_.key.kind,
                    .job = wire::job_tag(options_.job_id),
                    .encryption = encryption(connection)};
  wire::Answer answer{.rank_info = {.version = wire::library_version(),
                                    .rank = options_.rank,
                                    .size = options_.size,
                                    .timeout_ms = options_.timeout_ms}};
  if (!random_bytes(hello.nonce)) return fail(ErrorCode::kSystem, "the system gives no random bytes");
  if (!connection.write(std::string(bytes_of(hello)), limit)) return Attempt::kNoAnswer;
  const auto greeting = connection.read(wire::kMaxGreetingBytes, limit);
  const auto challenge = greeting ? wire::read_challenge(*greeting) : std::nullopt;
  const auto reason = greeting ? wire::read_refusal(*greeting) : std::nullopt;
  // No answer of Tutti has arrived, for example because another program listens there, or the server is just exiting.
  if (!challenge && !reason) {
    std::string& known = wrong_servers_[port];
    // If the deadline has cut this attempt short, keep the description by an earlier attempt, because that is more
    // informative.
    if (known.empty() || Clock::now() < deadline_) {
      known = fmt::format("; what listens on port {} is not Tutti, or has just ended", port);
    }
    return Attempt::kWrongServer;
  }
  if (!challenge) return refused(port, wire::harmless(*reason));
  const Key& key = options_.key.key;
  const Digest wanted = wire::server_proof(key, hello, *challenge);
  if (!equal_in_constant_time(bytes_of(wanted), bytes_of(challenge->proof))) {
    // An empty frame: the server can then record why this rank did not join.
    connection.write("", limit);
    return refused(port, other_key_message(options_.key.kind, options_.key.kind, "the server"));
  }
  answer.proof = wire::rank_proof(key, hello, challenge->nonce, answer.rank_info);
  if (!connection.write(std::string(bytes_of(answer)), limit)) return Attempt::kNoAnswer;
  awaited_tls_.reset();
  if (hello.encryption == wire::Encryption::kOn) awaited_tls_ = wire::tls_key(key, hello, challenge->nonce);
  to_server_.emplace(key, hello, challenge->nonce, wire::Seal::Direction::kToServer);
  to_rank_.emplace(key, hello, challenge->nonce, wire::Seal::Direction::kToRank);
  return take_welcome(connection, port, limit);
}

// Reads the server's answer after this rank has proved that it has the key: a welcome or a refusal, and before that
// the report about encryption if this rank encrypts. A returned error is final.
Result<TcpBootstrap::Attempt> TcpBootstrap::take_welcome(Connection& connection, std::uint16_t port, TimePoint limit) {
  const auto sealed = connection.read(wire::kMaxWelcomeBytes, limit);
  if (!sealed && connection.altered()) return refused(port, "its message was altered on its way");
  if (!sealed) {
    wrong_servers_[port] = fmt::format("; the server on port {} has just ended", port);
    return Attempt::kWrongServer;
  }
  const auto welcome = to_rank_->open(*sealed);
  if (awaited_tls_) {  // the first frame reports whether the server can encrypt
    const auto can_encrypt = welcome ? wire::read_can_encrypt(*welcome) : std::nullopt;
    if (!can_encrypt) return refused(port, "its message was altered on its way");
    if (*can_encrypt) TUTTI_TRY(connection.encrypt(*awaited_tls_));
    awaited_tls_.reset();
    return take_welcome(connection, port, limit);
  }
  if (const auto meeting = welcome ? wire::read_meeting(*welcome) : std::nullopt) {
    meeting_key_ = wire::meeting_key(options_.key.key, *meeting);
    return Attempt::kJoined;
  }
  if (const auto reason = welcome ? wire::read_refusal(*welcome) : std::nullopt) {
    return fail(ErrorCode::kRefused,
                fmt::format("the server at {}:{} refuses rank {}: {}", address_, port, options_.rank, *reason));
  }
  return refused(port, "its message was altered on its way");
}

// Handles a refusal without a seal, which anyone could have sent, and an answer with a wrong proof or seal. If there
// are several addresses or ports to try, it is not final. An exception is a rank that has only the key of its machine
// and was refused by another machine: a server there can never accept that key, so the refusal is final, unless the
// reason is that another job is set up there.
Result<TcpBootstrap::Attempt> TcpBootstrap::refused(std::uint16_t port, const std::string& reason) {
  const bool another = reason.starts_with("this is another job");
  const bool hopeless = options_.key.kind == wire::KeySource::kMachine && !is_own_address(address_) && !another;
  if (candidate_count() == 1 || hopeless) {
    return fail(ErrorCode::kRefused, fmt::format("the server at {}:{} refuses rank {}: {} (this rank's key: {})",
                                                 address_, port, options_.rank, reason, options_.key.origin));
  }
  wrong_servers_[port] = another
                             ? fmt::format("; on port {} another job of Tutti is being set up", port)
                             : fmt::format("; on port {}: {} (this rank's key: {})", port, reason, options_.key.origin);
  return Attempt::kWrongServer;
}

Error TcpBootstrap::no_answer_error() const {
  const std::string place = options_.ports.size() == 1
                                ? fmt::format("{}:{}", root_.text(), options_.ports[0])
                                : fmt::format("{}, ports {}", root_.text(), fmt::join(options_.ports, ", "));
  if (const int error = server_ != nullptr ? server_->shortage() : 0; error != 0) {
    return fail(ErrorCode::kSystem,
                fmt::format("rank 0 cannot take the connections of ranks at {}: {}", place, describe_errno(error)), 0);
  }
  std::string wrong_servers;
  for (const auto& [port, words] : wrong_servers_) wrong_servers += words;
  if (options_.unique_id) {
    return fail(ErrorCode::kTimeout, fmt::format("nobody serves the unique id at {}: its process has ended, its "
                                                 "set-up is over (an id serves once), or it is on another machine{}",
                                                 place, wrong_servers));
  }
  return fail(ErrorCode::kTimeout,
              fmt::format("rank 0 did not answer at {} within {} ms{}{}: is it running, and is TUTTI_ROOT the same on "
                          "all ranks?",
                          place, options_.timeout_ms, network_error_, wrong_servers),
              0);
}

void TcpBootstrap::pause() {
  asio::steady_timer pause(io_, kRetryPause);
  pause.async_wait([](error_code) {});
  io_.restart();
  io_.run();
}

// Tries to join at each address with each port, until the deadline or `stop`. Returns kJoined, or kWrongServer if some
// attempt ended with that, otherwise kNoAnswer.
Result<TcpBootstrap::Attempt> TcpBootstrap::try_all() {
  Attempt most = Attempt::kNoAnswer;
  for (const std::uint16_t port : options_.ports) {
    for (const std::string& address : root_.list()) {
      address_ = address;
      auto attempt = try_to_join(port);
      if (!attempt || *attempt == Attempt::kJoined) return attempt;
      if (*attempt == Attempt::kWrongServer) most = Attempt::kWrongServer;
      if (Clock::now() >= deadline_ || stopped()) return most;
    }
  }
  return most;
}

Status TcpBootstrap::join() {
  TUTTI_ASSERT(!options_.ports.empty());
  TimePoint last = options_.unique_id ? std::min(deadline_, Clock::now() + kUniqueIdTimeout) : deadline_;
  do {
    auto attempt = try_all();
    if (!attempt) return attempt.error();
    if (*attempt == Attempt::kJoined) return {};
    if (*attempt == Attempt::kWrongServer) last = deadline_;  // the right server may be too busy to answer
    pause();
    if (Clock::now() < last) root_.look_up(milliseconds(0));  // rank 0's name may have a new address; does not wait
  } while (Clock::now() < last && !stopped());
  return stopped() ? given_up() : no_answer_error();
}

Result<std::vector<std::string>> TcpBootstrap::all_gather(const std::string& blob) {
  TUTTI_ASSERT(blob.size() <= kMaxBlobBytes);
  const auto ended = [&] {
    const char* const or_cut = server_is_here() ? "" : ", or a firewall has cut the connection to it";
    return fail(ErrorCode::kPeerLost, server_name() + " ended during set-up" + or_cut, options_.unique_id ? -1 : 0);
  };
  // This write may fail if the server has exited. The last messages of the server can still be read, so go on to read
  // them.
  const bool written = send_sealed("b" + blob, deadline_);
  TimePoint last = deadline_;
  // If no answer comes, the deadline has passed or `stop` is set. Leave the round, so that the server reports the
  // missing ranks.
  if (!connection_->wait_readable(deadline_ + kServerFirstMargin)) {
    if (written) send_sealed("q", Clock::now() + kRetryPause);
    last = Clock::now();
  }
  const auto sealed = connection_->read(wire::max_round_bytes(static_cast<std::size_t>(options_.size), kMaxBlobBytes),
                                        last + kServerAnswerTimeout);
  if (stopped()) return given_up();
  const Error altered =
      fail(ErrorCode::kRefused, fmt::format("the message of the server at {} was altered on its way", address_));
  if (!sealed) {
    if (connection_->altered()) return altered;
    if (last != deadline_) {
      return fail(
          ErrorCode::kTimeout,
          fmt::format("set-up did not end within {} ms, and {}, which leads it at {}, says nothing: it is stopped, "
                      "or the network to it is broken",
                      options_.timeout_ms, server_name(), address_),
          options_.unique_id ? -1 : 0);
    }
    return ended();
  }
  const auto answer = to_rank_->open(*sealed);
  if (!answer) return altered;
  if (answer->starts_with('!')) return wire::unpack_failure(std::string_view(*answer).substr(1));
  auto blobs = answer->starts_with('+')
                   ? wire::unpack(std::string_view(*answer).substr(1), static_cast<std::size_t>(options_.size))
                   : std::nullopt;
  if (blobs) return *blobs;
  return fail(ErrorCode::kRefused, fmt::format("the server at {} sent something that cannot be read", address_));
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const RendezvousOptions& options) {
  TUTTI_ASSERT(options.rank >= 0 && options.rank < options.size && options.job_id.size() <= wire::kMaxJobIdBytes);
  try {
    auto bootstrap = std::make_unique<TcpBootstrap>(options);
    TUTTI_TRY(bootstrap->meet());
    return std::unique_ptr<Bootstrap>(std::move(bootstrap));
  } catch (const boost::system::system_error& error) {  // Asio throws it, e.g. if no descriptor is free
    return fail(ErrorCode::kSystem, "set-up failed: " + describe_errno(error.code().value()));
  }
}

}  // namespace tutti
