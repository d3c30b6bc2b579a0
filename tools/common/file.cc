#include "tools/common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/assert.h"
#include "tools/common/fd.h"
#include "tools/common/messages.h"

namespace tutti::tool {
namespace {

constexpr int kMostLinks = 40;      // follow_links() follows at most this many links; Linux has the same limit
constexpr mode_t kFileMode = 0666;  // permissions of a new file, from which the kernel removes those in the umask

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// True for every path under /proc/ or /dev/fd/. Such a path usually stands for a file that a process has open, for
// example /proc/self/fd/1 or /dev/fd/63 (bash passes the latter for `>(command)`).
bool is_open_file(const std::string& path) { return path.starts_with("/proc/") || path.starts_with("/dev/fd/"); }

// Returns the path to which symbolic links lead, so that a rename does not replace the links themselves. Stops at an
// open file (is_open_file()): /dev/stdout, for example, leads to /proc/self/fd/1.
std::string follow_links(std::string path) {
  for (int link = 0; link < kMostLinks && !is_open_file(path); ++link) {
    std::error_code none;
    const std::filesystem::path next = std::filesystem::read_symlink(path, none);
    if (none) break;
    path = (std::filesystem::path(path).parent_path() / next).string();  // if `next` is absolute, the result is `next`
  }
  return path;
}

// True if the path exists and is not a regular file (for example a device or a pipe), or if it stands for an open file.
// A rename must not replace such a path, so write_file() writes to it directly.
bool is_stream(const std::string& path) {
  struct stat status = {};
  return is_open_file(path) || (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode));
}

Status write_all(int fd, const std::string& text, const std::string& path) {
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t bytes = ::write(fd, text.data() + written, text.size() - written);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return cannot_write(path, errno);
    written += static_cast<std::size_t>(bytes);
  }
  return {};
}

Error refusal(std::string message) { return {ErrorCode::kSystem, ErrorScope::kCall, -1, std::move(message)}; }

Status refuse_disk(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISBLK(status.st_mode)) return {};
  return refusal(fmt::format("{} is a disk or another block device: name a file", path));
}

// Opens a named pipe for writing. A blocking open() could wait for a reader without end, so this function tries a
// non-blocking open() again and again for kPipeWait. Errors: kSystem, for example if there is no reader by then.
Result<Fd> open_pipe(const std::string& path) {
  constexpr std::chrono::milliseconds kLook{10};
  const auto end = std::chrono::steady_clock::now() + kPipeWait;
  while (true) {
    Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.valid()) {
      if (::fcntl(file.get(), F_SETFL, 0) != 0) return cannot_write(path, errno);
      return file;
    }
    if (errno != ENXIO && errno != EINTR) return cannot_write(path, errno);
    if (std::chrono::steady_clock::now() >= end) {
      return refusal(fmt::format("{} is a pipe that nobody reads: start its reader first, or name a file", path));
    }
    std::this_thread::sleep_for(kLook);
  }
}

Status write_directly(const std::string& path, const std::string& text) {
  struct stat status = {};
  if (!is_open_file(path) && ::stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode)) {
    const Result<Fd> pipe = open_pipe(path);
    if (!pipe) return pipe.error();
    return write_all(pipe->get(), text, path);
  }
  const Fd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file.valid()) return cannot_write(path, errno);
  return write_all(file.get(), text, path);
}

Status write_renamed(const std::string& path, const std::string& temporary, const std::string& text) {
  const Fd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
  if (!file.valid()) return cannot_write(path, errno);
  TUTTI_TRY(write_all(file.get(), text, path));
  if (::fsync(file.get()) != 0) return cannot_write(path, errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return cannot_write(path, errno);
  const Fd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Makes the rename durable. Some file systems do not support this; an error is ignored, because the file is in place.
  if (folder.valid()) ::fsync(folder.get());
  return {};
}

}  // namespace

Status check_writable(const std::string& path) {
  const std::string place = follow_links(path);
  const std::string target = is_stream(place) ? place : folder_of(place);
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return cannot_write(path, EISDIR);
  TUTTI_TRY(refuse_disk(path));
  if (::access(target.c_str(), W_OK) != 0) return cannot_write(path, errno);
  return {};
}

Status write_file(const std::string& path, const std::string& text) {
  TUTTI_TRY(refuse_disk(path));
  const std::string place = follow_links(path);
  if (is_stream(place)) return write_directly(place, text);
  const std::string temporary = fmt::format("{}.{}.tmp", place, ::getpid());
  Status written = write_renamed(place, temporary, text);
  if (!written) ::unlink(temporary.c_str());
  return written;
}

Result<std::string> read_file(const std::string& path, std::size_t most_bytes) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) return cannot_open(path, errno);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return cannot_read(path, errno);
  std::string text(most_bytes, '\0');
  std::size_t filled = 0;
  while (filled < most_bytes) {
    pollfd wait{.fd = file.get(), .events = POLLIN, .revents = 0};
    const int ready = S_ISREG(status.st_mode) ? 1 : ::poll(&wait, 1, static_cast<int>(kPipeWait.count()));
    if (ready == 0) {
      return refusal(fmt::format("{}: nothing came for {} s: start its writer, or name a file", path,
                                 kPipeWait / std::chrono::seconds(1)));
    }
    const ssize_t bytes = ready < 0 ? -1 : ::read(file.get(), text.data() + filled, most_bytes - filled);
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (bytes < 0) return cannot_read(path, errno);
    if (bytes == 0) break;
    filled += static_cast<std::size_t>(bytes);
  }
  text.resize(filled);
  return text;
}

bool flush_output(std::string_view command) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0 && std::cout.flush().good() && std::ferror(stdout) == 0;
  if (flushed) return true;
  const int error = errno != 0 ? errno : EIO;  // errno is 0 if an earlier print, and not this flush, has failed
  fmt::print(stderr, "tutti{}{}: cannot write to stdout: {}\n", command.empty() ? "" : " ", command,
             ::strerrordesc_np(error));
  return false;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace tutti::tool
