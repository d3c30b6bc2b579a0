// Status, Result<T> and Error: errors as values. Functions of Tutti that can fail for a reason outside the program
// return a Status or a Result<T>; the comments of a few functions state another way. A broken invariant inside Tutti is
// an assertion failure instead. Nothing here throws, except std::bad_alloc when an error message is copied or
// formatted, and exceptions of T itself. All types are values, which can be passed between threads, and copied if T can
// be copied.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/export.h"

namespace tutti {

// The largest thing that an error has made unusable. After kCall the communicator works as before. After kConnection or
// kCommunicator every further collective, send and receive on the communicator fails, with the same cause; agree(),
// shrink() and the queries still work. After kProcess nothing of Tutti can be used in this process.
enum class ErrorScope : std::uint8_t { kCall, kConnection, kCommunicator, kProcess };

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  // a wrong argument of this rank or, if Error::rank is a rank, a buffer of that rank was unusable
  kMismatch,         // the ranks of one call disagree on its arguments; Error::rank is a rank that differs
  kInvalidPlan,      // the text of a plan is malformed, or the verifier has found the plan incorrect
  kUnsupported,      // the arguments are valid, but Tutti cannot carry out such a call, in general or on this machine
  kConfig,           // an option or a TUTTI_* variable is unknown or has a bad value
  kTimeout,          // a deadline passed; the message names the missing ranks, if they are known
  kAborted,          // abort() on this rank or a peer, or the destructor; a uniform call failed on another rank
  kPeerLost,         // the process of a peer ended, its connection broke, or the peer left the communicator
  kRefused,          // a rank was not accepted: other job, user or version, malformed message, or too late for agree()
  kSystem,           // the operating system refused: out of memory, descriptors or disk space, or no permission
  kDevice,           // the CUDA driver returned an error, or a kernel failed; the CUDA context may be lost
  kDamaged,          // data was altered in transit (option `checksum`, or the path test of set-up)
};
inline constexpr ErrorCode kLastErrorCode = ErrorCode::kDamaged;  // the highest value

// One failure, with a message that a person can act on.
struct Error {
  ErrorCode code = ErrorCode::kSystem;
  ErrorScope scope = ErrorScope::kCall;
  std::int32_t rank = -1;  // the rank that caused the failure; -1: not known, several ranks, or a cause that is no rank
  std::string message;     // the cause, the rank, peer and operation if they are known, and how to fix it

  bool operator==(const Error&) const = default;
};

// The name of the code, a colon and the message, for example "invalid argument: count is 3 but output is null".
TUTTI_API std::string to_string(const Error& error);
TUTTI_API std::string_view to_string(ErrorCode code);
TUTTI_API std::string_view to_string(ErrorScope scope);

namespace detail {
// Called if value() is used on a failed result, or error() on a successful one. Prints `what` and, if `error` is not
// null, the error. Then aborts the process.
[[noreturn]] TUTTI_API void bad_result_access(const char* what, const Error* error);
}  // namespace detail

// Either a T or an Error. Calling value() on an error, or error() on a value, is a bug and aborts the process with a
// message.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT(google-explicit-constructor): `return value;`
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor): `return error;`

  // True if there is a value. Check it before value() and error().
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  T& value() & { return require_value(), *value_; }
  const T& value() const& { return require_value(), *value_; }
  T value() && { return require_value(), *std::move(value_); }  // by value: `for (x : *f())` must not dangle
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }

  const Error& error() const& { return require_error(), error_; }
  Error error() && { return require_error(), std::move(error_); }

 private:
  void require_value() const {
    if (!value_) detail::bad_result_access("value() of a failed Result", &error_);
  }
  void require_error() const {
    if (value_) detail::bad_result_access("error() of a good Result", nullptr);
  }

  std::optional<T> value_;
  Error error_;
};

// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor): `return error;`

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }

  const Error& error() const& { return require_error(), *error_; }
  Error error() && { return require_error(), std::move(*error_); }

 private:
  void require_error() const {
    if (!error_) detail::bad_result_access("error() of a good Status", nullptr);
  }

  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace tutti
