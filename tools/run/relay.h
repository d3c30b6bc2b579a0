// From the pipes of many ranks to the tool's own stdout and stderr: whole lines at a time, each with its rank in front.
//
// Sink holds what is to be written to one of our descriptors; LineRelay cuts one pipe's bytes into lines and hands them
// to a Sink. Both are bounded: a Sink that is full() must not be fed, so its reader's slowness reaches the ranks
// through their full pipes. Bytes are passed as they are, whatever they mean. One thread owns all of this.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace tutti::tool {

inline constexpr std::size_t kMaxLineBytes = 64 << 10;    // longer lines are split here
inline constexpr std::size_t kMaxPendingBytes = 1 << 20;  // a Sink with more is full

// Where whole lines wait until the descriptor takes them. Borrows the descriptor, never changes its flags: it may be
// shared with the user's shell. SIGPIPE must be ignored.
class Sink {
 public:
  explicit Sink(int fd);

  void append(std::string_view bytes);  // dropped once closed()
  // Writes what the descriptor takes without blocking. True if anything was written.
  bool flush();

  int fd() const { return fd_; }
  bool pending() const { return written_ < buffer_.size(); }
  bool full() const { return buffer_.size() - written_ >= kMaxPendingBytes; }
  // Forgets what was not written yet.
  void drop();
  // Why nothing more can be written (an errno: EPIPE, ENOSPC ...), or 0.
  int failure() const { return failure_; }

 private:
  bool writable() const;

  int fd_;
  std::size_t write_limit_bytes_;  // most that one write may take without blocking
  int failure_ = 0;
  std::string buffer_;
  std::size_t written_ = 0;
};

// One pipe's way into a Sink.
class LineRelay {
 public:
  // An empty prefix passes the bytes on unchanged, still whole lines at a time.
  LineRelay(std::string prefix, Sink& sink) : prefix_(std::move(prefix)), sink_(&sink) {}

  void feed(std::string_view bytes);
  // End of the pipe: a last line without its newline is passed on, with one where there is a prefix.
  void finish();

 private:
  void emit(std::string_view line);  // `line` ends with its newline, or was split

  std::string prefix_;
  Sink* sink_;
  std::string partial_;  // the line under way, < kMaxLineBytes
};

}  // namespace tutti::tool
