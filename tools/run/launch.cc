// The launcher has one thread and one poll loop. Signals arrive through a signalfd, output through the pipes of the
// ranks, packets of elastic ranks through their sockets, and timeouts through the timeout of poll().
#include "tools/run/launch.h"

#include <errno.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "tools/common/system_error.h"
#include "tools/run/descendants.h"
#include "tools/run/relay.h"
#include "tools/run/spawn.h"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

// After the last rank has ended, a process that was not killed may hold output pipes open, for example one that is not
// a descendant of this process. Such pipes are read until no data has arrived for this long.
constexpr std::chrono::milliseconds kDrainAfterEnd{1000};
// The open pipes are read for at most this long after the last rank has ended, even if data continues to arrive. Time
// in which a sink is full does not count.
constexpr std::chrono::milliseconds kMostDrain{3000};
// After a failed job, output that could not be written is dropped if the reader of our stdout and stderr has read
// nothing for this long.
constexpr std::chrono::milliseconds kStalledOutput{2000};
// The shortest wait of poll() for an elastic deadline, also if that deadline is nearer or has just passed.
constexpr std::chrono::milliseconds kCheckInterval{20};
constexpr std::size_t kReadBytes = 64 << 10;

// The stages of a job: running; failed and in the grace period; after SIGTERM to the ranks, or after a signal to this
// process that ends the job; after SIGKILL. A job only moves to later stages, and may skip some.
enum class Stage : std::uint8_t { kRunning, kGrace, kTerminating, kKilled };

// One pipe that carries the stdout or stderr of a rank, and the sink to which its lines go.
struct Source {
  Fd fd;
  LineRelay relay;
  Sink* sink;
};

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* name = sigdescr_np(WTERMSIG(wait_status));
    return fmt::format("was killed by signal {} ({})", WTERMSIG(wait_status), name != nullptr ? name : "unknown");
  }
  return fmt::format("ended with exit status {}", WEXITSTATUS(wait_status));
}

int exit_status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? kExitSignalBase + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

// Whether two descriptors refer to the same file.
bool same_file(int a, int b) {
  struct stat left = {};
  struct stat right = {};
  return ::fstat(a, &left) == 0 && ::fstat(b, &right) == 0 && left.st_dev == right.st_dev &&
         left.st_ino == right.st_ino;
}

class Job {
 public:
  explicit Job(const LaunchOptions& options)
      : options_(options),
        spared_(list_children()),
        output_(STDOUT_FILENO),
        own_errors_(STDERR_FILENO),
        errors_(same_file(STDOUT_FILENO, STDERR_FILENO) ? &output_ : &own_errors_) {
    if (options.elastic) elastic_.emplace(static_cast<std::size_t>(options.ranks));
  }

  Status start();
  int run();

 private:
  Status block_signals();
  void add_source(Fd fd, std::int32_t rank, Sink& sink, bool prefixed);
  bool finished() const;
  int wait_ms() const;
  void wait_for_events();
  void read_sources();
  void flush_sinks();
  void handle_signals();
  void reap();
  bool start_rank(std::int32_t rank);
  bool replace(std::int32_t rank, int wait_status);
  void serve_elastic();
  void rank_ended(std::int32_t rank, int wait_status);
  void all_ended();
  void check_deadlines();
  void fail(int exit_status, Stage stage, Clock::duration until_next, const std::string& message);
  void signal_ranks(int signal);
  std::vector<std::int32_t> running_ranks() const;

  const LaunchOptions options_;
  const std::vector<pid_t> spared_;  // children that this process had before the job
  Sink output_;
  Sink own_errors_;
  // The sink for stderr: &own_errors_ or, if stdout and stderr are the same file, &output_, because two sinks would
  // write parts of lines between each other.
  Sink* errors_;
  Fd signals_;
  RootSocket root_;
  JobIdentity identity_;
  std::optional<ElasticControl> elastic_;
  std::int32_t restarts_ = 0;
  std::vector<pid_t> pids_;  // indexed by rank; 0: the rank has ended or was not started
  std::int32_t running_ = 0;
  std::vector<Source> sources_;
  Stage stage_ = Stage::kRunning;
  std::optional<int> failure_status_;
  std::optional<Clock::time_point> stage_deadline_;  // when the next stage begins; empty: only when an event causes it
  // When pipes that are still open after the end of the last rank are abandoned. Empty while ranks run.
  std::optional<Clock::time_point> drain_deadline_;
  // The latest time to which arriving data can move drain_deadline_. This limit moves only while a sink is full because
  // the reader of our output does not read.
  Clock::time_point drain_limit_;
  // The latest time at which a sink has written output, or the time at which no rank ran any more, if that is later.
  Clock::time_point last_progress_ = Clock::now();
  std::vector<char> read_buffer_ = std::vector<char>(kReadBytes);
};

Status Job::block_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return system_error("sigprocmask", errno);
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return system_error("signalfd", errno);
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;  // with an inherited SIG_IGN, children would be reaped by the kernel
  ::sigaction(SIGCHLD, &action, nullptr);
  action.sa_handler = SIG_IGN;  // a closed stdout must be an error code, not a signal
  ::sigaction(SIGPIPE, &action, nullptr);
  return {};
}

void Job::add_source(Fd fd, std::int32_t rank, Sink& sink, bool prefixed) {
  sources_.push_back(Source{std::move(fd), LineRelay(prefixed ? fmt::format("[{}] ", rank) : "", sink), &sink});
}

Status Job::start() {
  TUTTI_TRY(become_subreaper());
  TUTTI_TRY(block_signals());
  Result<RootSocket> root = RootSocket::create();
  if (!root) return root.error();
  root_ = std::move(*root);
  Result<JobIdentity> identity = JobIdentity::create(options_.ranks, root_);
  if (!identity) return identity.error();
  identity_ = *identity;
  identity_.preload = options_.preload;
  // This process creates the unique ids of an elastic job, and must protect them with the job key, which
  // UniqueId::create() reads from the environment.
  if (elastic_) {
    ::setenv("TUTTI_JOB_KEY", identity_.key.c_str(), 1);
    ::unsetenv("TUTTI_JOB_KEY_FILE");
  }
  for (std::int32_t rank = 0; rank < options_.ranks; ++rank) {
    pids_.push_back(0);
    if (!start_rank(rank)) break;
  }
  if (running_ == 0) all_ended();
  if (options_.timeout.count() > 0 && stage_ == Stage::kRunning) stage_deadline_ = Clock::now() + options_.timeout;
  return {};
}

// Starts the process of one rank. If that is impossible, ends the job and returns false.
bool Job::start_rank(std::int32_t rank) {
  int exit_status = 1;
  // Elastic job: the end of the socket that the rank inherits. This process closes its copy when this function returns.
  Fd channel;
  std::optional<Error> error;
  if (elastic_) {
    Result<Fd> seat = elastic_->add(static_cast<std::size_t>(rank));
    if (seat) channel = std::move(*seat);
    if (!seat) error = seat.error();
  }
  if (!error) {
    Result<RankProcess> process = spawn_rank(identity_, rank, options_.command, exit_status, channel.get());
    if (process) {
      pids_[static_cast<std::size_t>(rank)] = process->pid;
      ++running_;
      add_source(std::move(process->output), rank, output_, options_.prefix == Prefix::kAll);
      add_source(std::move(process->errors), rank, *errors_, options_.prefix != Prefix::kNone);
      return true;
    }
    error = process.error();
  }
  fail(exit_status, Stage::kTerminating, kKillAfter, fmt::format("{}: {}\n", options_.name, error->message));
  signal_ranks(SIGTERM);
  return false;
}

// Handles the failure of a rank in an elastic job. Starts a replacement if more are allowed; otherwise the job
// continues with fewer ranks if enough are left. Returns true if the job continues.
bool Job::replace(std::int32_t rank, int wait_status) {
  const ElasticBounds& bounds = *options_.elastic;
  const std::string end = fmt::format("{}: rank {} {}", options_.name, rank, describe_end(wait_status));
  if (restarts_ < bounds.restarts) {
    ++restarts_;
    errors_->append(fmt::format("{}; replaced ({} of {} times)\n", end, restarts_, bounds.restarts));
    return start_rank(rank);
  }
  if (running_ < bounds.min_ranks) {
    errors_->append(fmt::format("{}: {} rank(s) are left, {} are needed, and {} were replaced, which is the most\n",
                                options_.name, running_, bounds.min_ranks, bounds.restarts));
    return false;
  }
  errors_->append(fmt::format("{}; the job goes on with {}\n", end, running_));
  return true;
}

// Answers the packets of the ranks of an elastic job. Kills a live rank that has not become ready in time while others
// wait for it, so that replace() handles its failure.
void Job::serve_elastic() {
  if (!elastic_ || stage_ != Stage::kRunning) return;
  const Clock::time_point now = Clock::now();
  const Status served = elastic_->serve(now, options_.elastic->rejoin);
  if (!served) {
    fail(1, Stage::kTerminating, kKillAfter, fmt::format("{}: {}\n", options_.name, served.error().message));
    signal_ranks(SIGTERM);
    return;
  }
  if (!elastic_->deadline() || now < *elastic_->deadline()) return;
  for (const std::size_t place : elastic_->missing()) {
    if (pids_[place] == 0) continue;
    errors_->append(fmt::format("{}: rank {} did not come within {} ms; ending it\n", options_.name, place,
                                options_.elastic->rejoin.count()));
    ::kill(pids_[place], SIGKILL);
  }
  elastic_->restart_wait();
}

int Job::run() {
  while (!finished()) {
    wait_for_events();
    read_sources();
    handle_signals();
    serve_elastic();
    check_deadlines();
    flush_sinks();
  }
  return failure_status_.value_or(0);
}

bool Job::finished() const { return running_ == 0 && sources_.empty() && !output_.pending() && !own_errors_.pending(); }

// The timeout for poll(): the milliseconds until the next deadline, at most 60,000; -1 if there is no deadline.
int Job::wait_ms() const {
  std::optional<Clock::time_point> next = stage_deadline_;
  const auto consider = [&](Clock::time_point deadline) {
    if (!next || deadline < *next) next = deadline;
  };
  if (drain_deadline_) consider(*drain_deadline_);
  if (elastic_ && elastic_->deadline() && stage_ == Stage::kRunning) {
    // For this deadline alone, poll() waits for at least kCheckInterval, also if the deadline has just passed. Another
    // deadline may be nearer.
    consider(std::max(*elastic_->deadline(), Clock::now() + kCheckInterval));
  }
  if (failure_status_ && running_ == 0 && (output_.pending() || own_errors_.pending())) {
    consider(last_progress_ + kStalledOutput);
  }
  if (!next) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void Job::wait_for_events() {
  std::vector<pollfd> entries;
  entries.push_back({.fd = signals_.get(), .events = POLLIN, .revents = 0});
  for (const Sink* sink : {&output_, &own_errors_}) {
    if (sink->pending()) entries.push_back({.fd = sink->fd(), .events = POLLOUT, .revents = 0});
  }
  for (const Source& source : sources_) {
    if (!source.sink->full()) entries.push_back({.fd = source.fd.get(), .events = POLLIN, .revents = 0});
  }
  if (elastic_) {
    for (const int fd : elastic_->descriptors()) entries.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  }
  ::poll(entries.data(), entries.size(), wait_ms());
}

// Reads once from each pipe, so that no rank can block the others. The pipes of a full sink are not read, so that their
// ranks must wait in write() when the pipes are full as well.
void Job::read_sources() {
  for (Source& source : sources_) {
    if (source.sink->full()) {
      drain_limit_ = Clock::now() + kMostDrain;
      continue;
    }
    const ssize_t bytes = ::read(source.fd.get(), read_buffer_.data(), read_buffer_.size());
    if (bytes > 0) {
      if (drain_deadline_) drain_deadline_ = std::min<Clock::time_point>(Clock::now() + kDrainAfterEnd, drain_limit_);
      source.relay.feed({read_buffer_.data(), static_cast<std::size_t>(bytes)});
    } else if (bytes == 0 || (errno != EAGAIN && errno != EINTR)) {
      source.relay.finish();
      source.fd.reset();
    }
  }
  std::erase_if(sources_, [](const Source& source) { return !source.fd.valid(); });
}

void Job::flush_sinks() {
  for (Sink* sink : {&output_, &own_errors_}) {
    if (sink->flush()) last_progress_ = Clock::now();
  }
  if (output_.failure() != 0 && stage_ == Stage::kRunning) {
    const bool closed = output_.failure() == EPIPE;
    fail(closed ? kExitSignalBase + SIGPIPE : 1, Stage::kTerminating, kKillAfter,
         closed ? ""
                : fmt::format("{}: cannot write to stdout: {}\n", options_.name, strerrordesc_np(output_.failure())));
    signal_ranks(SIGTERM);
  }
}

void Job::handle_signals() {
  signalfd_siginfo info = {};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (stage_ == Stage::kTerminating || stage_ == Stage::kKilled) {  // the ranks are already being ended: SIGKILL now
      stage_deadline_ = Clock::now();
      continue;
    }
    fail(kExitSignalBase + signal, Stage::kTerminating, std::max<Clock::duration>(options_.grace, kKillAfter), "");
    // The terminal (the kernel) sends its signals to the whole process group, so the ranks already have them.
    if (info.ssi_code != SI_KERNEL) signal_ranks(signal);
  }
  reap();
}

void Job::reap() {
  int wait_status = 0;
  std::vector<std::pair<std::int32_t, int>> ended;
  for (;;) {
    const pid_t pid = ::waitpid(-1, &wait_status, WNOHANG);
    if (pid <= 0) break;
    const auto found = std::find(pids_.begin(), pids_.end(), pid);
    if (found == pids_.end()) continue;
    *found = 0;
    ended.emplace_back(static_cast<std::int32_t>(found - pids_.begin()), wait_status);
  }
  // Ranks that were killed by a signal are handled first: they are taken as the cause, and the errors of other ranks as
  // the consequence, whatever the order in which waitpid() returns them.
  std::stable_partition(ended.begin(), ended.end(), [](const auto& end) { return WIFSIGNALED(end.second); });
  for (const auto& [rank, status] : ended) rank_ended(rank, status);
}

void Job::rank_ended(std::int32_t rank, int wait_status) {
  TUTTI_ASSERT(running_ > 0);
  --running_;
  const int status = exit_status_of(wait_status);
  if (elastic_) {
    elastic_->ended(static_cast<std::size_t>(rank));
    const bool hopeless = options_.elastic->no_restart_status == status;
    const bool goes_on = stage_ == Stage::kRunning && !elastic_->is_over() && !hopeless;
    if (status != 0 && goes_on && replace(rank, wait_status)) return;
  }
  if (status != 0 && stage_ == Stage::kRunning) {
    fail(status, Stage::kGrace, options_.grace,
         fmt::format("{}: rank {} {}\n", options_.name, rank, describe_end(wait_status)));
  }
  // A rank that was killed by a signal is taken as the cause, even if it is reaped in the grace period after a rank
  // with an error. So its status becomes the status of the job, unless that is already 128 or more.
  if (stage_ == Stage::kGrace && WIFSIGNALED(wait_status) && failure_status_ && *failure_status_ < kExitSignalBase) {
    failure_status_ = status;
    errors_->append(fmt::format("{}: rank {} {}\n", options_.name, rank, describe_end(wait_status)));
  }
  if (running_ == 0) all_ended();
}

// Called after the end of the last rank, or if no rank could be started. Kills the processes that ranks have started
// and not waited for (they have become children of this process), and starts the time limit for reading the pipes.
void Job::all_ended() {
  stage_deadline_.reset();
  end_children(spared_);
  drain_deadline_ = Clock::now() + kDrainAfterEnd;
  drain_limit_ = Clock::now() + kMostDrain;
  last_progress_ = Clock::now();
}

void Job::check_deadlines() {
  const Clock::time_point now = Clock::now();
  if (stage_deadline_ && now >= *stage_deadline_) {
    if (stage_ == Stage::kRunning) {
      fail(kExitTimeout, Stage::kTerminating, kKillAfter,
           fmt::format("{}: the job did not end within {} ms; ranks still running: {}\n", options_.name,
                       options_.timeout.count(), fmt::join(running_ranks(), ", ")));
      signal_ranks(SIGTERM);
    } else if (stage_ == Stage::kGrace) {
      fail(*failure_status_, Stage::kTerminating, kKillAfter,
           fmt::format("{}: ending ranks {} after {} ms of grace\n", options_.name, fmt::join(running_ranks(), ", "),
                       options_.grace.count()));
      signal_ranks(SIGTERM);
    } else {
      stage_ = Stage::kKilled;
      stage_deadline_.reset();
      signal_ranks(SIGKILL);
    }
  }
  if (drain_deadline_ && now >= *drain_deadline_) {
    // True: a sink is full because the reader of our output is slow, so pipes may still hold data. False: a process
    // that was not killed holds a pipe open.
    const bool blocked = output_.full() || errors_->full();
    if (blocked && (!failure_status_ || now < last_progress_ + kStalledOutput)) {
      drain_deadline_ = now + kDrainAfterEnd;
      drain_limit_ = now + kMostDrain;
    } else {
      for (Source& source : sources_) source.relay.finish();
      sources_.clear();
      drain_deadline_.reset();
    }
  }
  if (failure_status_ && running_ == 0 && now >= last_progress_ + kStalledOutput) {
    for (Sink* sink : {&output_, &own_errors_}) sink->drop();
  }
}

// Moves the job to a later stage, from which it goes on to the next one after `until_next`. The first call determines
// the exit status, which rank_ended() may still change. `message` is printed to stderr; it may be empty.
void Job::fail(int exit_status, Stage stage, Clock::duration until_next, const std::string& message) {
  if (!failure_status_) failure_status_ = exit_status;
  stage_ = stage;
  stage_deadline_ = running_ == 0 ? std::nullopt : std::optional(Clock::now() + until_next);
  errors_->append(message);
}

void Job::signal_ranks(int signal) {
  for (pid_t pid : pids_) {
    if (pid == 0) continue;
    ::kill(pid, signal);
    if (signal == SIGTERM) ::kill(pid, SIGCONT);  // a stopped rank cannot react to SIGTERM
  }
}

std::vector<std::int32_t> Job::running_ranks() const {
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    if (pids_[rank] != 0) ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return ranks;
}

}  // namespace

Result<int> launch(const LaunchOptions& options) {
  TUTTI_ASSERT(!options.command.empty());
  if (options.ranks < 1 || options.ranks > kMaxLocalRanks) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .message = fmt::format("{} ranks; 1 to {} can be started here", options.ranks, kMaxLocalRanks)};
  }
  Job job(options);
  TUTTI_TRY(job.start());
  return job.run();
}

}  // namespace tutti::tool
