#include "tools/run/spawn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/assert.h"
#include "base/loopback.h"
#include "tools/common/system_error.h"

namespace tutti::tool {
namespace {

constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;
// The TUTTI_* variables that the launcher sets for the ranks, and TUTTI_JOB_KEY_FILE, which would contradict
// TUTTI_JOB_KEY. Their values in the launcher's own environment are not passed on.
constexpr std::array<std::string_view, 10> kRankVariables = {
    "TUTTI_RANK",    "TUTTI_WORLD_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE",   "TUTTI_ROOT",
    "TUTTI_ROOT_FD", "TUTTI_JOB_ID",     "TUTTI_JOB_KEY",    "TUTTI_JOB_KEY_FILE", "TUTTI_ELASTIC_FD"};

struct Pipe {
  Fd read_end;
  Fd write_end;

  static Result<Pipe> create() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot make a pipe", errno);
    return Pipe{Fd(ends[0]), Fd(ends[1])};
  }
};

std::vector<std::string> rank_environment(const JobIdentity& job, std::int32_t rank, int elastic_fd) {
  std::vector<std::string> environment;
  std::string preload = job.preload;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (name == "LD_PRELOAD" && !job.preload.empty()) {
      if (text.size() > name.size() + 1) preload += fmt::format(":{}", text.substr(name.size() + 1));
      continue;
    }
    if (std::find(kRankVariables.begin(), kRankVariables.end(), name) == kRankVariables.end())
      environment.emplace_back(text);
  }
  environment.push_back(fmt::format("TUTTI_RANK={}", rank));
  environment.push_back(fmt::format("TUTTI_WORLD_SIZE={}", job.ranks));
  environment.push_back(fmt::format("TUTTI_LOCAL_RANK={}", rank));
  environment.push_back(fmt::format("TUTTI_LOCAL_SIZE={}", job.ranks));
  environment.push_back(fmt::format("TUTTI_ROOT={}", job.root));
  environment.push_back(fmt::format("TUTTI_JOB_ID={}", job.id));
  environment.push_back(fmt::format("TUTTI_JOB_KEY={}", job.key));
  if (!job.preload.empty()) environment.push_back(fmt::format("LD_PRELOAD={}", preload));
  if (elastic_fd >= 0) {
    environment.push_back(fmt::format("TUTTI_ELASTIC_FD={}", elastic_fd));
  } else if (rank == 0) {
    environment.push_back(fmt::format("TUTTI_ROOT_FD={}", job.root_fd));
  }
  return environment;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Everything that the child process needs between fork() and exec(). It is prepared before fork(), because the child
// must not allocate memory there.
struct ChildSetup {
  char** arguments;
  char** environment;
  int input_fd;  // the child's stdin; -1: it inherits the launcher's stdin
  int output_fd;
  int errors_fd;
  int inherited_fd;  // a further descriptor that stays open in the program (a socket); -1: none
  int failure_fd;    // the pipe to which the child writes errno if it cannot execute the program
  pid_t launcher;
};

[[noreturn]] void run_child(const ChildSetup& setup) {
  // The kernel is to kill this process when the launcher ends. If the launcher has ended before prctl(), that has no
  // effect; then the parent of this process has already changed, and the process ends itself.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != setup.launcher) ::_exit(1);
  sigset_t none;
  ::sigemptyset(&none);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &standard, nullptr);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const bool redirected = (setup.input_fd < 0 || ::dup2(setup.input_fd, STDIN_FILENO) >= 0) &&
                          ::dup2(setup.output_fd, STDOUT_FILENO) >= 0 && ::dup2(setup.errors_fd, STDERR_FILENO) >= 0 &&
                          (setup.inherited_fd < 0 || ::fcntl(setup.inherited_fd, F_SETFD, 0) == 0);
  if (redirected) ::execvpe(setup.arguments[0], setup.arguments, setup.environment);
  const int failure = errno;
  if (::write(setup.failure_fd, &failure, sizeof failure) != sizeof failure) ::_exit(kNotFound);
  ::_exit(kNotFound);
}

// Returns the errno that the child wrote because it could not execute the program. If exec() succeeds, it closes the
// pipe without data, and the result is 0.
int read_failure(int fd) {
  int failure = 0;
  ssize_t bytes = 0;
  do {
    bytes = ::read(fd, &failure, sizeof failure);
  } while (bytes < 0 && errno == EINTR);
  return bytes == sizeof failure ? failure : 0;
}

}  // namespace

// The socket reserves a port and does not listen here; rank 0 listens on it, unless the job is elastic. If a wrapper
// program closes the copy that rank 0 inherits, rank 0 can still listen on the port with a socket of its own, because
// SO_REUSEADDR allows that while the other sockets at the port do not listen. By default, the kernel never gives the
// reserved port to a process that asks for any free port.
Result<RootSocket> RootSocket::create() {
  RootSocket root;
  TUTTI_TRY(check_loopback());
  root.host = loopback_address();
  const bool v4 = root.host.find(':') == std::string::npos;
  root.fd = Fd(::socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!root.fd.valid()) return system_error("cannot make the job's socket", errno);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 address6 = {};
  address6.sin6_family = AF_INET6;
  address6.sin6_addr = in6addr_loopback;
  socklen_t length = v4 ? sizeof address : sizeof address6;
  auto* generic = v4 ? reinterpret_cast<sockaddr*>(&address) : reinterpret_cast<sockaddr*>(&address6);
  const int yes = 1;
  if (::setsockopt(root.fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(root.fd.get(), generic, length) != 0 || ::getsockname(root.fd.get(), generic, &length) != 0) {
    return system_error(fmt::format("cannot reserve a port of {} for the job", root.host), errno);
  }
  root.port = ntohs(v4 ? address.sin_port : address6.sin6_port);
  return root;
}

std::string RootSocket::text() const {
  const bool v4 = host.find(':') == std::string::npos;
  return fmt::format("{}:{}", v4 ? host : "[" + host + "]", port);
}

Result<JobIdentity> JobIdentity::create(std::int32_t ranks, const RootSocket& root) {
  std::array<unsigned char, 48> random = {};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return system_error("getrandom", errno);
  }
  JobIdentity job{.ranks = ranks, .id = {}, .key = {}, .root = root.text(), .root_fd = root.fd.get()};
  for (std::size_t i = 0; i < random.size(); ++i) (i < 16 ? job.id : job.key) += fmt::format("{:02x}", random[i]);
  return job;
}

Result<RankProcess> spawn_rank(const JobIdentity& job, std::int32_t rank, const std::vector<std::string>& command,
                               int& exit_status, int elastic_fd) {
  TUTTI_ASSERT(!command.empty() && rank >= 0 && rank < job.ranks);
  exit_status = kNotExecutable;
  Result<Pipe> output = Pipe::create();
  if (!output) return output.error();
  Result<Pipe> errors = Pipe::create();
  if (!errors) return errors.error();
  Result<Pipe> failure = Pipe::create();
  if (!failure) return failure.error();
  Fd input;
  if (rank != 0) {
    input = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!input.valid()) return system_error("cannot open /dev/null", errno);
  }
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = rank_environment(job, rank, elastic_fd);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);
  const ChildSetup setup{.arguments = const_cast<char**>(argument_pointers.data()),
                         .environment = const_cast<char**>(environment_pointers.data()),
                         .input_fd = input.get(),
                         .output_fd = output->write_end.get(),
                         .errors_fd = errors->write_end.get(),
                         .inherited_fd = elastic_fd >= 0 ? elastic_fd
                                         : rank == 0     ? job.root_fd
                                                         : -1,
                         .failure_fd = failure->write_end.get(),
                         .launcher = ::getpid()};
  const pid_t pid = ::fork();
  if (pid < 0) return system_error(fmt::format("cannot start rank {}", rank), errno);
  if (pid == 0) run_child(setup);
  failure->write_end.reset();
  if (const int reason = read_failure(failure->read_end.get()); reason != 0) {
    ::waitpid(pid, nullptr, 0);
    exit_status = reason == ENOENT || reason == ENOTDIR ? kNotFound : kNotExecutable;
    return system_error(fmt::format("cannot start \"{}\"", command.front()), reason);
  }
  ::fcntl(output->read_end.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(errors->read_end.get(), F_SETFL, O_NONBLOCK);
  return RankProcess{rank, pid, std::move(output->read_end), std::move(errors->read_end)};
}

}  // namespace tutti::tool
