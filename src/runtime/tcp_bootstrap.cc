// Wire format, all integers little-endian: a frame is u32 length, then that many bytes. The first frame of a rank is a
// Hello; rank 0 answers with one byte: 1 welcome, or 0 followed by the reason. After that the ranks send their blobs,
// and rank 0 answers '+' and all blobs as frames, or '!' and why there are none.

// clang-format off
#include <utility>  // before Asio 1.74, which forgets it
// clang-format on

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/assert.h"
#include "runtime/bootstrap.h"

namespace tutti {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using TimePoint = std::chrono::steady_clock::time_point;

constexpr std::uint32_t kHelloMagic = 0x48545554;  // "TUTH"
constexpr std::uint32_t kProtocol = 1;
constexpr std::size_t kMaxFrameBytes = 64u << 20;  // all ranks' blobs at 16,384 ranks
constexpr std::chrono::seconds kHelloPatience{3};
constexpr std::chrono::milliseconds kRetryPause{50};
constexpr std::size_t kMaxRefusals = 4;
constexpr std::size_t kMaxStrangers = 64;  // connections that have not said hello yet

struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint32_t protocol = kProtocol;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t job_id_bytes = 0;
  std::array<char, 128> job_id{};
};
static_assert(sizeof(Hello) == 148);

Error fail(ErrorCode code, std::string message, std::int32_t rank = -1) {
  return {code, ErrorScope::kCommunicator, rank, std::move(message)};
}

std::string frame(const std::string& body) {
  const auto length = static_cast<std::uint32_t>(body.size());
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + body;
}

// One TCP connection with whole-frame operations that end at a deadline.
class Line {
 public:
  Line(asio::io_context& io, tcp::socket socket) : io_(io), socket_(std::move(socket)) {
    boost::system::error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
  }
  tcp::socket& socket() { return socket_; }

  bool write(const std::string& body, TimePoint deadline) {
    const std::string bytes = frame(body);
    return run([&](auto done) { asio::async_write(socket_, asio::buffer(bytes), done); }, deadline);
  }
  std::optional<std::string> read(std::size_t longest, TimePoint deadline) {
    std::uint32_t length = 0;
    if (!run([&](auto done) { asio::async_read(socket_, asio::buffer(&length, sizeof(length)), done); }, deadline) ||
        length > longest) {
      return std::nullopt;
    }
    std::string body(length, '\0');
    if (!run([&](auto done) { asio::async_read(socket_, asio::buffer(body), done); }, deadline)) return std::nullopt;
    return body;
  }

 private:
  // Starts one operation and runs the loop until it has ended; a passed deadline cancels it.
  template <class Start>
  bool run(Start start, TimePoint deadline) {
    std::optional<boost::system::error_code> result;
    start([&](boost::system::error_code error, std::size_t) { result = error; });
    while (!result) {
      io_.restart();
      if (io_.run_one_until(deadline) == 0 && std::chrono::steady_clock::now() >= deadline) {
        boost::system::error_code ignored;
        socket_.close(ignored);
        while (!result) {
          io_.restart();
          io_.run_one();
        }
        return false;
      }
    }
    return !*result;
  }

  asio::io_context& io_;
  tcp::socket socket_;
};

// Blobs of all ranks, packed into one frame and out of it.
std::string pack(const std::vector<std::string>& blobs) {
  std::string all;
  for (const std::string& blob : blobs) all += frame(blob);
  return all;
}

std::optional<std::vector<std::string>> unpack(const std::string& all, std::size_t count) {
  std::vector<std::string> blobs;
  std::size_t at = 0;
  while (blobs.size() < count) {
    std::uint32_t length = 0;
    if (all.size() - at < sizeof(length)) return std::nullopt;
    std::memcpy(&length, all.data() + at, sizeof(length));
    at += sizeof(length);
    if (length > all.size() - at) return std::nullopt;
    blobs.push_back(all.substr(at, length));
    at += length;
  }
  return at == all.size() ? std::optional(blobs) : std::nullopt;
}

class TcpBootstrap final : public Bootstrap {
 public:
  explicit TcpBootstrap(const RendezvousOptions& options)
      : options_(options),
        deadline_(std::chrono::steady_clock::now() + std::chrono::milliseconds(options.timeout_ms)),
        acceptor_(io_),
        retry_(io_),
        lines_(static_cast<std::size_t>(options.size)) {}

  Status meet() { return options_.rank == 0 ? listen_and_accept() : join(); }
  Result<std::vector<std::string>> all_gather(const std::string& blob) override;

 private:
  struct Stranger {  // connected, hello not yet read
    explicit Stranger(asio::io_context& io) : patience(io, kHelloPatience) {}
    asio::steady_timer patience;  // whoever says nothing makes room for others
    std::unique_ptr<Line> line;
    std::string header = std::string(sizeof(std::uint32_t) + sizeof(Hello), '\0');
  };

  Status open_acceptor();
  Status listen_and_accept();
  void accept_next();
  void note_refusal(const std::string& reason);
  void greet(const std::shared_ptr<Stranger>& stranger);
  std::string reason_to_refuse(const Hello& hello) const;
  Status join();
  Result<bool> try_to_join(const tcp::endpoint& root);  // false: nobody listens there yet
  std::vector<std::int32_t> missing() const;

  RendezvousOptions options_;
  TimePoint deadline_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::size_t strangers_ = 0;
  std::vector<std::string> refusals_;         // the last few, for the error when ranks stay away
  std::vector<std::unique_ptr<Line>> lines_;  // rank 0: by rank; others: [0]
};

std::vector<std::int32_t> TcpBootstrap::missing() const {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 1; rank < options_.size; ++rank) {
    if (lines_[static_cast<std::size_t>(rank)] == nullptr) ranks.push_back(rank);
  }
  return ranks;
}

Status TcpBootstrap::open_acceptor() {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(options_.host, error);
  if (error)
    return fail(ErrorCode::kConfig, fmt::format("\"{}\" is not an address that rank 0 can listen on", options_.host));
  const tcp::endpoint where(address, options_.port);
  if (options_.listening_fd >= 0) {
    const int copy = dup(options_.listening_fd);
    if (copy < 0) {
      return fail(ErrorCode::kConfig, fmt::format("TUTTI_ROOT_FD={} is not an open descriptor: {}",
                                                  options_.listening_fd, std::strerror(errno)));
    }
    acceptor_.assign(where.protocol(), copy, error);
    if (error) close(copy);
    int listening = 0;
    socklen_t length = sizeof(listening);
    if (error || getsockopt(copy, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || listening == 0) {
      return fail(ErrorCode::kConfig, fmt::format("TUTTI_ROOT_FD={} is not a listening socket", options_.listening_fd));
    }
    return {};
  }
  acceptor_.open(where.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(where, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return fail(ErrorCode::kSystem, fmt::format("rank 0 cannot listen on {}:{}: {}; choose another TUTTI_ROOT",
                                                options_.host, options_.port, error.message()));
  }
  return {};
}

std::string TcpBootstrap::reason_to_refuse(const Hello& hello) const {
  if (hello.magic != kHelloMagic) return "this is not the Tutti protocol";
  if (hello.protocol != kProtocol) return fmt::format("protocol {} is spoken here, not {}", kProtocol, hello.protocol);
  const std::string_view job(hello.job_id.data(), std::min<std::size_t>(hello.job_id_bytes, hello.job_id.size()));
  if (job != options_.job_id) return "this is another job (TUTTI_JOB_ID differs)";
  if (hello.size != options_.size) {
    return fmt::format("rank {} says that there are {} ranks, rank 0 says {}", hello.rank, hello.size, options_.size);
  }
  if (hello.rank <= 0 || hello.rank >= options_.size) {
    return fmt::format("rank {} is outside 0..{}", hello.rank, options_.size - 1);
  }
  if (lines_[static_cast<std::size_t>(hello.rank)] != nullptr)
    return fmt::format("rank {} has joined already", hello.rank);
  return {};
}

// Reads the hello of one newcomer; others are accepted meanwhile.
void TcpBootstrap::greet(const std::shared_ptr<Stranger>& stranger) {
  ++strangers_;
  stranger->patience.async_wait([stranger](boost::system::error_code cancelled) {
    boost::system::error_code ignored;
    if (!cancelled && stranger->line != nullptr) stranger->line->socket().close(ignored);
  });
  asio::async_read(stranger->line->socket(), asio::buffer(stranger->header),
                   [this, stranger](boost::system::error_code error, std::size_t) {
                     --strangers_;
                     stranger->patience.cancel();
                     if (error) return;
                     std::uint32_t length = 0;
                     Hello hello;
                     std::memcpy(&length, stranger->header.data(), sizeof(length));
                     std::memcpy(&hello, stranger->header.data() + sizeof(length), sizeof(hello));
                     const std::string reason =
                         length == sizeof(hello) ? reason_to_refuse(hello) : "this is not the Tutti protocol";
                     const std::string answer = frame(reason.empty() ? std::string(1, '\1') : '\0' + reason);
                     boost::system::error_code write_error;  // some bytes into an empty socket buffer: never blocks
                     asio::write(stranger->line->socket(), asio::buffer(answer), write_error);
                     if (!reason.empty()) note_refusal(reason);
                     if (reason.empty() && !write_error)
                       lines_[static_cast<std::size_t>(hello.rank)] = std::move(stranger->line);
                   });
}

void TcpBootstrap::accept_next() {
  if (!acceptor_.is_open()) return;  // a completion may still be queued when the acceptor is closed
  acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {  // out of descriptors, most likely: some may be closed soon
      note_refusal(error.message() + " (raise ulimit -n?)");
      retry_.expires_after(kRetryPause);
      retry_.async_wait([this](boost::system::error_code cancelled) {
        if (!cancelled) accept_next();
      });
      return;
    }
    if (strangers_ < kMaxStrangers) {
      auto stranger = std::make_shared<Stranger>(io_);  // shared: lives as long as its pending read
      stranger->line = std::make_unique<Line>(io_, std::move(socket));
      greet(stranger);
    }
    accept_next();
  });
}

void TcpBootstrap::note_refusal(const std::string& reason) {
  const bool known = std::find(refusals_.begin(), refusals_.end(), reason) != refusals_.end();
  if (!known && refusals_.size() < kMaxRefusals) refusals_.push_back(reason);
}

Status TcpBootstrap::listen_and_accept() {
  TUTTI_TRY(open_acceptor());
  accept_next();
  while (!missing().empty()) {
    io_.restart();
    if (io_.run_one_until(deadline_) == 0) break;
  }
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel();
  io_.restart();
  io_.poll();  // what was cancelled
  const auto absent = missing();
  if (absent.empty()) return {};
  const std::string why =
      fmt::format("rank(s) {} of {} did not join within {} ms{}{}", fmt::join(absent, ", "), options_.size,
                  options_.timeout_ms, refusals_.empty() ? "" : "; refused were: ", fmt::join(refusals_, "; "));
  for (const auto& line : lines_) {  // so that those who came can say it too
    if (line != nullptr) line->write("!" + why, std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
  }
  return fail(ErrorCode::kTimeout, why, absent.front());
}

Result<bool> TcpBootstrap::try_to_join(const tcp::endpoint& root) {
  boost::system::error_code error;
  tcp::socket socket(io_);
  std::optional<boost::system::error_code> connected;
  socket.async_connect(root, [&](boost::system::error_code result) { connected = result; });
  while (!connected) {
    io_.restart();
    if (io_.run_one_until(deadline_) == 0) socket.close(error);
  }
  if (*connected == boost::system::errc::too_many_files_open ||
      *connected == boost::system::errc::too_many_files_open_in_system) {
    return fail(ErrorCode::kSystem, "no socket can be opened: raise the limit of open files (ulimit -n)");
  }
  if (*connected) return false;
  auto line = std::make_unique<Line>(io_, std::move(socket));
  Hello hello{.rank = options_.rank, .size = options_.size};
  hello.job_id_bytes = static_cast<std::uint32_t>(options_.job_id.size());
  std::memcpy(hello.job_id.data(), options_.job_id.data(), options_.job_id.size());
  if (!line->write(std::string(reinterpret_cast<const char*>(&hello), sizeof(hello)), deadline_)) return false;
  const auto answer = line->read(kMaxFrameBytes, deadline_);
  if (!answer || answer->empty()) return false;  // rank 0 of an earlier job may just be ending there
  if (answer->front() != '\1') {
    return fail(ErrorCode::kRefused, fmt::format("rank 0 at {}:{} refuses rank {}: {}", options_.host, options_.port,
                                                 options_.rank, answer->substr(1)));
  }
  lines_[0] = std::move(line);
  return true;
}

Status TcpBootstrap::join() {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(options_.host, error);
  if (error) return fail(ErrorCode::kConfig, fmt::format("\"{}\" is not a numeric address of rank 0", options_.host));
  const tcp::endpoint root(address, options_.port);
  while (std::chrono::steady_clock::now() < deadline_) {
    auto joined = try_to_join(root);
    if (!joined) return joined.error();
    if (*joined) return {};
    asio::steady_timer pause(io_, std::chrono::milliseconds(20));
    pause.async_wait([](boost::system::error_code) {});
    io_.restart();
    io_.run();
  }
  return fail(ErrorCode::kTimeout,
              fmt::format("rank 0 did not answer at {}:{} within {} ms: is it running, and is TUTTI_ROOT the "
                          "same on all ranks?",
                          options_.host, options_.port, options_.timeout_ms),
              0);
}

Result<std::vector<std::string>> TcpBootstrap::all_gather(const std::string& blob) {
  TUTTI_ASSERT(blob.size() <= kMaxBlobBytes);
  const auto lost = [&](std::size_t rank, const char* what) {
    const bool late = std::chrono::steady_clock::now() >= deadline_;
    return fail(late ? ErrorCode::kTimeout : ErrorCode::kPeerLost,
                fmt::format("rank {} {} during set-up", rank, late ? "did not answer in time" : what),
                static_cast<std::int32_t>(rank));
  };
  if (options_.rank != 0) {
    if (!lines_[0]->write(blob, deadline_)) return lost(0, "ended");
    // Rank 0 tells at the deadline who is missing; that word is worth another moment.
    const auto all = lines_[0]->read(kMaxFrameBytes, deadline_ + std::chrono::seconds(2));
    if (!all) return lost(0, "ended");
    if (all->starts_with('!')) return fail(ErrorCode::kTimeout, all->substr(1));
    auto blobs = all->starts_with('+') ? unpack(all->substr(1), lines_.size()) : std::nullopt;
    if (!blobs) return fail(ErrorCode::kRefused, "rank 0 sent something that cannot be read", 0);
    return *blobs;
  }
  std::vector<std::string> blobs{blob};
  for (std::size_t rank = 1; rank < lines_.size(); ++rank) {
    auto theirs = lines_[rank]->read(kMaxBlobBytes, deadline_);
    if (!theirs) {
      const Error error = lost(rank, "ended");
      for (std::size_t other = 1; other < lines_.size(); ++other) {
        if (other != rank)
          lines_[other]->write("!" + error.message, std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
      }
      return error;
    }
    blobs.push_back(std::move(*theirs));
  }
  const std::string all = "+" + pack(blobs);
  for (std::size_t rank = 1; rank < lines_.size(); ++rank) {
    if (!lines_[rank]->write(all, deadline_)) return lost(rank, "ended");
  }
  return blobs;
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const RendezvousOptions& options) {
  TUTTI_ASSERT(options.rank >= 0 && options.rank < options.size && options.job_id.size() <= 128);
  try {
    auto bootstrap = std::make_unique<TcpBootstrap>(options);
    TUTTI_TRY(bootstrap->meet());
    return std::unique_ptr<Bootstrap>(std::move(bootstrap));
  } catch (const boost::system::system_error& error) {  // Asio's own set-up: out of descriptors
    return fail(ErrorCode::kSystem, fmt::format("set-up failed: {}", error.what()));
  }
}

}  // namespace tutti
