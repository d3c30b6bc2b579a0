// Elastic: a rank's side of an elastic job, in which ranks that die are replaced or the job continues without them. A
// rank exchanges packets with the launcher (tools/run/elastic.cc) through an inherited SOCK_SEQPACKET socket. Each
// packet is one line of text:
//
//   rank to launcher
//     ready STEP      This rank needs a communicator. STEP: number of steps that it has done; -1: it has no state.
//     end STEP        This rank has done all steps and waits for the others.
//   launcher to rank
//     go MEETING RANK SIZE STEP SOURCE ID
//                     Join set-up number MEETING as rank RANK of SIZE, with the unique id ID. Continue at step STEP,
//                     with the state of rank SOURCE.
//     lost            A rank has exited, so a set-up that is in progress need not wait for it.
//     over            All ranks have done all steps.
#include "tutti/elastic.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/config.h"
#include "base/exceptions.h"
#include "base/thread.h"
#include "communicator/create.h"
#include "tutti/unique_id.h"

namespace tutti {
namespace detail {
namespace {

// After this many failures in a row the job fails on this rank. Failures are set-ups, restores and steps that have
// failed. The count starts again when this rank completes a step that it has not completed before, or when another rank
// dies.
constexpr int kMostFailures = 20;
constexpr std::size_t kMostBytes = 1024;

// Longest time in milliseconds that the watcher waits for a packet before it checks whether the destructor has asked it
// to end.
constexpr int kPollIntervalMs = 20;

// Watches the launcher's socket from a thread of its own during set-up. Sets `stop` when a packet arrives or the
// launcher closes the socket, so that set-up ends soon. The destructor ends the thread.
class LauncherWatcher {
 public:
  LauncherWatcher(int fd, std::shared_ptr<std::atomic<bool>> stop) {
    try {
      thread_ = start_thread([this, fd, stop = std::move(stop)] {
        pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
        while (!over_.load()) {
          if (::poll(&entry, 1, kPollIntervalMs) <= 0) continue;
          stop->store(true);
          return;
        }
      });
    } catch (const std::system_error&) {
      // Without a thread there is no watcher, but set-up still works. If a rank exits during set-up, set-up may then
      // last until its timeout.
    }
  }
  ~LauncherWatcher() {
    over_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  LauncherWatcher(const LauncherWatcher&) = delete;
  LauncherWatcher& operator=(const LauncherWatcher&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

Error launcher_failed(std::string_view what) {
  return {ErrorCode::kPeerLost, ErrorScope::kProcess, -1,
          fmt::format("the launcher of the elastic job {}: start the job anew", what)};
}

// Whether `fd` can be the socket that `tutti run --elastic` passes to its ranks. Checked before anything is written
// to it.
bool is_launchers_socket(int fd) {
  const auto option = [fd](int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
  };
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  return option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == SOCK_SEQPACKET &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
}

}  // namespace

class ElasticImpl {
 public:
  ElasticImpl(CommunicatorOptions options, int fd) : options_(std::move(options)), fd_(fd) {}

  bool next(std::uint64_t steps, const Elastic::Restore& restore) {
    while (status_.ok()) {
      if (communicator_ == nullptr && !meet("ready")) continue;
      if (!restored_) {
        const Status status = restore(*communicator_, source_);
        restored_ = status.ok();
        if (restored_) completed_steps_ = static_cast<std::int64_t>(step_);
        if (!restored_) fail(status);
        continue;
      }
      if (step_ < steps) return true;
      // meet() returns false if the launcher reported that the job is over, and also after an error.
      if (fd_ < 0 || !meet("end")) return false;
    }
    return false;
  }
  void done(const Status& status) {
    if (!status.ok()) return fail(status);
    completed_steps_ = static_cast<std::int64_t>(++step_);
    if (step_ > furthest_step_) failures_ = 0;
    furthest_step_ = std::max(furthest_step_, step_);
  }

  // Called in a catch block. The job is over for this rank; the abort of its communicator notifies the peers.
  void fail_by_exception() noexcept {
    status_ = error_of_exception(ErrorScope::kProcess, -1, "the elastic job");
    runs_through([this] { leave(); });
  }

  std::uint64_t step() const { return step_; }
  std::int32_t meeting() const { return meeting_; }
  Communicator& communicator() { return *communicator_; }
  const Status& status() const { return status_; }

 private:
  void fail(const Status& status) {
    if (fd_ >= 0) {
      count_failure(status.error());
    } else {
      status_ = status;
    }
    leave();
  }
  // Ends the job on this rank with `error` if it is one failure too many. If no rank dies, the launcher does not notice
  // that the ranks repeat the same failure, so only this limit ends the job.
  void count_failure(Error error) {
    if (++failures_ < kMostFailures) return;
    error.message += fmt::format("; the job has failed {} times in a row without completing a step", failures_);
    status_ = std::move(error);
  }
  // Aborts the communicator, so that peers get an error if they are in a call or make one.
  void leave() {
    if (communicator_ != nullptr) communicator_->abort();
    aborted_ = std::move(communicator_);
  }
  // Makes the next communicator. `why`: the word for the launcher, "ready" or "end". Returns false if the job is
  // over or has failed (status_).
  bool meet(const char* why) {
    if (fd_ < 0) {
      auto made = Communicator::create(options_);
      if (made) {
        communicator_ = *std::move(made);
        meeting_ = 1;
      } else {
        status_ = made.error();
      }
      return status_.ok();
    }
    while (status_.ok()) {
      const std::string word = fmt::format("{} {}", why, completed_steps_);
      aborted_.reset();
      if (::send(fd_, word.data(), word.size(), MSG_NOSIGNAL) < 0) {
        status_ = launcher_failed("has ended");
        return false;
      }
      auto options = receive_assignment();
      if (!options) return false;
      leave();
      aborted_.reset();
      auto made = create_there(*options);
      if (made) {
        communicator_ = *std::move(made);
        return true;
      }
      count_failure(std::move(made).error());
      why = "ready";
    }
    return false;
  }
  Result<std::unique_ptr<Communicator>> create_there(const CommunicatorOptions& options) const {
    // Shared with the thread of the watcher, which sets it, and with the set-up, because create() takes a shared_ptr.
    const auto stop = std::make_shared<std::atomic<bool>>(false);
    const LauncherWatcher watcher(fd_, stop);
    return create(options, {}, stop);
  }
  // Waits for the launcher's next assignment (a "go" packet). Returns nothing if the job is over or has failed
  // (status_).
  std::optional<CommunicatorOptions> receive_assignment() {
    std::string word;
    std::istringstream line;
    do {
      const std::string text = receive();
      if (text.empty()) {
        status_ = launcher_failed("has ended");
        return std::nullopt;
      }
      line = std::istringstream(text);
      line >> word;
      // A rank has died, so the failures before that do not count as repetitions of the same failure. The job still
      // cannot fail without end, because the launcher limits the number of deaths.
      if (word == "lost") failures_ = 0;
    } while (word == "lost");
    if (word == "over") return std::nullopt;
    CommunicatorOptions options = options_;
    std::string id_text;
    line >> meeting_ >> options.rank >> options.size >> step_ >> source_ >> id_text;
    auto id = UniqueId::from_text(id_text);
    if (word != "go" || line.fail() || !id) {
      status_ = launcher_failed("sent a malformed message");
      return std::nullopt;
    }
    options.unique_id = *id;
    // The launcher made the id, and its rendezvous server expects a combination of the id's key and the launcher's job
    // key. That job key is in this rank's environment (TUTTI_JOB_KEY), and a key of the program would replace it.
    options.job_key_file.clear();
    options.job_key.clear();
    restored_ = false;
    return options;
  }

  // Returns an empty string if the launcher has exited or the socket has failed.
  std::string receive() const {
    std::array<char, kMostBytes> bytes;
    ssize_t length = 0;
    do {
      length = ::recv(fd_, bytes.data(), bytes.size(), 0);
    } while (length < 0 && errno == EINTR);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
  }

  const CommunicatorOptions options_;
  const int fd_;  // owned by the process and never closed here; -1: not an elastic job
  std::unique_ptr<Communicator> communicator_;
  // The aborted communicator. It is destroyed in meet() or with this object; the caller must have released all Memory
  // of it by then.
  std::unique_ptr<Communicator> aborted_;
  std::uint64_t step_ = 0;
  std::int64_t completed_steps_ = -1;
  std::int32_t meeting_ = 0;
  std::int32_t source_ = 0;
  bool restored_ = false;            // whether `restore` has succeeded in the current communicator
  int failures_ = 0;                 // number of failures in a row, see kMostFailures
  std::uint64_t furthest_step_ = 0;  // the highest value of step_ after a completed step
  Status status_;
};

}  // namespace detail

namespace {

Result<std::unique_ptr<detail::ElasticImpl>> join_elastic(const CommunicatorOptions& options) {
  auto config = parse_config(environment_variables());
  if (!config) return config.error();
  const int fd = config->elastic_fd.value_or(-1);
  if (fd >= 0 && !detail::is_launchers_socket(fd)) {
    return Error{
        ErrorCode::kConfig, ErrorScope::kProcess, -1,
        fmt::format("TUTTI_ELASTIC_FD={0} is not the launcher's socket: a program between `tutti run --elastic` and "
                    "this one has closed it (in Python, give subprocess pass_fds=({0},)), or the variable is "
                    "not from this job",
                    fd)};
  }
  return std::make_unique<detail::ElasticImpl>(options, fd);
}

}  // namespace

Result<Elastic> Elastic::join(const CommunicatorOptions& options) {
  auto joined = guarded("Elastic::join", [&] { return join_elastic(options); });
  if (!joined) return std::move(joined).error();
  return Elastic(*std::move(joined));
}

Elastic::Elastic(std::unique_ptr<detail::ElasticImpl> impl) : impl_(std::move(impl)) {}
Elastic::Elastic(Elastic&&) noexcept = default;
Elastic& Elastic::operator=(Elastic&&) noexcept = default;
Elastic::~Elastic() = default;
bool Elastic::next(std::uint64_t steps, const Restore& restore) {
  try {
    return impl_->next(steps, restore);
  } catch (const std::bad_alloc&) {  // other exceptions come from the caller's `restore` and are passed on
    impl_->fail_by_exception();
    return false;
  }
}
void Elastic::done(const Status& status) {
  try {
    impl_->done(status);
  } catch (...) {
    impl_->fail_by_exception();
  }
}
std::uint64_t Elastic::step() const { return impl_->step(); }
std::int32_t Elastic::meeting() const { return impl_->meeting(); }
Communicator& Elastic::communicator() { return impl_->communicator(); }
const Status& Elastic::status() const { return impl_->status(); }

}  // namespace tutti
