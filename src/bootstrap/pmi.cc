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

constexpr int kMaxCommunicators = 1000;  // maximum number of communicators of one job id
// How long the process waits for the answer to "finalize" when it exits.
constexpr std::chrono::seconds kFinalizeTimeout{1};

Error fail(ErrorCode code, std::string message) {
  return {code, ErrorScope::kCommunicator, -1,
          std::move(message) + "; TUTTI_ROOT=host:port on all ranks does without the launcher"};
}

// Returns the value of `name` in a line of pairs "name=value" that are separated by spaces. Empty if the name does
// not occur.
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

// After the first command, Hydra treats the exit of a rank without "finalize" as a crash and kills the job
// (observed with version 4.0.2). After "finalize" the descriptor cannot be used any more, but the process may
// create more communicators, or use MPI. So "finalize" is sent when the process exits normally. This is a global
// variable because the descriptor, too, exists once per process.
struct FinalizeState {
  std::mutex mutex;
  bool registered = false;
  int fd = -1;
  pid_t pid = -1;  // the rank's process; a forked child must not send "finalize" when it exits
  dev_t device = 0;
  // device and inode identify the socket. An MPI library may close the descriptor, and its number may then refer to
  // another file, to which "finalize" must not be sent.
  ino_t inode = 0;
};
FinalizeState finalize_state;  // the only instance; see FinalizeState

void finalize_now() {
  struct stat now {};
  const bool same = finalize_state.pid == getpid() && fstat(finalize_state.fd, &now) == 0 &&
                    now.st_dev == finalize_state.device && now.st_ino == finalize_state.inode;
  if (same) PmiClient::finalize(finalize_state.fd, std::chrono::steady_clock::now() + kFinalizeTimeout);
}

void finalize_at_exit(int fd) {
  const std::lock_guard lock(finalize_state.mutex);
  struct stat now {};
  if (fstat(fd, &now) != 0) return;  // the descriptor is invalid; the first command will report that
  finalize_state.fd = fd;
  finalize_state.pid = getpid();
  finalize_state.device = now.st_dev;
  finalize_state.inode = now.st_ino;
  if (!finalize_state.registered) finalize_state.registered = std::atexit(finalize_now) == 0;
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

// Reads one line, byte by byte, because bytes after the line must be left for the next reader of the descriptor.
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

// Checks that the descriptor is a connected socket. If PMI_FD was inherited from another launcher, its number may
// refer to a file of the program, and a write would damage that file.
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
  // Errors are ignored, because the process is exiting.
  static_cast<void>(PmiClient(fd, deadline).ask("cmd=finalize", "finalize_ack"));
}

Status PmiClient::barrier() {
  auto answer = ask("cmd=barrier_in", "barrier_out");
  return answer ? Status() : answer.error();
}

Result<UniqueId> share_unique_id(const RendezvousOptions& options, PmiClient::TimePoint deadline) {
  auto client = PmiClient::open(*options.pmi_fd, deadline);
  if (!client) return client.error();
  const auto name = [&](int round) { return fmt::format("tutti-{:016x}-{}", spread(options.job_id), round); };
  // Names in use are tutti-<hash>-0, -1 and so on, one for each communicator (round). Returns the number of names in
  // use, and sets `last` to the value of the last one. Rank 0 puts the id under the first free name. After the
  // barrier, all ranks read the last name. After a set-up that succeeds, rank 0 cannot add the next name too early: all
  // ranks have joined at the server before, and they join only after they have read the id here. If rank 0 finds
  // kMaxCommunicators names, it adds one more without an id, by which all ranks see that this round fails. No later
  // round adds a name.
  const auto count_names = [&](std::string& last) -> Result<int> {
    int count = 0;
    for (; count <= kMaxCommunicators; ++count) {
      auto value = client->get(name(count));
      if (!value) return value.error();
      if (!*value) break;
      explicit_bzero(last.data(), last.size());
      last = **value;
      explicit_bzero((*value)->data(), (*value)->size());
    }
    return count;
  };
  std::string text;
  const WipesText wipes(text);
  Status made;
  if (options.rank == 0) {
    auto count = count_names(text);
    if (!count) return count.error();
    if (*count < kMaxCommunicators) {
      auto id = serve_unique_id(options.host, options.port_range, std::chrono::milliseconds(options.timeout_ms),
                                options.configured_key);
      if (!id) made = id.error();
      const Status put = client->put(name(*count), id ? id->to_text() : std::string(kNoUniqueId));
      if (!put.ok()) return made.ok() ? put.error() : made.error();
    } else if (*count == kMaxCommunicators) {
      TUTTI_TRY(client->put(name(*count), "full"));
    }
  }
  const Status met = client->barrier();
  // If the caller tries again, rank 0 must not add the next name before all ranks have read this one. So after a round
  // in which rank 0 could not make an id there is a second barrier.
  if (!made.ok()) {
    if (met.ok()) static_cast<void>(client->barrier());
    return made.error();
  }
  TUTTI_TRY(met);
  auto count = count_names(text);
  if (count && text == kNoUniqueId) {
    static_cast<void>(client->barrier());
    return no_unique_id();
  }
  if (!count) return count.error();
  if (*count == 0) return fail(ErrorCode::kRefused, "rank 0 left nothing in the launcher's store");
  if (*count > kMaxCommunicators) {
    return fail(ErrorCode::kRefused, fmt::format("{} communicators were made under one job id", kMaxCommunicators));
  }
  return UniqueId::from_text(text);
}

}  // namespace tutti
