#include "bootstrap/pmi.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/assert.h"
#include "bootstrap/unique_id_parts.h"

namespace tutti {
namespace {

constexpr int kMaxNames = 1000;
constexpr std::chrono::seconds kGoodbyePatience{1};

Error fail(ErrorCode code, std::string message) {
  return {code, ErrorScope::kCommunicator, -1,
          std::move(message) + "; TUTTI_ROOT=host:port on all ranks does without the launcher"};
}

// The value of "name=value" in a line of such pairs, spaces between them; empty: not there.
std::string_view field(std::string_view line, std::string_view name) {
  while (!line.empty()) {
    const std::size_t space = line.find(' ');
    const std::string_view word = line.substr(0, space);
    if (word.starts_with(name) && word.substr(name.size()).starts_with('=')) return word.substr(name.size() + 1);
    if (space == std::string_view::npos) break;
    line.remove_prefix(space + 1);
  }
  return {};
}

std::size_t number(std::string_view text) {
  std::size_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// From the first command on Hydra takes a rank's end without "finalize" for a crash and kills the job (seen
// with 4.0.2); after it nobody can use the descriptor, and a process may make more communicators, or use MPI. So it is
// said when the process ends in good order: the one piece of state here that belongs to the process, because the
// descriptor does.
struct Goodbye {
  std::mutex mutex;
  bool registered = false;
  int fd = -1;
  pid_t pid = -1;  // a forked child's exit is not the rank's
  dev_t device = 0;
  ino_t inode = 0;  // MPI may have closed the descriptor, and the number may be another file's by now
};
Goodbye goodbye;  // NOLINT: see above

void say_goodbye() {
  struct stat now {};
  const bool same = goodbye.pid == getpid() && fstat(goodbye.fd, &now) == 0 && now.st_dev == goodbye.device &&
                    now.st_ino == goodbye.inode;
  if (same) PmiClient::finalize(goodbye.fd, std::chrono::steady_clock::now() + kGoodbyePatience);
}

void finalize_at_exit(int fd) {
  const std::lock_guard lock(goodbye.mutex);
  struct stat now {};
  if (fstat(fd, &now) != 0) return;  // the first command will say so
  goodbye.fd = fd;
  goodbye.pid = getpid();
  goodbye.device = now.st_dev;
  goodbye.inode = now.st_ino;
  if (!goodbye.registered) goodbye.registered = std::atexit(say_goodbye) == 0;
}

}  // namespace

Status PmiClient::wait_for(short events) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now()).count();
    if (left <= 0) return fail(ErrorCode::kTimeout, "the launcher (PMI_FD) did not answer in time: is a rank missing?");
    pollfd poll_for{.fd = fd_, .events = events, .revents = 0};
    const int ready = poll(&poll_for, 1, static_cast<int>(std::min<std::int64_t>(left, 1000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return fail(ErrorCode::kSystem, fmt::format("PMI_FD: {}", std::strerror(errno)));
  }
}

Status PmiClient::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    TUTTI_TRY(wait_for(POLLOUT));
    const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return fail(ErrorCode::kSystem, fmt::format("the launcher has gone: {}", std::strerror(errno)));
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

// Byte by byte: nothing behind the line may be taken away from the next reader of the descriptor.
Result<std::string> PmiClient::read_line() {
  std::string line;
  while (line.size() < kMaxLineBytes) {
    TUTTI_TRY(wait_for(POLLIN));
    char c = 0;
    const ssize_t count = read(fd_, &c, 1);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return fail(ErrorCode::kSystem, "the launcher has closed PMI_FD");
    if (c == '\n') return line;
    line += c;
  }
  return fail(ErrorCode::kRefused, fmt::format("the launcher's answer on PMI_FD has over {} bytes", kMaxLineBytes));
}

Result<std::string> PmiClient::ask(const std::string& command, std::string_view answer) {
  TUTTI_TRY(write_all(command + "\n"));
  auto line = read_line();
  if (!line) return line.error();
  if (field(*line, "cmd") != answer) {
    return fail(ErrorCode::kRefused, fmt::format("the launcher answers \"{}\" to \"{}\" on PMI_FD: it does not speak "
                                                 "PMI-1",
                                                 line->substr(0, 80), command.substr(0, 80)));
  }
  return line;
}

// A number that a launcher's variable left behind may be that of any file of the program by now, and what is written
// to it would damage that file.
Status PmiClient::check(int fd) {
  int type = 0;
  socklen_t length = sizeof(type);
  sockaddr_storage peer{};
  socklen_t peer_length = sizeof(peer);
  const bool connected = getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM &&
                         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0;
  if (connected) return {};
  return fail(ErrorCode::kConfig,
              fmt::format("PMI_FD={0} is not the launcher's socket: a program between mpirun and this one has closed "
                          "it (in Python, give subprocess pass_fds=({0},)), or the variable is not from this job",
                          fd));
}

Result<PmiClient> PmiClient::open(int fd, TimePoint deadline) {
  TUTTI_TRY(check(fd));
  PmiClient client(fd, deadline);
  finalize_at_exit(fd);
  auto limits = client.ask("cmd=get_maxes", "maxes");
  if (!limits) return limits.error();
  client.longest_key_ = number(field(*limits, "keylen_max"));
  client.longest_value_ = number(field(*limits, "vallen_max"));
  auto store = client.ask("cmd=get_my_kvsname", "my_kvsname");
  if (!store) return store.error();
  client.store_ = field(*store, "kvsname");
  return client;
}

Status PmiClient::put(std::string_view key, std::string_view value) {
  if (key.size() >= longest_key_ || value.size() >= longest_value_) {
    return fail(ErrorCode::kRefused, fmt::format("the launcher's store takes keys of {} and values of {} bytes, not {} "
                                                 "and {}",
                                                 longest_key_, longest_value_, key.size(), value.size()));
  }
  auto answer = ask(fmt::format("cmd=put kvsname={} key={} value={}", store_, key, value), "put_result");
  if (!answer) return answer.error();
  if (field(*answer, "rc") != "0") {
    return fail(ErrorCode::kRefused, fmt::format("the launcher's store refuses a key: \"{}\"", answer->substr(0, 80)));
  }
  return {};
}

Result<std::optional<std::string>> PmiClient::get(std::string_view key) {
  auto answer = ask(fmt::format("cmd=get kvsname={} key={}", store_, key), "get_result");
  if (!answer) return answer.error();
  if (field(*answer, "rc") != "0") return std::optional<std::string>();
  return std::optional(std::string(field(*answer, "value")));
}

void PmiClient::finalize(int fd, TimePoint deadline) {
  static_cast<void>(PmiClient(fd, deadline).ask("cmd=finalize", "finalize_ack"));  // nobody is left to be told
}

Status PmiClient::barrier() {
  auto answer = ask("cmd=barrier_in", "barrier_out");
  return answer ? Status() : answer.error();
}

Result<UniqueId> share_unique_id(const RendezvousOptions& options, PmiClient::TimePoint deadline) {
  auto client = PmiClient::open(*options.pmi_fd, deadline);
  if (!client) return client.error();
  const auto name = [&](int round) { return fmt::format("tutti-{:016x}-{}", spread(options.job_id), round); };
  // The first name that is free, for rank 0; the last one that is taken, for all. Nobody can be a round ahead: a round
  // ends when every rank has met every other, which it can only after it has read its name here.
  const auto taken = [&](std::string& last) -> Result<int> {
    for (int round = 0; round < kMaxNames; ++round) {
      auto value = client->get(name(round));
      if (!value) return value.error();
      if (!*value) return round;
      last = **value;
      explicit_bzero((*value)->data(), (*value)->size());
    }
    return fail(ErrorCode::kRefused, fmt::format("{} communicators were made under one job id", kMaxNames));
  };
  std::string text;
  if (options.rank == 0) {
    auto round = taken(text);
    if (!round) return round.error();
    auto id = serve_unique_id(options.host, options.port_range, std::chrono::milliseconds(options.timeout_ms),
                              options.configured_key);
    if (!id) return id.error();
    TUTTI_TRY(client->put(name(*round), id->to_text()));
  }
  TUTTI_TRY(client->barrier());
  auto round = taken(text);
  if (!round) return round.error();
  if (*round == 0) return fail(ErrorCode::kRefused, "rank 0 left nothing in the launcher's store");
  const WipesText wipes(text);
  return UniqueId::from_text(text);
}

}  // namespace tutti
