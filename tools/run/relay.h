// Relays the output of many ranks from their pipes to the stdout and stderr of the tool: whole lines at a time, each
// with the prefix of its rank, if prefixes are requested.
//
// A LineRelay splits the bytes of one pipe into lines and passes them to a Sink. A Sink stores bytes until its
// descriptor accepts them. Both have bounded memory, because callers must not pass output of ranks to a Sink that is
// full(). So if the reader of the tool's output is slow, the pipes of the ranks become full and the ranks wait. Bytes
// other than newlines are not interpreted. All of this is used by one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace tutti::tool {

inline constexpr std::size_t kMaxLineBytes = 64 << 10;    // longer lines are split into several
inline constexpr std::size_t kMaxPendingBytes = 1 << 20;  // a Sink with at least this many bytes is full

// Stores output until its descriptor accepts it. The Sink does not close the descriptor and never sets flags such as
// O_NONBLOCK, because the user's shell may share the descriptor. The process must ignore SIGPIPE.
class Sink {
 public:
  explicit Sink(int fd);

  void append(std::string_view bytes);  // stores the bytes, or drops them if writing has failed (failure())
  // Writes as many stored bytes as the descriptor accepts without blocking. Returns true if anything was written.
  bool flush();

  int fd() const { return fd_; }
  bool pending() const { return written_ < buffer_.size(); }
  bool full() const { return buffer_.size() - written_ >= kMaxPendingBytes; }
  // Drops the stored bytes that were not written yet.
  void drop();
  // The errno with which a write failed (EPIPE, ENOSPC, ...), after which nothing is written any more; 0: none failed.
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

  // Takes bytes that were read from the pipe, and passes on the lines that are complete or have reached kMaxLineBytes.
  void feed(std::string_view bytes);
  // To be called at the end of the pipe. Passes on the last line if it has no newline; a newline is added to it unless
  // the prefix is empty.
  void finish();

 private:
  // Passes on a line, which ends with a newline unless it is a part of a longer line or the last one.
  void emit(std::string_view line);

  std::string prefix_;
  Sink* sink_;
  std::string partial_;  // the line that is not complete yet, shorter than kMaxLineBytes
};

}  // namespace tutti::tool
