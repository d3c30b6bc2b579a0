// clang-format off
#include <utility>  // before Asio 1.74, which forgets it
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
constexpr milliseconds kFarewell{2000};   // for those who have not yet taken what was sent to them
constexpr milliseconds kOwnerWaits{100};  // for them, after a set-up that has succeeded
constexpr milliseconds kLatecomers{200};  // who comes to a set-up that has failed is told so for at least this long
constexpr std::size_t kMaxRefusals = 4;
constexpr std::size_t kMaxStrangers = 256;  // connections that have not proved yet that they have the key
constexpr std::size_t kMostWordBytes = 1 + Bootstrap::kMaxBlobBytes + sizeof(Tag);
constexpr std::int64_t kMaxPatienceMs = 86'400'000;

std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }

std::string words_of_missing(const std::string& where) {
  return fmt::format(
      "TUTTI_ENCRYPT=1 needs OpenSSL 3's libssl.so.3, which cannot be loaded {}: install the package "
      "libssl3 (Debian, Ubuntu) or openssl-libs (Fedora) there, or set TUTTI_ENCRYPT=0 on all ranks",
      where);
}

std::string words_of_altered(std::int32_t rank) {
  return fmt::format("what rank {} said during set-up was altered on its way", rank);
}

}  // namespace

RendezvousServer::Core::Core(std::vector<Listener> listeners, const RendezvousServerOptions& options)
    : options_(options),
      deadline_(io_),
      farewell_(io_),
      release_(io_),
      size_(options.size),
      job_(wire::job_tag(options.job_id)) {
  if (!random_bytes(meeting_)) throw std::runtime_error("the system gives no random bytes");
  for (Listener& listener : listeners) {
    const auto family = listener.is_v6() ? tcp::v6() : tcp::v4();
    doors_.emplace_back(io_).acceptor.assign(family, listener.release());
  }
  if (size_) lines_.resize(index(*size_));
}

RendezvousServer::Core::~Core() {  // what lines have yet to do holds them
  for (const LinePtr& line : lines_) {
    if (line != nullptr) line->close();
  }
  for (const auto& [number, line] : strangers_) line->close();
}

void RendezvousServer::Core::run() {
  try {
    set_deadline(options_.first_patience_ms);
    for (Door& door : doors_) accept_next(door);
    io_.run();
  } catch (...) {
    end_by_exception();
  }
  let_owner_go(true);
}

// Tells the ranks why their set-up ends or, if there is no memory for that either, closes their connections. Called
// while the exception is handled.
void RendezvousServer::Core::end_by_exception() noexcept {
  const Error error = error_of_exception(ErrorScope::kCommunicator, options_.size ? 0 : -1, "the server of the set-up");
  runs_through([&] {
    close_doors();
    fail(error.code, error.rank, error.message);
    io_.run();
  });
  close_doors();
  for (const LinePtr& line : lines_) {
    if (line != nullptr) line->close();
  }
  for (const auto& [number, line] : strangers_) line->close();
}

void RendezvousServer::Core::set_deadline(std::int64_t after_ms) {
  deadline_ms_ = std::clamp<std::int64_t>(after_ms, 1, kMaxPatienceMs);
  deadline_.expires_after(milliseconds(deadline_ms_));
  deadline_.async_wait([this](error_code cancelled) {
    if (!cancelled) deadline_passed();
  });
}

void RendezvousServer::Core::close_doors() {
  error_code ignored;
  for (Door& door : doors_) door.acceptor.close(ignored);
}

void RendezvousServer::Core::accept_next(Door& door) {
  if (!door.acceptor.is_open()) return;  // a completion may still be queued when the acceptor is closed
  door.acceptor.async_accept([this, &door](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {  // out of descriptors, most likely: some may be closed soon
      starved_ = error.value();
      const char* const who = options_.size ? "rank 0" : "the process that made the unique id";
      note_refusal(fmt::format("{} could not take a connection: {}", who, words_of_errno(starved_)));
      make_room();
      door.retry.expires_after(kRetryPause);
      door.retry.async_wait([this, &door](error_code cancelled) {
        if (!cancelled) accept_next(door);
      });
      return;
    }
    starved_ = 0;
    if (strangers_.size() >= kMaxStrangers) make_room();
    greet(std::make_shared<Line>(io_, std::move(socket)));
    accept_next(door);
  });
}

// The stranger that has been here longest goes: who has the key needs a moment only, and comes again.
void RendezvousServer::Core::make_room() {
  if (strangers_.empty()) return;
  note_refusal("connections that did not say who they are");
  end(LinePtr(strangers_.begin()->second));
}

// Reads the hello of one newcomer; others are accepted meanwhile.
void RendezvousServer::Core::greet(const LinePtr& line) {
  error_code ignored;
  line->socket.set_option(tcp::no_delay(true), ignored);
  line->number = ++came_;
  const auto from = line->socket.remote_endpoint(ignored);
  line->comes_from_here =
      from.address().is_loopback() || from.address() == line->socket.local_endpoint(ignored).address();
  strangers_[line->number] = line;
  line->patience.expires_after(milliseconds(options_.hello_patience_ms));
  line->patience.async_wait([this, line](error_code cancelled) {
    if (!cancelled && line->rank < 0) end(line);
  });
  read_frame(line, wire::kMaxHelloBytes, &Core::take_hello);
}

void RendezvousServer::Core::read_frame(const LinePtr& line, std::size_t longest, Next next) {
  line->read(asio::buffer(line->header), [=, this](error_code error) {
    if (error) return end(line);
    const std::size_t length = wire::frame_length(line->header);
    if (length > longest) {  // says so to strangers; a rank of ours never sends it
      line->body.clear();
      return line->rank < 0 ? (this->*next)(line) : end(line);
    }
    line->body.assign(length, '\0');
    line->read(asio::buffer(line->body), [=, this](error_code body_error) {
      if (body_error) return end(line);
      (this->*next)(line);
    });
  });
}

// What is wrong before anything is proved. Strangers learn from it that Tutti listens here, and its protocol.
std::string RendezvousServer::Core::fault_of_hello(const LinePtr& line) const {
  const auto protocol = wire::read_protocol(line->body);
  if (protocol && *protocol != wire::kProtocol) {
    return fmt::format("protocol {} is spoken here, not {}: install one version of Tutti", wire::kProtocol, *protocol);
  }
  const auto hello = wire::read_hello(line->body);
  if (!hello) return "this is not the Tutti protocol";
  line->hello = *hello;
  if (line->hello.job != job_) return "this is another job (TUTTI_JOB_ID differs)";
  if (line->hello.key_kind != options_.key.kind) {
    return words_of_other_key(options_.key.kind, line->hello.key_kind, fmt::format("rank {}", line->hello.rank));
  }
  return "";
}

// What is wrong with a rank that has the key.
std::string RendezvousServer::Core::fault_of_rank(const wire::Introduction& rank) const {
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
  if (size_ && lines_[index(rank.rank)] != nullptr) return fmt::format("rank {} has joined already", rank.rank);
  return "";
}

// Once all have come, and before anybody tells anything: ranks that do not agree on TUTTI_ENCRYPT would tell each other
// in clear what one of them wants hidden. Within a machine nobody reads it, and the library may be missing.
std::optional<Error> RendezvousServer::Core::fault_of_encryption() const {
  const auto fault = [](ErrorCode code, std::int32_t rank, std::string words) {
    return Error{code, ErrorScope::kCommunicator, rank, std::move(words)};
  };
  std::array<std::int32_t, 2> says{-1, -1};  // the first rank elsewhere that does not encrypt, and that does
  for (const LinePtr& line : lines_) {
    error_code error;
    const auto from = line->socket.remote_endpoint(error);
    if (!error && from.address().is_loopback()) continue;
    const wire::Encryption encryption = line->hello.encryption;
    if (encryption == wire::Encryption::kMissing) {
      return fault(ErrorCode::kConfig, line->rank, words_of_missing(fmt::format("on rank {}", line->rank)));
    }
    std::int32_t& first = says[encryption == wire::Encryption::kOn ? 1 : 0];
    if (first < 0) first = line->rank;
  }
  if (says[0] >= 0 && says[1] >= 0) {
    return fault(ErrorCode::kMismatch, says[1],
                 fmt::format("rank {} has TUTTI_ENCRYPT=0, rank {} has TUTTI_ENCRYPT=1: give all ranks the same",
                             says[0], says[1]));
  }
  if (says[1] < 0 || TlsLibrary::open()) return std::nullopt;
  return fault(ErrorCode::kConfig, options_.size ? 0 : -1,
               words_of_missing(options_.size ? "on rank 0" : "where the unique id was made"));
}

void RendezvousServer::Core::refuse(const LinePtr& line, const std::string& reason) {
  note_refusal(reason);
  line->refused = true;
  send(line, '\0' + reason);
  if (line->encrypted()) return line->read(asio::buffer(line->header), [this, line](error_code) { end(line); });
  // Closed a moment after the other side has closed or said something more, or when its patience is over: a
  // connection closed over unread bytes may take the answer with it.
  line->socket.async_wait(tcp::socket::wait_read, [this, line](error_code) {
    line->patience.expires_after(kRetryPause);
    line->patience.async_wait([this, line](error_code) { end(line); });
  });
}

void RendezvousServer::Core::take_hello(const LinePtr& line) {
  const std::string fault = fault_of_hello(line);
  if (!fault.empty()) return refuse(line, fault);
  if (!random_bytes(line->nonce)) return end(line);
  wire::Challenge challenge{.nonce = line->nonce};
  challenge.proof = wire::server_proof(options_.key.key, line->hello, challenge);
  send(line, frame('\2', bytes_of(challenge)));
  read_frame(line, sizeof(wire::Answer), &Core::take_answer);
}

void RendezvousServer::Core::take_answer(const LinePtr& line) {
  const auto read = wire::read_answer(line->body);
  const wire::Answer answer = read.value_or(wire::Answer{});
  const Key& key = options_.key.key;
  const Digest wanted = wire::rank_proof(key, line->hello, line->nonce, answer.introduction);
  if (!read || !equal_in_constant_time(bytes_of(wanted), bytes_of(answer.proof))) {
    return refuse(
        line, words_of_other_key(options_.key.kind, line->hello.key_kind, fmt::format("rank {}", line->hello.rank)));
  }
  line->to_server.emplace(key, line->hello, line->nonce, wire::Seal::Direction::kToServer);
  line->to_rank.emplace(key, line->hello, line->nonce, wire::Seal::Direction::kToRank);
  if (line->hello.encryption != wire::Encryption::kOn) return take_introduction(line, answer.introduction);
  // The library is loaded for whoever has the key, and for nobody else.
  line->proved = answer.introduction;
  send(line, wire::can_encrypt(TlsLibrary::open().ok()));
}

// Called once the answer whether the server can encrypt has been written. If it was yes, everything after it is TLS.
void RendezvousServer::Core::begin_tls(const LinePtr& line) {
  const wire::Introduction introduction = *std::exchange(line->proved, std::nullopt);
  const auto key = [&] { return wire::tls_key(options_.key.key, line->hello, line->nonce); };
  if (TlsLibrary::open() && !line->encrypt(key())) return end(line);
  take_introduction(line, introduction);
}

void RendezvousServer::Core::take_introduction(const LinePtr& line, const wire::Introduction& introduction) {
  const std::string fault = fault_of_rank(introduction);
  if (failure_ && !fault.empty()) return end(line);  // one that tries again: it is to look for the next server
  if (!fault.empty()) return refuse(line, fault);
  admit(line, introduction);
}

void RendezvousServer::Core::admit(const LinePtr& line, const wire::Introduction& introduction) {
  strangers_.erase(line->number);
  line->patience.cancel();
  line->rank = introduction.rank;
  if (!size_) {
    size_ = introduction.size;
    lines_.resize(index(introduction.size));
  }
  if (joined_ == 0 && !options_.size) set_deadline(introduction.timeout_ms);
  lines_[index(introduction.rank)] = line;
  ++joined_;
  ++alive_;
  if (complete()) close_doors();
  send(line, frame('\1', bytes_of(meeting_)));
  if (failure_) send(line, "!" + wire::pack_failure(*failure_));
  read_frame(line, kMostWordBytes, &Core::take_word);
}

void RendezvousServer::Core::take_word(const LinePtr& line) {
  auto opened = line->to_server->open(std::move(line->body));
  if (!opened) {
    fail(ErrorCode::kRefused, line->rank, words_of_altered(line->rank));
    return end(line);
  }
  line->body = std::move(*opened);
  const char kind = line->body.empty() ? '\0' : line->body.front();
  if (kind == 'q') {
    line->has_quit = true;
    give_up(line);
  } else if (kind == 'b' && !line->blob) {
    line->blob = line->body.substr(1);
    finish_round();
  } else {
    return end(line);
  }
  read_frame(line, kMostWordBytes, &Core::take_word);
}

// A rank leaves. Where it had waited for others, these are to blame; where others wait for it, it is.
void RendezvousServer::Core::give_up(const LinePtr& line) {
  if (failure_) return;  // all have been told why; what is left of a round means nothing now
  if (!complete()) {
    const std::int32_t missing = ranks_without(has_joined).front();
    fail(line->blob ? ErrorCode::kTimeout : ErrorCode::kPeerLost, line->blob ? missing : line->rank,
         fmt::format("rank {} gave up set-up{}", line->rank, missing_text()));
  } else if (line->blob) {
    const auto silent = ranks_without(has_blob);
    fail(ErrorCode::kTimeout, silent.front(),
         fmt::format("rank {} gave up set-up, waiting for rank(s) {}", line->rank, fmt::join(silent, ", ")));
  } else if (std::any_of(lines_.begin(), lines_.end(), has_blob)) {
    fail(ErrorCode::kPeerLost, line->rank, fmt::format("rank {} gave up set-up", line->rank));
  }
}

void RendezvousServer::Core::finish_round() {
  if (!complete() || failure_) return;
  for (const LinePtr& line : lines_) {
    if (line->has_quit) {
      fail(ErrorCode::kPeerLost, line->rank, fmt::format("rank {} left set-up before the others", line->rank));
      return;
    }
  }
  if (!ranks_without(has_blob).empty()) return;
  if (!std::exchange(judged_, true)) {
    if (const auto fault = fault_of_encryption()) return fail(fault->code, fault->rank, fault->message);
  }
  std::vector<std::string> blobs;
  for (const LinePtr& line : lines_) {
    blobs.push_back(std::move(*line->blob));
    line->blob.reset();
  }
  const auto body = std::make_shared<const Body>("+" + wire::pack(blobs));  // one copy for all
  for (const LinePtr& line : lines_) send(line, body);
}

void RendezvousServer::Core::send(const LinePtr& line, std::shared_ptr<const Body> body) {
  line->push(std::move(body));
  if (line->outbox.size() == 1) write_next(line);
}

void RendezvousServer::Core::write_next(const LinePtr& line) {
  line->write([this, line](error_code error) {
    line->outbox.pop_front();
    if (error) line->outbox.clear();  // the pending read tells the rest
    error_code ignored;
    if (!line->outbox.empty()) {
      write_next(line);
    } else if (line->proved) {
      if (error) return end(line);
      begin_tls(line);
    } else if (line->refused) {
      line->socket.shutdown(tcp::socket::shutdown_send, ignored);
    }
  });
}

// A connection is over, by the other side's will or ours.
void RendezvousServer::Core::end(const LinePtr& line) {
  if (!line->socket.is_open()) return;
  line->close();
  line->patience.cancel();
  strangers_.erase(line->number);
  if (line->rank >= 0) {
    --alive_;
    if (line->altered()) {
      fail(ErrorCode::kRefused, line->rank, words_of_altered(line->rank));
    } else if (!line->has_quit) {
      const char* const or_cut = line->comes_from_here ? "" : ", or a firewall has cut its connection";
      fail(ErrorCode::kPeerLost, line->rank,
           fmt::format("rank {} ended during set-up{}{}", line->rank, or_cut, missing_text()));
    }
  }
  stop_when_empty();
}

std::vector<std::int32_t> RendezvousServer::Core::ranks_without(bool (*has)(const LinePtr&)) const {
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < lines_.size(); ++rank) {
    if (!has(lines_[rank])) ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return ranks;
}

std::string RendezvousServer::Core::missing_text() const {
  const auto absent = ranks_without(has_joined);
  if (absent.empty()) return "";
  return fmt::format("; rank(s) {} of {} had not joined{}{}", fmt::join(absent, ", "), lines_.size(),
                     refusals_.empty() ? "" : "; refused were: ", fmt::join(refusals_, "; "));
}

void RendezvousServer::Core::deadline_passed() {
  if (joined_ == 0 && !options_.size) {  // nobody came
    close_doors();
    io_.stop();
  } else if (!complete()) {
    const auto absent = ranks_without(has_joined);
    fail(ErrorCode::kTimeout, starved_ != 0 ? (options_.size ? 0 : -1) : absent.front(),
         fmt::format("rank(s) {} of {} did not join within {} ms{}{}", fmt::join(absent, ", "), lines_.size(),
                     deadline_ms_, refusals_.empty() ? "" : "; refused were: ", fmt::join(refusals_, "; ")));
  } else if (const auto silent = ranks_without(has_blob); !silent.empty()) {
    fail(ErrorCode::kTimeout, silent.front(),
         fmt::format("rank(s) {} did not answer in time during set-up, {} ms", fmt::join(silent, ", "), deadline_ms_));
  }
}

// The first failure is the one that all are told.
void RendezvousServer::Core::fail(ErrorCode code, std::int32_t rank, const std::string& message) {
  if (failure_) return;
  failure_ = Error{code, ErrorScope::kCommunicator, rank, message};
  if (complete()) close_doors();  // else there are some who have yet to hear of it
  const auto body = std::make_shared<const Body>("!" + wire::pack_failure(*failure_));
  for (const LinePtr& line : lines_) {
    if (line != nullptr && line->socket.is_open()) send(line, body);
  }
  farewell_.expires_after(kFarewell);
  farewell_.async_wait([this](error_code cancelled) {
    if (!cancelled) io_.stop();
  });
  stop_when_empty();
}

void RendezvousServer::Core::owner_left() {
  if (failure_ && listens() && !std::exchange(late_, true)) {
    farewell_.expires_after(kLatecomers);
    farewell_.async_wait([this](error_code cancelled) {
      if (!cancelled) owner_left();
    });
    return;
  }
  close_doors();
  farewell_.expires_after(kFarewell);
  farewell_.async_wait([this](error_code cancelled) {
    if (!cancelled) io_.stop();
  });
  release_.expires_after(kOwnerWaits);
  release_.async_wait([this](error_code cancelled) {
    if (!cancelled && succeeded_ && !failure_) let_owner_go(false);
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
