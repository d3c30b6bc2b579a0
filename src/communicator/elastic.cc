// A rank's side of an elastic job. It speaks with the launcher by an inherited socket of packets, each a line of text:
//
//   ready STEP        this rank needs a communicator; STEP: steps that it has done, -1: it has no state
//   end STEP          it has done all steps, and waits for the others
//   go MEETING RANK SIZE STEP SOURCE ID    meet there, as that rank; go on at that step, with that rank's state
//   lost              a rank has ended: whoever is on its way to a meeting need not wait for it there
//   over              all ranks have done all steps
//
// The other side is tools/run/elastic.cc.
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

constexpr int kMostFailedMeetings = 20;  // in a row
constexpr std::size_t kMostBytes = 1024;

constexpr int kLookEveryMs = 20;

// Sets `stop` once the launcher has something to say, until this ends.
class Watch {
 public:
  Watch(int fd, std::shared_ptr<std::atomic<bool>> stop) {
    try {
      thread_ = start_thread([this, fd, stop = std::move(stop)] {
        pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
        while (!over_.load()) {
          if (::poll(&entry, 1, kLookEveryMs) <= 0) continue;
          stop->store(true);
          return;
        }
      });
    } catch (const std::system_error&) {  // then a death on the way costs the set-up's deadline
    }
  }
  ~Watch() {
    over_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

Error launcher_lost(std::string_view what) {
  return {ErrorCode::kPeerLost, ErrorScope::kProcess, -1,
          fmt::format("the launcher of the elastic job {}: start the job anew", what)};
}

// Whether it can be what `tutti run --elastic` gives its ranks. Checked before anything is written to it.
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
        if (restored_) has_done_ = static_cast<std::int64_t>(step_);
        if (!restored_) fail(status);
        continue;
      }
      if (step_ < steps) return true;
      if (fd_ < 0 || !meet("end")) return false;  // or there is an error, or it was over
    }
    return false;
  }
  void done(const Status& status) {
    if (!status.ok()) return fail(status);
    has_done_ = static_cast<std::int64_t>(++step_);
  }

  // While the exception is handled. The job is over for this rank; its peers hear of it.
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
    if (fd_ < 0) status_ = status;
    leave();
  }
  // Peers that are in a call, or make one, hear of it.
  void leave() {
    if (communicator_ != nullptr) communicator_->abort();
    left_ = std::move(communicator_);
  }
  // False: it was over, or failed.
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
    for (int failed = 0; failed < kMostFailedMeetings && status_.ok(); ++failed) {
      const std::string word = fmt::format("{} {}", why, has_done_);
      left_.reset();
      if (::send(fd_, word.data(), word.size(), MSG_NOSIGNAL) < 0) {
        status_ = launcher_lost("has ended");
        return false;
      }
      auto options = hear();
      if (!options) return false;
      leave();
      left_.reset();
      auto made = create_there(*options);
      if (made) {
        communicator_ = *std::move(made);
        return true;
      }
      last_failure_ = std::move(made).error();
      why = "ready";
    }
    if (status_.ok()) status_ = last_failure_;
    return false;
  }
  Result<std::unique_ptr<Communicator>> create_there(const CommunicatorOptions& options) const {
    const auto stop = std::make_shared<std::atomic<bool>>(false);  // shared with the set-up, which may outlive the call
    const Watch watch(fd_, stop);
    return create(options, {}, stop);
  }
  // Nothing: it is over, or status_ says why.
  std::optional<CommunicatorOptions> hear() {
    std::string word;
    std::istringstream line;
    do {
      const std::string text = receive();
      if (text.empty()) {
        status_ = launcher_lost("has ended");
        return std::nullopt;
      }
      line = std::istringstream(text);
      line >> word;
    } while (word == "lost");
    if (word == "over") return std::nullopt;
    CommunicatorOptions options = options_;
    std::string id_text;
    line >> meeting_ >> options.rank >> options.size >> step_ >> source_ >> id_text;
    auto id = UniqueId::from_text(id_text);
    if (word != "go" || line.fail() || !id) {
      status_ = launcher_lost("said something that cannot be read");
      return std::nullopt;
    }
    options.unique_id = *id;
    options.job_key_file.clear();  // the launcher made the id, with its own key mixed in, which the environment names
    restored_ = false;
    return options;
  }

  // Empty: there is no launcher any more.
  std::string receive() const {
    std::array<char, kMostBytes> bytes;
    ssize_t length = 0;
    do {
      length = ::recv(fd_, bytes.data(), bytes.size(), 0);
    } while (length < 0 && errno == EINTR);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
  }

  const CommunicatorOptions options_;
  const int fd_;  // of the process, which keeps it; -1: no elastic job
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> left_;  // aborted; ends when no memory of it can be there any more
  std::uint64_t step_ = 0;
  std::int64_t has_done_ = -1;
  std::int32_t meeting_ = 0;
  std::int32_t source_ = 0;
  bool restored_ = false;  // in this communicator
  Status status_;
  Error last_failure_;
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
        fmt::format("TUTTI_ELASTIC_FD={0} is no launcher's socket: a program between `tutti run --elastic` and "
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
  } catch (const std::bad_alloc&) {  // other exceptions are the caller's own, out of `restore`
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
