// The client of a RendezvousServer, and who starts the server. The protocol stands in bootstrap_wire.h.

// clang-format off
#include <utility>  // before Asio 1.74, which forgets it
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
constexpr milliseconds kLookUpTurn{200};  // for an answer about the root's name, before the deadline is looked at
constexpr milliseconds kServerFirst{
    100};  // where rank and server have the same deadline, the server says who is missing
constexpr milliseconds kLastWords{2000};  // the server tells at the deadline who is missing; that is worth a moment
constexpr milliseconds kForeignPatience{10'000};  // for an answer where another program may be listening
constexpr milliseconds kBrokenPatience{2000};     // for a connection where another address may work
constexpr milliseconds kGonePatience{
    2000};  // a unique id's server listens before the id exists: no use in waiting long

Error fail(ErrorCode code, std::string message, std::int32_t rank = -1) {
  return {code, ErrorScope::kCommunicator, rank, std::move(message)};
}

class TcpBootstrap final : public Bootstrap {
 public:
  explicit TcpBootstrap(const RendezvousOptions& options)
      : options_(options), deadline_(Clock::now() + milliseconds(options.timeout_ms)), root_(options.host) {}
  ~TcpBootstrap() override {
    // If the word cannot be sent for lack of memory, the server sees the end of the line.
    if (line_ != nullptr) runs_through([&] { say("q", Clock::now() + kRetryPause); });
    line_.reset();  // before the server, which waits for its ranks to leave
  }

  Status meet();
  Result<std::vector<std::string>> all_gather(const std::string& blob) override;
  std::string local_address() const override { return local_address_; }
  bool server_is_here() const override { return server_ != nullptr || is_own_address(address_); }
  Key key() const override { return meeting_key_; }
  void set_succeeded() override {
    if (server_ != nullptr) server_->set_succeeded();
  }

 private:
  using Line = detail::ClientConnection;
  enum class Attempt : std::uint8_t { kJoined, kNobody, kStranger };

  Result<UniqueId> share_by_pmix() const;
  Status resolve_root();
  Result<std::vector<Listener>> open_listeners() const;
  Status start_server();
  Status take_unique_id(const UniqueId& id);
  Status join();
  Result<Attempt> try_all();
  Result<Attempt> try_to_join(std::uint16_t port);
  error_code dial(Line& line, std::uint16_t port) const;
  std::size_t places() const { return root_.list().size() * options_.ports.size(); }
  void pause();
  Result<Attempt> introduce(Line& line, std::uint16_t port, TimePoint patience);
  Result<Attempt> refused(std::uint16_t port, const std::string& reason);
  Result<Attempt> take_welcome(Line& line, std::uint16_t port, TimePoint patience);
  bool say(const std::string& body, TimePoint until) { return line_->write(body + seal_of(body), until); }
  wire::Encryption encryption(Line& line);
  std::string seal_of(const std::string& body) { return std::string(bytes_of(to_server_->next(sha256({body})))); }
  Error nobody_answered() const;
  std::string server_name() const { return options_.unique_id ? "the process that made the unique id" : "rank 0"; }
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  Error given_up() const { return fail(ErrorCode::kAborted, "set-up was given up on this rank", options_.rank); }

  RendezvousOptions options_;
  TimePoint deadline_;
  RootAddresses root_;
  std::string address_;                       // of these, the one that is tried, or by which this rank has joined
  std::unique_ptr<RendezvousServer> server_;  // rank 0's
  asio::io_context io_;
  std::unique_ptr<Line> line_;
  std::optional<Error> no_tls_;  // why this rank cannot encrypt
  std::optional<wire::Seal> to_server_, to_rank_;
  std::optional<Key> awaited_tls_;  // until the server has said whether it can encrypt
  Key meeting_key_{};
  std::string local_address_;
  std::string network_trouble_;  // why no connection could be tried, in words
  // By port, what answered there in place of our server, for the error when that does not come.
  std::map<std::uint16_t, std::string> strangers_;
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

// Waits until the root's name has an address: rank 0's container may not be known to the name server yet.
Status TcpBootstrap::resolve_root() {
  bool told = false;
  while (true) {
    root_.look_up(kLookUpTurn);
    if (!root_.list().empty()) return {};
    if (stopped()) return given_up();
    if (Clock::now() >= deadline_) {
      return fail(ErrorCode::kConfig, fmt::format("root host \"{}\" could not be resolved within {} ms ({}): is the "
                                                  "name of rank 0's host right (TUTTI_ROOT, MASTER_ADDR)?",
                                                  options_.host, options_.timeout_ms, root_.trouble()));
    }
    if (!std::exchange(told, true)) {
      Log(options_.log_level, options_.rank)
          .write(LogLevel::kWarn, "root host \"{}\" has no address yet ({}): it is looked up again for up to {} ms",
                 options_.host, root_.trouble(), options_.timeout_ms);
    }
    pause();
  }
}

// Rank 0's, on every address of the root that is this machine's.
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
  auto server = RendezvousServer::start(std::move(*listeners), {.job_id = options_.job_id,
                                                                .key = options_.key,
                                                                .size = options_.size,
                                                                .first_patience_ms = options_.timeout_ms});
  if (!server) return server.error();
  server_ = std::move(*server);
  return {};
}

// Connects to the present address.
error_code TcpBootstrap::dial(Line& line, std::uint16_t port) const {
  error_code error;
  const tcp::endpoint where(asio::ip::make_address(address_, error), port);
  if (error) return error;
  const milliseconds patience = root_.list().size() > 1 ? kBrokenPatience : kForeignPatience;
  return line.connect(where, places() > 1 ? std::min(deadline_, Clock::now() + patience) : deadline_);
}

// One try at one place. An error is final.
Result<TcpBootstrap::Attempt> TcpBootstrap::try_to_join(std::uint16_t port) {
  auto line = std::make_unique<Line>(io_, options_.stop.get());
  error_code error = dial(*line, port);
  if (is_shortage(error.value())) {
    return fail(ErrorCode::kSystem, "no connection can be opened: " + words_of_errno(error.value()));
  }
  // A connection from a port to itself: what a client gets now and then on a free port of its own machine.
  if (!error && line->socket().local_endpoint(error) == line->socket().remote_endpoint(error)) return Attempt::kNobody;
  if (error) {
    const bool is_usual = error == asio::error::connection_refused || error == asio::error::timed_out;
    network_trouble_ = is_usual ? "" : fmt::format(" ({})", error.message());
    return Attempt::kNobody;
  }
  // With several places to try, one that swallows what is sent may not take all the time.
  const TimePoint patience = places() > 1 ? std::min(deadline_, Clock::now() + kForeignPatience) : deadline_;
  auto attempt = introduce(*line, port, patience);
  if (!attempt || *attempt != Attempt::kJoined) return attempt;
  local_address_ = line->socket().local_endpoint(error).address().to_string();
  line_ = std::move(line);
  return Attempt::kJoined;
}

// Whether what follows the handshake is encrypted. Within a machine nobody else reads it, and the library may be
// missing.
wire::Encryption TcpBootstrap::encryption(Line& line) {
  if (!options_.encrypt) return wire::Encryption::kOff;
  auto tls = TlsLibrary::open();
  if (tls) return wire::Encryption::kOn;
  error_code error;
  const auto where = line.socket().remote_endpoint(error);
  if (!error && where.address().is_loopback()) return wire::Encryption::kOff;
  no_tls_ = tls.error();
  return wire::Encryption::kMissing;
}

// Both sides prove that they have the key, the server first.
Result<TcpBootstrap::Attempt> TcpBootstrap::introduce(Line& line, std::uint16_t port, TimePoint patience) {
  wire::Hello hello{.rank = options_.rank,
                    .key_kind = options_.key.kind,
                    .job = wire::job_tag(options_.job_id),
                    .encryption = encryption(line)};
  wire::Answer answer{.introduction = {.version = wire::library_version(),
                                       .rank = options_.rank,
                                       .size = options_.size,
                                       .timeout_ms = options_.timeout_ms}};
  if (!random_bytes(hello.nonce)) return fail(ErrorCode::kSystem, "the system gives no random bytes");
  if (!line.write(std::string(bytes_of(hello)), patience)) return Attempt::kNobody;
  const auto greeting = line.read(wire::kMaxGreetingBytes, patience);
  const auto challenge = greeting ? wire::read_challenge(*greeting) : std::nullopt;
  const auto reason = greeting ? wire::read_refusal(*greeting) : std::nullopt;
  if (!challenge && !reason) {  // also: an earlier job's server, which is just ending
    std::string& known = strangers_[port];
    // A try that the deadline has cut short tells less than what an earlier one was told.
    if (known.empty() || Clock::now() < deadline_) {
      known = fmt::format("; what listens on port {} is not Tutti, or has just ended", port);
    }
    return Attempt::kStranger;
  }
  if (!challenge) return refused(port, wire::harmless(*reason));
  const Key& key = options_.key.key;
  const Digest wanted = wire::server_proof(key, hello, *challenge);
  if (!equal_in_constant_time(bytes_of(wanted), bytes_of(challenge->proof))) {
    line.write("", patience);  // so that it knows why we go
    return refused(port, words_of_other_key(options_.key.kind, options_.key.kind, "the server"));
  }
  answer.proof = wire::rank_proof(key, hello, challenge->nonce, answer.introduction);
  if (!line.write(std::string(bytes_of(answer)), patience)) return Attempt::kNobody;
  awaited_tls_.reset();
  if (hello.encryption == wire::Encryption::kOn) awaited_tls_ = wire::tls_key(key, hello, challenge->nonce);
  to_server_.emplace(key, hello, challenge->nonce, wire::Seal::Direction::kToServer);
  to_rank_.emplace(key, hello, challenge->nonce, wire::Seal::Direction::kToRank);
  return take_welcome(line, port, patience);
}

// What the server says of a rank that it knows to be of the job: an error is final.
Result<TcpBootstrap::Attempt> TcpBootstrap::take_welcome(Line& line, std::uint16_t port, TimePoint patience) {
  const auto sealed = line.read(wire::kMaxFrameBytes, patience);
  if (!sealed && line.altered()) return refused(port, "what it said was altered on its way");
  if (!sealed) {
    strangers_[port] = fmt::format("; the server on port {} has just ended", port);
    return Attempt::kStranger;
  }
  const auto welcome = to_rank_->open(*sealed);
  if (awaited_tls_) {  // the server says first whether it can encrypt
    const auto can_encrypt = welcome ? wire::read_can_encrypt(*welcome) : std::nullopt;
    if (!can_encrypt) return refused(port, "what it said was altered on its way");
    if (*can_encrypt) TUTTI_TRY(line.encrypt(*awaited_tls_));
    awaited_tls_.reset();
    return take_welcome(line, port, patience);
  }
  if (const auto meeting = welcome ? wire::read_meeting(*welcome) : std::nullopt) {
    meeting_key_ = wire::meeting_key(options_.key.key, *meeting);
    return Attempt::kJoined;
  }
  if (const auto reason = welcome ? wire::read_refusal(*welcome) : std::nullopt) {
    return fail(ErrorCode::kRefused,
                fmt::format("the server at {}:{} refuses rank {}: {}", address_, port, options_.rank, *reason));
  }
  return refused(port, "what it said was altered on its way");
}

// A refusal without a seal. Anybody may have sent it: where there are several places to try, it is no reason to give
// up, unless this rank's key can be no other machine's server's.
Result<TcpBootstrap::Attempt> TcpBootstrap::refused(std::uint16_t port, const std::string& reason) {
  const bool another = reason.starts_with("this is another job");
  const bool hopeless = options_.key.kind == wire::KeyKind::kMachine && !is_own_address(address_) && !another;
  if (places() == 1 || hopeless) {
    return fail(ErrorCode::kRefused, fmt::format("the server at {}:{} refuses rank {}: {} (this rank's key: {})",
                                                 address_, port, options_.rank, reason, options_.key.origin));
  }
  strangers_[port] = another ? fmt::format("; on port {} another job of Tutti is being set up", port)
                             : fmt::format("; on port {}: {} (this rank's key: {})", port, reason, options_.key.origin);
  return Attempt::kStranger;
}

Error TcpBootstrap::nobody_answered() const {
  const std::string place = options_.ports.size() == 1
                                ? fmt::format("{}:{}", root_.text(), options_.ports[0])
                                : fmt::format("{}, ports {}", root_.text(), fmt::join(options_.ports, ", "));
  if (const int error = server_ != nullptr ? server_->shortage() : 0; error != 0) {
    return fail(ErrorCode::kSystem,
                fmt::format("rank 0 cannot take the connections of ranks at {}: {}", place, words_of_errno(error)), 0);
  }
  std::string strangers;
  for (const auto& [port, words] : strangers_) strangers += words;
  if (options_.unique_id) {
    return fail(ErrorCode::kTimeout, fmt::format("nobody serves the unique id at {}: its process has ended, its "
                                                 "set-up is over (an id serves once), or it is on another machine{}",
                                                 place, strangers));
  }
  return fail(ErrorCode::kTimeout,
              fmt::format("rank 0 did not answer at {} within {} ms{}{}: is it running, and is TUTTI_ROOT the same on "
                          "all ranks?",
                          place, options_.timeout_ms, network_trouble_, strangers),
              0);
}

void TcpBootstrap::pause() {
  asio::steady_timer pause(io_, kRetryPause);
  pause.async_wait([](error_code) {});
  io_.restart();
  io_.run();
}

// Each address at each port.
Result<TcpBootstrap::Attempt> TcpBootstrap::try_all() {
  Attempt most = Attempt::kNobody;
  for (const std::uint16_t port : options_.ports) {
    for (const std::string& address : root_.list()) {
      address_ = address;
      auto attempt = try_to_join(port);
      if (!attempt || *attempt == Attempt::kJoined) return attempt;
      if (*attempt == Attempt::kStranger) most = Attempt::kStranger;
      if (Clock::now() >= deadline_ || stopped()) return most;
    }
  }
  return most;
}

Status TcpBootstrap::join() {
  TUTTI_ASSERT(!options_.ports.empty());
  TimePoint last = options_.unique_id ? std::min(deadline_, Clock::now() + kGonePatience) : deadline_;
  do {
    auto attempt = try_all();
    if (!attempt) return attempt.error();
    if (*attempt == Attempt::kJoined) return {};
    if (*attempt == Attempt::kStranger) last = deadline_;  // it may just be too busy to greet us
    pause();
    if (Clock::now() < last) root_.look_up(milliseconds(0));  // the name may have got another address
  } while (Clock::now() < last && !stopped());
  return stopped() ? given_up() : nobody_answered();
}

Result<std::vector<std::string>> TcpBootstrap::all_gather(const std::string& blob) {
  TUTTI_ASSERT(blob.size() <= kMaxBlobBytes);
  const auto ended = [&] {
    const char* const or_cut = server_is_here() ? "" : ", or a firewall has cut the connection to it";
    return fail(ErrorCode::kPeerLost, server_name() + " ended during set-up" + or_cut, options_.unique_id ? -1 : 0);
  };
  // A write fails when the server has ended; what it said before that can still be read.
  const bool written = say("b" + blob, deadline_);
  TimePoint last = deadline_;
  if (!line_->wait_readable(deadline_ + kServerFirst)) {  // whoever gives up is told who was missing
    if (written) say("q", Clock::now() + kRetryPause);
    last = Clock::now();
  }
  const auto sealed = line_->read(wire::kMaxFrameBytes, last + kLastWords);
  if (stopped()) return given_up();
  const Error altered =
      fail(ErrorCode::kRefused, fmt::format("what the server at {} said was altered on its way", address_));
  if (!sealed) {
    if (line_->altered()) return altered;
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
  if (answer->starts_with('!')) {
    return wire::unpack_failure(std::string_view(*answer).substr(1));
  }
  auto blobs = answer->starts_with('+')
                   ? wire::unpack(std::string_view(*answer).substr(1), static_cast<std::size_t>(options_.size))
                   : std::nullopt;
  if (!blobs) {
    return fail(ErrorCode::kRefused, fmt::format("the server at {} sent something that cannot be read", address_));
  }
  return *blobs;
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const RendezvousOptions& options) {
  TUTTI_ASSERT(options.rank >= 0 && options.rank < options.size && options.job_id.size() <= wire::kMaxJobIdBytes);
  try {
    auto bootstrap = std::make_unique<TcpBootstrap>(options);
    TUTTI_TRY(bootstrap->meet());
    return std::unique_ptr<Bootstrap>(std::move(bootstrap));
  } catch (const boost::system::system_error& error) {  // Asio's own set-up: out of descriptors
    return fail(ErrorCode::kSystem, "set-up failed: " + words_of_errno(error.code().value()));
  }
}

}  // namespace tutti
