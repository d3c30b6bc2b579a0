// Relays the output of many ranks from their pipes to the stdout and stderr of the tool: whole lines at a time, each
// with the prefix of its rank.
//
// A LineRelay splits the bytes of one pipe into lines and passes them to a Sink. A Sink stores bytes until its
// descriptor accepts them. Both have bounded memory: a Sink that is full() must not be fed. If its reader is slow, the
// pipes become full and the ranks wait. Bytes are not interpreted. All of this is used by one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace tutti::tool {

inline constexpr std::size_t kMaxLineBytes = 64 << 10;    // longer lines are split
inline constexpr std::size_t kMaxPendingBytes = 1 << 20;  // a Sink with at least this many bytes is full

// Stores whole lines until the descriptor accepts them. The Sink borrows the descriptor and never changes its flags,
// because the user's shell may share it. SIGPIPE must be ignored.
class Sink {
 public:
  explicit Sink(int fd);

  void append(std::string_view bytes);  // bytes are dropped after a failure
  // Writes as many bytes as the descriptor accepts without blocking. Returns true if anything was written.
  bool flush();

  int fd() const { return fd_; }
  bool pending() const { return written_ < buffer_.size(); }
  bool full() const { return buffer_.size() - written_ >= kMaxPendingBytes; }
  // Drops the bytes that were not written yet.
  void drop();
  // The errno after which writing stopped (EPIPE, ENOSPC, ...), or 0.
  int failure() const { return failure_; }

 private:
  bool writable() const;

  int fd_;
  std::size_t write_limit_bytes_;  // largest write that cannot block
  int failure_ = 0;
  std::string buffer_;
  std::size_t written_ = 0;
};

// Splits the bytes of one pipe into lines for a Sink.
class LineRelay {
 public:
  // With an empty prefix, lines are passed on unchanged.
  LineRelay(std::string prefix, Sink& sink) : prefix_(std::move(prefix)), sink_(&sink) {}

  // Adds bytes that were read from the pipe.
  void feed(std::string_view bytes);
  // To be called at the end of the pipe. Passes on a last line that has no newline; a newline is added if there is a
  // prefix.
  void finish();

 private:
  void emit(std::string_view line);  // `line` ends with a newline, or was split

  std::string prefix_;
  Sink* sink_;
  std::string partial_;  // the incomplete line, < kMaxLineBytes
};

}  // namespace tutti::tool
