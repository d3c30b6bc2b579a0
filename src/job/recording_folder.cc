#include "job/recording_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/recording.h"
#include "base/thread.h"

namespace tutti {
namespace {

// Maximum number of files of exited processes and ended communicators, of all jobs together. Checked only when the
// folder is opened.
constexpr std::size_t kMostOld = 256;
// Maximum number of files that one RecordingFolder keeps after mark_completed() has renamed them. If there are more,
// the one that was renamed first is removed.
constexpr std::size_t kMostEnded = 8;
// The age, in seconds, at which files of exited processes and of ended communicators are removed even if there are few.
constexpr std::int64_t kOldS = std::int64_t{24} * 3600;
constexpr std::int64_t kUnfinishedS = 60;  // in seconds; to write the header of a new file takes less time
// Disk space that stays free: a quarter of the file system, but at most kLeastFreeBytes.
constexpr std::uint64_t kLeastFreeShare = 4;
constexpr std::uint64_t kLeastFreeBytes = 1 << 30;

// Returns an errno value, or 0. Signals are blocked, because a signal makes posix_fallocate() fail, and the next
// attempt starts from the beginning: a program with a frequent timer would never get its file.
int allocate(int fd, std::size_t bytes) {
  const SignalsBlocked blocked;
  int error = EINTR;  // also the result if the process was stopped and continued
  while (error == EINTR) error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  return error;
}

Error trouble(const std::string& what) {
  return {ErrorCode::kSystem, ErrorScope::kCall, -1, fmt::format("{}: {}", what, std::strerror(errno))};
}

// Returns true if the process that created the file has exited, if its communicator has ended, or if the file has no
// header, although it is older than kUnfinishedS. If the file cannot be read, has another format version, or was
// created in another PID namespace by a communicator that has not ended, its process is assumed to be alive.
bool is_over(int folder, const char* name, std::int64_t age_s) {
  const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  alignas(recording::Header) std::array<std::byte, sizeof(recording::Header)> bytes{};
  const ssize_t got = pread(fd, bytes.data(), bytes.size(), 0);
  close(fd);
  const bool unfinished_is_over = age_s > kUnfinishedS;
  if (got < 0) return false;
  if (got < static_cast<ssize_t>(bytes.size())) return unfinished_is_over;
  const auto& header = *reinterpret_cast<const recording::Header*>(bytes.data());
  if (header.magic == 0) return unfinished_is_over;  // it is written last
  if (header.magic != recording::kMagic || header.version != recording::kVersion) return false;
  if (header.ended.load(std::memory_order_relaxed) != 0) return true;
  if (header.pid_namespace != recording::own_pid_namespace()) return false;
  return recording::process_start(header.pid) != header.process_start;
}

struct OldFile {
  std::string name;
  std::int64_t made_s;
};

}  // namespace

MappedRecording::~MappedRecording() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

RecordingFolder::RecordingFolder(std::vector<std::string> candidates, Log log)
    : candidates_(std::move(candidates)), log_(log) {
  std::reverse(candidates_.begin(), candidates_.end());  // the next candidate is the last element
}

RecordingFolder::~RecordingFolder() {
  if (fd_ >= 0) close(fd_);
}

// Accepts a folder only if it belongs to this user and no other user, except root, can write to it, because another
// user could place links under the names of our files.
Status RecordingFolder::open_one(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return trouble(path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return trouble(path);
  struct stat about {};
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  if (fstat(fd, &about) != 0 || about.st_uid != geteuid() || (about.st_mode & kOthersWrite) != 0) {
    close(fd);
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
                 path + ": belongs to another user, or others may write to it: name another in TUTTI_RECORD_DIR"};
  }
  fd_ = fd;
  prune();
  return {};
}

// Opens the next usable candidate, if no folder is open. Returns whether a folder is open then.
bool RecordingFolder::open() {
  while (fd_ < 0 && !candidates_.empty()) {
    const std::string path = std::move(candidates_.back());
    candidates_.pop_back();
    const Status opened = open_one(path);
    if (!opened.ok()) trouble_ += (trouble_.empty() ? "" : "; ") + opened.error().message;
  }
  return fd_ >= 0;
}

void RecordingFolder::prune() const {
  const int again = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct Close {
    void operator()(DIR* open) const { closedir(open); }
  };
  std::unique_ptr<DIR, Close> folder(again < 0 ? nullptr : fdopendir(again));
  if (folder == nullptr) {
    if (again >= 0) close(again);
    return;
  }
  const std::int64_t now_s = recording::unix_ns() / 1'000'000'000;
  std::vector<OldFile> old;
  while (const dirent* entry = readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (!recording::is_recording(entry->d_name)) continue;
    struct stat about {};
    if (fstatat(fd_, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode)) continue;
    const bool removable = std::string_view(entry->d_name).ends_with(recording::kEndedSuffix) ||
                           is_over(fd_, entry->d_name, now_s - about.st_mtim.tv_sec);
    if (removable) old.push_back({.name = entry->d_name, .made_s = about.st_mtim.tv_sec});
  }
  folder.reset();
  std::sort(old.begin(), old.end(), [](const OldFile& a, const OldFile& b) { return a.made_s > b.made_s; });
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (i >= kMostOld || now_s - old[i].made_s > kOldS) unlinkat(fd_, old[i].name.c_str(), 0);
  }
}

Result<std::unique_ptr<MappedRecording>> RecordingFolder::try_make(const std::string& name, std::size_t bytes) const {
  struct statvfs room {};
  if (fstatvfs(fd_, &room) != 0) return trouble("the room for recordings");
  const std::uint64_t free_bytes = std::uint64_t{room.f_bavail} * room.f_frsize;
  const std::uint64_t all_bytes = std::uint64_t{room.f_blocks} * room.f_frsize;
  const std::uint64_t left_bytes = std::min(all_bytes / kLeastFreeShare, kLeastFreeBytes);
  if (free_bytes < bytes + left_bytes) {
    return Error{
        ErrorCode::kSystem, ErrorScope::kCall, -1,
        fmt::format("{} of {} bytes are free, and {} of them are left to others", free_bytes, all_bytes, left_bytes)};
  }
  // allocated before the file is created, because an exception would leave the file behind
  auto mapped = std::make_unique<MappedRecording>();
  const int fd = openat(fd_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return trouble(name);
  const auto fail = [&](const char* what, int error) {
    close(fd);
    unlinkat(fd_, name.c_str(), 0);
    errno = error;
    return trouble(what + name);
  };
  if (const int error = allocate(fd, bytes); error != 0) return fail("room for ", error);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return fail("mapping ", errno);
  close(fd);
  mapped->data_ = static_cast<std::byte*>(data);
  mapped->bytes_ = bytes;
  return mapped;
}

std::unique_ptr<MappedRecording> RecordingFolder::make(const std::string& name, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  while (open()) {
    auto made = try_make(name, bytes);
    if (made) return *std::move(made);
    if (!warned_) trouble_ += (trouble_.empty() ? "" : "; ") + made.error().message;
    if (candidates_.empty()) break;
    close(std::exchange(fd_, -1));
    ended_.clear();
  }
  if (!std::exchange(warned_, true)) {
    log_.write(LogLevel::kWarn,
               "no flight recorder ({}): name a folder with room in TUTTI_RECORD_DIR, or set TUTTI_RECORD=0", trouble_);
  }
  return nullptr;
}

void RecordingFolder::discard(const std::string& name) noexcept {
  const std::scoped_lock lock(mutex_);
  if (fd_ >= 0) unlinkat(fd_, name.c_str(), 0);
}

void RecordingFolder::mark_completed(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  if (fd_ < 0) return;
  std::string ended = name.substr(0, name.size() - recording::kSuffix.size());
  ended += recording::kEndedSuffix;
  // A failure normally means that the file was removed, or is in another folder. Then there is nothing to count.
  if (renameat(fd_, name.c_str(), fd_, ended.c_str()) != 0) return;
  ended_.push_back(std::move(ended));
  if (ended_.size() <= kMostEnded) return;
  unlinkat(fd_, ended_.front().c_str(), 0);
  ended_.pop_front();
}

}  // namespace tutti
