#include "tools/run/relay.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/assert.h"

namespace tutti::tool {

Sink::Sink(int fd) : fd_(fd), write_limit_bytes_(PIPE_BUF) {
  struct stat status = {};
  // If poll() reports a pipe as writable, it accepts PIPE_BUF bytes without blocking. A regular file accepts any
  // number.
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) write_limit_bytes_ = kMaxPendingBytes;
}

void Sink::append(std::string_view bytes) {
  if (failure_ == 0) buffer_.append(bytes);
}

bool Sink::writable() const {
  pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;  // also true after POLLERR, so that flush() calls write(), which returns the errno
}

bool Sink::flush() {
  bool progress = false;
  while (pending() && failure_ == 0 && writable()) {
    const std::size_t bytes = std::min(buffer_.size() - written_, write_limit_bytes_);
    const ssize_t taken = ::write(fd_, buffer_.data() + written_, bytes);
    if (taken < 0) {
      if (errno == EAGAIN) break;
      if (errno != EINTR) failure_ = errno;
      continue;
    }
    written_ += static_cast<std::size_t>(taken);
    progress = true;
  }
  if (failure_ != 0 || !pending()) {
    buffer_.clear();
    written_ = 0;
  } else if (written_ >= kMaxPendingBytes / 2) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
  return progress;
}

void Sink::drop() {
  buffer_.clear();
  written_ = 0;
}

void LineRelay::emit(std::string_view line) {
  sink_->append(prefix_);
  sink_->append(line);
  if (!prefix_.empty() && (line.empty() || line.back() != '\n')) sink_->append("\n");
}

void LineRelay::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t line_bytes = newline == std::string_view::npos ? bytes.size() : newline + 1;
    const std::size_t taken = std::min(line_bytes, kMaxLineBytes - partial_.size());
    partial_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (partial_.back() == '\n' || partial_.size() == kMaxLineBytes) {
      emit(partial_);
      partial_.clear();
    }
  }
  TUTTI_ASSERT(partial_.size() < kMaxLineBytes);
}

void LineRelay::finish() {
  if (!partial_.empty()) emit(partial_);
  partial_.clear();
}

}  // namespace tutti::tool
